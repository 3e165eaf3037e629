package server

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"sort"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// state is what follows from the events, and nothing else: after a restart it is the same.
// What is only known of the present (sessions, waiting requests) is in core.
type state struct {
	sched    *sched.Scheduler
	subs     []submission // by rising id
	runs     map[job.ID]*run
	once     map[string]onceSent
	fates    map[job.ID]*fate   // of jobs that have ended, where there is more to say than a state and an exit code
	held     map[job.ID]bool    // allocations that somebody holds, or held last
	met      map[string]meeting // by node: where it was reached last
	comments map[job.ID]string  // that were given to jobs after their submission
	// declared are partitions as the configuration last had them.
	declared map[string]job.Partition
	// pins are the digests of images by job (of an array: its first task) and reference.
	pins map[job.ID]map[string]string
	seq  uint64 // of the latest event
	// dirty are the attempts of which something may be left on a node.
	dirty map[string][]attempt
	// dead are nodes on which no rank of such an attempt runs any more, though they have not
	// said so. councils are those that a node may have, the latest last.
	dead     map[attempt][]string
	councils map[string][]council
	// past are the latest runs that have ended.
	past []*run
	last job.ID // the highest that was given
	// recent are jobs that have ended lately, in the order of their ends.
	recent []recentEnd

	known []job.Node // as the scheduler has them, with their states
	parts []job.Partition
}

// maxPast is how many ended runs are remembered with their steps; the accounting has all.
const maxPast = 1000

// onceSent is what became of a request that may be sent again.
type onceSent struct {
	ID job.ID
	N  int
	At job.Time
}

// forget drops what the scheduler does not know any more.
func (s *state) forget(now job.Time) {
	s.subs = slices.DeleteFunc(slices.Clone(s.subs), func(sub submission) bool {
		_, known := s.sched.Job(sub.First)
		return !known
	})
	for id := range s.fates {
		if _, known := s.sched.Job(id); !known {
			delete(s.fates, id)
		}
	}
	for id := range s.pins {
		if s.submission(id) == nil {
			delete(s.pins, id)
		}
	}
	for id := range s.comments {
		if s.submission(id) == nil {
			delete(s.comments, id)
		}
	}
	for text, o := range s.once {
		if now >= o.At.Add(job.Day) {
			delete(s.once, text)
		}
	}
}

// unsend has a request that was refused after all be a new one when it is sent again.
func (s *state) unsend(id job.ID, f *fate) {
	if sub := s.submission(id); f.Unstored && sub != nil && s.once[sub.Facts.Once].ID == sub.First {
		delete(s.once, sub.Facts.Once)
	}
}

// recentEnd is when a job ended.
type recentEnd struct {
	ID job.ID
	At job.Time
}

// submission is a job, or all tasks of an array, as submitted.
type submission struct {
	First job.ID
	N     int
	Facts *facts
	Seq   uint64 // of the event
}

// run is an attempt of a job that has nodes.
type run struct {
	Of    attempt
	Facts *facts
	Alloc job.Allocation
	Start job.Time
	Steps map[job.StepID]*step // that have not ended
	Done  []*step
	Next  job.StepID
	Fate  *fate // nil: it is not ending
	// Warned is that Program.Signal was sent.
	Warned bool

	now present // see there
}

// step is a step of a run, in its present try.
type step struct {
	Spec   *job.StepSpec // the program is without script and environment
	Env    string
	Text   string
	Want   *want
	Made   job.Time
	Begun  job.Time // when START was sent
	Gang   *gang
	Result *result // nil: it has not ended
	Avoid  []string
	Warned bool // its own Program.Signal was sent

	notes    []string
	whole    wholeText
	progress map[string]*nodeProgress // by node
	told     job.Time                 // when watchers were last told of it
	untold   bool                     // there is something new
}

// want is what a step was asked for, so that it can be placed again.
type want struct{ Request api.StepRequest }

