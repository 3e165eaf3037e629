package step

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// prepare makes the container, all but the start of its command, on the best rung that
// works, and lets others reach it.
func (s *step) prepare(ctx context.Context) error {
	var err error
	if s.host, err = readHost(s.Environ, s.Getenv); err != nil {
		return fmt.Errorf("look at this machine: %w", err)
	}
	s.host.Hosts = addHosts(s.host.Hosts, s.Hosts)
	if s.Hostname != "" && s.Hostname != s.host.Hostname {
		s.host.Hostname, s.Request.UTS = s.Hostname, true
	}
	if s.dir, err = newRunDir(ctx, s.Dirs[0]); err != nil {
		return err
	}
	s.onClose(s.dir.remove)
	if err := s.devices(ctx); err != nil {
		return err
	}
	if err := s.limit(ctx); err != nil {
		return err
	}
	config, err := s.climb(ctx)
	if err != nil {
		return err
	}
	s.onClose(s.container.Close)
	s.phaseUntil(s.mounted, "mount", s.root.rung)
	s.phase("prepare", processRung(s.Request, s.container.Lacks()))
	if s.Notes != nil {
		s.Notes(s.built.Notes, config.Spec.Process.Args)
	}
	if s.SaveTo != "" || s.named != nil {
		s.saved = s.upper(config)
	}
	return s.listen(ctx, config)
}

// processRung names whose processes the container sees, and what it is made without.
func processRung(r spec.Request, lacks string) string {
	rung := "processes of its own"
	if r.HostPID {
		rung = "the host's processes"
	}
	if lacks != "" {
		rung += ", without " + lacks
	}
	return rung
}

// listen makes the container reachable.
func (s *step) listen(ctx context.Context, c *runtime.Config) error {
	l, err := s.dir.listen()
	if err != nil {
		return err
	}
	// A signal that the command outlives is no reason to answer nobody any more.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.server = &server{container: s.container, env: c.Spec.Process.Env, cwd: c.Spec.Process.Cwd, environ: s.joinedEnviron, ranks: s.ranks, outOfMemory: s.outOfMemory, log: s.Log}
	s.server.wg.Go(func() { s.server.serve(serving, l) })
	s.onClose(func() error {
		cancel()
		// What joined ends with the container, and is waited for only then.
		err := l.Close()
		if errors.Is(err, net.ErrClosed) { // by serve
			err = nil
		}
		err = errors.Join(err, s.container.Close())
		s.server.wg.Wait()
		return err
	})
	if s.named != nil {
		if err := s.named.starts(ctx, s.dir.path, s.root.rung == rungFuseOverlay); err != nil {
			return fmt.Errorf("start container %s: %w", s.Name, err)
		}
	}
	return s.dir.publish(&State{
		ID: s.dir.id(), StopSignal: int(s.built.StopSignal), Name: s.Name, Image: s.image.Name, Supervisor: os.Getpid(), Init: s.container.Init(),
		PidNS: s.container.PidNS(), Command: c.Spec.Process.Args, Started: time.Now(),
		Limited: s.group != nil && s.group.Rung() != cgroup.None, NotLimited: s.notLimited,
	})
}

// joinedEnviron is the environment of somebody who comes with one of his own.
func (s *step) joinedEnviron(own spec.Request, environ []string) ([]string, error) {
	env, err := s.built.Environ(own, environ)
	return s.given.environ(env), err
}

// climb tries the rungs of the ladder, best first.
func (s *step) climb(ctx context.Context) (*runtime.Config, error) {
	var first error
	for _, rung := range s.rungs(ctx) {
		onDisk := rung == rungTree || rung == rungTreeOverlay
		// The image is not to be written for a run that ends there.
		if onDisk && !s.Request.HostPID && !runtime.CanMountProc() {
			if err := s.shareProc(); err != nil {
				return nil, err
			}
		}
		c, err := s.configFor(ctx, rung)
		if err == nil {
			err = s.try(ctx, c)
		}
		if err == nil {
			if onDisk {
				s.Log.Warn("the image is written to disk for this run, because there is no FUSE here", "see", "gangway doctor")
			}
			return c, nil
		}
		if first == nil {
			first = err
		}
		if !stepsDown(err) {
			return nil, err
		}
		s.Log.Debug("rung of the root file system failed", "rung", rung, "err", err)
	}
	return nil, first
}

