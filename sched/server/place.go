package server

import (
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// place finds a place for a step within its job. The error is a [busyError] if it has to
// wait for other steps.
func (c *core) place(r *run, q *api.StepRequest, id job.StepID, avoid []string) (*job.StepSpec, error) {
	p := placing{c: c, r: r, q: q, cpus: max(1, q.CPUsPerTask), exact: q.Exact || q.CPUsPerTask > 0}
	var err error
	if p.dist, err = rank.ParseDistribution(q.Distribution); err != nil {
		return nil, refuseStep("BAD_DIST", "%v", err)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	nodes, err := p.candidates(avoid)
	if err != nil {
		return nil, err
	}
	// What could be if nothing else ran is asked for first: what never can be is refused.
	if _, _, err := p.choose(nodes, true); err != nil {
		return nil, err
	}
	chosen, counts, err := p.choose(nodes, false)
	if err != nil {
		return nil, &busyError{err.Error()}
	}
	ranks, err := p.deal(chosen, counts)
	if err != nil {
		return nil, refuseStep("BAD_DIST", "%v", err)
	}
	spec := c.stepSpec(r, id, 1)
	spec.Name, spec.CPUsPerTask, spec.TasksPerNode, spec.Overlap = q.Name, q.CPUsPerTask, q.TasksPerNode, q.Overlap || q.Interactive
	spec.GPUBind, spec.CPUBind, spec.Distribution = q.GPUBind, q.CPUBind, q.Distribution
	for _, g := range q.GRES {
		if g.Name == "gpu" && g.Per == job.PerTask {
			spec.GPUsPerTask += int(g.Count)
		}
	}
	for i, share := range chosen {
		if counts[i] == 0 {
			continue // a node that was named has no part of a step with fewer tasks
		}
		n, devices, ok := c.stepNode(share), []job.Devices(nil), true
		if len(q.GRES) > 0 {
			if devices, ok = p.devices(share, counts[i], len(chosen), false); !ok {
				return nil, &busyError{"devices are in use by other steps"}
			}
			n.Devices = devices
		}
		if p.exact && !spec.Overlap {
			n.CPUs = min(share.CPUs, max(1, counts[i]*p.cpus))
		}
		if q.Memory.MiB > 0 {
			n.Memory = p.memory(counts[i], n.CPUs)
			if share.Memory > 0 {
				n.Memory = min(n.Memory, share.Memory)
			}
		}
		n.Ranks = ranks[i]
		spec.Tasks += counts[i]
		spec.Nodes = append(spec.Nodes, n)
	}
	return spec, nil
}

// maxStepTasks bounds the tasks of a step.
const maxStepTasks = 1 << 20

// placing is what a step is placed by.
type placing struct {
	c     *core
	r     *run
	q     *api.StepRequest
	cpus  int // of a task
	exact bool
	dist  rank.Distribution
}

func (p *placing) check() error {
	q, have := p.q, len(p.r.Alloc.Nodes)
	switch {
	case q.MinNodes < 0 || q.MaxNodes < 0 || q.Tasks < 0 || q.TasksPerNode < 0 || q.CPUsPerTask < 0 || q.Relative < 0:
		return refuseStep("BAD_TASK_COUNT", "a number is negative")
	case q.Tasks > maxStepTasks || q.TasksPerNode > maxStepTasks:
		return refuseStep("BAD_TASK_COUNT", "more than %d tasks", maxStepTasks)
	case q.MinNodes > have:
		return refuseStep("REQUESTED_NODE_CONFIG_UNAVAILABLE", "it asks for %d nodes, and job %v has %d", q.MinNodes, p.r.Of.Job, have)
	case q.MaxNodes > 0 && q.MaxNodes < q.MinNodes:
		return refuseStep("INVALID_NODE_COUNT", "at least %d and at most %d nodes", q.MinNodes, q.MaxNodes)
	case q.Tasks > 0 && q.MinNodes > q.Tasks:
		// Slurm: fewer nodes are used, with a warning.
		q.MinNodes = q.Tasks
	}
	if q.Memory.Per == job.PerNode && !slices.ContainsFunc(p.r.Alloc.Nodes, func(s job.NodeShare) bool { return s.Memory == 0 || s.Memory >= q.Memory.MiB }) {
		return refuseStep("INVALID_TASK_MEMORY", "it asks for %d MiB on each node, which no node of job %v has", q.Memory.MiB, p.r.Of.Job)
	}
	return nil
}

// candidates are the nodes of the job that the step may have, those that it has to have
// first.
func (p *placing) candidates(avoid []string) ([]*job.NodeShare, error) {
	var must, may []*job.NodeShare
	for i := range p.r.Alloc.Nodes {
		share := &p.r.Alloc.Nodes[i]
		switch {
		case slices.Contains(avoid, share.Node) || slices.Contains(p.q.Exclude, share.Node):
		case slices.Contains(p.q.NodeList, share.Node):
			must = append(must, share)
		case i >= p.q.Relative:
			may = append(may, share)
		}
	}
	for _, name := range p.q.NodeList {
		if !slices.ContainsFunc(must, func(s *job.NodeShare) bool { return s.Node == name }) {
			return nil, refuseStep("INVALID_NODE_NAME", "node %s is not one of job %v, or failed, or is excluded", name, p.r.Of.Job)
		}
	}
	return append(must, may...), nil
}

// choose takes the first nodes that have room, and spreads the tasks; they come in the order of
// the job's. With all it is as if no other step ran.
func (p *placing) choose(nodes []*job.NodeShare, all bool) ([]*job.NodeShare, []int, error) {
	q := p.q
	if p.dist.Kind == rank.Arbitrary {
		return p.listed(nodes, all)
	}
	least := max(q.MinNodes, 1, len(q.NodeList))
	if p.dist.Pack && q.Tasks > 0 {
		least = max(1, len(q.NodeList))
	}
	most := max(least, q.MinNodes, q.MaxNodes)
	if q.MaxNodes == 0 && q.MinNodes == 0 {
		most = len(p.r.Alloc.Nodes)
	}
	wish := least // of a range of nodes as many as there are tasks for, as Slurm has it
	if q.MaxNodes > q.MinNodes && q.MinNodes > 0 && !p.dist.Pack {
		wish = max(least, min(most, q.Tasks))
	}
	var chosen []*job.NodeShare
	total := 0
	for _, share := range nodes {
		n := p.room(share, all)
		if n == 0 {
			continue
		}
		if len(chosen) >= wish && (total >= q.Tasks || len(chosen) >= most) {
			break
		}
		chosen, total = append(chosen, share), total+n
	}
	tasks := q.Tasks
	if tasks == 0 {
		tasks = len(chosen) * max(1, q.TasksPerNode)
	}
	switch {
	case len(chosen) < least:
		kind := p.lacking(nodes, all)
		return nil, nil, refuseStep(kind, "%d of the %d nodes that it needs have what it asks for", len(chosen), least)
	case total < tasks:
		return nil, nil, refuseStep("TOO_MANY_REQUESTED_CPUS", "%d tasks of %d CPUs each, and there is room for %d", tasks, p.cpus, total)
	}
	p.inOrder(chosen)
	room := make([]int, len(chosen))
	for i, share := range chosen {
		room[i] = p.room(share, all)
	}
	counts, err := rank.Counts(tasks, room, p.dist)
	if err != nil {
		return nil, nil, refuseStep("BAD_TASK_COUNT", "%v", err)
	}
	return chosen, counts, nil
}

// inOrder puts nodes into the order in which the job has them.
func (p *placing) inOrder(nodes []*job.NodeShare) {
	at := map[string]int{}
	for i := range p.r.Alloc.Nodes {
		at[p.r.Alloc.Nodes[i].Node] = i
	}
	slices.SortFunc(nodes, func(a, b *job.NodeShare) int { return at[a.Node] - at[b.Node] })
}

// listed takes the nodes of a list that has one for each task.
func (p *placing) listed(nodes []*job.NodeShare, all bool) ([]*job.NodeShare, []int, error) {
	q := p.q
	if len(q.NodeList) == 0 || q.Tasks != 0 && q.Tasks != len(q.NodeList) {
		return nil, nil, refuseStep("BAD_TASK_COUNT", "an arbitrary distribution of %d tasks, and the list of nodes has %d", q.Tasks, len(q.NodeList))
	}
	wanted := map[string]int{}
	for _, name := range q.NodeList {
		wanted[name]++
	}
	var chosen []*job.NodeShare
	for _, share := range nodes {
		if wanted[share.Node] > 0 {
			chosen = append(chosen, share)
		}
	}
	p.inOrder(chosen)
	counts := make([]int, len(chosen))
	for i, share := range chosen {
		counts[i] = wanted[share.Node]
		if room := p.room(share, all); counts[i] > room {
			return nil, nil, refuseStep("TOO_MANY_REQUESTED_CPUS", "%d tasks of %d CPUs each on node %s, and there is room for %d", counts[i], p.cpus, share.Node, room)
		}
	}
	return chosen, counts, nil
}

// deal numbers the tasks of nodes.
func (p *placing) deal(nodes []*job.NodeShare, counts []int) ([][]int, error) {
	if p.dist.Kind != rank.Arbitrary {
		return rank.Deal(counts, p.dist)
	}
	names := make([]string, len(nodes))
	for i, share := range nodes {
		names[i] = share.Node
	}
	return rank.DealList(names, p.q.NodeList)
}

// lacking is what nodes do not have of what one task asks for, by Slurm's name for it: devices,
// or CPUs, or else the reason is another one.
func (p *placing) lacking(nodes []*job.NodeShare, all bool) string {
	devices, cpus := len(p.q.GRES) > 0, true
	for _, share := range nodes {
		if p.hasDevices(share, all) {
			devices = false
		}
		if share.CPUs >= p.cpus {
			cpus = false
		}
	}
	switch {
	case len(nodes) == 0:
	case devices:
		return "INVALID_GRES"
	case cpus:
		return "TOO_MANY_REQUESTED_CPUS"
	}
	return "REQUESTED_NODE_CONFIG_UNAVAILABLE"
}

// hasDevices says whether a node has the devices that one task there needs.
func (p *placing) hasDevices(share *job.NodeShare, all bool) bool {
	if len(p.q.GRES) == 0 {
		return true
	}
	if per := p.perTask(); per > 0 {
		return p.free(share, all) >= per
	}
	_, ok := p.devices(share, 1, max(1, p.q.MinNodes), all)
	return ok
}

// room is how many tasks a node has room for.
func (p *placing) room(share *job.NodeShare, all bool) int {
	if p.q.Interactive {
		return max(1, share.CPUs)
	}
	free := share.CPUs
	if !all && !p.q.Overlap {
		free -= p.c.usedCPUs(p.r, share.Node)
		if !p.exact && free < share.CPUs {
			return 0 // it takes whole shares
		}
	}
	n := free / p.cpus
	if p.q.Overcommit {
		n = maxStepTasks
	}
	if per := p.perTask(); per > 0 {
		n = min(n, p.free(share, all)/per)
	} else if !p.hasDevices(share, all) {
		return 0
	}
	if p.q.TasksPerNode > 0 {
		n = min(n, p.q.TasksPerNode)
	}
	return max(0, n)
}

// usedCPUs are those of a node that steps have for themselves.
func (c *core) usedCPUs(r *run, name string) int {
	used := 0
	for _, st := range r.Steps {
		if n := stepNodeOf(st, name); n != nil && !st.Spec.Overlap {
			used += n.CPUs
		}
	}
	return used
}

// stepNodeOf is a step's part on a node where it has not ended.
func stepNodeOf(st *step, name string) *job.StepNode {
	for i := range st.Spec.Nodes {
		if st.Spec.Nodes[i].Name == name && st.Gang.Nodes[i].Phase != ended {
			return &st.Spec.Nodes[i]
		}
	}
	return nil
}

// perTask is how many devices a task asks for, if all that is asked for is per task.
func (p *placing) perTask() int {
	n := 0
	for _, g := range p.q.GRES {
		if g.Per == job.PerTask {
			n += int(g.Count)
		}
	}
	return n
}

// free is how many devices of those that are asked for a node has left.
func (p *placing) free(share *job.NodeShare, all bool) int {
	n := 0
	for _, g := range p.q.GRES {
		for i := range share.Devices {
			if d := &share.Devices[i]; d.Name == g.Name && (g.Type == "" || g.Type == d.Type) {
				n += p.left(share.Node, d, all)
			}
		}
	}
	return n
}

// left is how many of a job's devices on a node no step has for itself.
func (p *placing) left(node string, d *job.Devices, all bool) int {
	if d.Mask == 0 {
		return int(d.Count)
	}
	return bits.OnesCount64(d.Mask &^ p.taken(node, d, all))
}

// taken is which of them steps have that asked for devices.
func (p *placing) taken(node string, d *job.Devices, all bool) (mask uint64) {
	if all || p.q.Overlap {
		return 0
	}
	for _, st := range p.r.Steps {
		if st.Want == nil || len(st.Want.Request.GRES) == 0 || st.Spec.Overlap {
			continue // it shares all
		}
		if n := stepNodeOf(st, node); n != nil {
			for i := range n.Devices {
				if n.Devices[i].Name == d.Name && n.Devices[i].Type == d.Type {
					mask |= n.Devices[i].Mask
				}
			}
		}
	}
	return mask
}

// devices are those of a node that a step with so many tasks there gets.
func (p *placing) devices(share *job.NodeShare, tasks, nodes int, all bool) ([]job.Devices, bool) {
	var got []job.Devices
	for _, g := range p.q.GRES {
		want := int(g.Count)
		switch g.Per {
		case job.PerTask:
			want *= tasks
		case job.PerJob:
			want = (want + nodes - 1) / nodes
		}
		for i := range share.Devices {
			d := &share.Devices[i]
			if want == 0 || d.Name != g.Name || g.Type != "" && g.Type != d.Type {
				continue
			}
			n := min(want, p.left(share.Node, d, all))
			if n == 0 {
				continue
			}
			part := job.Devices{Name: d.Name, Type: d.Type, Count: int64(n)}
			for free, k := d.Mask&^p.taken(share.Node, d, all), 0; free != 0 && k < n; k++ {
				part.Mask |= free & -free
				free &= free - 1
			}
			got, want = append(got, part), want-n
		}
		if want > 0 {
			return nil, false
		}
	}
	return got, true
}

func (p *placing) memory(tasks, cpus int) int64 {
	m := p.q.Memory
	switch m.Per {
	case job.PerCPU:
		return m.MiB * int64(cpus)
	case job.PerTask:
		return m.MiB * int64(tasks)
	}
	return m.MiB
}
