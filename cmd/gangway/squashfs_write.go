package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

func squashfsCreate(env *cli.Env) *cobra.Command {
	var f writeFlags
	var o squashfs.DirOptions
	var exclude []string
	cmd := &cobra.Command{
		Use:   "create DIR FILE",
		Short: "make an image of a directory",
		Long: `Make an image of a directory, with owners, hard links, devices and extended
attributes as they are. FILE appears when it is complete. The same directory
gives the same bytes.`,
		Example: `gangway squashfs create ./rootfs image.sqsh
gangway squashfs create --exclude var/cache --exclude 'home/*/.cache' / root.sqsh
gangway squashfs create --level 19 --block-size 1M ./data data.sqsh`,
	}
	f.register(cmd)
	cmd.Flags().BoolVarP(&o.OneFileSystem, "one-file-system", "x", false, "leave out what is mounted below DIR")
	cmd.Flags().BoolVar(&o.NoXattrs, "no-xattrs", false, "leave out extended attributes")
	cmd.Flags().StringArrayVarP(&exclude, "exclude", "e", nil, "leave out this path, and all below it; * and ? match (repeatable)")
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		leaveOut, err := excluded(exclude)
		if err != nil {
			return err
		}
		w, err := f.begin(env, args[1])
		if err != nil {
			return err
		}
		defer w.Close()
		warn := warnings{env: env}
		o.Warn, o.Filter = warn.add, leaveOut
		if err := w.AddDir(cmd.Context(), args[0], o); err != nil {
			return addFault(args[1], err)
		}
		warn.end()
		return commit(cmd, w, args[1], out)
	}
	return cmd
}

// excluded returns a filter that leaves out paths that match a pattern.
func excluded(patterns []string) (func(*squashfs.Entry) bool, error) {
	for i, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return nil, fault.Usage(fmt.Errorf("pattern %q: %w", p, err), "write a [ that is meant as such as \\[")
		}
		if patterns[i] = inImage(p); patterns[i] == "." || strings.HasPrefix(p, "..") {
			return nil, fault.Usage(fmt.Errorf("pattern %q: it names nothing within DIR", p), "give a path relative to DIR")
		}
	}
	return func(e *squashfs.Entry) bool {
		if e.Path == "." {
			return true // which ".*" matches
		}
		return !slices.ContainsFunc(patterns, func(p string) bool {
			match, _ := path.Match(p, e.Path) // proved above
			return match
		})
	}, nil
}

// warnings prints the first few of the warnings about a directory, and how many
// there were.
type warnings struct {
	env *cli.Env
	n   int
}

const maxWarnings = 10

func (w *warnings) add(name string, err error) {
	if w.n++; w.n <= maxWarnings {
		fmt.Fprintf(w.env.Stderr, "%s: warning: %s: %v\n", w.env.Program, quoteName(name), err)
	}
}

func (w *warnings) end() {
	if w.n > maxWarnings {
		fmt.Fprintf(w.env.Stderr, "%s: warning: %d more like these\n", w.env.Program, w.n-maxWarnings)
	}
}

func squashfsConvert(env *cli.Env) *cobra.Command {
	var f writeFlags
	cmd := &cobra.Command{
		Use:   "convert IMAGE FILE",
		Short: "write an image anew, with other or the same compression",
		Long: `Write an image anew. Compressed blocks are copied as they are where compression
and block size stay the same and no --level is given, else compressed again. What no
file uses is left out, as is what lies behind the image.`,
		Example: `gangway squashfs convert old-lzo.sqsh new.sqsh
gangway squashfs convert --compression gzip image.sqsh for-an-old-kernel.sqsh`,
	}
	f.register(cmd)
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.recompress = cmd.Flags().Changed("level")
		return withImage(args[0], func(src *squashfs.Reader) error {
			w, err := f.begin(env, args[1])
			if err != nil {
				return err
			}
			defer w.Close()
			err = w.AddImage(cmd.Context(), src, ".")
			if errors.Is(err, squashfs.ErrCorrupt) {
				return imageFault(args[0], fmt.Errorf("convert %s: %w", args[0], err))
			}
			if err != nil {
				return addFault(args[1], err)
			}
			return commit(cmd, w, args[1], out)
		})
	}
	return cmd
}

// commit finishes an image and reports it.
func commit(cmd *cobra.Command, w *squashfs.FileWriter, file string, out *cli.Reporter) error {
	return commitWith(cmd, w, file, nil, out)
}

// commitWith is commit with something behind the image.
func commitWith(cmd *cobra.Command, w *squashfs.FileWriter, file string, trailer io.Reader, out *cli.Reporter) error {
	info, err := w.Commit(cmd.Context(), trailer)
	if errors.Is(err, fs.ErrExist) {
		return &fault.Error{What: err, Hint: existsHint}
	}
	if err != nil {
		return spaceFault(file, err)
	}
	return out.Print(newWritten(file, info))
}

// addFault says what to do about content that could not be added to an image.
func addFault(file string, err error) error {
	f := &fault.Error{What: err}
	switch {
	case errors.Is(err, squashfs.ErrTooManyIDs):
		f.Hint = "the format has room for 65,535 owners; change the owner of some files"
	case errors.Is(err, fs.ErrPermission):
		f.Hint = "run it as a user that may read it, or leave it out with --exclude"
	case errors.Is(err, fs.ErrNotExist):
		f.Hint = "check the spelling of DIR; if it changed while it was read, run it again"
	case errors.Is(err, syscall.ENOTDIR):
		f.Hint = "DIR must be a directory; for an image file there is: gangway squashfs convert IMAGE FILE"
	default:
		return spaceFault(file, err)
	}
	return f
}

// spaceFault says what to do where the image has no room on disk.
func spaceFault(file string, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return &fault.Error{
		What:  err,
		Cause: "no space is left in " + filepath.Dir(file),
		Hint:  "free space there, or write to another file system; nothing was left behind",
	}
}

// Text implements cli.Result.
func (w written) Text(out io.Writer) error {
	_, err := fmt.Fprintf(out, "%s: %d bytes, %d inodes, %s, blocks of %d KiB\n",
		w.File, w.Bytes, w.Inodes, w.Compression, w.BlockSize>>10)
	return err
}
