package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/attach"
)

// signals passes this process's signals on to the step, as srun does: the first interrupt
// says how things are, a second one within a second goes to the tasks, a third one kills.
type signals struct {
	c    chan os.Signal
	quit chan struct{}

	mu      sync.Mutex
	run     *stepRun // nil: there is no step yet
	session *attach.Session
	last    time.Time
	sent    bool
}

// catch takes this process's signals over.
func (r *stepRun) catch() *signals {
	s := &signals{c: make(chan os.Signal, 8), quit: make(chan struct{})}
	r.signals = s
	// Writing to a pipe that nobody reads is an error that is looked at.
	// An interrupt counts also where a shell has it ignored, as for what runs in the background: so
	// scripts end a step, and srun takes it.
	signal.Notify(s.c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGCONT, syscall.SIGWINCH, syscall.SIGPIPE)
	go func() {
		for {
			select {
			case sig := <-s.c:
				s.handle(r, sig.(syscall.Signal))
			case <-s.quit:
				return
			}
		}
	}()
	return s
}

func (s *signals) stop() {
	signal.Stop(s.c)
	close(s.quit)
}

// attach says that there is a step to which signals go.
func (s *signals) attach(r *stepRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = r
}

// to says by which session.
func (s *signals) to(session *attach.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = session
	if s.run != nil && s.run.request.Program.Terminal {
		session.Resize(cli.WindowSize(os.Stdin))
	}
}

func (s *signals) handle(r *stepRun, sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		if sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT {
			r.abandon()
		}
		return
	}
	switch sig {
	case syscall.SIGPIPE:
	case syscall.SIGWINCH:
		if r.request.Program.Terminal {
			s.session.Resize(cli.WindowSize(os.Stdin))
		}
	case syscall.SIGINT:
		r.hurried.Store(true) // what blocks on a reader must not keep further signals from here
		s.interrupt(r)
	case syscall.SIGTERM, syscall.SIGHUP:
		r.hurried.Store(true)
		r.say("forcing job termination")
		r.abort()
		go r.kill(false)
	default:
		s.session.Signal(sig)
	}
}

// abortTime is how long ranks have for their own answer to an interrupt.
const abortTime = 2 * time.Second

// interrupt counts interrupts.
func (s *signals) interrupt(r *stepRun) {
	quick := time.Since(s.last) <= time.Second
	s.last = time.Now()
	switch {
	case !quick && !r.options.QuitOnInterrupt && !r.options.DisableStatus:
		s.sent = false
		r.tell("interrupt (one more within 1 sec to abort)")
		r.within(r.status)
		s.last = time.Now() // saying so may have taken a while
	case !s.sent:
		s.sent = true
		r.tell("sending Ctrl-C to StepId=%s.%s", r.step.Key.Job, r.step.Key.Step)
		s.session.Signal(syscall.SIGINT)
		r.abort()
		time.AfterFunc(abortTime, func() { r.kill(false) })
	default:
		r.tell("forcing job termination")
		go r.kill(true)
	}
}

// abort says once, in Slurm's words, that the step is being ended by order, whoever gave it.
func (r *stepRun) abort() {
	if r.aborted.CompareAndSwap(false, true) {
		r.tell("Job step aborted: Waiting up to 32 seconds for job step to finish.")
	}
}

// status says how the ranks are, by state.
func (r *stepRun) status() {
	state := stateRunning
	if r.progress.preparing() {
		state = "preparing"
	}
	for _, line := range r.report.tasks(r.step.Tasks, state) {
		r.tell("StepId=%s.%s %s", r.step.Key.Job, r.step.Key.Step, line)
	}
}

// awaitOthers says, when the others have had the time that --wait gives them after the first rank's
// end, that they are ended: the nodes do that.
func (r *stepRun) awaitOthers() {
	if wait := r.request.Program.WaitAfterExit; wait > 0 {
		time.AfterFunc(time.Duration(wait)*time.Millisecond, func() {
			r.saying.Lock()
			defer r.saying.Unlock()
			r.sayOverdue()
		})
	}
}

// overdue says so where a rank was ended for it, before that is said.
func (r *stepRun) overdue(e *job.RankEnd) {
	wait := r.request.Program.WaitAfterExit
	if _, first := r.report.left(r.step.Tasks); wait > 0 && first != 0 && e.Signal != 0 && e.At >= first.Add(wait) {
		r.sayOverdue()
	}
}

// sayOverdue is called with r.saying.
func (r *stepRun) sayOverdue() {
	if left, _ := r.report.left(r.step.Tasks); left == 0 {
		return
	}
	r.report.late.Do(func() {
		r.report.flush(r)
		r.say("First task exited %ds ago", r.request.Program.WaitAfterExit/job.Second)
		r.within(r.status)
		r.say("launch/slurm: _step_signal: Terminating StepId=%s.%s", r.step.Key.Job, r.step.Key.Step)
		r.say("Job step aborted: Waiting up to 32 seconds for job step to finish.")
	})
}

// kill ends the step: TERM and, after a while, KILL, which comes at once if it is hard.
func (r *stepRun) kill(hard bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := r.client.EndStep(ctx, r.step.Key.Job, r.step.Key.Step)
	if hard || err != nil {
		step := r.step.Key.Step
		err = r.client.Signal(ctx, r.step.Key.Job, &api.Change{Signal: "KILL", Step: &step})
	}
	if err != nil {
		r.session.Signal(syscall.SIGKILL)
	}
}

// abandon ends the wait for nodes.
func (r *stepRun) abandon() {
	r.interrupted.Store(true)
	if r.cancel != nil {
		r.cancel()
	}
}

// terminal makes the terminal raw for a step that has one. restore undoes that.
func (r *stepRun) terminal() (restore func(), err error) {
	if !r.request.Program.Terminal {
		return func() {}, nil
	}
	return cli.RawTerminal(os.Stdin)
}

// progressLine is the line that says how far the preparation is: one that is drawn anew on
// a terminal, else one now and then.
type progressLine struct {
	mu    sync.Mutex
	drawn bool
	text  string
	phase string
	told  time.Time
	begun time.Time
}

func (p *progressLine) preparing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase == "preparing"
}

// show shows the progress of a step.
func (p *progressLine) show(r *stepRun, s *api.Step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = s.Phase
	if p.begun.IsZero() {
		p.begun = time.Now()
	}
	if s.State == job.Running && s.Phase != "preparing" || s.Progress == "" {
		p.wipe(r.env.Stderr)
		return
	}
	if r.quiet || s.Progress == p.text {
		return
	}
	p.text = s.Progress
	if r.env.Terminal(r.env.Stderr) && !r.request.Program.Terminal {
		columns, _ := r.env.TerminalSize(r.env.Stderr)
		line := r.name + ": " + s.Progress
		fmt.Fprintf(r.env.Stderr, "\r\x1b[K%.*s", columns-1, line)
		p.drawn = true
		return
	}
	// Not on a terminal: what takes a moment only is not worth a line.
	if time.Since(p.begun) > 3*time.Second && time.Since(p.told) > 10*time.Second {
		talk(r.env, r.name, "%s", s.Progress)
		p.told = time.Now()
	}
}

// clear takes the line away, for something else to be written.
func (p *progressLine) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe(os.Stderr)
}

func (p *progressLine) wipe(w io.Writer) {
	if p.drawn {
		_, _ = io.WriteString(w, "\r\x1b[K")
		p.drawn = false
	}
}
