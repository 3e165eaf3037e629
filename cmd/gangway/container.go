package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/squashfs"
)

func containerVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "container",
		Short: "list, remove and export containers",
		Long: `List, remove and export containers.

A container that was given a name (gangway run --container-name=NAME) is kept when its
command ends: what it wrote lies in ~/.local/share/gangway/containers (or
$XDG_DATA_HOME/gangway/containers; another directory by GANGWAY_CONTAINERS).`,
		SuggestFor: []string{"containers", "ps"},
		Example: `gangway container ls
gangway container export dev -o dev.sqsh
gangway container rm dev`,
	}
	return cli.Group(env, cmd, containerLs, containerRm, containerExport)
}

// listedContainer is a line of the list.
type listedContainer struct {
	Name       string    `json:"name,omitempty"`
	ID         string    `json:"id,omitempty"` // of a running one
	Image      string    `json:"image"`
	Running    bool      `json:"running"`
	Supervisor int       `json:"supervisor,omitempty"` // pids
	Init       int       `json:"init,omitempty"`
	Command    []string  `json:"command,omitempty"`
	Since      time.Time `json:"since"` // it runs, or else was made
}

type containerList struct {
	Containers []listedContainer `json:"containers"`
	now        time.Time
}

// Text implements the reporter's form for people.
func (l containerList) Text(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tID\tSTATE\tPID\tSINCE\tIMAGE")
	for _, c := range l.Containers {
		state, pid := "stopped", "-"
		if c.Running {
			state, pid = "running", fmt.Sprint(c.Init)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", dash(c.Name), dash(c.ID), state, pid, ago(l.now.Sub(c.Since)), c.Image)
	}
	return tw.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func containerLs(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "list containers that run, and those that have a name",
		Example: "gangway container ls --json",
	}
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		s, err := stepOptions(env)
		if err != nil {
			return err
		}
		running, err := step.Running(s.Dirs, s.Containers)
		if err != nil {
			return err
		}
		list := containerList{Containers: []listedContainer{}, now: env.Now()}
		names := map[string]bool{}
		for _, r := range running {
			names[r.Name] = true
			list.Containers = append(list.Containers, listedContainer{
				Name: r.Name, ID: r.ID, Image: r.Image, Running: true, Supervisor: r.Supervisor, Init: r.Init, Command: r.Command, Since: r.Started,
			})
		}
		named, err := step.Containers(s.Containers)
		for _, n := range named {
			if !names[n.Name] {
				list.Containers = append(list.Containers, listedContainer{Name: n.Name, Image: n.Image, Since: n.Created})
			}
		}
		return errors.Join(out.Print(list), err)
	}
	return cmd
}

func containerRm(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Short:   "remove containers with all that was written in them",
		Example: "gangway container rm dev",
	}
	f := newImageFlags(env, cmd)
	cmd.ValidArgsFunction = f.completeContainers(true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := stepOptions(env)
		if err != nil {
			return err
		}
		store, c, err := f.open()
		if err != nil {
			return err
		}
		for _, name := range args {
			err := step.RemoveContainer(s.Containers, name)
			if err == nil || errors.Is(err, step.ErrNoContainer) { // somebody may have removed its directory
				dir := filepath.Join(s.Containers, name)
				err = errors.Join(err, store.Release(name, dir))
				f.releaseNode(cmd.Context(), &c, name, dir)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

func containerExport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "write a container to one squashfs file",
		Long: `Write a container, its image and what was written in it, to one squashfs file, which
gangway run, the kernel, Enroot and Apptainer take. Files of the image are copied as
they are, compressed; all that the container wrote belongs to root in the file. The
container must not run meanwhile.`,
		Example: "gangway container export dev -o dev.sqsh",
	}
	f := &runFlags{imageFlags: newImageFlags(env, cmd).withPlatform(cmd), quiet: true} // nothing runs here
	cmd.ValidArgsFunction = f.completeContainers(true)
	var file string
	var force bool
	cmd.Flags().StringVarP(&file, "output", "o", "", "the file to write")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace the file if it is there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" || file == "-" {
			return fault.Usage(errors.New("export: no file is named"), "gangway container export "+args[0]+" -o FILE.sqsh")
		}
		s, err := stepOptions(env)
		if err != nil {
			return err
		}
		n, err := step.OpenContainer(s.Containers, args[0])
		if err != nil {
			return err
		}
		defer func() { _ = n.Close() }() // it was only read
		images, err := newRunImages(f)
		if err != nil {
			return err
		}
		defer images.close()
		i, err := images.open(cmd.Context(), n)
		if err != nil {
			return err
		}
		if i.Close != nil {
			defer func() { _ = i.Close() }() // it was only read
		}
		if err := n.Check(i); err != nil {
			return err
		}
		return saveContainer(cmd.Context(), env, i, step.Written{Upper: n.Upper(), FuseOverlay: n.FuseOverlay}, file, force)
	}
	return cmd
}

// saveContainer writes an image with what was written over it to a file, at once or not
// at all.
func saveContainer(ctx context.Context, env *cli.Env, i *step.Image, written step.Written, path string, force bool) error {
	opened := i.Opened
	if i.Files != nil {
		// Also root's: of layers that this store wrote, blocks are copied as they are, and
		// only tables are decoded.
		o, err := i.Files.Open(squashfs.ReaderOptions{})
		if err != nil {
			return err
		}
		defer o.Close()
		opened = o
	}
	var wo squashfs.WriterOptions
	if opened != nil {
		wo = opened.WriterOptions()
	}
	trailer, err := runConfig(i).Trailer()
	if err != nil {
		return err
	}
	w, err := beginFile(env, path, force, wo)
	if err != nil {
		return err
	}
	defer w.Close()
	warn := warnings{env: env}
	o := image.CommitOptions{Fuse: written.FuseOverlay, Warn: warn.add}
	switch {
	case i.Dir != "":
		err = image.CommitDir(ctx, i.Dir, written.Upper, w.Writer, o)
	case written.Upper == "": // it could not be written to
		err = opened.Export(ctx, w.Writer, warn.add)
	default:
		err = opened.Commit(ctx, written.Upper, w.Writer, o)
	}
	if err != nil {
		return addFault(path, fmt.Errorf("write container to %s: %w", path, err))
	}
	warn.end()
	if _, err := w.Commit(ctx, trailer); err != nil {
		return addFault(path, err)
	}
	return nil
}

// runConfig is what the image says of how it is run, for the new one.
func runConfig(i *step.Image) image.RunConfig {
	c := i.Config
	return image.RunConfig{
		Env: c.Env, Entrypoint: c.Entrypoint, Cmd: c.Cmd,
		WorkingDir: c.WorkingDir, User: c.User, StopSignal: c.StopSignal,
	}
}
