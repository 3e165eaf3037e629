package sim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Model is our imitation of how another scheduler decides, to compare with. It knows what
// specs of traces ask for (CPUs, memory, GPUs, features, licences, priority), and one
// partition. It promises nothing.
//
// It starts jobs in their order until one does not fit, at every event. With a cycle it
// also backfills: at most once a cycle it takes the first jobs of the queue, gives each
// the earliest start that no earlier one's is delayed by, within a window, and starts those
// whose start is now.
type Model struct {
	name   string
	cycle  job.Duration // 0: no backfill
	depth  int
	window job.Duration

	nodes    []modelNode
	index    map[string]int
	licenses map[string]int64 // that are free
	owned    map[string]int64 // in all
	queue    []*modelJob      // by falling priority, then in their order
	running  []*modelJob      // by rising id
	last     job.Time         // of the latest cycle
	changed  bool             // since then
	kinds    map[kind]int     // that jobs had
	hash     uint64
}

// CycleModel is a model of a main loop at events and a backfill loop of 500 jobs every 30
// seconds with a window of a day: what Slurm does with its defaults.
func CycleModel() *Model {
	m := newModel("model of a 30 s main+backfill cycle, depth 500")
	m.cycle, m.depth, m.window = 30*job.Second, 500, job.Day
	return m
}

// FIFOModel is a model of strict first in, first out: nothing passes a job that waits.
func FIFOModel() *Model { return newModel("model of strict FIFO") }

func newModel(name string) *Model {
	return &Model{name: name, index: map[string]int{}, licenses: map[string]int64{}, owned: map[string]int64{}, kinds: map[kind]int{}, hash: fnvOffset}
}

const fnvOffset = 0xcbf29ce484222325

// Name says what it is a model of.
func (m *Model) Name() string { return m.name }

// room is what a node has free.
type room struct {
	cpus, gpus int
	memory     int64
}

func (r room) holds(n room) bool { return r.cpus >= n.cpus && r.gpus >= n.gpus && r.memory >= n.memory }

func (r room) minus(n room) room { return room{r.cpus - n.cpus, r.gpus - n.gpus, r.memory - n.memory} }

func (r room) times(k int) room { return room{r.cpus * k, r.gpus * k, r.memory * int64(k)} }

// modelNode is a node; profile is what it has free from moments on, in a backfill cycle.
type modelNode struct {
	name, leaf, gpuType string
	features            []string
	all, free           room
	profile             []point
}

// modelJob is a job. It needs piece on a node, count times: on as many nodes if gang, else
// wherever there is room.
type modelJob struct {
	id       job.ID
	priority uint32
	piece    room
	count    int
	gang     bool
	kind     int // index of what is alike
	perNode  int // most pieces on a node
	features []string
	licenses []job.License
	limit    job.Duration
	start    job.Time
	on       []taken
}

// taken is how many pieces a job has on a node.
type taken struct{ node, count int }

// Apply implements Policy. Events that traces do not have are ignored.
func (m *Model) Apply(e job.Event) error {
	switch e := e.(type) {
	case job.Configured:
		for _, l := range e.Config.Licenses {
			m.licenses[l.Name], m.owned[l.Name] = l.Count, l.Count
		}
	case job.NodeSet:
		n := modelNode{name: e.Node.Name, leaf: e.Node.Switch, features: e.Node.Features}
		n.all = room{nodeCPUs(e.Node), nodeGPUs(e.Node), max(e.Node.Memory, 1)}
		for _, g := range e.Node.GRES {
			if g.Name == "gpu" {
				n.gpuType = g.Type
			}
		}
		if !inService(e.Node) {
			n.all = room{}
		}
		n.free = n.all
		m.index[n.name] = len(m.nodes)
		m.nodes = append(m.nodes, n)
	case job.NetworkSet:
		for _, s := range e.Network.Switches {
			for _, node := range s.Nodes {
				if i, ok := m.index[node]; ok {
					m.nodes[i].leaf = s.Name
				}
			}
		}
	case job.Submitted:
		return m.submit(e)
	case job.Ended:
		i, ok := slices.BinarySearchFunc(m.running, e.ID, func(j *modelJob, id job.ID) int { return cmp.Compare(j.id, id) })
		if !ok {
			return fmt.Errorf("end job %d: it does not run", e.ID)
		}
		m.release(m.running[i])
		m.running = slices.Delete(m.running, i, i+1)
		m.changed = true
	}
	return nil
}

