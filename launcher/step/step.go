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
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// Image is what the root of a container is made of.
type Image struct {
	Name   string // as people write it
	Digest string // of the manifest; empty for files and directories
	// Identity tells a file, or directory, from another that takes its place.
	Identity string
	Store    string // the directory of the store that has it; empty for files and directories
	Config   spec.Image
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
	// write an image with the changes of a container to a file.
	Hold func(ctx context.Context, name string, i *Image) error
	Save func(ctx context.Context, i *Image, w Written, path string) error

	Asked string // the image as it was asked for, if it was
	// RemapGiven says that Request.RemapRoot is what was asked for; else a container that
	// was made with it has it again.
	RemapGiven bool
	Name       string // of the container; empty for one that leaves nothing behind
	NameUse    string // auto (or empty), create, exec, no_exec
	SaveTo     string // where the container is saved when its command has ended
	// RootSize is how many bytes may be written to an unnamed writable container; 0 is
	// half of the machine's memory.
	RootSize int64
	Timeout  time.Duration // from the start of the command; 0 is none

	Limits  Limits
	Devices Devices
	Hooks   Hooks

	Hostname   string   // of the container; empty: the machine's, which it shares
	Hosts      []byte   // lines that the container's /etc/hosts has besides those of the machine
	Dirs       []string // for run directories, see RunDirs
	Containers string   // for named containers, see NamedDir; empty: there are none
	Scratch    string   // for what is large and goes away again: trees, layers to be saved
	// Probe are the arguments with which this program calls RunProbe, Serve those with
	// which it calls ServeConfined, Sweep those with which it calls SweepScratch.
	Probe []string
	Serve []string
	Sweep []string
	// Unsealed says that no ErrSeal is wanted: the program cannot be sealed here.
	Unsealed bool
	Environ  []string
	Getenv   func(string) string
	Stdin    *os.File
	Stdout   *os.File
	Stderr   *os.File
	Log      *slog.Logger
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
// why there is none. ErrSeal asks the caller for something, and nothing was started.
func Run(ctx context.Context, o Options) error {
	s := &step{Options: o, last: time.Now(), ranks: newRanks()}
	if err := s.checkSeal(ctx); err != nil {
		return err
	}
	defer func() {
		s.close()
		s.phase("end", "")
	}()
	if _, err := Leftovers(o.Dirs, o.Scratch, true); err != nil {
		o.Log.Warn("leftovers of killed runs stay", "err", err)
	}
	if o.Containers != "" {
		if _, err := SweepContainers(o.Containers, true); err != nil {
			o.Log.Warn("leftovers of killed runs stay", "err", err)
		}
	}
	if err := s.checkTarget(); err != nil {
		return err
	}
	for since := time.Now(); ; {
		running, err := s.open(ctx)
		if err != nil {
			return err
		}
		if running == nil {
			break
		}
		err = s.join(ctx, running)
		if !hasEnded(err) || s.NameUse == "exec" || time.Since(since) > joinPatience {
			return err
		}
		if !pause(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	err := s.run(ctx)
	save := s.save(ctx)
	if save != nil && err != nil {
		// How the command ended is what counts.
		s.Log.Error("the container is not saved", "err", save)
		return err
	}
	return errors.Join(save, err)
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
	ranks      *ranks
	given      given // by hooks
	ran        bool  // the command has
	code       int   // with which it ended then
	ending     ending
	recorded   func() []nvml.Use
	group      *cgroup.Group // nil: none is wanted
	notLimited []string      // what the group does not enforce
	memory     *cgroup.Watch // nil: there is no limit
	ranksDir   *os.File      // that processes are made in; nil: there is none
	confined   *confined
	saved      string   // directory of what was written
	complete   bool     // the command ran to its end, or to that of its time
	told       bool     // somebody wants this process to end
	lacking    []string // what the container is made without, as people are told
	scratchDir string
	mounted    time.Time // the image, in the container
	closers    []func() error
	last       time.Time
	dry        bool // nothing is made, tried or unpacked
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

// The times for which a container is waited for that somebody else starts at the same
// time, as the ranks of a job do. Whoever wants a new one waits only for those who look
// at what is left of old ones.
const (
	patience      = 2 * time.Minute
	shortPatience = time.Second
	joinPatience  = 10 * time.Second // with one that ended before it could be joined
)

// errTaken says that somebody else has the container, which nobody may join yet, or any
// more.
var errTaken = errors.New("somebody else has it")

// hasEnded says whether a container could not be joined because it ended just now.
func hasEnded(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// open finds out what the container is: one that runs already, or a new one of an
// image.
func (s *step) open(ctx context.Context) (*joined, error) {
	if s.Name == "" {
		return nil, s.openImage(ctx)
	}
	if err := checkName(s.Name); err != nil {
		return nil, err
	}
	limit := patience
	if s.NameUse == "create" || s.NameUse == "no_exec" {
		limit = shortPatience
	}
	var since time.Time // it is known that somebody else has it
	told := false
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		running, err := s.openNamed()
		if err == nil && running == nil {
			err = s.own(ctx)
		}
		if !errors.Is(err, errTaken) {
			return running, err
		}
		switch {
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > limit && s.NameUse == "create":
			return nil, exists(s.Name)
		case time.Since(since) > limit:
			return nil, inUse(s.Name)
		case !told && time.Since(since) > shortPatience:
			told = true
			s.Log.Warn("container is in use, but cannot be joined: waiting for it", "container", s.Name, "at most", limit)
		}
		if !pause(ctx, wait) {
			return nil, context.Cause(ctx)
		}
	}
}

// own opens the image of a container that this process starts, and makes the container
// if there is none yet.
func (s *step) own(ctx context.Context) error {
	if s.named != nil || s.image == nil {
		if err := s.openImage(ctx); err != nil {
			return err
		}
	}
	if s.named == nil {
		if err := s.createNamed(ctx); err != nil {
			return err
		}
	}
	return s.named.remember(s.optionDigests())
}

func (s *step) openImage(ctx context.Context) error {
	var err error
	if s.image, err = s.Image(ctx, s.named); err != nil {
		if s.named == nil || s.named.Digest != "" {
			return err
		}
		hint := ""
		if errors.Is(err, fs.ErrNotExist) {
			hint = "put the file back, or: gangway container rm " + s.Name
		}
		return &fault.Error{What: fmt.Errorf("start container %s: %w", s.Name, err), Hint: hint}
	}
	if s.image.Close != nil {
		s.onClose(s.image.Close)
	}
	if s.named != nil {
		if err := s.named.Check(s.image); err != nil {
			return err
		}
	}
	if err := s.checkBase(); err != nil {
		return err
	}
	if s.image.Pulled > 0 {
		s.phaseUntil(time.Now().Add(-s.image.Pulled), "resolve", s.image.Name)
		s.phase("pull", "")
	} else {
		s.phase("resolve", s.image.Name)
	}
	return nil
}

// openNamed applies the rules of --container-name, which are Pyxis': auto joins what
// runs, starts what is there, and makes what is not. The error is errTaken where somebody
// has the container.
//
// Pyxis' no_exec starts a second container on the files of one that runs. Here every
// named container has an overlay, and two overlays over one upper directory damage it,
// so that no_exec is refused while the container runs.
func (s *step) openNamed() (*joined, error) {
	_, dir, err := FindNamed(s.Dirs, s.Containers, s.Name)
	isRunning := err == nil
	switch {
	case isRunning && s.NameUse == "create":
		return nil, exists(s.Name)
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
	case errors.Is(err, fsx.ErrLocked) && s.NameUse == "create":
		return nil, exists(s.Name)
	case errors.Is(err, fsx.ErrLocked):
		return nil, errTaken
	case err != nil:
		return nil, fmt.Errorf("open container %s: %w", s.Name, err)
	}
	s.named = n
	s.onClose(n.Close)
	if s.NameUse == "create" {
		return nil, exists(s.Name)
	}
	if !s.RemapGiven {
		s.Request.RemapRoot = s.Request.RemapRoot || n.Remap
	}
	return nil, nil
}

func (s *step) createNamed(ctx context.Context) error {
	image := s.image.Name
	if s.image.Digest == "" { // a path, which has to be found from other directories too
		var err error
		if image, err = filepath.Abs(image); err != nil {
			return err
		}
	}
	n, err := createNamed(ctx, s.Containers, Named{
		Name: s.Name, Image: image, Digest: s.image.Digest, Created: time.Now(), Remap: s.Request.RemapRoot, Identity: s.image.Identity,
		Store: s.image.Store,
	}, func() error { return s.Hold(ctx, s.Name, s.image) })
	if errors.Is(err, fsx.ErrLocked) || errors.Is(err, fs.ErrExist) {
		return errTaken
	}
	if err != nil {
		return err
	}
	s.named = n
	s.onClose(n.Close)
	return nil
}

// join runs the command in a container that runs.
func (s *step) join(ctx context.Context, j *joined) error {
	args := s.Request.Command
	if len(args) == 0 {
		return &fault.Error{What: fmt.Errorf("run in container %s: no command", s.Name), Hint: "say what to run: -- CMD", Code: fault.CodeUsage}
	}
	if s.SaveTo != "" {
		return &fault.Error{
			What: fmt.Errorf("run in container %s: it runs already, so --container-save is not possible", s.Name),
			Hint: "leave it out; once the container has ended: gangway container export " + s.Name + " -o FILE.sqsh",
		}
	}
	ignored := s.ignored()
	if err := s.refusesJoin(j.dir, ignored); err != nil {
		return err
	}
	if len(ignored) > 0 {
		s.Log.Warn("the container runs already, without these options, which are ignored", "container", s.Name, "options", strings.Join(ignored, " "))
	}
	if dir := s.Request.Workdir; dir != "" && !path.IsAbs(dir) {
		return fault.Usage(fmt.Errorf("working directory %q: it is not absolute", dir), "give an absolute path: --container-workdir=/"+dir)
	}
	s.phase("join", "")
	own := &ownEnv{Environ: blobs(s.Environ), Export: s.Request.Export, ContainerEnv: s.Request.ContainerEnv, Env: blobs(s.Request.Env)}
	return Exec(ctx, j.dir, ExecOptions{
		Args: args, Cwd: s.Request.Workdir, own: own, Terminal: s.Request.Terminal,
		Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Timeout: s.Timeout,
	})
}

// run starts the command and waits for it.
func (s *step) run(ctx context.Context) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, forwarded(s.Request.Terminal)...)
	defer signal.Stop(signals)
	if ctx.Err() != nil { // a signal that came before
		return context.Cause(ctx)
	}
	if err := s.startHooks(ctx); err != nil {
		return err
	}
	if err := s.container.Start(); err != nil {
		return explainCommand(err)
	}
	s.recorded = s.recordGPUs(ctx)
	if s.Getenv("GOGC") == "" {
		// Of a command that is not done by then, memory counts and not time.
		small := time.AfterFunc(time.Second, func() { debug.SetGCPercent(50) })
		defer small.Stop()
	}
	s.phase("start", "")
	s.started(ctx)
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
	go func() { watched <- s.watch(signals, relay, done) }()
	status, err := s.container.Wait()
	close(done)
	cause := <-watched
	s.complete = err == nil && s.root.broken != nil
	s.phase("command", "")
	switch {
	case cause != nil:
		err = cause
	case err != nil:
	case status.Code != 0:
		err = fault.Exit(status.Code)
	}
	err = s.used(err)
	s.endedWith(err)
	return err
}

// grace is how long a command has to end by itself once its time is over.
const grace = 10 * time.Second

// watch passes signals on, and ends the container when its time is over or its root is
// gone; it returns why.
func (s *step) watch(signals <-chan os.Signal, relay *relay, done <-chan struct{}) (cause error) {
	var limit, kill, tell <-chan time.Time
	if s.Timeout > 0 {
		limit = time.After(s.Timeout)
	}
	waiting := s.ranks.waiting
	for {
		select {
		case sig := <-signals:
			// There may be no command any more that would end by the others.
			if sig == syscall.SIGINT || sig == syscall.SIGTERM || waiting == nil && (sig == syscall.SIGHUP || sig == syscall.SIGQUIT) {
				s.told = true
				s.ranks.end()
			}
			// It may have ended just now.
			_ = s.container.Signal(sig.(syscall.Signal))
		case sig := <-s.container.Stopped():
			stopWith(sig)
		case <-waiting:
			// From here on it is about the commands of others: neither the time nor the
			// terminal is theirs.
			waiting, limit, kill = nil, nil, nil
			if relay != nil {
				relay.stop()
			}
			tell = time.After(shortPatience)
		case <-tell:
			if n := s.ranks.count(); n > 0 {
				s.Log.Warn("the command has ended; waiting for those of others in the container, until interrupted", "commands", n)
			}
		case <-limit:
			cause = tooLong(s.Timeout)
			s.ranks.end()
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

// stopWith stops this process when a terminal stopped the command, so that the shell
// that started us sees it; SIGCONT, which is passed on as other signals are, continues
// both. A command that stops itself is waited for.
func stopWith(sig syscall.Signal) {
	if sig != syscall.SIGTSTP && sig != syscall.SIGTTIN && sig != syscall.SIGTTOU {
		return
	}
	// The call may return before this thread is stopped: what follows it is not what
	// follows the stop.
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}
