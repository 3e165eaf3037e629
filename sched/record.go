package sched

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// holds are why a job must not start.
const (
	heldUser = 1 << iota
	heldAdmin
	heldRequeue // it was requeued too often
)

// record is a job.
type record struct {
	tok        *token
	id         job.ID
	array      int32 // index into arrays; -1: none
	task       uint32
	spec       *job.Spec // not changed
	class      int32
	soft       bool // the wait for switches is over
	state      job.State
	held       uint8
	never      bool // its dependencies will never be met
	met        bool // they were when it first started, and are not asked again
	queued     bool
	key        key
	queueLimit job.Duration // under which it is in its queue
	elastic    bool         // in a queue: it has a TimeMin

	submit, eligible, start, end job.Time
	limit                        job.Duration // of the run
	attempt, requeues, exit      int

	promise job.Time // when it is expected to start; 0: not planned, Never: not as things are
	said    uint64   // the event of promises that it was last in, counted by flushes
	plan    *plan
	breach  string    // why its plan was taken away
	lost    string    // why its run is over
	toState job.State // of a Completing job: what it becomes

	alloc    *job.Allocation // not changed
	picks    []pick
	licenses []job.License
	ends     job.Time // until when it is planned to run: its limit, or later if it overran

	dependents []job.ID // that wait for something about it
}

// plan is what is set aside for a job.
type plan struct {
	tok        *token  // who may use it again for another one
	one        [1]pick // what picks is of, if it is one node
	part       int
	start, end job.Time
	picks      []pick
	licenses   []job.License
}

// array is what the tasks of an array have in common.
type array struct {
	tok                        *token
	first                      job.ID
	n                          int
	throttle                   int
	active                     int // running or in the queue
	next                       int // the tasks before this one do not wait for the throttle alone
	started, ended, ok, failed int
	dependents                 []job.ID
}

// index is where job id is; it must exist.
func (s *Scheduler) index(id job.ID) int {
	i, _ := s.find(id)
	return i
}

// find looks a job up. Ids mostly have no gaps but where jobs are forgotten, so the first
// guesses are mostly right.
func (s *Scheduler) find(id job.ID) (int, bool) {
	if len(s.jobs) == 0 || id < s.jobs[0].id {
		return 0, false
	}
	if i := int(id - s.jobs[0].id); i < len(s.jobs) && s.jobs[i].id == id {
		return i, true
	}
	last := len(s.jobs) - 1
	if i := last - int(int64(s.jobs[last].id)-int64(id)); 0 <= i && i <= last && s.jobs[i].id == id {
		return i, true
	}
	return slices.BinarySearchFunc(s.jobs, id, func(r *record, id job.ID) int { return int(int64(r.id) - int64(id)) })
}

func (s *Scheduler) record(id job.ID) *record {
	if i, ok := s.find(id); ok {
		return s.jobs[i]
	}
	return nil
}

// ownJob makes job i changeable.
func (s *Scheduler) ownJob(i int) *record {
	if r := s.jobs[i]; r.tok == s.tok {
		return r
	}
	r := owned(&s.jobs, &s.jobsTok, i, s.tok)
	r.tok, r.dependents = s.tok, slices.Clip(r.dependents)
	return r
}

// ownArray makes array i changeable.
func (s *Scheduler) ownArray(i int32) *array {
	if a := s.arrays[i]; a.tok == s.tok {
		return a
	}
	a := owned(&s.arrays, &s.arraysTok, int(i), s.tok)
	a.tok, a.dependents = s.tok, slices.Clip(a.dependents)
	return a
}

// owned puts a copy in the place of element i of a list, which is copied before if it is
// shared with a fork.
func owned[T any](list *[]*T, listTok **token, i int, tok *token) *T {
	if *listTok != tok {
		*list, *listTok = slices.Clone(*list), tok
	}
	c := *(*list)[i]
	(*list)[i] = &c
	return &c
}

