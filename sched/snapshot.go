package sched

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// version is that of the format of snapshots. It is raised whenever the format, or what
// is decided, changes.
const version = 2

// header is the part of a snapshot that is not jobs.
type header struct {
	Version   int
	Now       job.Time
	Hash      uint64
	Last      job.ID
	Config    job.Config
	Network   job.Network
	Parts     []savedPart
	Nodes     []savedNode
	Arrays    []savedArray
	Singles   []job.ID
	Arrivals  []job.ID
	Grown     []int32
	Lost      []job.ID
	Expired   []job.ID
	Recheck   bool
	Regrow    bool
	Retry     bool
	Anew      bool
	Jobs      int
	Specs     int
	WakeTimes []job.Time
	WakeJobs  []job.ID
}

type savedPart struct {
	Spec job.Partition
	Gone bool
}

type savedNode struct {
	Spec   job.Node
	State  job.NodeState
	Reason string
	Gone   bool
	Images []string
}

type savedArray struct {
	First                              job.ID
	N, Throttle                        int
	Active, Started, Ended, OK, Failed int
	Dependents                         []job.ID
}

// savedJob is a job. Spec is a number: tasks of an array share one.
type savedJob struct {
	ID                           job.ID
	Array                        int32
	Task                         uint32
	Spec                         int
	Soft, Never, Met, Queued     bool
	State, ToState               job.State
	Held                         uint8
	Submit, Eligible, Start, End job.Time
	Limit                        job.Duration
	Attempt, Requeues, Exit      int
	Promise                      job.Time
	Breach, Lost                 string
	Plan                         *savedPlan
	Alloc                        *job.Allocation
	Licenses                     []job.License
	Ends                         job.Time
	Dependents                   []job.ID
}

type savedPlan struct {
	Part       int
	Start, End job.Time
	Nodes      []int32
	Shares     []int32 // slots numbers a node
	Licenses   []job.License
}

