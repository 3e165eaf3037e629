package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

func imageImport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import SOURCE NAME",
		Short: "make an image of a root file system of this machine",
		Long: `Make an image of the store from a root file system of this machine, and print its
digest. NAME is what the image is called from then on, as rootfs:1. SOURCE is
  a directory
  a squashfs file, as of Enroot or mksquashfs
  a tar archive, plain, gzip or zstd, as of docker export
or anything that gangway image pull takes, to keep it under another name.

Nothing is unpacked or copied on the way: SOURCE is read twice, and must not change
meanwhile. The same files give the same image. What is mounted below a directory comes
along; sockets stay behind. Nothing in the files is looked at or run, such as Enroot's
/etc/rc; how the image is to be run is said with --entrypoint and the like.

Squashfs files and archives are taken apart in this process, so that root may only
import directories.`,
		Example: `gangway image import ./rootfs rootfs:1
gangway image import ubuntu.sqsh ubuntu:24.04
gangway image import --env LANG=C.UTF-8 --workdir /work export.tar tools:2
gangway image import docker-archive:torch.tar torch:mine`,
		SuggestFor: []string{"load", "create"},
	}
	f := &importFlags{pullFlags: newPullFlags(env, cmd), cmd: cmd}
	fl := cmd.Flags()
	fl.BoolVarP(&f.o.OneFileSystem, "one-file-system", "x", false, "leave out what is mounted below a directory")
	fl.StringArrayVar(&f.o.Env, "env", nil, "NAME=VALUE in the environment of what is run (repeatable)")
	fl.StringArrayVar(&f.o.Entrypoint, "entrypoint", nil, "program that is run, or one of its arguments (repeatable)")
	fl.StringArrayVar(&f.o.Cmd, "cmd", nil, "what is run, or added to the entrypoint, unless something else is said (repeatable)")
	fl.StringVar(&f.o.WorkingDir, "workdir", "", "directory that it is run in")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.run(cmd.Context(), args[0], args[1])
	}
	return cmd
}

// importFlags are the flags of import.
type importFlags struct {
	*pullFlags
	cmd *cobra.Command
	o   image.RootOptions
}

func (f *importFlags) run(ctx context.Context, source, name string) error {
	as, err := reference.Parse(name)
	if err != nil {
		return err
	}
	if as.Kind != reference.Registry || as.Digest != "" {
		return fault.Usage(fmt.Errorf("import as %s: that is no name for an image", name), "give a name as rootfs:1, or HOST/REPOSITORY:TAG")
	}
	for _, e := range f.o.Env {
		if strings.IndexByte(e, '=') < 1 {
			return fault.Usage(fmt.Errorf("--env %s: it is not NAME=VALUE", e), "write --env NAME=VALUE")
		}
	}
	if dir := f.o.WorkingDir; dir != "" && !filepath.IsAbs(dir) {
		return fault.Usage(fmt.Errorf("--workdir %s: it is no absolute path", dir), "write --workdir /"+dir)
	}
	p, err := f.puller()
	if err != nil {
		return err
	}
	defer p.client.Close()
	file, err := f.file(source)
	if err != nil {
		return err
	}
	if file != "" {
		return p.root(ctx, file, key(as), f.o)
	}
	for _, flag := range []string{"one-file-system", "env", "entrypoint", "cmd", "workdir"} {
		if f.cmd.Flags().Changed(flag) {
			return fault.Usage(fmt.Errorf("--%s: %s is an image already, and stays as it is", flag, source), "leave out --"+flag)
		}
	}
	return p.pull(ctx, source, key(as))
}

// file returns the path that a source is, "" where it is a reference of an image. What
// is there by that name is meant, also where a registry could have such an image.
func (f *importFlags) file(source string) (string, error) {
	if _, err := os.Stat(source); err == nil {
		return source, nil
	}
	r, err := f.parseReference(source)
	if err != nil {
		return "", err
	}
	if r.Kind != reference.Path {
		return "", nil
	}
	_, err = os.Stat(r.Path)
	if err != nil {
		err = missing(source, err)
	}
	return r.Path, err
}

func missing(file string, err error) error {
	return &fault.Error{
		What: fmt.Errorf("import %s: %w", file, err),
		Hint: "check the path of the directory or file; images of registries are written HOST/REPOSITORY:TAG",
	}
}

// root imports the root file system in a directory or a file.
func (p *puller) root(ctx context.Context, file, as string, ro image.RootOptions) error {
	if err := allowed(file, p.store.Dir()); err != nil {
		return err
	}
	warn := warnings{env: p.env}
	ro.Platform, ro.Limits, ro.Warn = p.opts.Platform, p.opts.Limits, warn.add
	src, err := image.NewRootSource(file, ro)
	if err != nil {
		return err
	}
	defer src.Close()
	if !p.quiet && !p.json {
		fmt.Fprintf(p.env.Stderr, "%s: reading it once for its digest\n", quoteName(file))
	}
	_, err = src.Resolve(ctx)
	warn.end()
	if err != nil {
		return err
	}
	o := p.opts
	o.Reference = as
	show := newShow(p.env, file, p.quiet, p.json)
	o.Progress = show.progress
	i, err := p.store.Pull(ctx, src, o)
	show.end(err == nil)
	if err != nil {
		return err
	}
	return p.print(pulled{Event: "image", Image: i})
}

// rootMayNot is the error of what root would have to take apart in its own process.
func rootMayNot(what, hint string) error {
	return &fault.Error{
		What:  errors.New(what + ": root takes apart no files of strangers"),
		Cause: "what is wrong in such a file would be root's to suffer",
		Hint:  hint,
	}
}

// allowed says whether a file or directory may be imported into a store.
func allowed(file, store string) error {
	st, err := os.Stat(file)
	if err != nil {
		return missing(file, err)
	}
	if !st.IsDir() {
		if proc.IsRoot() {
			return rootMayNot("import "+file, "run it as an ordinary user; root may import directories")
		}
		return nil
	}
	dir, err1 := filepath.Abs(file)
	dir, err2 := filepath.EvalSymlinks(dir)
	in, err3 := filepath.EvalSymlinks(store)
	if err := cmp.Or(err1, err2); err != nil {
		return fmt.Errorf("import %s: %w", file, err)
	}
	if err3 != nil {
		in = store // it is not there yet, and soon will be
	}
	if rel, err := filepath.Rel(dir, in); err == nil && filepath.IsLocal(rel) {
		return &fault.Error{
			What: errors.New("import " + file + ": the store lies in it, and would change while it is read"),
			Hint: "use a store elsewhere: --store DIR",
		}
	}
	return nil
}