func newState() *state {
	s := &state{sched: sched.New(), runs: map[job.ID]*run{}}
	s.fillMaps()
	return s
}

// fillMaps makes the maps that a snapshot leaves out because they were empty.
func (s *state) fillMaps() {
	fillMap(&s.once)
	fillMap(&s.fates)
	fillMap(&s.dirty)
	fillMap(&s.dead)
	fillMap(&s.councils)
	fillMap(&s.held)
	fillMap(&s.met)
	fillMap(&s.pins)
	fillMap(&s.comments)
	fillMap(&s.declared)
}

func fillMap[K comparable, V any](m *map[K]V) {
	if *m == nil {
		*m = map[K]V{}
	}
}

// replay takes an event of the log.
func (s *state) replay(e any) error {
	switch e := e.(type) {
	case submitted:
		if err := s.sched.Apply(e.Submitted); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	case job.Event:
		if err := s.sched.Apply(e); err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	return s.follow(e)
}

// follow takes an event that the scheduler has taken already, if it is one of its.
func (s *state) follow(e any) error {
	switch e := e.(type) {
	case submitted:
		n := 1
		if e.Spec.Array != nil {
			n = e.Spec.Array.Len()
		}
		if k := len(s.subs); k > 0 && reflect.DeepEqual(s.subs[k-1].Facts, e.Facts) {
			e.Facts = s.subs[k-1].Facts // many are alike
		}
		s.subs = append(s.subs, submission{e.ID, n, e.Facts, s.seq + 1})
		s.last = e.ID + job.ID(n) - 1
		if e.Facts.Once != "" {
			s.once[e.Facts.Once] = onceSent{e.ID, n, e.At}
		}
	case job.Started:
		sub := s.submission(e.ID)
		if sub == nil {
			return fmt.Errorf("job %v starts, and was never submitted", e.ID)
		}
		s.runs[e.ID] = &run{
			Of: attempt{e.ID, e.Attempt}, Facts: sub.Facts, Alloc: e.Allocation, Start: e.At, Steps: map[job.StepID]*step{},
		}
		delete(s.fates, e.ID)
	case job.Ended:
		s.recent = append(s.recent, recentEnd{e.ID, e.At})
		s.over(e.ID, true)
	case job.Cancelled:
		if s.runs[e.ID] == nil {
			delete(s.held, e.ID)
			s.recent = append(s.recent, recentEnd{e.ID, e.At})
		}
	case job.Requeue:
		s.over(e.ID, true)
	case job.Requeued:
		s.lost(e.ID, e.At, fate{State: job.NodeFailed, Requeue: true, Fault: &job.Fault{What: e.Cause}})
	case job.Killed:
		s.recent = append(s.recent, recentEnd{e.ID, e.At})
		f := fate{State: e.State, Fault: &job.Fault{What: e.Cause}}
		s.fates[e.ID] = &f
		delete(s.held, e.ID)
		s.lost(e.ID, e.At, f)
	case jobFate:
		s.fates[e.ID] = &e.Fate
		s.unsend(e.ID, &e.Fate)
	case jobHeld:
		s.held[e.ID] = true
	case jobNoted:
		s.comments[e.ID] = e.Comment
	case partitionDeclared:
		e.follow(s.declared)
	case job.Changed:
		if r := s.runs[e.ID]; r != nil {
			if v, ok := s.sched.Job(e.ID); ok && v.Allocation.Limit > 0 {
				r.Alloc.Limit = v.Allocation.Limit
			}
		}
	case nodeMet:
		s.met[e.Node] = e.meeting
	case imagePinned:
		if s.pins[e.ID] == nil {
			s.pins[e.ID] = map[string]string{}
		}
		s.pins[e.ID][e.Reference] = e.Digest
	case jobEnding:
		if r := s.runs[e.ID]; r != nil {
			r.Fate = &e.Fate
		}
		s.unsend(e.ID, &e.Fate)
	case nodeCleaned:
		s.cleaned(e.Node, e.Of)
	case nodeSoiled:
		s.soil(e.Node, e.Of)
	case job.NodeSet:
		if n := s.knownNode(e.Node.Name); n != nil {
			*n = e.Node
		} else {
			s.known = append(s.known, e.Node)
		}
	case job.NodeStateSet:
		if n := s.knownNode(e.Node); n != nil {
			n.State, n.Reason = e.State, e.Reason
		}
	case job.NodeRemoved:
		delete(s.met, e.Node)
		s.known = slices.DeleteFunc(s.known, func(n job.Node) bool { return n.Name == e.Node })
	case job.PartitionSet:
		if p := s.partition(e.Partition.Name); p != nil {
			*p = e.Partition
		} else {
			s.parts = append(s.parts, e.Partition)
		}
	case job.PartitionRemoved:
		s.parts = slices.DeleteFunc(s.parts, func(p job.Partition) bool { return p.Name == e.Partition })
	default:
		return s.followStep(e)
	}
	return nil
}

// followStep takes an event of a step, or of leases.
func (s *state) followStep(e any) error {
	switch e := e.(type) {
	case councilGiven, councilHeard, attemptDead:
		s.followLease(e)
	case stepMade:
		r := s.runs[e.Spec.Key.Job]
		if r == nil || r.Of.Attempt != e.Spec.Key.Attempt {
			return fmt.Errorf("step %v is of no running job", e.Spec.Key)
		}
		st := &step{Spec: e.Spec, Env: e.Env, Text: e.Text, Want: e.Want, Made: e.At, Gang: newGang(e.Spec), Avoid: e.Avoid}
		id := e.Spec.Key.Step
		if old := r.Steps[id]; old != nil {
			st.notes = old.notes
			st.Gang.inherit(old.Gang)
		}
		r.Steps[id] = st
		r.Next = max(r.Next, id+1)
	case stepStarting:
		if st := s.step(e.Key); st != nil {
			st.Gang.Starting, st.Begun = true, e.At
		}
	case nodeEnded:
		if st := s.step(e.End.Key); st != nil {
			if n := st.Gang.node(e.End.Node); n != nil {
				n.Phase, n.End = ended, &e.End
				if st.Gang.Starting { // else they are for the next try
					n.Due = nil
				}
			}
		}
	case stepDone:
		if st := s.step(e.Key); st != nil {
			r := s.runs[e.Key.Job]
			delete(r.Steps, e.Key.Step)
			st.Result = &e.Result
			r.Done = append(r.Done, st)
		}
	case stepFailing:
		if st := s.step(e.Key); st != nil {
			st.Gang.fail(&e.failing)
		}
	case stepStopped:
		if st := s.step(e.Key); st != nil {
			st.Gang.stop(e.Grace, e.Why)
		}
	case signalKept:
		if st := s.step(e.Key); st != nil {
			for n := range st.Gang.each {
				if e.Node == "" || e.Node == n.Name {
					n.Due = append(n.Due, dueSignal{s.seq + 1, e.Signal})
				}
			}
		}
	case signalsSent:
		if n := s.gangNode(e.Key, e.Node); n != nil {
			n.Due = slices.DeleteFunc(n.Due, func(d dueSignal) bool { return d.ID <= e.UpTo })
		}
	case jobWarned:
		if r := s.runs[e.ID]; r != nil {
			r.Warned = r.Warned || e.Whole
			for _, id := range e.Steps {
				if st := r.Steps[id]; st != nil {
					st.Warned = true
				}
			}
		}
	}
	return nil
}

func (s *state) knownNode(name string) *job.Node {
	for i := range s.known {
		if s.known[i].Name == name {
			return &s.known[i]
		}
	}
	return nil
}

func (s *state) partition(name string) *job.Partition {
	for i := range s.parts {
		if s.parts[i].Name == name {
			return &s.parts[i]
		}
	}
	return nil
}

// lost ends a run that the scheduler has ended, with the steps that it has.
func (s *state) lost(id job.ID, at job.Time, f fate) {
	r := s.runs[id]
	if r == nil {
		return
	}
	if r.Fate == nil {
		r.Fate = &f
	}
	for _, id := range sortedSteps(r.Steps) {
		st := r.Steps[id]
		st.Result = &result{State: r.Fate.State, Fault: r.Fate.Fault, Start: st.Begun, End: at, Exit: 125}
		r.Done = append(r.Done, st)
	}
	clear(r.Steps)
	s.over(id, false)
}

// over ends the run of a job. Where it is not clean its nodes have to be cleaned before
// others start there.
func (s *state) over(id job.ID, clean bool) {
	r := s.runs[id]
	if r == nil {
		return
	}
	delete(s.runs, id)
	delete(s.held, id)
	if r.Fate != nil && !r.Fate.Requeue {
		s.fates[id] = r.Fate
	}
	if s.past = append(s.past, r); len(s.past) > 2*maxPast {
		s.past = slices.Clone(s.past[len(s.past)-maxPast:])
	}
	for i := range r.Alloc.Nodes {
		name := r.Alloc.Nodes[i].Node
		if clean {
			s.cleaned(name, r.Of)
		} else {
			s.soil(name, r.Of)
		}
	}
}

func (s *state) soil(node string, a attempt) {
	if !slices.Contains(s.dirty[node], a) {
		s.dirty[node] = append(s.dirty[node], a)
	}
}

func (s *state) cleaned(node string, a attempt) {
	if i := slices.Index(s.dirty[node], a); i >= 0 {
		if s.dirty[node] = slices.Delete(s.dirty[node], i, i+1); len(s.dirty[node]) == 0 {
			delete(s.dirty, node)
		}
	}
	if nodes := s.dead[a]; slices.Contains(nodes, node) {
		if s.dead[a] = slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == node }); len(s.dead[a]) == 0 {
			delete(s.dead, a)
		}
	}
}

