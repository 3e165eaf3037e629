// Package step is the supervisor of one step on one node: it puts an image, the request
// of a user and the container runtime together. "gangway run" is this code in its own
// process; a cluster's agents start the same, one process a step.
//
//	err := step.Run(ctx, step.Options{Request: request, Image: open, ...})
//
// What happens, in phases that Options.Phase is told about: the image is opened (and
// pulled, by the caller's function); its tree gets the files and mountpoints that this
// container needs; the runtime prepares a container whose root is that tree, which this
// process serves through FUSE; others may then reach the container through a socket
// (Exec); the command is started; signals go to it; its exit status is returned.
// Everything ends with this process, however it ends: PID 1 of the container watches.
//
// Run may be used by several goroutines, each for its own container, except that the
// process's signals go to all of them. The package schedules nothing, and talks to
// people only through what it returns and logs.
package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/plan"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// Image is what the root of a container is made of.
type Image struct {
	Name   string // as people write it
	Digest string // of the manifest; empty for files and directories
	Config spec.Image
	// Opened are the index and the layers. Where it is nil, Dir is a directory of the
	// host that is the root.
	Opened *image.Opened
	Dir    string
	// Files are there instead of Opened where root runs the container: then another
	// process, of the command Options.Serve, looks into the image.
	Files *image.Files
	Close func() error // nil if there is nothing to close
	// Pulled is how long it took to fetch it; 0 if it was there.
	Pulled time.Duration

	base func() (*rootfs.Tree, error) // instead of Opened
}

// tree is the image's tree, to which a container adds what it needs.
func (i *Image) tree() (*rootfs.Tree, error) {
	if i.base != nil {
		return i.base()
	}
	if i.Files != nil {
		return rootfs.New(i.Files.Index, nil), nil // names, but no content
	}
	return rootfs.New(i.Opened.Index, i.Opened.Layers), nil
}

// Options say what Run runs.
type Options struct {
	Request spec.Request
	// Image opens the image of a container: the one that was asked for, or, where a
	// named container is started again, the one it was made of, which is then given.
	Image func(ctx context.Context, made *Named) (*Image, error)
	// Hold and Save do what needs the store: keep the image of a named container, and
	// write an image with the changes in upper to a file.
	Hold func(ctx context.Context, name string, i *Image) error
	Save func(ctx context.Context, i *Image, upper, path string) error

	Name    string // of the container; empty for one that leaves nothing behind
	NameUse string // auto (or empty), create, exec, no_exec
	SaveTo  string // where the container is saved when its command has ended
	// RootSize is how many bytes may be written to an unnamed writable container; 0 is
	// half of the machine's memory.
	RootSize int64
	Timeout  time.Duration // from the start of the command; 0 is none

	Dirs       []string // for run directories, see RunDirs
	Containers string   // for named containers, see NamedDir
	Scratch    string   // for what is large and goes away again: trees, layers to be saved
	// Probe are the arguments with which this program calls RunProbe, Serve those with
	// which it calls ServeConfined.
	Probe   []string
	Serve   []string
	Environ []string
	Getenv  func(string) string
	Stdin   *os.File
	Stdout  *os.File
	Stderr  *os.File
	Log     *slog.Logger
	// Phase is told of each phase that ended, and of the rung of a ladder that is in
	// use; it may be nil.
	Phase func(name string, took time.Duration, rung string)
	// Notes is told what of the image was ignored or done otherwise, and the command
	// with the entry point; it may be nil.
	Notes func(notes, command []string)
}

// exec says that the request is for a container that runs already.
type joined struct{ dir string }