func (m *Model) submit(e job.Submitted) error {
	s := &e.Spec
	j := &modelJob{id: e.ID, priority: 1, limit: max(s.TimeLimit, 1), licenses: s.Licenses}
	if s.Priority != nil {
		j.priority = *s.Priority
	}
	if c := s.Constraint; c != nil {
		if c.Feature != "" {
			j.features = []string{c.Feature}
		}
		for _, or := range c.Or {
			j.features = append(j.features, or.Feature)
		}
	}
	j.piece.cpus = max(s.CPUsPerTask, 1)
	for _, g := range s.GRES {
		j.piece.gpus += int(g.Count)
	}
	if j.gang = len(s.GRES) > 0; j.gang {
		j.count, j.perNode, j.piece.memory = s.MinNodes, 1, s.Memory.MiB
	} else {
		j.count, j.piece.memory = max(s.Tasks, 1), s.Memory.MiB*int64(j.piece.cpus)
		j.perNode = (j.count + max(s.MinNodes, 1) - 1) / max(s.MinNodes, 1)
	}
	fits := 0
	for i := range m.nodes {
		if n := &m.nodes[i]; n.has(j) {
			fits += min(n.all.pieces(j.piece), j.perNode)
		}
	}
	for _, l := range j.licenses {
		if m.owned[l.Name] < l.Count {
			return fmt.Errorf("job %d can never run: it needs %d licences %s of %d", j.id, l.Count, l.Name, m.owned[l.Name])
		}
	}
	if fits < j.count {
		return fmt.Errorf("job %d can never run: %d of %d pieces of it fit", j.id, fits, j.count)
	}
	k := kind{j.piece, j.count, j.gang, strings.Join(j.features, "|")}
	if _, ok := m.kinds[k]; !ok {
		m.kinds[k] = len(m.kinds)
	}
	j.kind = m.kinds[k]
	at, _ := slices.BinarySearchFunc(m.queue, j, func(a, b *modelJob) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.id, b.id))
	})
	m.queue = slices.Insert(m.queue, at, j)
	m.changed = true
	return nil
}

// pieces is how many pieces there is room for.
func (r room) pieces(piece room) int {
	n := r.cpus / max(piece.cpus, 1)
	if piece.gpus > 0 {
		n = min(n, r.gpus/piece.gpus)
	}
	if piece.memory > 0 {
		n = min(n, int(r.memory/piece.memory))
	}
	return max(n, 0)
}

// has says whether a node has what a job wants but room.
func (n *modelNode) has(j *modelJob) bool {
	return len(j.features) == 0 || slices.ContainsFunc(j.features, func(f string) bool { return slices.Contains(n.features, f) })
}

// Decide implements Policy.
func (m *Model) Decide(now job.Time) []job.Event {
	var events []job.Event
	started := 0
	for started < len(m.queue) {
		on := m.place(m.queue[started])
		if on == nil {
			break
		}
		events = append(events, m.start(m.queue[started], on, now))
		started++
	}
	m.queue = slices.Delete(m.queue, 0, started)
	if m.cycle > 0 && m.changed && now >= m.last.Add(m.cycle) && len(m.queue) > 0 {
		m.last, m.changed = now, false
		events = append(events, m.backfill(now)...)
	}
	return events
}

// Next implements Policy.
func (m *Model) Next() job.Time {
	if m.cycle == 0 || !m.changed || len(m.queue) == 0 {
		return job.Never
	}
	return m.last.Add(m.cycle)
}

// Hash implements Policy: it is of all starts.
func (m *Model) Hash() uint64 { return m.hash }