// try prepares the container; where no /proc or /sys of its own can be mounted, with those
// of the host.
func (s *step) try(ctx context.Context, c *runtime.Config) error {
	for {
		var err error
		if s.container, err = runtime.Prepare(ctx, c); err == nil {
			break
		}
		switch {
		case !s.Request.HostPID && failedAt(err, "proc on /proc"):
			if err := s.shareProc(); err != nil {
				return err
			}
		case s.Request.Net && !s.Request.HostSys && failedAt(err, "sysfs on /sys"):
			s.Request.HostSys = true
			s.lacking = append(s.lacking, "the host's network devices are visible in /sys: none of its own can be mounted here, as is usual within other containers")
		default:
			return explain(err)
		}
		again, berr := s.configFor(ctx, s.root.rung)
		if berr != nil {
			return errors.Join(explain(err), berr)
		}
		*c = *again
	}
	for _, what := range s.lacking {
		s.Log.Warn(what, "see", "gangway doctor")
	}
	return nil
}

// shareProc lets the container have the host's /proc, for which this program may have to be
// sealed.
func (s *step) shareProc() error {
	const visible = "processes of the host are visible: no /proc of its own can be mounted here, as is usual within other containers"
	if !s.Unsealed && !Sealed() {
		s.Log.Warn(visible, "see", "gangway doctor")
		return s.askSeal()
	}
	s.Request.HostPID = true
	s.lacking = append(s.lacking, visible)
	return nil
}

// failedAt says whether an operation of the container failed that is about one of some
// things. What people name stands behind those.
func failedAt(err error, things ...string) bool {
	op, ok := errors.AsType[*runtime.OpError](err)
	return ok && slices.ContainsFunc(things, func(thing string) bool { return strings.HasPrefix(op.What, thing) })
}

// stepsDown says whether another rung may do what this one could not.
func stepsDown(err error) bool {
	return failedAt(err, "/dev/fuse", "fuse.gangway on", "the supervisor to serve /dev/fuse", "overlay on") || errors.Is(err, errNoProgram)
}

// rungs returns what to try, best first.
func (s *step) rungs(ctx context.Context) []string {
	writable := s.Request.Writable || s.named != nil
	if s.image.Dir != "" {
		return []string{rungDirOverlay, rungDir}
	}
	fuse := canOpenFUSE()
	tree := []string{rungTree}
	switch {
	case writable && s.named != nil, writable && s.SaveTo != "":
		tree = []string{rungTreeOverlay} // what is written must lie apart
	case writable:
		tree = []string{rungTree}
	}
	last := tree
	if s.image.Files != nil {
		last = nil // root writes no image to disk, and why FUSE failed is what counts
	}
	switch {
	case !fuse:
		return tree
	case !writable:
		return append([]string{rungFUSE}, last...)
	}
	rung, err := s.writableRung(ctx)
	if err != nil {
		s.Log.Warn("whether what is mounted can be written to is not known", "err", err)
		rung = rungOverlay
	}
	switch rung {
	case rungFuseOverlay:
		return append([]string{rungFuseOverlay}, last...)
	case rungTree:
		return tree
	}
	return append([]string{rungOverlay, rungFuseOverlay}, last...)
}

// canOpenFUSE says whether this user may open the device.
func canOpenFUSE() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

var errNoProgram = errors.New("fuse-overlayfs is not installed")

func fuseOverlayProgram() (string, error) {
	program, err := exec.LookPath("fuse-overlayfs")
	if err != nil {
		return "", fmt.Errorf("find overlay program: %w: %w", errNoProgram, err)
	}
	return filepath.Abs(program)
}

// scratch makes a directory on disk that goes away with this run, also if this process is
// killed.
func (s *step) scratch() (string, error) {
	if s.scratchDir != "" {
		// A rung that failed has left it half full.
		if err := removeTree(filepath.Join(s.scratchDir, treeName)); err != nil {
			return "", err
		}
		return s.scratchDir, nil
	}
	hint := func(err error) error {
		return &fault.Error{What: fmt.Errorf("make scratch directory: %w", err), Hint: "keep images on a disk with room: --store DIR, or set GANGWAY_STORE"}
	}
	dir := filepath.Join(s.Scratch, s.dir.id())
	if s.dry {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", hint(err)
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
	if err != nil {
		return "", hint(err)
	}
	if err := s.guardScratch(dir); err != nil {
		return "", errors.Join(hint(err), removeTree(dir), lock.Release())
	}
	s.scratchDir = dir
	s.onClose(func() error { return errors.Join(removeTree(dir), lock.Release()) })
	return dir, nil
}