// Run runs a command in a container and returns nil, a fault.Exit with its status, or
// why there is none.
func Run(ctx context.Context, o Options) error {
	s := &step{Options: o, last: time.Now()}
	defer func() {
		s.close()
		s.phase("end", "")
	}()
	if _, err := Leftovers(o.Dirs, true); err != nil {
		o.Log.Warn("leftovers of killed runs stay", "err", err)
	}
	s.sweepScratch()
	running, err := s.open(ctx)
	if err != nil {
		return err
	}
	if running != nil {
		return s.join(ctx, running)
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	err = s.run(ctx)
	if save := s.save(ctx, err); save != nil {
		return save
	}
	return err
}

// step is one run.
type step struct {
	Options
	image      *Image
	named      *Named
	host       spec.Host
	built      *spec.Result
	dir        *runDir
	root       *root
	container  *runtime.Container
	server     *server
	confined   *confined
	saved      string // directory of what was written
	scratchDir string
	mounted    time.Time // the image, in the container
	closers    []func() error
	last       time.Time
}

// phase ends a phase.
func (s *step) phase(name, rung string) { s.phaseUntil(time.Now(), name, rung) }

// phaseUntil ends a phase that ended at some time.
func (s *step) phaseUntil(end time.Time, name, rung string) {
	if s.Phase != nil {
		s.Phase(name, end.Sub(s.last), rung)
	}
	s.last = end
}

func (s *step) onClose(f func() error) { s.closers = append(s.closers, f) }

// close undoes what was done, last first.
func (s *step) close() {
	for _, f := range slices.Backward(s.closers) {
		if err := f(); err != nil {
			s.Log.Warn("clean up after the container", "err", err)
		}
	}
	s.closers = nil
}

// open finds out what the container is: one that runs already, or a new one of an
// image.
func (s *step) open(ctx context.Context) (*joined, error) {
	if s.Name != "" {
		running, err := s.openNamed()
		if err != nil || running != nil {
			return running, err
		}
	}
	var err error
	if s.image, err = s.Image(ctx, s.named); err != nil {
		return nil, err
	}
	if s.image.Close != nil {
		s.onClose(s.image.Close)
	}
	if s.image.Pulled > 0 {
		s.phaseUntil(time.Now().Add(-s.image.Pulled), "resolve", s.image.Name)
		s.phase("pull", "")
	} else {
		s.phase("resolve", s.image.Name)
	}
	if s.Name != "" && s.named == nil {
		return nil, s.createNamed(ctx)
	}
	return nil, nil
}

// openNamed applies the rules of --container-name, which are Pyxis': auto joins what
// runs, starts what is there, and makes what is not.
func (s *step) openNamed() (*joined, error) {
	if err := checkName(s.Name); err != nil {
		return nil, err
	}
	_, dir, err := Find(s.Dirs, s.Name)
	isRunning := err == nil
	switch {
	case isRunning && s.NameUse == "create":
		return nil, inUse(s.Name)
	case isRunning && s.NameUse == "no_exec":
		return nil, &fault.Error{
			What:  fmt.Errorf("start container %s: it runs already", s.Name),
			Cause: "two runs cannot write to one container",
			Hint:  "leave out :no_exec to run in it, or choose another name",
		}
	case isRunning:
		return &joined{dir}, nil
	case s.NameUse == "exec":
		return nil, err
	}
	n, err := openNamed(s.Containers, s.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fsx.ErrLocked):
		return nil, inUse(s.Name)
	case err != nil:
		return nil, fmt.Errorf("open container %s: %w", s.Name, err)
	}
	s.named = n
	s.onClose(n.Close)
	if s.NameUse == "create" {
		return nil, &fault.Error{What: fmt.Errorf("create container %s: there is one of this name", s.Name), Hint: "gangway container rm " + s.Name + ", or choose another name"}
	}
	s.Request.RemapRoot = s.Request.RemapRoot || n.Remap
	return nil, nil
}

func (s *step) createNamed(ctx context.Context) error {
	n, err := createNamed(ctx, s.Containers, Named{
		Name: s.Name, Image: s.image.Name, Digest: s.image.Digest, Created: time.Now(), Remap: s.Request.RemapRoot,
	})
	if err != nil {
		return err
	}
	s.named = n
	s.onClose(n.Close)
	if err := s.Hold(ctx, s.Name, s.image); err != nil {
		return errors.Join(err, n.Close(), RemoveContainer(s.Containers, s.Name))
	}
	return nil
}

