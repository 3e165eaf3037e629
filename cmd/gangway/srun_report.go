package main

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// report collects how ranks ended, and says it as srun does.
type report struct {
	ends    []job.RankEnd // of ranks that failed
	waiting []job.RankEnd // not said yet: of one node, and with the same end
	all     int

	mu     sync.Mutex
	states map[int]string // of the ranks that have ended, in Slurm's words
	first  job.Time       // when the first of them did
	late   sync.Once      // that the others were given time enough is said once
}

// The states of ranks, in the order in which they are said.
const (
	stateRunning  = "running"
	stateExited   = "exited"
	stateAbnormal = "exited abnormally"
)

// note notes the end of a rank for [report.tasks]; first says that there was none before.
func (p *report) note(e *job.RankEnd) (first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first = p.states == nil; first {
		p.states, p.first = map[int]string{}, e.At
	}
	p.states[e.Rank] = stateExited
	if bad(e) {
		p.states[e.Rank] = stateAbnormal
	}
	return first
}

// left is how many of so many ranks run, and when the first of them ended; 0: none has.
func (p *report) left(all int) (n int, first job.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return all - len(p.states), p.first
}

// tasks says which of so many ranks are in which state: "task 0: running" and so on.
func (p *report) tasks(all int, running string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	numbers := map[string][]string{}
	for rank := range all {
		state := cmp.Or(p.states[rank], stateRunning)
		numbers[state] = append(numbers[state], strconv.Itoa(rank))
	}
	var lines []string
	for _, state := range []string{stateRunning, stateExited, stateAbnormal} {
		if of := numbers[state]; len(of) > 0 {
			word := state
			if state == stateRunning {
				word = running
			}
			lines = append(lines, taskList(of)+": "+word)
		}
	}
	return lines
}

// taskList is "task 3" or "tasks 0-3,7".
func taskList(numbers []string) string {
	if len(numbers) == 1 {
		return "task " + numbers[0]
	}
	slurm.SortHosts(numbers)
	return "tasks " + strings.Trim(slurm.Fold(numbers), "[]")
}

// bad says whether a rank failed.
func bad(e *job.RankEnd) bool { return e.Exit != 0 || e.Signal != 0 }

// rank takes the end of a rank. Ends that are alike are said together.
func (p *report) rank(r *stepRun, e job.RankEnd) {
	p.all++
	r.overdue(&e)
	if p.note(&e) {
		r.awaitOthers()
	}
	if !bad(&e) {
		return
	}
	if r.request.Program.KillOnBadExit && len(p.ends) == 0 && p.all < r.step.Tasks {
		defer r.say("launch/slurm: _step_signal: Terminating StepId=%s.%s", r.step.Key.Job, r.step.Key.Step)
		defer p.flush(r)
	}
	p.ends = append(p.ends, e)
	if len(p.waiting) > 0 {
		w := &p.waiting[0]
		if w.Node != e.Node || w.Exit != e.Exit || w.Signal != e.Signal || w.OOM != e.OOM || w.Core != e.Core {
			p.flush(r)
		}
	}
	p.waiting = append(p.waiting, e)
}

// flush says what was collected, in Slurm's words.
func (p *report) flush(r *stepRun) {
	if len(p.waiting) == 0 {
		return
	}
	numbers := make([]string, len(p.waiting))
	for i, e := range p.waiting {
		numbers[i] = strconv.Itoa(e.Rank)
	}
	e := p.waiting[0]
	r.say("error: %s: %s: %s", e.Node, taskList(numbers), howEnded(&e))
	p.waiting = nil
}

// howEnded is how Slurm says that a task failed.
func howEnded(e *job.RankEnd) string {
	switch {
	case e.OOM:
		return "Out Of Memory"
	case e.Signal != 0 && e.Core:
		return signalText(e.Signal) + " (core dumped)"
	case e.Signal != 0:
		return signalText(e.Signal)
	}
	return fmt.Sprintf("Exited with exit code %d", e.Exit)
}

// signalText is strsignal(3)'s text.
func signalText(n int) string {
	text := syscall.Signal(n).String()
	return strings.ToUpper(text[:1]) + text[1:]
}

// exitCode is what a shell has for the end of a rank.
func exitCode(e *job.RankEnd) int {
	if e.Signal != 0 {
		return fault.CodeSignal(syscall.Signal(e.Signal))
	}
	return e.Exit
}

// verdict is the step's exit code, that of the first rank that failed, and what there is
// to say of it besides. final is the controller's word, if there is any.
func (p *report) verdict(r *stepRun, final *api.Step) (int, error) {
	var first *job.RankEnd
	var f *job.Fault
	if final != nil {
		first, f = final.Failed, final.Fault
	}
	for i := range p.ends {
		if e := &p.ends[i]; first == nil || final == nil && e.At < first.At {
			first = e
		}
	}
	if f == nil && final == nil {
		for _, end := range r.ends {
			if end.Fault != nil {
				f = end.Fault
			}
		}
	}
	if f != nil && (first == nil || f.Code != 0) {
		return 0, &fault.Error{What: faultError(f.What), Cause: f.Cause, Hint: f.Hint, Code: f.Code, See: "gangway show job " + r.step.Key.Job.String()}
	}
	if first == nil {
		if final != nil && final.State != job.Completed && final.State.Done() {
			if final.State == job.CancelledState && final.Start == 0 { // it had no ranks, whose ends would say it
				r.say("Force Terminated StepId=%s.%s", r.step.Key.Job, r.step.Key.Step)
			}
			if final.Signal != 0 {
				return fault.CodeSignal(syscall.Signal(final.Signal)), nil
			}
			return max(final.Exit, 1), nil
		}
		return 0, nil
	}
	p.explain(r, first)
	return exitCode(first), nil
}

// explain says of several ranks which failed first, and its last words where they were not
// seen.
func (p *report) explain(r *stepRun, first *job.RankEnd) {
	if p.all < 2 && r.step.Tasks < 2 {
		return
	}
	others := len(p.ends) - 1
	text := fmt.Sprintf("first to fail: task %d on %s, %s", first.Rank, first.Node, lowerFirst(howEnded(first)))
	switch {
	case others == 1:
		text += "; and 1 other"
	case others > 1:
		text += fmt.Sprintf("; and %d others", others)
	}
	r.say("error: %s", text)
	if tail := bytes.TrimSpace(first.Tail); len(tail) > 0 {
		for _, line := range slices.Collect(bytes.Lines(tail)) {
			r.say("  | %s", strings.TrimRight(string(line), "\r\n"))
		}
	}
}

func lowerFirst(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// faultError is a fault's text as an error.
type faultError string

// Error implements error.
func (e faultError) Error() string { return string(e) }
