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
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// supervisor does for one step what its life says: it starts the supervising process,
// which outlives this one, and speaks with it. What it is told is done in order, by one
// goroutine; what it finds out is posted.
type supervisor struct {
	key     job.StepKey
	dir     string
	node    string
	marker  string
	gangway string
	environ []string
	post    func(any)
	log     *slog.Logger
	todo    *queue[any]
	conn    *control.Conn
}

// work does what is in the queue until the life is forgotten, or ctx ends.
func (s *supervisor) work(ctx context.Context) {
	for {
		for _, do := range s.todo.take() {
			if s.do(ctx, do) {
				return
			}
		}
		select {
		case <-s.todo.ready:
		case <-ctx.Done():
			s.leave()
			return
		}
	}
}

// leave does what has to be on disk for the next agent.
func (s *supervisor) leave() {
	for _, do := range s.todo.take() {
		if do, ok := do.(settleDo); ok {
			s.settle(do)
		}
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

func (s *supervisor) settle(do settleDo) {
	if err := writeJSON(context.Background(), s.file(control.EndFile), do.end); err != nil {
		s.log.Error("end of step is not on disk", "step", s.key, "err", err)
	}
}

// do does one thing, and says whether it was the last.
func (s *supervisor) do(ctx context.Context, do any) (last bool) {
	switch do := do.(type) {
	case launchDo:
		if err := s.launch(ctx, do); err != nil {
			s.post(failedIn{job.Fault{What: "start the supervisor of the step on node " + s.node, Cause: err.Error(), Node: true}})
		}
	case adoptDo:
		s.adopt(ctx)
	case beginDo:
		// Without an intent on disk nothing is started: who comes after us could do it
		// again.
		if err := writeJSON(ctx, s.file(control.IntentFile), do.start); err != nil {
			s.post(killIn{why: "no intent", fault: &job.Fault{What: "write intent of the step on node " + s.node, Cause: err.Error(), Node: true}})
			return false
		}
		s.tell(control.Request{Start: &do.start})
	case tellDo:
		s.tell(do.request)
	case settleDo:
		s.settle(do)
	case forgetDo:
		return true
	case discardDo:
		if err := os.RemoveAll(s.dir); err != nil {
			s.log.Error("run directory stays", "step", s.key, "err", err)
		}
		return true
	}
	return false
}

func (s *supervisor) file(name string) string { return filepath.Join(s.dir, name) }

// tell sends a request. If the supervisor is gone, that is found out elsewhere.
func (s *supervisor) tell(r control.Request) {
	if s.conn == nil {
		return
	}
	if err := s.conn.Send(r); err != nil {
		s.log.Warn("supervisor cannot be told", "step", s.key, "err", err)
	}
}

// launch starts the process in a session of its own, so that no terminal's signal and no
// end of this process is its end.
func (s *supervisor) launch(ctx context.Context, do launchDo) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	if err := writePlain(s.file(control.SpecFile), do.spec); err != nil {
		return err
	}
	log, err := os.OpenFile(s.file(control.LogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.gangway, "step", "--node", s.node, "--lease", strconv.FormatInt(do.lease.Milliseconds(), 10), s.dir)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	cmd.Env = slices.Concat(s.environ, []string{control.Marker + "=" + s.marker})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	p, err := processOf(cmd.Process.Pid)
	if err == nil {
		err = writePlain(s.file(control.PIDFile), p)
	}
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // what it has to say is in end.json
		close(exited)
	}()
	s.connect(ctx, exited)
	return nil
}

// adopt connects to a supervisor that an earlier agent started.
func (s *supervisor) adopt(ctx context.Context) {
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

// connect waits for the socket and asks for all events.
func (s *supervisor) connect(ctx context.Context, exited <-chan struct{}) {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		c, err := control.Dial(s.dir)
		if err == nil {
			if err = c.Send(control.Request{Watch: true}); err == nil {
				s.conn = c
				go s.listen(ctx, c, exited)
				return
			}
			_ = c.Close()
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
		s.post(eventIn{e})
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
	end, err := readJSON[job.StepEnd](s.file(control.EndFile))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Error("end of step cannot be read", "step", s.key, "err", err)
		}
		s.post(goneIn{})
		return
	}
	s.post(goneIn{&end})
}

// writeJSON writes a file that is there after a crash of the machine.
func writeJSON(ctx context.Context, name string, v any) error {
	return fsx.WriteFile(ctx, name, fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(v)
	})
}

// writePlain writes a file that means nothing after a crash of the machine.
func writePlain(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(name+".tmp", name)
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

// pid is the number of the supervising process; 0: not known.
func (s *supervisor) pid() int {
	p, err := readJSON[process](s.file(control.PIDFile))
	if err != nil {
		return 0
	}
	return p.PID
}