// Snapshot writes the state, from which [Restore] makes the same one: it will decide the
// same.
func (s *Scheduler) Snapshot(w io.Writer) error {
	s.forget()
	specs := map[*job.Spec]int{}
	var list []*job.Spec
	for _, r := range s.jobs {
		if _, ok := specs[r.spec]; !ok {
			specs[r.spec] = len(list)
			list = append(list, r.spec)
		}
	}
	h := header{
		Version: version, Now: s.now, Hash: s.hash, Last: s.last, Config: s.config, Network: s.network, Singles: s.singles, Arrivals: s.arrivals,
		Grown: s.grown, Lost: s.lost, Expired: s.expired, Recheck: s.recheck, Regrow: s.regrow, Retry: s.retry, Anew: s.anew,
		Jobs: len(s.jobs), Specs: len(list),
	}
	for i := range s.parts {
		h.Parts = append(h.Parts, savedPart{*s.parts[i].spec, s.parts[i].gone})
	}
	for _, n := range s.nodes {
		h.Nodes = append(h.Nodes, savedNode{*n.spec, n.state, n.reason, n.gone, n.images})
	}
	for _, a := range s.arrays {
		h.Arrays = append(h.Arrays, savedArray{a.first, a.n, a.throttle, a.active, a.started, a.ended, a.ok, a.failed, a.dependents})
	}
	for _, t := range s.wake.timers {
		h.WakeTimes, h.WakeJobs = append(h.WakeTimes, t.t), append(h.WakeJobs, t.id)
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	buffered := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	enc := gob.NewEncoder(buffered)
	if err := enc.Encode(&h); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	for _, spec := range list {
		if err := enc.Encode(spec); err != nil {
			return fmt.Errorf("write snapshot: %w", err)
		}
	}
	for _, r := range s.jobs {
		if err := enc.Encode(saved(r, specs[r.spec])); err != nil {
			return fmt.Errorf("write snapshot: %w", err)
		}
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if _, err := w.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32())); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func saved(r *record, spec int) *savedJob {
	j := &savedJob{
		ID: r.id, Array: r.array, Task: r.task, Spec: spec, Soft: r.soft, Never: r.never, Met: r.met, Queued: r.queued, State: r.state, ToState: r.toState,
		Held: r.held, Submit: r.submit, Eligible: r.eligible, Start: r.start, End: r.end, Limit: r.limit, Attempt: r.attempt, Requeues: r.requeues,
		Exit: r.exit, Promise: r.promise, Breach: r.breach, Lost: r.lost, Alloc: r.alloc, Licenses: r.licenses, Ends: r.ends, Dependents: r.dependents,
	}
	if p := r.plan; p != nil {
		j.Plan = &savedPlan{Part: p.part, Start: p.start, End: p.end, Licenses: p.licenses}
		for k := range p.picks {
			j.Plan.Nodes = append(j.Plan.Nodes, p.picks[k].node)
			j.Plan.Shares = append(j.Plan.Shares, p.picks[k].v[:]...)
		}
	}
	return j
}

// Restore reads what [Scheduler.Snapshot] wrote. A snapshot that is not whole is refused by
// its sum; one that somebody made up is not looked for.
func Restore(r io.Reader) (*Scheduler, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	end := len(data) - 4
	if end < 0 || crc32.Checksum(data[:end], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(data[end:]) {
		return nil, errors.New("read snapshot: it is not whole: its sum is another one")
	}
	dec := gob.NewDecoder(bytes.NewReader(data[:end]))
	var h header
	if err := dec.Decode(&h); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	if h.Version != version {
		return nil, fmt.Errorf("read snapshot: it is of version %d, not %d", h.Version, version)
	}
	s := New()
	if err := s.restoreCluster(&h); err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	var specs []*job.Spec
	for range h.Specs {
		spec := new(job.Spec)
		if err := dec.Decode(spec); err != nil {
			return nil, fmt.Errorf("read snapshot: %w", err)
		}
		specs = append(specs, spec)
	}
	for range h.Jobs {
		var j savedJob
		if err := dec.Decode(&j); err != nil {
			return nil, fmt.Errorf("read snapshot: %w", err)
		}
		if j.Spec < 0 || j.Spec >= len(specs) || int(j.Array) >= len(s.arrays) {
			return nil, fmt.Errorf("read snapshot: job %v has no spec or array", j.ID)
		}
		if err := s.restoreJob(&j, specs[j.Spec]); err != nil {
			return nil, fmt.Errorf("read snapshot: job %v: %w", j.ID, err)
		}
	}
	s.arrivals, s.grown, s.lost, s.expired = h.Arrivals, h.Grown, h.Lost, h.Expired
	s.recheck, s.regrow, s.retry, s.anew = h.Recheck, h.Regrow, h.Retry, h.Anew
	for i := range s.nodes {
		s.reindex(int32(i))
	}
	return s, nil
}

func (s *Scheduler) restoreCluster(h *header) error {
	for i := range h.Nodes {
		n := &h.Nodes[i]
		if err := s.setNode(job.NodeSet{Node: n.Spec}); err != nil {
			return err
		}
		x := s.nodes[i]
		x.state, x.reason, x.gone, x.images = n.State, n.Reason, n.Gone, n.Images
	}
	for i := range h.Parts {
		s.parts = append(s.parts, part{spec: &h.Parts[i].Spec, gone: h.Parts[i].Gone})
	}
	if err := checkNetwork(&h.Network); err != nil {
		return err
	}
	s.changedParts()
	s.config, s.network = h.Config, h.Network
	s.setLicenses(h.Config.Licenses)
	s.now, s.hash, s.last, s.singles = h.Now, h.Hash, h.Last, h.Singles
	for _, a := range h.Arrays {
		s.arrays = append(s.arrays, &array{s.tok, a.First, a.N, a.Throttle, a.Active, a.Started, a.Ended, a.OK, a.Failed, a.Dependents})
	}
	for i := range h.WakeTimes {
		if i < len(h.WakeJobs) {
			s.ownClock(&s.wake).push(timer{h.WakeTimes[i], h.WakeJobs[i]})
		}
	}
	s.refresh()
	return nil
}

func (s *Scheduler) restoreJob(j *savedJob, spec *job.Spec) error {
	r := &record{
		tok: s.tok, id: j.ID, array: j.Array, task: j.Task, spec: spec, soft: j.Soft, never: j.Never, met: j.Met, queued: j.Queued, state: j.State, toState: j.ToState,
		held: j.Held, submit: j.Submit, eligible: j.Eligible, start: j.Start, end: j.End, limit: j.Limit, attempt: j.Attempt, requeues: j.Requeues,
		exit: j.Exit, promise: j.Promise, breach: j.Breach, lost: j.Lost, alloc: j.Alloc, licenses: j.Licenses, ends: j.Ends, dependents: j.Dependents,
	}
	if n := len(s.jobs); n > 0 && s.jobs[n-1].id >= r.id {
		return fmt.Errorf("it is not above the one before")
	}
	s.jobs = append(s.jobs, r)
	if !r.state.Done() {
		s.unfinished++
	}
	if r.state == job.Pending {
		r.class = s.classOf(spec, r.soft)
	}
	if r.queued {
		r.key = s.keyOf(r)
		s.enqueue(r)
	}
	if r.state == job.Running || r.state == job.Completing {
		return s.restoreRun(r)
	}
	if j.Plan == nil {
		return nil
	}
	p := &plan{part: j.Plan.Part, start: j.Plan.Start, end: j.Plan.End, licenses: j.Plan.Licenses}
	for k, n := range j.Plan.Nodes {
		if n < 0 || int(n) >= len(s.nodes) || len(j.Plan.Shares) != slots*len(j.Plan.Nodes) {
			return fmt.Errorf("its plan has nodes that do not exist")
		}
		p.picks = append(p.picks, pick{n, vec(j.Plan.Shares[k*slots : (k+1)*slots])})
	}
	s.setPlan(len(s.jobs)-1, p)
	return nil
}

// restoreRun gives a running job its nodes back.
func (s *Scheduler) restoreRun(r *record) error {
	if r.alloc == nil {
		return fmt.Errorf("it runs nowhere")
	}
	for k := range r.alloc.Nodes {
		i, ok := s.nodeNumber(r.alloc.Nodes[k].Node)
		if !ok {
			return fmt.Errorf("it runs on %s, which does not exist", r.alloc.Nodes[k].Node)
		}
		n := s.nodes[i]
		v, free := s.shareOf(n, &r.alloc.Nodes[k])
		if !free || !n.free.holds(&v) {
			return fmt.Errorf("node %s has not that much", n.spec.Name)
		}
		r.picks = append(r.picks, pick{i, v})
		n.free.sub(&v)
		n.line.take(math.MinInt64/2, r.ends, &v)
		s.useDevices(n, r.alloc.Nodes[k].Devices, true)
		at, _ := slices.BinarySearch(n.runs, r.id)
		n.runs = slices.Insert(n.runs, at, r.id)
	}
	s.useLicenses(r.licenses, s.now, r.ends, false)
	s.ownClock(&s.ends).push(timer{r.ends, r.id})
	return nil
}
