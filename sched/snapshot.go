package sched

import (
	"encoding/binary"
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
const version = 3

// magic is what a snapshot begins with; the version follows in 4 bytes.
const magic = "gwsched\n"

// Snapshot writes the state, from which [Restore] makes the same one: it will decide the
// same, and its snapshot has the same bytes. docs/formats/snapshot.md says what they are.
func (s *Scheduler) Snapshot(w io.Writer) error {
	s.forget()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	c := &codec{to: io.MultiWriter(w, sum)}
	c.buf = binary.BigEndian.AppendUint32(append(c.buf, magic...), version)
	state := s.saved()
	c.state(&state)
	numbers := map[*job.Spec]int{}
	var specs []*job.Spec
	for _, r := range s.jobs {
		if _, ok := numbers[r.spec]; !ok {
			numbers[r.spec] = len(specs)
			specs = append(specs, r.spec)
		}
	}
	c.count(len(specs))
	for _, spec := range specs {
		c.spec(spec)
	}
	c.count(len(s.jobs))
	for _, r := range s.jobs {
		j := savedOf(r, numbers[r.spec])
		c.job(&j)
	}
	c.flush()
	if c.err == nil {
		_, c.err = w.Write(binary.BigEndian.AppendUint32(nil, sum.Sum32()))
	}
	if c.err != nil {
		return fmt.Errorf("write snapshot: %w", c.err)
	}
	return nil
}

func (s *Scheduler) saved() savedState {
	h := savedState{
		now: s.now, hash: s.hash, last: s.last, config: s.config, network: s.network, singles: s.singles, arrivals: s.arrivals,
		grown: s.grown, lost: s.lost, expired: s.expired, recheck: s.recheck, regrow: s.regrow, retry: s.retry, anew: s.anew,
	}
	for i := range s.parts {
		h.parts = append(h.parts, savedPart{*s.parts[i].spec, s.parts[i].gone})
	}
	for _, n := range s.nodes {
		h.nodes = append(h.nodes, savedNode{*n.spec, n.state, n.reason, n.gone, n.images})
	}
	for _, a := range s.arrays {
		h.arrays = append(h.arrays, savedArray{a.first, a.n, a.throttle, a.active, a.started, a.ended, a.ok, a.failed, a.dependents})
	}
	for _, t := range s.wake.timers {
		h.wakeTimes, h.wakeJobs = append(h.wakeTimes, t.t), append(h.wakeJobs, t.id)
	}
	return h
}

func savedOf(r *record, spec int) savedJob {
	j := savedJob{
		id: r.id, array: r.array, task: r.task, spec: spec, soft: r.soft, never: r.never, met: r.met, queued: r.queued, state: r.state, toState: r.toState,
		held: r.held, submit: r.submit, eligible: r.eligible, start: r.start, end: r.end, limit: r.limit, attempt: r.attempt, requeues: r.requeues,
		exit: r.exit, promise: r.promise, breach: r.breach, lost: r.lost, alloc: r.alloc, licenses: r.licenses, ends: r.ends, dependents: r.dependents,
	}
	if p := r.plan; p != nil {
		j.plan = &savedPlan{p.part, p.start, p.end, p.picks, p.licenses}
	}
	return j
}

// Restore reads what [Scheduler.Snapshot] wrote. A snapshot that is not whole, of another
// version, or that contradicts itself is refused.
func Restore(r io.Reader) (*Scheduler, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	s, err := restore(data)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	return s, nil
}

func restore(data []byte) (*Scheduler, error) {
	const head = len(magic) + 4
	if len(data) < head || string(data[:len(magic)]) != magic {
		return nil, errors.New("it is none")
	}
	if v := binary.BigEndian.Uint32(data[len(magic):]); v != version {
		return nil, fmt.Errorf("it is of version %d, not %d", v, version)
	}
	end := len(data) - 4
	if end < head || crc32.Checksum(data[:end], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(data[end:]) {
		return nil, errors.New("it is not whole: its sum is another one")
	}
	c := &codec{buf: data[head:end], strings: map[string]string{}}
	var state savedState
	c.state(&state)
	var specs []*job.Spec
	list(c, &specs, func(c *codec, p **job.Spec) {
		*p = new(job.Spec)
		c.spec(*p)
	})
	if c.err != nil {
		return nil, c.err
	}
	s := New()
	if err := s.restoreCluster(&state); err != nil {
		return nil, err
	}
	for i, spec := range specs {
		if why, _ := checkSpec(spec); why != "" {
			return nil, fmt.Errorf("request %d: %s", i, why)
		}
	}
	for left := c.count(0); left > 0 && c.err == nil; left-- {
		var j savedJob
		if c.job(&j); c.err != nil {
			break
		}
		if j.spec < 0 || j.spec >= len(specs) || j.array < -1 || int(j.array) >= len(s.arrays) {
			return nil, fmt.Errorf("job %v has no request or array", j.id)
		}
		if err := s.restoreJob(&j, specs[j.spec]); err != nil {
			return nil, fmt.Errorf("job %v: %w", j.id, err)
		}
	}
	switch {
	case c.err != nil:
		return nil, c.err
	case len(c.buf) > 0:
		return nil, fmt.Errorf("%d bytes follow the last job", len(c.buf))
	}
	return s, s.restored(&state)
}

// restored takes over what refers to jobs, and proves that all of it holds.
func (s *Scheduler) restored(h *savedState) error {
	if err := s.checkReferences(h); err != nil {
		return err
	}
	for i := range h.wakeTimes {
		s.ownClock(&s.wake).push(timer{h.wakeTimes[i], h.wakeJobs[i]})
	}
	s.arrivals, s.grown, s.lost, s.expired = h.arrivals, h.grown, h.lost, h.expired
	s.recheck, s.regrow, s.retry, s.anew = h.recheck, h.regrow, h.retry, h.anew
	s.setLicenses(s.config.Licenses) // now that it is known who has them
	for i := range s.nodes {
		s.reindex(int32(i))
	}
	return s.Check()
}

// checkReferences proves that all jobs and nodes exist that others name. Jobs that waited
// for one may be forgotten before it.
func (s *Scheduler) checkReferences(h *savedState) error {
	lists := [][]job.ID{h.singles, h.arrivals, h.lost, h.expired, h.wakeJobs}
	for k, a := range s.arrays {
		first, ok := s.find(a.first)
		if !ok || a.n < 1 || a.n > len(s.jobs)-first || a.throttle < 0 {
			return fmt.Errorf("array %v is not all there", a.first)
		}
		for _, r := range s.jobs[first : first+a.n] {
			if int(r.array) != k {
				return fmt.Errorf("job %v is not of array %v", r.id, a.first)
			}
		}
	}
	for _, r := range s.jobs {
		if r.array >= 0 {
			if a := s.arrays[r.array]; r.id < a.first || int64(r.id) >= int64(a.first)+int64(a.n) || r.spec.Array == nil {
				return fmt.Errorf("job %v is not of array %v", r.id, a.first)
			}
		}
		if r.state == job.Pending && r.spec.Dependencies != nil && !r.met {
			for _, d := range r.spec.Dependencies.List {
				if d.Type > job.Singleton || d.Type != job.Singleton && s.record(d.Job) == nil {
					return fmt.Errorf("job %v depends on job %v, which does not exist", r.id, d.Job)
				}
			}
		}
	}
	for _, ids := range lists {
		for _, id := range ids {
			if id == 0 || id > s.last { // it may be forgotten
				return fmt.Errorf("job %v does not exist", id)
			}
		}
	}
	for _, n := range h.grown {
		if n < 0 || int(n) >= len(s.nodes) {
			return fmt.Errorf("node %d does not exist", n)
		}
	}
	if len(h.wakeTimes) != len(h.wakeJobs) {
		return fmt.Errorf("%d times for %d jobs", len(h.wakeTimes), len(h.wakeJobs))
	}
	return nil
}

// latestTime is the latest that an event can have: sums of times do not overflow.
const latestTime = math.MaxInt64 / 4

func (s *Scheduler) restoreCluster(h *savedState) error {
	if h.now < 1 || h.now > latestTime {
		return fmt.Errorf("its time is %d", h.now)
	}
	if err := s.configure(job.Configured{Config: h.config}); err != nil {
		return err
	}
	for i := range h.nodes {
		n := &h.nodes[i]
		if err := s.setNode(job.NodeSet{Node: n.spec}); err != nil {
			return err
		}
		if len(s.nodes) != i+1 || n.state >= job.NodeFail<<1 {
			return fmt.Errorf("node %s is there twice, or its state is none", n.spec.Name)
		}
		x := s.nodes[i]
		x.state, x.reason, x.gone, x.images = n.state, n.reason, n.gone, n.images
	}
	for i := range h.parts {
		if err := s.setPartition(job.PartitionSet{Partition: h.parts[i].spec}); err != nil {
			return err
		}
		if len(s.parts) != i+1 {
			return fmt.Errorf("partition %s is there twice", h.parts[i].spec.Name)
		}
		s.parts[i].gone = h.parts[i].gone
	}
	if err := checkNetwork(&h.network); err != nil {
		return err
	}
	s.changedParts()
	s.network = h.network
	s.now, s.hash, s.last, s.singles = h.now, h.hash, h.last, h.singles
	for _, a := range h.arrays {
		s.arrays = append(s.arrays, &array{
			tok: s.tok, first: a.first, n: a.n, throttle: a.throttle, active: a.active, started: a.started, ended: a.ended, ok: a.ok, failed: a.failed, dependents: a.dependents,
		})
	}
	s.refresh()
	return nil
}

func (s *Scheduler) restoreJob(j *savedJob, spec *job.Spec) error {
	r := &record{
		tok: s.tok, id: j.id, array: j.array, task: j.task, spec: spec, soft: j.soft, never: j.never, met: j.met, queued: j.queued, state: j.state, toState: j.toState,
		held: j.held, submit: j.submit, eligible: j.eligible, start: j.start, end: j.end, limit: j.limit, attempt: j.attempt, requeues: j.requeues,
		exit: j.exit, promise: j.promise, breach: j.breach, lost: j.lost, alloc: j.alloc, licenses: j.licenses, ends: j.ends, dependents: j.dependents,
	}
	if n := len(s.jobs); j.id == 0 || n > 0 && s.jobs[n-1].id >= r.id {
		return errors.New("it is not above the one before")
	}
	if j.state > job.Preempted || j.toState > job.Preempted || j.queued && j.state != job.Pending || j.plan != nil && !j.queued {
		return fmt.Errorf("it cannot be in state %d, queued %v and planned", j.state, j.queued)
	}
	for _, t := range []job.Time{j.submit, j.eligible, j.start, j.end, job.Time(j.limit)} {
		if t < 0 || t > latestTime {
			return fmt.Errorf("one of its times is %d", t)
		}
	}
	if j.promise < 0 || j.ends < 0 || j.attempt < 0 || j.requeues < 0 || negative(j.licenses) {
		return errors.New("one of its numbers is negative")
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
	if j.plan == nil {
		return nil
	}
	p := &plan{tok: s.tok, part: j.plan.part, start: j.plan.start, end: j.plan.end, licenses: j.plan.licenses}
	if p.part < 0 || p.part >= len(s.parts) || p.start < 0 || p.start >= p.end || len(j.plan.picks) == 0 || negative(p.licenses) {
		return fmt.Errorf("its plan is from %d to %d on %d nodes of partition %d", p.start, p.end, len(j.plan.picks), p.part)
	}
	p.picks = append(p.one[:0], j.plan.picks...)
	for k := range p.picks {
		if n := p.picks[k].node; n < 0 || int(n) >= len(s.nodes) || !p.picks[k].v.holds(&vec{}) || !s.nodes[n].total.holds(&p.picks[k].v) {
			return errors.New("its plan has what does not exist")
		}
	}
	s.setPlan(len(s.jobs)-1, p)
	return nil
}

// negative says whether there is less than nothing of a licence.
func negative(list []job.License) bool {
	return slices.ContainsFunc(list, func(l job.License) bool { return l.Count < 0 })
}

// restoreRun gives a running job its nodes back.
func (s *Scheduler) restoreRun(r *record) error {
	if r.alloc == nil || len(r.alloc.Nodes) == 0 {
		return errors.New("it runs nowhere")
	}
	for k := range r.alloc.Nodes {
		i, ok := s.nodeNumber(r.alloc.Nodes[k].Node)
		if !ok {
			return fmt.Errorf("it runs on %s, which does not exist", r.alloc.Nodes[k].Node)
		}
		n := s.nodes[i]
		v, free := s.shareOf(n, &r.alloc.Nodes[k])
		if !free || !v.holds(&vec{}) || !n.free.holds(&v) {
			return fmt.Errorf("node %s has not that much", n.spec.Name)
		}
		at, twice := slices.BinarySearch(n.runs, r.id)
		if twice {
			return fmt.Errorf("it has node %s twice", n.spec.Name)
		}
		r.picks = append(r.picks, pick{i, v})
		n.free.sub(&v)
		n.line.take(math.MinInt64/2, r.ends, &v)
		s.useDevices(n, r.alloc.Nodes[k].Devices, true)
		n.runs = slices.Insert(n.runs, at, r.id)
	}
	s.ownClock(&s.ends).push(timer{r.ends, r.id})
	return nil
}