func (m *Model) start(j *modelJob, on []taken, now job.Time) job.Event {
	j.start, j.on = now, on
	a := job.Allocation{Limit: j.limit}
	h := fnv.New64a()
	word := func(v uint64) { _, _ = h.Write(binary.LittleEndian.AppendUint64(nil, v)) }
	word(m.hash)
	word(uint64(j.id))
	word(uint64(now))
	for _, t := range on {
		n := &m.nodes[t.node]
		part := j.piece.times(t.count)
		n.free = n.free.minus(part)
		s := job.NodeShare{Node: n.name, Tasks: t.count, CPUs: part.cpus, Memory: part.memory}
		if part.gpus > 0 {
			s.Devices = []job.Devices{{Name: "gpu", Type: n.gpuType, Count: int64(part.gpus)}}
		}
		a.Nodes = append(a.Nodes, s)
		word(uint64(t.node)<<32 | uint64(t.count))
	}
	m.hash = h.Sum64()
	for _, l := range j.licenses {
		m.licenses[l.Name] -= l.Count
	}
	at, _ := slices.BinarySearchFunc(m.running, j.id, func(r *modelJob, id job.ID) int { return cmp.Compare(r.id, id) })
	m.running = slices.Insert(m.running, at, j)
	return job.Started{At: now, ID: j.id, Attempt: 1, Allocation: a}
}

func (m *Model) release(j *modelJob) {
	for _, t := range j.on {
		m.nodes[t.node].free = m.nodes[t.node].free.minus(j.piece.times(-t.count))
	}
	for _, l := range j.licenses {
		m.licenses[l.Name] += l.Count
	}
}

// place finds nodes that have room for a job now; nil: there are none.
func (m *Model) place(j *modelJob) []taken {
	for _, l := range j.licenses {
		if m.licenses[l.Name] < l.Count {
			return nil
		}
	}
	var can []taken
	total := 0
	for i := range m.nodes {
		n := &m.nodes[i]
		if !n.free.holds(j.piece) || !n.has(j) {
			continue
		}
		k := min(n.free.pieces(j.piece), j.perNode)
		can = append(can, taken{i, k})
		total += k
	}
	if total < j.count {
		return nil
	}
	return m.choose(j, can)
}

// choose takes the pieces of a job from nodes that have room: from the fullest one that
// holds it whole, else from the leaf with the least nodes that does, else from those with
// most room.
func (m *Model) choose(j *modelJob, can []taken) []taken {
	best := -1
	for k, t := range can {
		if t.count >= j.count && (best < 0 || m.fuller(t.node, can[best].node)) {
			best = k
		}
	}
	if best >= 0 {
		return []taken{{can[best].node, j.count}}
	}
	byLeaf := map[string]int{}
	for _, t := range can {
		byLeaf[m.nodes[t.node].leaf] += t.count
	}
	slices.SortStableFunc(can, func(a, b taken) int {
		x, y := m.nodes[a.node].leaf, m.nodes[b.node].leaf
		if x != y {
			return cmp.Or(compareLeaves(byLeaf[x], byLeaf[y], j.count), cmp.Compare(x, y))
		}
		return cmp.Compare(b.count, a.count)
	})
	var on []taken
	for left, k := j.count, 0; left > 0; k++ {
		n := min(left, can[k].count)
		on = append(on, taken{can[k].node, n})
		left -= n
	}
	return on
}

// fuller says whether less is free on node a than on b.
func (m *Model) fuller(a, b int) bool {
	x, y := m.nodes[a].free, m.nodes[b].free
	return cmp.Or(cmp.Compare(x.gpus, y.gpus), cmp.Compare(x.cpus, y.cpus)) < 0
}

// compareLeaves puts the leaf first that holds all with least to spare, then those that
// hold most.
func compareLeaves(a, b, need int) int {
	switch {
	case a >= need && b >= need:
		return cmp.Compare(a, b)
	case a >= need:
		return -1
	case b >= need:
		return 1
	}
	return cmp.Compare(b, a)
}
