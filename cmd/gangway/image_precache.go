package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

func imagePrecache(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "precache [IMAGE...]",
		Short: "fetch many images without disturbing what runs",
		Long: `Fetch many images, those named and those listed in a file, one a line (# begins a
comment, - is standard input). It runs at the lowest priority of processor and disk,
goes on where an image cannot be had, and exits 125 if any could not.
What the store has already is what runs use, and is not asked for again: "gangway image
pull" has a tag followed that has moved.
With --nodes or --partition the nodes of a cluster do so, each into its own store.`,
		Example: "gangway image precache --from images.txt --limit-rate 200M\ngangway image precache --pin debian:12\ngangway image precache --nodes n[1-4] debian:12",
	}
	f := newPullFlags(env, cmd)
	var from string
	var nodes []string
	var partition string
	cmd.Flags().StringArrayVar(&nodes, "nodes", nil, "on these `nodes` of the cluster, as n[1-4]; all: on all")
	cmd.Flags().StringVar(&partition, "partition", "", "on the nodes of this partition")
	var pin bool
	cmd.Flags().StringVar(&from, "from", "", "file of references, one a line")
	cmd.Flags().BoolVar(&pin, "pin", false, "protect the images from gc and rm")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		listed, err := listedIn(env, from)
		if err != nil {
			return err
		}
		names := append(args, listed...)
		if len(names) == 0 {
			return fault.Usage(errors.New("precache: no image is named"), "gangway image precache --from FILE, or IMAGE...")
		}
		if nodes != nil || partition != "" {
			if pin {
				return fault.Usage(errors.New("precache: --pin is about this host's store"), "leave it out")
			}
			return precacheNodes(cmd.Context(), env, &api.Precache{Images: names, Nodes: nodes, Partition: partition, Rate: int64(f.rate.n)}, f.quiet, f.json)
		}
		p, err := f.puller()
		if err != nil {
			return err
		}
		defer p.client.Close()
		stepBack(env)
		failed := 0
		for _, name := range names {
			err := p.precache(cmd.Context(), name)
			if err == nil && pin {
				err = pinByName(cmd, p, name)
			}
			if cmd.Context().Err() != nil {
				return err
			}
			if err != nil {
				failed++
				_, _ = io.WriteString(env.Stderr, fault.Text(env.Program, err, env.Color(env.Stderr)))
			}
		}
		if failed > 0 {
			return fmt.Errorf("precache: %d of %d images could not be had", failed, len(names))
		}
		return nil
	}
	return cmd
}

// precache has the store have an image: the one that a run would use, or else one that is
// pulled, as where a file of the former is lost.
func (p *puller) precache(ctx context.Context, name string) error {
	ref, err := p.parseReference(name)
	if err != nil || ref.Kind == reference.Path {
		return p.pull(ctx, name, "")
	}
	i, err := p.inStore(p.store, ref, name)
	if err != nil {
		return p.pull(ctx, name, "")
	}
	files, err := p.store.OpenFiles(&i)
	if err != nil {
		return p.pull(ctx, name, "")
	}
	return errors.Join(files.Close(), p.print(pulled{Event: "image", Image: i}))
}

func pinByName(cmd *cobra.Command, p *puller, name string) error {
	i, err := p.find(p.store, name, true)
	if err != nil {
		return err
	}
	return p.store.Pin(cmd.Context(), &i, true)
}

// listedIn returns the references of a file.
func listedIn(env *cli.Env, name string) ([]string, error) {
	var r io.Reader
	switch name {
	case "":
		return nil, nil
	case "-":
		r = env.Stdin
	default:
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.Usage(fmt.Errorf("precache: %w", err), "name a file with one image a line: --from FILE")
		}
		defer f.Close()
		r = f
	}
	var names []string
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), " #")
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("precache: read %s: %w", name, err)
	}
	return names, nil
}

// The idle class of ioprio_set(2), and whom it is for.
const (
	ioprioWhoProcess = 1
	ioprioIdle       = 3 << 13
)

// stepBack gives this process the lowest priority. Linux keeps priorities by thread;
// threads to come inherit theirs.
func stepBack(env *cli.Env) {
	threads, err := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		id, _ := strconv.Atoi(t.Name())
		e := unix.Setpriority(unix.PRIO_PROCESS, id, 19)
		if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(id), ioprioIdle); errno != 0 {
			e = errors.Join(e, errno)
		}
		if !errors.Is(e, unix.ESRCH) { // the thread ended meanwhile
			err = cmp.Or(err, e)
		}
	}
	if err != nil {
		fmt.Fprintf(env.Stderr, "%s: warning: the priority stays as it is: %v\n", env.Program, err)
	}
}
