package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// stepRun makes a step, shows what it says, and waits for its end.
type stepRun struct {
	env     *cli.Env
	name    string // of the command, for its talk
	quiet   bool
	options *slurm.Options
	client  *api.Client
	request *api.StepRequest

	interrupted atomic.Bool
	hurried     atomic.Bool // whoever does not read what is written is not waited for
	unread      atomic.Bool // something that is said waits for its reader
	aborted     atomic.Bool // that the step is being ended was said
	signals     *signals
	progress    progressLine

	step    api.Step
	session *attach.Session
	out     *outputs
	saying  sync.Mutex // of what the report says
	report  report
	ends    map[string]*job.StepEnd // by node, of the present try
	cancel  context.CancelFunc
	restore func() // the terminal; may be called again
	noted   []string
}

// interruptedError is the end of a wait by a signal.
func interruptedError() error {
	return &fault.Error{What: errors.New("interrupted"), Code: fault.CodeInterrupted}
}

// busyWait is how long the controller lets a step wait for its place before it says so.
const busyWait = 60 * job.Second

// create asks for the step until there is room for it.
func (r *stepRun) create(ctx context.Context, id job.ID) error {
	r.request.Wait = cmp.Or(r.options.Immediate, busyWait)
	for told := false; ; {
		step, err := r.client.Step(ctx, id, r.request)
		if err == nil {
			r.step = step
			r.news(&step)
			return nil
		}
		var refused *api.Error
		if !errors.As(err, &refused) || refused.Kind != "NODES_BUSY" || r.options.Immediate > 0 {
			return stepRefused(r.name, id, err)
		}
		if !told {
			r.say("Job %s step creation temporarily disabled, retrying (Requested nodes are busy)", id)
			told = true
		}
		r.request.Once = once()
	}
}

// stepRefused is how srun says that there is no step.
func stepRefused(name string, id job.ID, err error) error {
	var refused *api.Error
	if !errors.As(err, &refused) {
		return err
	}
	why := slurm.ErrorText(refused.Kind)
	if refused.Kind == "INVALID_JOB_ID" {
		return &slurm.Refusal{Code: 1, Lines: []string{
			fmt.Sprintf("error: Unable to confirm allocation for job %s: %s", id, why),
			fmt.Sprintf("Check SLURM_JOB_ID environment variable. Expired or invalid job %s", id),
		}}
	}
	if why == "" {
		why = refused.What
	}
	lines := []string{fmt.Sprintf("error: Unable to create step for job %s: %s", id, why)}
	if why != refused.What {
		lines = append(lines, "error: "+refused.What)
	}
	for _, more := range []struct{ label, text string }{{"cause: ", refused.Cause}, {"hint:  ", refused.Hint}, {"see:   ", refused.See}} {
		if more.text != "" {
			lines = append(lines, more.label+more.text)
		}
	}
	return &slurm.Refusal{Lines: lines, Code: 1}
}

// run runs the step in a job and returns its exit code.
func (r *stepRun) run(ctx context.Context, id job.ID) (code int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.prolog(ctx, id); err != nil {
		return 0, err
	}
	if err := r.create(ctx, id); err != nil {
		return 0, err
	}
	defer r.epilog(ctx)
	defer r.limit(ctx)()
	if r.restore, err = r.terminal(); err != nil {
		return 0, err
	}
	defer r.restore()
	defer r.progress.clear()
	r.signals.attach(r)
	r.out = newOutputs(r.step.Tasks, r.options)
	events := make(chan api.Event, 16)
	go r.watch(ctx, id, events)
	return r.follow(ctx, events)
}

// remembered is the step as the accounting has it; nil: it has not.
func (r *stepRun) remembered(ctx context.Context) *api.Step {
	past, err := oneJob(ctx, r.client, r.step.Key.Job.String())
	if err != nil {
		return nil
	}
	for i := range past.Steps {
		if past.Steps[i].Key.Step == r.step.Key.Step && past.Steps[i].Phase == "ended" {
			return &past.Steps[i]
		}
	}
	return nil
}

// forgotten is the error of a step of which nobody knows how it ended.
func (r *stepRun) forgotten() error {
	return &fault.Error{
		What: fmt.Errorf("how step %s.%s ended is not known any more", r.step.Key.Job, r.step.Key.Step),
		Hint: "sacct -j " + r.step.Key.Job.String(),
	}
}

// watch passes on what happens to the step and its job, as long as ctx lasts and the controller
// knows the job.
func (r *stepRun) watch(ctx context.Context, id job.ID, events chan<- api.Event) {
	defer close(events)
	step := r.step.Key.Step
	for ctx.Err() == nil {
		err := r.client.Watch(ctx, &api.Query{IDs: []job.ID{id}}, func(e *api.Event) bool {
			if e.Step != nil && e.Step.Key.Step != step || e.Step == nil && e.Job == nil {
				return true
			}
			select {
			case events <- *e:
				return true
			case <-ctx.Done():
				return false
			}
		})
		if waitForController(ctx, err) != nil {
			return // it knows the job no more
		}
	}
}

// connect begins a try.
func (r *stepRun) connect(ctx context.Context) <-chan error {
	r.ends = map[string]*job.StepEnd{}
	var stdin io.Reader
	if r.request.Program.Input != "none" {
		stdin = os.Stdin
	}
	s := attach.Open(ctx, attach.Config{
		Step: r.step, Hello: stdio.Hello{Primary: true, Follow: true}, Stdin: stdin, Input: r.request.Program.Input,
		Output: func(rank int, stream stdio.Type, data []byte) error {
			r.progress.clear()
			return r.out.write(rank, stream, data)
		},
		Lost: func(rank int, _ stdio.Type, count uint64, why stdio.Reason) { r.out.lose(rank, count, why) },
		RankExit: func(end job.RankEnd) {
			_ = r.out.finish(end.Rank)
			r.saying.Lock()
			defer r.saying.Unlock()
			r.report.rank(r, end)
		},
		StepEnd: func(end *job.StepEnd) { r.ends[end.Node] = end },
		Trouble: func(node string, err error) { r.say("warning: node %s does not answer: %v", node, err) },
	})
	r.session = s
	r.signals.to(s)
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	return done
}

