package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// supervisor is the Hands that the machine has for a step: it starts the supervising process,
// which outlives this one, and speaks with it. What it finds out it tells the work.
type supervisor struct {
	key     job.StepKey
	dir     string
	node    string
	marker  string
	gangway string
	environ []string
	orphans *Orphans
	work    *Work
	log     *slog.Logger
	conn    *control.Conn
	users   *Users // nil: all is this user's
	whose   atomic.Pointer[owner]
}

// Leave implements Hands.
func (s *supervisor) Leave() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// Left implements Hands.
func (s *supervisor) Left() Left {
	var l Left
	p, err := readJSON[process](s.file(control.PIDFile))
	l.Alive = err == nil && p.alive()
	l.Intent, err = readJSON[control.Start](s.file(control.IntentFile))
	l.Intended = err == nil
	if !l.Intended {
		_, err := os.Lstat(s.file(control.IntentFile))
		l.Intended = err == nil
	}
	if end, err := s.lastWord(); err == nil {
		l.End = &end
	}
	return l
}

// Destroy implements Hands.
func (s *supervisor) Destroy() {
	go kill(s.marker, nil, slack)
	if o := s.owner(); o != nil {
		s.users.soil(o.UID)
		s.killProcess()
	}
}

// Clear implements Hands.
func (s *supervisor) Clear() {
	kill(s.marker, nil, slack)
	s.Remove()
}

// Remove implements Hands.
func (s *supervisor) Remove() {
	if err := s.removeAll(); err != nil {
		s.log.Error("run directory stays", "step", s.key, "err", err)
	}
}

// Intend implements Hands.
func (s *supervisor) Intend(ctx context.Context, start control.Start) error {
	return writeJSON(ctx, s.file(control.IntentFile), start)
}

// Settle implements Hands.
func (s *supervisor) Settle(end job.StepEnd) {
	err := os.MkdirAll(s.dir, 0o700) // a step that was never launched has none
	if err == nil {
		err = writeJSON(context.Background(), s.file(control.EndFile), end)
	}
	if err != nil {
		s.log.Error("end of step is not on disk", "step", s.key, "err", err)
	}
}

func (s *supervisor) file(name string) string { return filepath.Join(s.dir, name) }

// Tell implements Hands. If the supervisor is gone, that is found out elsewhere.
func (s *supervisor) Tell(r control.Request) bool {
	if s.conn == nil {
		return false
	}
	if err := s.conn.Send(r); err != nil {
		s.log.Warn("supervisor cannot be told", "step", s.key, "err", err)
		return false
	}
	return true
}

// Launch implements Hands: it starts the process in a session of its own, so that no terminal's
// signal and no end of this process is its end.
func (s *supervisor) Launch(ctx context.Context, spec *job.StepSpec, lease time.Duration) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := s.ownStep(ctx, spec); err != nil {
		return err
	}
	dir := s.runDir()
	if err := writePlain(filepath.Join(dir, control.SpecFile), spec); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(dir, control.LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ours, theirs, err := control.Pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := exec.Command(s.gangway, "step", "--node", s.node, "--lease", strconv.FormatInt(lease.Milliseconds(), 10), "--agent", "3", dir)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, log, log, []*os.File{theirs}
	cmd.Env, cmd.SysProcAttr = s.environ, &syscall.SysProcAttr{Setsid: true}
	if o := s.owner(); o != nil {
		o.become(cmd, s.environ)
		if err := o.give(dir); err != nil {
			return errors.Join(err, ours.Close())
		}
	}
	cmd.Env = slices.Concat(cmd.Env, []string{control.Marker + "=" + s.marker})
	if err := s.orphans.Start(cmd); err != nil {
		return errors.Join(err, ours.Close())
	}
	p, err := processOf(cmd.Process.Pid)
	if err == nil {
		err = writePlain(s.file(control.PIDFile), p)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = s.orphans.Wait(cmd)
		return errors.Join(err, ours.Close())
	}
	exited := make(chan struct{})
	go func() {
		_ = s.orphans.Wait(cmd) // what it has to say is in end.json
		close(exited)
	}()
	if !s.watch(ctx, ours, exited) {
		s.connect(ctx, exited) // finds out why
	}
	return nil
}

// Adopt implements Hands: it connects to a supervisor that an earlier agent started.
func (s *supervisor) Adopt(ctx context.Context) {
	exited := make(chan struct{})
	p, err := readJSON[process](s.file(control.PIDFile))
	if err != nil || !p.alive() {
		s.over()
		return
	}
	go func() {
		defer close(exited)
		for p.alive() && ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond) // its parent is another process
		}
	}()
	s.connect(ctx, exited)
}

// watch asks for all events over a connection, and says whether that can be.
func (s *supervisor) watch(ctx context.Context, c *control.Conn, exited <-chan struct{}) bool {
	if err := c.Send(control.Request{Watch: true}); err != nil {
		_ = c.Close() // it is of no use
		return false
	}
	s.conn = c
	go s.listen(ctx, c, exited)
	return true
}

// connect waits for the socket of a supervisor that is there already.
func (s *supervisor) connect(ctx context.Context, exited <-chan struct{}) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if c, err := s.dial(); err == nil && s.watch(ctx, c, exited) {
			return
		}
		select {
		case <-exited:
			s.over()
			return
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// listen posts what the supervisor says, until it has ended.
func (s *supervisor) listen(ctx context.Context, c *control.Conn, exited <-chan struct{}) {
	defer c.Close()
	for {
		var e control.Event
		if err := c.Receive(&e); err != nil {
			break
		}
		if e.Refused != "" {
			s.log.Warn("supervisor refused", "step", s.key, "why", e.Refused)
		}
		s.work.Said(e)
	}
	select {
	case <-exited:
		s.over()
	case <-ctx.Done():
	case <-time.After(slack):
		// It lives and does not speak any more: nothing can be done with it.
		s.log.Error("supervisor does not speak any more and is killed", "step", s.key)
		kill(s.marker, nil, slack)
		s.over()
	}
}

// over posts the end of the supervisor.
func (s *supervisor) over() {
	end, err := s.lastWord()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Error("end of step cannot be read", "step", s.key, "err", err)
		}
		s.work.Gone(nil)
		return
	}
	s.work.Gone(&end)
}

// writeJSON writes a file that is there after a crash of the machine.
func writeJSON(ctx context.Context, name string, v any) error {
	return fsx.WriteFile(ctx, name, fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(v)
	})
}

// writePlain writes a file that means nothing after a crash of the machine, and that is read
// only by who was started after it, or can do without.
func writePlain(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o600)
}

func readJSON[T any](name string) (T, error) {
	var v T
	b, err := os.ReadFile(name)
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", name, err)
	}
	return v, nil
}

// Basic is the environment of supervisors: that of the agent without what is of a job.
func Basic(environ []string) []string {
	var all []string
	for _, v := range environ {
		if !strings.HasPrefix(v, control.Marker+"=") && !strings.HasPrefix(v, "SLURM_") {
			all = append(all, v)
		}
	}
	return all
}

// pid is the number of the supervising process; 0: it is not known, or another's by now.
func (s *supervisor) pid() int {
	p, err := readJSON[process](s.file(control.PIDFile))
	if err != nil || !p.alive() {
		return 0
	}
	return p.PID
}
