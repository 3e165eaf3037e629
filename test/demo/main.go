// Command demo does the main job on this machine, from nothing: it builds images, pushes them to
// a real registry, starts a cluster of five nodes, and gives it the scripts in examples/ as a
// user would, with Slurm's commands. It says what each step took, and cleans up after itself.
//
//	make demo [DEMO=quick]
//
// What it runs and shows is what a user would type; nothing of it is known to the product. For
// root the nodes are hosts of their own, with namespaces and addresses (hosts.go); for others
// they are "gangway up" (loopback.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == hostVerb {
		os.Exit(beHost(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := run(ctx, os.Args[1:])
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "demo: interrupted; all that it started is ended")
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo: error:", err)
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	say     *teller
	starter *starter
	cache   string // what is kept for the next run
	dir     string // this run's, removed at its end
	bin     string // where gangway, gangwayd and iris are
	env     []string
	place   place
	times   []timing
	quick   bool

	examples  string
	lostAfter time.Duration
}

// timing is what a step took, and what it did for that.
type timing struct {
	what, cost string
	took       time.Duration
}

func run(ctx context.Context, args []string) (err error) {
	d := &demo{say: &teller{w: os.Stdout, began: time.Now()}, starter: newStarter()}
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.BoolVar(&d.quick, "quick", false, "a small static image instead of PyTorch's")
	stay := f.Bool("stay", term.IsTerminal(int(os.Stdin.Fd())), "leave the cluster running at the end, until Ctrl-C or Enter")
	f.StringVar(&d.bin, "bin", "bin", "where gangway and gangwayd are")
	f.StringVar(&d.examples, "examples", "examples", "where the examples are")
	f.DurationVar(&d.lostAfter, "lost-after", 5*time.Second, "how long a node is silent until it is lost")
	if err := f.Parse(args); err != nil {
		return err
	}
	if d.bin, err = filepath.Abs(d.bin); err != nil {
		return err
	}
	for _, name := range []string{filepath.Join(d.examples, "iris"), filepath.Join(d.bin, "gangwayd"), filepath.Join(d.bin, "iris")} {
		if _, err := os.Stat(name); err != nil {
			return fmt.Errorf("find what make demo builds: %w (type make demo in the root of the repository)", err)
		}
	}
	if err := d.packages(ctx); err != nil {
		return err
	}
	release, err := d.begin()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	defer func() {
		if d.place != nil {
			err = errors.Join(err, d.place.stop())
		}
	}()
	if err := d.story(ctx); err != nil {
		return err
	}
	return d.summary(ctx, *stay)
}

// begin makes this run's directory, and removes those of runs that were killed.
func (d *demo) begin() (release func() error, err error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find a directory for what is kept: %w (set XDG_CACHE_HOME)", err)
	}
	d.cache = filepath.Join(base, "gangway-demo")
	if err := os.MkdirAll(d.cache, 0o700); err != nil {
		return nil, err
	}
	old, err := filepath.Glob(filepath.Join(d.cache, "run-*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range old {
		lock, err := fsx.TryAcquire(filepath.Join(dir, "lock"), fsx.Exclusive)
		if err != nil {
			continue // it runs, or goes just now
		}
		err = errors.Join(removeAll(dir), lock.Release())
		if err != nil {
			d.say.note("left of a run that was killed: %v", err)
		}
	}
	if d.dir, err = os.MkdirTemp(d.cache, "run-"); err != nil {
		return nil, err
	}
	lock, err := fsx.TryAcquire(filepath.Join(d.dir, "lock"), fsx.Exclusive)
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(removeAll(d.dir), lock.Release()) }, nil
}

// removeAll removes a directory that daemons may be writing their last lines to.
func removeAll(dir string) error {
	var err error
	for range 20 {
		if err = os.RemoveAll(dir); err == nil || !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// timed does a step, and notes what it took.
func (d *demo) timed(what, cost string, f func() error) error {
	d.say.title(what)
	began := time.Now()
	err := f()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	d.times = append(d.times, timing{what, cost, time.Since(began)})
	return nil
}