// submission is what a job was submitted with; nil if there is no such job.
func (s *state) submission(id job.ID) *submission {
	i, ok := slices.BinarySearchFunc(s.subs, id, func(sub submission, id job.ID) int { return cmp.Compare(sub.First, id) })
	if !ok {
		if i--; i < 0 || id >= s.subs[i].First+job.ID(s.subs[i].N) {
			return nil
		}
	}
	return &s.subs[i]
}

// step is the present try of a step that has not ended, if it is that one.
func (s *state) step(k job.StepKey) *step {
	r := s.runs[k.Job]
	if r == nil || r.Of.Attempt != k.Attempt {
		return nil
	}
	if st := r.Steps[k.Step]; st != nil && st.Spec.Key == k {
		return st
	}
	return nil
}

// gangNode is a node of the present try of a step; nil if there is none.
func (s *state) gangNode(k job.StepKey, node string) *gangNode {
	if st := s.step(k); st != nil {
		return st.Gang.node(node)
	}
	return nil
}

// ended are the jobs that have ended since a moment.
func (s *state) ended(since job.Time) []job.ID {
	i := sort.Search(len(s.recent), func(i int) bool { return s.recent[i].At >= since })
	if i > 1000 && i > len(s.recent)/2 {
		s.recent, i = slices.Clone(s.recent[i:]), 0
	}
	ids := make([]job.ID, 0, len(s.recent)-i)
	for _, e := range s.recent[i:] {
		ids = append(ids, e.ID)
	}
	return ids
}

// lately is the latest ended run of a job that is still remembered.
func (s *state) lately(id job.ID) *run {
	for i := len(s.past) - 1; i >= 0; i-- {
		if s.past[i].Of.Job == id {
			return s.past[i]
		}
	}
	return nil
}