// drainTime is how long output may take to come after the controller has said that the
// step is over, counted from the last that came.
const drainTime = 5 * time.Second

// stuckTime is how long a session that was stopped may take to end: it may be writing what
// nobody reads.
const stuckTime = time.Second

// ended says whether a session that was stopped has ended.
func (r *stepRun) ended(done <-chan error) bool {
	r.session.Stop()
	if done == nil {
		return true
	}
	t := time.NewTimer(stuckTime)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// follow attends to the step until it is over.
func (r *stepRun) follow(ctx context.Context, events <-chan api.Event) (int, error) {
	done := r.connect(ctx)
	var final *api.Step // what the controller says of the end
	var late <-chan time.Time
	for {
		select {
		case err := <-done:
			done = nil
			if err != nil && final == nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
				return r.unwritable(err)
			}
			if final != nil || err == nil && !r.faulty() {
				return r.finish(final)
			}
		case e, known := <-events:
			if !known { // nor does the controller know of it any more
				if final == nil {
					final = r.remembered(ctx)
				}
				if final == nil {
					r.session.Stop()
					return 0, r.forgotten()
				}
				events, late = nil, time.After(r.drain())
				continue
			}
			if e.Step == nil {
				if e.Job != nil && e.Job.State.Done() && final == nil {
					late = time.After(r.drain())
				}
				continue
			}
			r.news(e.Step)
			switch s := e.Step; {
			case s.Key.Attempt != r.step.Key.Attempt || s.Key.Try < r.step.Key.Try:
			case s.Key.Try > r.step.Key.Try:
				if !r.ended(done) {
					return r.stuck(ctx)
				}
				r.step = *s
				done = r.connect(ctx)
			case s.Phase == "ended" || s.State.Done():
				final = s
				if done == nil || s.Start == 0 {
					r.session.Stop()
					return r.finish(final)
				}
				late = time.After(r.drain())
			default:
				r.progress.show(r, s)
				r.heedStop(s)
			}
		case <-late:
			if wait := r.lateBy(); wait > 0 && done != nil {
				late = time.After(wait)
				continue
			}
			if !r.ended(done) {
				return r.report.verdict(r, final)
			}
			return r.finish(final)
		}
	}
}

// drain is how long output may take that is to come.
func (r *stepRun) drain() time.Duration {
	if r.hurried.Load() {
		return stuckTime
	}
	return drainTime
}

// lateBy is how long to wait on for output of a step that is over: as long as some comes, and
// for who reads it here, unless there is a hurry.
func (r *stepRun) lateBy() time.Duration {
	idle, writing := r.out.idle()
	if writing && !r.hurried.Load() {
		return stuckTime // then it is looked at again
	}
	return r.drain() - idle
}

// stuck gives up a step that is tried again while nobody reads what the last try has said.
func (r *stepRun) stuck(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = r.client.EndStep(ctx, r.step.Key.Job, r.step.Key.Step) // the job's end is the step's in any case
	return 0, &fault.Error{
		What: errors.New("the step is tried again, but the output of its last try is not read"),
		Hint: "have something read the output of " + r.name + ", or send it to a file: --output=FILE",
	}
}

// noteTime is how long the controller is asked for notes at the end.
const noteTime = 300 * time.Millisecond

// news prints the notes of a step that were not printed yet.
func (r *stepRun) news(s *api.Step) {
	for _, note := range s.Notes {
		if !slices.Contains(r.noted, note) {
			r.noted = append(r.noted, note)
			r.say("%s", note)
		}
	}
}

// heedStop says that somebody ends the step, or has: what it said last came from its nodes, and
// may be here before the controller's word.
func (r *stepRun) heedStop(s *api.Step) {
	if s.Stopped {
		r.abort()
	}
}

// faulty says whether a node could not run its part: then the controller decides what
// comes next.
func (r *stepRun) faulty() bool {
	for _, end := range r.ends {
		if end.Fault != nil {
			return true
		}
	}
	return false
}

// finish reports how the step ended.
func (r *stepRun) finish(final *api.Step) (int, error) {
	r.restore()
	r.progress.clear()
	last := final
	if torn := final != nil && final.Start > 0 && !r.session.Whole(); final == nil || torn {
		// What was noted on the nodes comes by the controller, and may be on its way.
		ctx, cancel := context.WithTimeout(context.Background(), noteTime)
		defer cancel()
		if s, err := r.client.StepOf(ctx, r.step.Key.Job, r.step.Key.Step); err == nil {
			r.news(&s)
			if last = &s; torn {
				r.session.Settle(s.Ends)
			}
		}
	}
	if last != nil {
		r.heedStop(last)
	}
	if err := r.out.flush(); err != nil {
		return r.unwritable(err)
	}
	for _, line := range r.out.losses() {
		r.tell("%s", line)
	}
	r.saying.Lock()
	defer r.saying.Unlock()
	r.report.flush(r)
	return r.report.verdict(r, final)
}

// unwritable ends the step, since nobody reads what it says.
func (r *stepRun) unwritable(err error) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = r.client.EndStep(ctx, r.step.Key.Job, r.step.Key.Step) // the job's end is the step's in any case
	if errors.Is(err, syscall.EPIPE) {
		return fault.CodeSignal(syscall.SIGPIPE), nil
	}
	return 0, fmt.Errorf("write output: %w", err)
}
