package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// startRanks starts all ranks at once.
func (s *supervisor) startRanks(ctx context.Context) {
	if s.port != nil {
		s.port.release()
	}
	err := s.checkImage()
	if err == nil {
		err = s.runner.ready(ctx)
	}
	var env *rank.Env
	if err == nil {
		env, err = s.runner.environment()
	}
	if err != nil {
		s.post(failedIn{*asFault(err, "start the step on node "+s.Node)})
		return
	}
	at := now()
	errs := make([]error, len(s.ranks))
	var wg sync.WaitGroup
	for i, m := range s.ranks {
		if s.spec.Program.TaskProlog != "" {
			s.alive.Go(func() { s.startLater(ctx, m, env) })
			continue
		}
		wg.Go(func() { errs[i] = s.startRank(ctx, &launch{m: m, files: m.files, args: m.args}, env) })
	}
	wg.Wait()
	s.mu.Lock()
	s.started, s.early = true, nil
	s.mu.Unlock()
	s.input.begin()
	if err := errors.Join(errs...); err != nil {
		s.post(failedIn{*asFault(err, "start the step on node "+s.Node)})
		return
	}
	s.post(startedIn{at})
}

// startRank starts a rank, or has it end at once where that is its command's fault.
func (s *supervisor) startRank(ctx context.Context, l *launch, env *rank.Env) error {
	p, err := s.runner.start(ctx, *l, env)
	l.files.handed()
	switch {
	case err == nil:
		s.isThere(l.m, p)
		s.sayBinding(l.m, p.Pid())
		if t := p.Terminal(); t != nil {
			l.files.relay(t, s.input)
			s.clients.addTerminal(t)
		}
		s.alive.Go(func() { s.follow(ctx, l, p, env) })
	case isCommand(err):
		l.files.say(fault.Text("gangway", err, false))
		s.alive.Go(func() { s.ended(l.m, exited{code: fault.Code(err)}) })
	default:
		return err
	}
	return nil
}

// startLater starts a rank once the program before it has ended. The step counts as started
// meanwhile: that program may take its time.
func (s *supervisor) startLater(ctx context.Context, m *member, env *rank.Env) {
	l := &launch{m: m, files: m.files, args: m.args}
	if end, ok := s.prolog(ctx, l, env); !ok {
		m.files.handed()
		s.ended(m, end)
		return
	}
	if err := s.startRank(ctx, l, env); err != nil {
		s.post(failedIn{*asFault(err, "start the step on node "+s.Node)})
	}
}

// checkImage refuses to start ranks in another image than the first node's.
func (s *supervisor) checkImage() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start.Image == "" || s.image == "" || s.start.Image == s.image {
		return nil
	}
	return &fault.Error{
		What: fmt.Errorf("start the step on node %s: its image is %s, and that of the first node %s", s.Node, s.image, s.start.Image),
		Hint: "name the image by its digest, or: gangway image precache",
	}
}

// isCommand says whether a rank could not be started because of what it was to run.
func isCommand(err error) bool {
	code := fault.Code(err)
	return code == fault.CodeNotFound || code == fault.CodeNotExecutable || errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist)
}

// follow waits for the end of a rank.
func (s *supervisor) follow(ctx context.Context, l *launch, p process, env *rank.Env) {
	e, err := p.Wait()
	if err != nil {
		s.Log.Error("how a rank ended is not known", "rank", l.m.rank, "err", err)
		e = exited{code: fault.CodeFailed}
	}
	s.epilog(ctx, l, env)
	s.ended(l.m, e)
}

// outputTime is how long the output of a rank that has ended may take, before its end is
// told: a child of its may have it open.
const outputTime = 500 * time.Millisecond

// ended notes the end of a rank, and tells it when its output is there.
func (s *supervisor) ended(m *member, e exited) {
	at := now()
	s.mu.Lock()
	m.process = nil
	s.mu.Unlock()
	m.files.drain(outputTime)
	end := job.RankEnd{Rank: m.rank, Node: s.Node, Exit: e.code, Signal: e.signal, Core: e.core, OOM: e.oom, At: at}
	if e.signal != 0 {
		end.Exit = 0
	}
	if e.signal != 0 || e.code != 0 {
		end.Tail = m.files.lastLines(m)
	}
	s.mu.Lock()
	m.end = end
	s.mu.Unlock()
	if b, err := json.Marshal(&end); err == nil {
		s.spool.Mark(stdio.Frame{Type: stdio.RankExit, Rank: uint32(m.rank), Data: b})
	}
	s.input.gone(m)
	s.post(exitIn{bad: e.signal != 0 || e.code != 0})
}

// cleanTime bounds how long what is left of a step is waited for.
const cleanTime = 30 * time.Second

// leaveTime is how long what a script has started may still take that was told to end with it:
// srun says what becomes of its step. A shell does not wait for it.
const leaveTime = 2 * time.Second

// clean ends everything that is left. told says that it was told to end, and its time is not
// up.
func (s *supervisor) clean(ctx context.Context, told bool) {
	if b, ok := s.runner.(*bare); ok && told && s.isBatch() {
		b.await(leaveTime)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if s.port != nil {
		if err := s.port.free(); err != nil {
			s.Log.Warn("a port stays locked", "err", err)
		}
	}
	if err := s.runner.close(ctx); err != nil {
		s.Log.Warn("clean up after the step", "err", err)
	}
	s.alive.Wait()
	if s.output != nil {
		s.output.close()
	}
	left := leftBehind()
	s.mu.Lock()
	s.left = left
	s.mu.Unlock()
	s.post(cleanedIn{})
}

// buryTime is how long children that have ended may wait for being waited for.
const buryTime = 200 * time.Millisecond

// leftBehind are the processes that are left when everything of the step has been ended, for
// people; empty: there are none.
func leftBehind() string {
	for deadline := time.Now().Add(buryTime); !childless(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Sprintf("processes %d", proc.Children(os.Getpid()))
		}
	}
	return ""
}

// tail keeps the last bytes of a rank's output.
type tail struct {
	mu  sync.Mutex
	b   []byte
	err []byte // of stderr, which tells more
}

// tailSize is how much is kept.
const tailSize = 4 << 10

func (t *tail) add(kind stdio.Type, b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	to := &t.b
	if kind == stdio.Stderr {
		to = &t.err
	}
	*to = append(*to, b[max(0, len(b)-tailSize):]...)
	if len(*to) > 2*tailSize {
		*to = append((*to)[:0], (*to)[len(*to)-tailSize:]...)
	}
}

// last are the last bytes: of stderr if there is any.
func (t *tail) last() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.err
	if len(b) == 0 {
		b = t.b
	}
	return append([]byte(nil), b[max(0, len(b)-tailSize):]...)
}
