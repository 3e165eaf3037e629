package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// meter follows what is in use, and compares each placement with the best one that the
// free nodes allowed.
type meter struct {
	index  map[string]int32 // of a node, by its name
	leaf   []int32          // of each node
	free   []share
	nodes  []node
	leaves int
	fit    []int32 // scratch: nodes by leaf

	steps       []step // changes, by rising time
	busy        step
	placed      int // jobs of more than one node
	optimal     int // of these, those in as few leaves as could be
	spread, min int // sums of leaves that they have, and that they need
}

// step is what is in use from a moment on.
type step struct {
	at                    job.Time
	gpus, cpus, run, wait int32
}

func newMeter(c *Cluster, onGPUs bool) *meter {
	m := &meter{index: map[string]int32{}}
	leafOf := map[string]int32{}
	names := map[string]int32{}
	for _, s := range c.Network.Switches {
		for _, node := range s.Nodes {
			if _, ok := names[s.Name]; !ok {
				names[s.Name] = int32(len(names))
			}
			leafOf[node] = names[s.Name]
		}
	}
	for _, n := range c.Nodes { // those that name their switch themselves
		if _, ok := leafOf[n.Name]; !ok && n.Switch != "" {
			if _, ok := names[n.Switch]; !ok {
				names[n.Switch] = int32(len(names))
			}
			leafOf[n.Name] = names[n.Switch]
		}
	}
	for i, n := range c.Nodes {
		m.index[n.Name] = int32(i)
		leaf, ok := leafOf[n.Name]
		if !ok {
			leaf = int32(len(names)) // all that are below no switch
		}
		m.leaf = append(m.leaf, leaf)
		free := share{int32(nodeCPUs(n)), int32(nodeGPUs(n))}
		if !inService(n) {
			free = share{}
		}
		m.free = append(m.free, free)
		of := node{n.Name, leaf, int32(nodeGPUs(n))}
		if !onGPUs {
			of.size = int32(nodeCPUs(n))
		}
		m.nodes = append(m.nodes, of)
	}
	m.leaves = len(names) + 1
	m.fit = make([]int32, m.leaves)
	return m
}

// mark notes a change at a moment.
func (m *meter) mark(at job.Time) {
	m.busy.at = at
	if n := len(m.steps); n > 0 && m.steps[n-1].at == at {
		m.steps[n-1] = m.busy
		return
	}
	m.steps = append(m.steps, m.busy)
}

// queued notes that so many jobs more wait.
func (m *meter) queued(at job.Time, jobs int32) {
	m.busy.wait += jobs
	m.mark(at)
}

// start takes what an allocation has; it proves that it was free.
func (m *meter) start(at job.Time, o *outcome, a job.Allocation) error {
	if len(a.Nodes) == 0 {
		return errors.New("it has no nodes")
	}
	if len(a.Nodes) > 1 {
		m.compare(a)
	}
	o.nodes = make([]int32, 0, len(a.Nodes))
	o.share = share{}
	for _, n := range a.Nodes {
		i, ok := m.index[n.Node]
		if !ok {
			return fmt.Errorf("there is no node %s", n.Node)
		}
		s := shareOn(n)
		m.free[i].cpus -= s.cpus
		m.free[i].gpus -= s.gpus
		if m.free[i].cpus < 0 || m.free[i].gpus < 0 {
			return fmt.Errorf("node %s has not what it is given: %d CPUs and %d GPUs too few", n.Node, max(-m.free[i].cpus, 0), max(-m.free[i].gpus, 0))
		}
		o.nodes = append(o.nodes, i)
		o.share.cpus += s.cpus
		o.share.gpus += s.gpus
	}
	o.shares = o.shares[:0]
	for _, n := range a.Nodes {
		o.shares = append(o.shares, shareOn(n))
	}
	m.busy.gpus += o.share.gpus
	m.busy.cpus += o.share.cpus
	m.busy.run++
	m.mark(at)
	return nil
}

func shareOn(n job.NodeShare) share {
	s := share{cpus: int32(n.CPUs)}
	for _, d := range n.Devices {
		if d.Name == "gpu" {
			s.gpus += int32(d.Count)
		}
	}
	return s
}

// stop gives back what a job has.
func (m *meter) stop(at job.Time, o *outcome) {
	for k, i := range o.nodes {
		m.free[i].cpus += o.shares[k].cpus
		m.free[i].gpus += o.shares[k].gpus
	}
	m.busy.gpus -= o.share.gpus
	m.busy.cpus -= o.share.cpus
	m.busy.run--
	m.mark(at)
}

// compare counts the leaves of an allocation, and how few would have done: the leaves with
// most nodes on which its largest share fits, until there are enough. Constraints are not
// known here, so that the optimum may be one that the job could not have.
func (m *meter) compare(a job.Allocation) {
	if m.leaves <= 2 {
		return // all below one switch
	}
	var need share
	used := map[int32]bool{}
	for _, n := range a.Nodes {
		s := shareOn(n)
		need.cpus, need.gpus = max(need.cpus, s.cpus), max(need.gpus, s.gpus)
		if i, ok := m.index[n.Node]; ok {
			used[m.leaf[i]] = true
		}
	}
	clear(m.fit)
	for i, f := range m.free {
		if f.cpus >= need.cpus && f.gpus >= need.gpus {
			m.fit[m.leaf[i]]++
		}
	}
	slices.SortFunc(m.fit, func(a, b int32) int { return int(b - a) })
	best, nodes := 0, int32(len(a.Nodes))
	for _, n := range m.fit {
		if nodes <= 0 {
			break
		}
		nodes -= n
		best++
	}
	m.placed++
	m.spread += len(used)
	m.min += min(best, len(used))
	if len(used) <= best {
		m.optimal++
	}
}