// join runs the command in a container that runs.
func (s *step) join(ctx context.Context, j *joined) error {
	args := s.Request.Command
	if len(args) == 0 {
		return &fault.Error{What: fmt.Errorf("run in container %s: no command", s.Name), Hint: "say what to run: -- CMD", Code: fault.CodeUsage}
	}
	s.phase("join", "")
	return Exec(ctx, j.dir, ExecOptions{
		Args: args, Cwd: s.Request.Workdir, Env: s.Request.Env, Terminal: s.Request.Terminal,
		Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
	})
}

// run starts the command and waits for it.
func (s *step) run(ctx context.Context) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded()...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal that came before
		return context.Cause(ctx)
	}
	if err := s.container.Start(); err != nil {
		return explainCommand(err)
	}
	if s.Getenv("GOGC") == "" {
		// Of a command that is not done by then, memory counts and not time.
		small := time.AfterFunc(time.Second, func() { debug.SetGCPercent(50) })
		defer small.Stop()
	}
	s.phase("start", "")
	var relay *relay
	if t := s.container.Terminal(); t != nil {
		var err error
		if relay, err = startRelay(t, s.Stdin, s.Stdout); err != nil {
			return err
		}
		defer relay.stop()
	}
	done := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- s.watch(signals, done) }()
	status, err := s.container.Wait()
	close(done)
	cause := <-watched
	s.phase("command", "")
	switch {
	case cause != nil:
		return cause
	case err != nil:
		return err
	case status.Code != 0:
		return fault.Exit(status.Code)
	}
	return nil
}

// grace is how long a command has to end by itself once its time is over.
const grace = 10 * time.Second

// watch passes signals on, and ends the container when its time is over or its root is
// gone; it returns why.
func (s *step) watch(signals <-chan os.Signal, done <-chan struct{}) (cause error) {
	var limit, kill <-chan time.Time
	if s.Timeout > 0 {
		limit = time.After(s.Timeout)
	}
	for {
		select {
		case sig := <-signals:
			// It may have ended just now.
			_ = s.container.Signal(sig.(syscall.Signal))
		case sig := <-s.container.Stopped():
			s.stopWithIt(sig)
		case <-limit:
			cause = &fault.Error{
				What: fmt.Errorf("the command ran longer than --timeout %s", s.Timeout),
				Code: fault.CodeSignal(syscall.SIGTERM),
			}
			_ = s.container.Signal(s.built.StopSignal)
			kill = time.After(grace)
		case <-kill:
			_ = s.container.Kill()
		case err := <-s.root.broken:
			cause = &fault.Error{
				What: fmt.Errorf("the container's root file system is gone: %w", err),
				Hint: "run it again; if that repeats: gangway image verify",
			}
			_ = s.container.Kill()
			s.root.broken = nil
		case <-done:
			return cause
		}
	}
}

// stopWithIt stops this process when a terminal stopped the command, so that the shell
// that started us sees it; SIGCONT, which is passed on as other signals are, continues
// both. A command that stops itself is waited for.
func (s *step) stopWithIt(sig syscall.Signal) {
	if sig != syscall.SIGTSTP && sig != syscall.SIGTTIN && sig != syscall.SIGTTOU {
		return
	}
	// The call may return before this thread is stopped: what follows it is not what
	// follows the stop.
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}

// DryRun returns the operations that would start the container. It mounts nothing.
func DryRun(ctx context.Context, o Options) (*plan.Plan, error) {
	s := &step{Options: o, last: time.Now()}
	defer s.close()
	var err error
	if s.image, err = s.Image(ctx, nil); err != nil {
		return nil, err
	}
	if s.image.Close != nil {
		s.onClose(s.image.Close)
	}
	if s.host, err = readHost(s.Environ, s.Getenv); err != nil {
		return nil, err
	}
	s.dir = &runDir{path: s.Dirs[0] + "/ID"}
	c, err := s.configFor(ctx, s.rungs(ctx)[0])
	if err != nil {
		return nil, err
	}
	return runtime.Compile(c, runtime.ProbeFeatures())
}