// keyOf is a job's place in the order. The age that counts is since the job could start,
// and the units are 1/1024 of a point of priority.
func (s *Scheduler) keyOf(r *record) key {
	k := key{id: r.id}
	var few [4]int
	for _, p := range s.partitionsIn(few[:0], r.spec) {
		k.tier = max(k.tier, s.parts[p].spec.Tier)
	}
	if r.spec.Priority != nil {
		k.prio = int64(*r.spec.Priority) << 10
	} else {
		k.prio = s.base(r) << 10
	}
	k.prio -= share(uint64(s.config.Weights.Age)<<10, uint64(max(0, r.eligible)), uint64(s.maxAge()))
	return k
}

// share is weight*part/whole, at most 2^61. Where the most is reached, as with a large
// weight and an age of seconds, jobs are told apart by their order alone, which is that of
// their ages.
func share(weight, part, whole uint64) int64 {
	const most = 1 << 61
	hi, lo := bits.Mul64(weight, part)
	if hi >= whole {
		return most
	}
	q, _ := bits.Div64(hi, lo, whole)
	return int64(min(q, most))
}

func (s *Scheduler) maxAge() job.Duration {
	if s.config.Weights.MaxAge > 0 {
		return max(s.config.Weights.MaxAge, job.Minute)
	}
	return 7 * job.Day
}

// base is the priority without age.
func (s *Scheduler) base(r *record) int64 {
	w := &s.config.Weights
	points := int64(0)
	if w.Partition > 0 {
		most, of := int64(1), int64(0)
		for i := range s.parts {
			if s.parts[i].gone {
				continue
			}
			most = max(most, int64(s.parts[i].spec.Priority))
		}
		for _, p := range s.partitionsOf(r.spec) {
			of = max(of, int64(s.parts[p].spec.Priority))
		}
		points += share(uint64(w.Partition), uint64(of), uint64(most))
	}
	if w.Size > 0 {
		points += int64(w.Size) * s.sizeOf(r.spec) >> 20
	}
	points -= clamp(int64(r.spec.Nice)*int64(max(1, w.Nice)), 1<<60)
	return clamp(points, 1<<51) // so that 1/1024 of them and the age can be added up
}

// clamp is n, or the nearest to it between -most and most.
func clamp(n, most int64) int64 { return max(-most, min(n, most)) }

// sizeOf is Slurm's job size factor, of 1<<20: the mean of the parts of all nodes and of all
// CPUs that a job asks for.
func (s *Scheduler) sizeOf(spec *job.Spec) int64 {
	nodes := int64(max(1, spec.MinNodes))
	tasks := max(1, int64(spec.Tasks), mul(nodes, int64(spec.TasksPerNode)))
	cpus := max(nodes, mul(tasks, int64(max(1, spec.CPUsPerTask))))
	factor := (min(nodes, s.size.nodes)<<20/max(1, s.size.nodes) + min(cpus, s.size.cpus)<<20/max(1, s.size.cpus)) / 2
	if s.config.Weights.FavorSmall {
		return 1<<20 - factor
	}
	return factor
}

// clusterSize is how much there is of all nodes.
type clusterSize struct{ nodes, cpus int64 }

// measure takes over the size of the cluster, and what else places in queues follow from.
func (s *Scheduler) measure() {
	s.size, s.weighted = clusterSize{}, false
	for _, n := range s.nodes {
		if !n.gone {
			s.weighted = s.weighted || n.spec.Weight != s.nodes[0].spec.Weight
			s.size.nodes++
			s.size.cpus += int64(n.total[slotCPU])
		}
	}
	s.reorder()
}

// priority is as Slurm shows it.
func (s *Scheduler) priority(r *record) uint32 {
	if r.held != 0 {
		return 0
	}
	if r.spec.Priority != nil {
		return *r.spec.Priority
	}
	p := s.base(r)
	if r.eligible > 0 {
		age := min(s.now.Sub(r.eligible), s.maxAge())
		p += share(uint64(s.config.Weights.Age), uint64(max(0, age)), uint64(s.maxAge()))
	}
	return uint32(min(max(p, 1), 1<<32-1))
}

// spanText is a duration as Slurm writes it.
func spanText(d job.Duration) string {
	if d >= job.Forever/4 {
		return "UNLIMITED"
	}
	sec := int64(d+999) / 1000
	text := fmt.Sprintf("%02d:%02d:%02d", sec/3600%24, sec/60%60, sec%60)
	if days := sec / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

// check refuses a spec that contradicts itself.
func checkSpec(p *job.Spec) (why, nearest string) {
	for _, x := range []struct {
		name string
		n    int
	}{
		{"--nodes", p.MinNodes},
		{"--nodes", p.MaxNodes},
		{"--ntasks", p.Tasks},
		{"--ntasks-per-node", p.TasksPerNode},
		{"--cpus-per-task", p.CPUsPerTask},
		{"--cpus-per-gpu", p.CPUsPerGPU},
		{"--threads-per-core", p.ThreadsPerCore},
		{"--segment", p.Topology.Segment},
		{"--switches", p.Topology.Switches},
		{"the topology level", p.Topology.Required},
		{"the number of spares", p.Spares},
		{"the number of requeues", p.MaxRequeue},
	} {
		if x.n < 0 || x.n > 1<<24 {
			return fmt.Sprintf("%s %d is not between 0 and %d", x.name, x.n, 1<<24), ""
		}
	}
	for _, d := range []job.Duration{p.TimeLimit, p.TimeMin, p.Topology.Wait, job.Duration(p.Begin), job.Duration(p.Deadline)} {
		if d < 0 {
			return fmt.Sprintf("a time of %d ms is negative", d), ""
		}
	}
	switch {
	case p.MaxNodes > 0 && p.MaxNodes < p.MinNodes:
		return fmt.Sprintf("at least %d and at most %d nodes", p.MinNodes, p.MaxNodes), fmt.Sprintf("--nodes=%d-%d", p.MaxNodes, p.MinNodes)
	case p.CPUsPerTask > 0 && p.CPUsPerGPU > 0:
		return "both --cpus-per-task and --cpus-per-gpu", "--cpus-per-gpu without the other"
	case p.Exclusive && p.Oversubscribe:
		return "both --exclusive and --oversubscribe", "one of them"
	case p.TimeMin > 0 && p.TimeLimit > 0 && p.TimeMin > p.TimeLimit:
		return "--time-min is above --time", "--time-min=" + spanText(p.TimeLimit)
	case p.Tasks > 0 && p.TasksPerNode > 0 && p.MaxNodes > 0 && p.Tasks > p.TasksPerNode*p.MaxNodes:
		return fmt.Sprintf("%d tasks do not fit on %d nodes with %d on each", p.Tasks, p.MaxNodes, p.TasksPerNode), fmt.Sprintf("--nodes=%d", (p.Tasks+p.TasksPerNode-1)/p.TasksPerNode)
	case p.Topology.Segment > 0 && p.MinNodes > 0 && p.MinNodes%p.Topology.Segment != 0:
		return fmt.Sprintf("%d nodes are no multiple of segments of %d", p.MinNodes, p.Topology.Segment), fmt.Sprintf("--nodes=%d", (p.MinNodes/p.Topology.Segment+1)*p.Topology.Segment)
	case p.Tasks > 0 && p.Topology.Segment > p.Tasks:
		return fmt.Sprintf("%d tasks are on fewer nodes than a segment of %d", p.Tasks, p.Topology.Segment), fmt.Sprintf("--segment=%d", p.Tasks)
	case p.Contiguous && (p.Topology != job.Topology{} || hasCounts(p.Constraint)):
		return "--contiguous with --switches, --segment, a level of topology or counts of features is not supported", "--contiguous without them"
	case (p.Topology.Segment > 0 || p.Topology.Block) && (len(p.NodeList) > 0 || hasCounts(p.Constraint) || p.Topology.Required > 0):
		return "--segment or blocks with --nodelist, a level of topology or counts of features is not supported", "--segment without them"
	case p.MaxNodes > 0 && len(p.NodeList) > p.MaxNodes, p.MinNodes > 0 && p.MaxNodes == 0 && len(p.NodeList) > p.MinNodes:
		return fmt.Sprintf("%d nodes are named, more than it asks for", len(p.NodeList)), fmt.Sprintf("--nodes=%d", len(p.NodeList))
	case p.Deadline > 0 && p.Begin > 0 && p.Deadline <= p.Begin:
		return "the deadline is before the begin time", ""
	case p.Memory.MiB < 0 || p.Memory.Per == job.PerTask || p.Memory.Per == job.PerSocket:
		return "memory is negative or not per node, CPU or GPU", "--mem"
	}
	for _, n := range p.NodeList {
		if slices.Contains(p.Exclude, n) {
			return "node " + n + " is both asked for and excluded", ""
		}
	}
	return checkAmounts(p)
}

func checkAmounts(p *job.Spec) (why, nearest string) {
	for i := range p.GRES {
		g := &p.GRES[i]
		switch {
		case g.Name == "" || g.Count < 0 || g.Count > 1<<31-1:
			return fmt.Sprintf("%d of the generic resource %q", g.Count, g.Name), "--gres=gpu:1"
		case g.Per == job.PerJob && g.Count > 0 && g.Count < int64(p.MinNodes):
			return fmt.Sprintf("%d %s in all are fewer than %d nodes", g.Count, gresName(g.Name, g.Type), p.MinNodes), fmt.Sprintf("--nodes=%d", g.Count)
		case g.Per != job.PerJob && g.Per != job.PerNode && g.Per != job.PerTask && g.Per != job.PerSocket:
			return "a generic resource is not per job, node, task or socket", "--gpus-per-node"
		}
	}
	if why := checkLicenses(p); why != "" {
		return why, ""
	}
	if a := p.Array; a != nil {
		for i, r := range a.Tasks {
			if r.Len() == 0 || i > 0 && r.First <= a.Tasks[i-1].Last {
				return fmt.Sprintf("array range %d-%d:%d is empty or not after the one before", r.First, r.Last, r.Step), ""
			}
		}
		if a.Throttle < 0 || len(a.Tasks) == 0 {
			return "the array has no tasks or a negative throttle", "--array=0-9%2"
		}
	}
	if why := checkConstraint(p.Constraint, 0); why != "" {
		return why, ""
	}
	if countAlternatives(p.Constraint) > maxAlternatives {
		return fmt.Sprintf("the constraint stands for more than %d combinations of what is in brackets", maxAlternatives), "fewer brackets, or fewer parts in them"
	}
	return "", ""
}

func checkLicenses(p *job.Spec) string {
	all := slices.Concat(p.Licenses, p.AnyLicense)
	for i, l := range all {
		switch {
		case l.Count <= 0:
			return fmt.Sprintf("%d of licence %q", l.Count, l.Name)
		case takes(all[:i], l.Name):
			return "licence " + l.Name + " is asked for twice"
		}
	}
	return ""
}

func hasCounts(c *job.Constraint) bool {
	return c != nil && (c.Count > 0 || slices.ContainsFunc(slices.Concat(c.And, c.Or, c.OneOf), hasCounts))
}

func checkConstraint(c *job.Constraint, depth int) string {
	if c == nil {
		return ""
	}
	if depth > 16 || c.Count < 0 || c.Count > 1<<20 || strings.ContainsAny(c.Feature, "&|[]") {
		return "the constraint is too deep, or has a count or a name that none can have"
	}
	for _, l := range [][]*job.Constraint{c.And, c.Or, c.OneOf} {
		if len(l) > 64 {
			return "the constraint has too many parts"
		}
		for _, x := range l {
			if x == nil {
				return "the constraint has an empty part"
			}
			if why := checkConstraint(x, depth+1); why != "" {
				return why
			}
		}
	}
	return ""
}
