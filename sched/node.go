package sched

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// node is a node and what is on it.
type node struct {
	tok    *token
	spec   *job.Node // not changed
	state  job.NodeState
	reason string
	gone   bool // removed; its number is not used again

	total  vec
	free   vec                      // of what runs, now
	used   [slots - slotGRES]uint64 // devices that are in use, of GRES with identity
	line   timeline
	runs   []job.ID // what runs here, by id
	holds  []timer  // what is planned here, by start
	images []string
	place  place
}

// place is where a node is in the index.
type place struct {
	cell, pos int32 // cell -1: nowhere
	bucket    int16 // -1: it takes nothing
	fresh     bool  // nothing runs on it
}

func (n *node) open() bool { return !n.gone && n.state.Takes() }

// own makes node i changeable.
func (s *Scheduler) own(i int32) *node {
	n := s.nodes[i]
	if n.tok != s.tok {
		c := *n
		c.tok = s.tok
		c.line = slices.Clone(n.line)
		c.runs = slices.Clone(n.runs)
		c.holds = slices.Clone(n.holds)
		if s.nodesTok != s.tok {
			s.nodes, s.nodesTok = slices.Clone(s.nodes), s.tok
		}
		s.nodes[i] = &c
		return &c
	}
	return n
}

// identity says whether the devices of g have numbers.
func identity(g *job.GRES) bool {
	return g.Count <= 64 && (g.Name == "gpu" || g.Links != nil || g.Sockets != nil)
}

// totals is what a node has in all.
func totals(n *job.Node) (vec, error) {
	var v vec
	refuse := func(what string, amount int64) error {
		return &Refused{Event: "set node " + n.Name, Why: fmt.Sprintf("%s %d is not between 0 and %d", what, amount, math.MaxInt32)}
	}
	threads := int64(max(1, n.Sockets)) * int64(max(1, n.CoresPerSocket)) * int64(max(1, n.ThreadsPerCore))
	for _, part := range []int{n.Sockets, n.CoresPerSocket, n.ThreadsPerCore} {
		if part < 0 || part > 1<<16 {
			return v, refuse("a number of sockets, cores or threads", int64(part))
		}
	}
	cpus := int64(n.CPUs)
	if cpus == 0 {
		cpus = threads
	}
	for _, amount := range []struct {
		what string
		n    int64
	}{{"number of CPUs", cpus}, {"memory in MiB", n.Memory}} {
		if amount.n < 0 || amount.n > math.MaxInt32 {
			return v, refuse(amount.what, amount.n)
		}
	}
	v[slotCPU], v[slotMemory] = int32(cpus), int32(n.Memory)
	if len(n.GRES) > slots-slotGRES {
		return v, &Refused{Event: "set node " + n.Name, Why: fmt.Sprintf("%d kinds of GRES are more than %d", len(n.GRES), slots-slotGRES)}
	}
	for i := range n.GRES {
		g := &n.GRES[i]
		if g.Count < 0 || g.Count > math.MaxInt32 {
			return v, refuse("count of "+g.Name, g.Count)
		}
		for _, h := range n.GRES[:i] {
			if h.Name == g.Name && h.Type == g.Type {
				return v, &Refused{Event: "set node " + n.Name, Why: fmt.Sprintf("GRES %s is given twice", gresName(g.Name, g.Type))}
			}
		}
		v[slotGRES+i] = int32(g.Count)
	}
	return v, nil
}

func gresName(name, typ string) string {
	if typ == "" {
		return name
	}
	return name + ":" + typ
}

func (s *Scheduler) setNode(e job.NodeSet) error {
	what := "set node " + e.Node.Name
	if e.Node.Name == "" {
		return &Refused{Event: what, Why: "it has no name"}
	}
	if err := checkState(what, e.Node.State); err != nil {
		return err
	}
	total, err := totals(&e.Node)
	if err != nil {
		return err
	}
	spec := e.Node
	i, known := s.nodeNumber(e.Node.Name)
	if !known {
		if len(s.nodes) >= math.MaxInt32 {
			return &Refused{Event: what, Why: "there are too many nodes"}
		}
		s.nodes = append(s.nodes, &node{tok: s.tok, place: place{cell: -1, bucket: -1}})
		i = int32(len(s.nodes) - 1)
		s.names.add(s, e.Node.Name, i)
	} else if n := s.nodes[i]; len(n.runs) > 0 {
		same := total == n.total && slices.EqualFunc(spec.GRES, n.spec.GRES, func(a, b job.GRES) bool {
			return a.Name == b.Name && a.Type == b.Type && identity(&a) == identity(&b) // what runs has numbers, or has none
		})
		if !same {
			return &Refused{Event: what, Why: fmt.Sprintf("job %v runs on it", n.runs[0]), Nearest: "drain it first"}
		}
	}
	n := s.own(i)
	s.dropHolds(n, "node "+e.Node.Name+" was changed")
	wasOpen := n.spec != nil && n.open()
	n.spec, n.state, n.reason, n.gone = &spec, e.Node.State, e.Node.Reason, false
	if len(n.runs) == 0 {
		n.total, n.free = total, total
		n.line = timeline{{math.MinInt64, total}}
		n.used = [slots - slotGRES]uint64{}
	}
	s.stale, s.recheck = true, true // it may be below another switch, or in another block
	s.retry = true
	if n.open() {
		s.grow(i)
	} else if wasOpen || len(n.runs) > 0 {
		s.closeNode(i)
	}
	return nil
}

func checkState(what string, st job.NodeState) error {
	if st >= job.NodeFail<<1 {
		return &Refused{Event: what, Why: fmt.Sprintf("state %#x is none", uint16(st))}
	}
	return nil
}

func (s *Scheduler) setNodeState(e job.NodeStateSet) error {
	i, ok := s.nodeNumber(e.Node)
	if !ok || s.nodes[i].gone {
		return &Refused{Event: "set state of node " + e.Node, Why: "there is no such node", Nearest: s.nearestNode(e.Node)}
	}
	if err := checkState("set state of node "+e.Node, e.State); err != nil {
		return err
	}
	n := s.own(i)
	was := n.open()
	n.state, n.reason = e.State, e.Reason
	switch {
	case n.open() && !was:
		s.retry = true
		s.grow(i)
	case !n.open():
		s.closeNode(i)
	}
	s.reindex(i)
	return nil
}

// closeNode takes from a node that takes nothing any more what was planned there, and
// marks what is lost.
func (s *Scheduler) closeNode(i int32) {
	n := s.own(i)
	why := "node " + n.spec.Name + " is " + stateWord(n.state)
	s.dropHolds(n, why)
	if n.state&job.NodeDown != 0 {
		for _, id := range n.runs {
			if r := s.ownJob(s.index(id)); r.lost == "" {
				r.lost = why
				s.lost = append(s.lost, id)
			}
		}
	}
}

// stateWord is the name of the first of a node's states.
func stateWord(st job.NodeState) string {
	names := [...]string{"down", "drained", "in maintenance", "of the future", "unknown", "not responding", "failing"}
	if st == 0 {
		return "up"
	}
	return names[min(bits.TrailingZeros16(uint16(st)), len(names)-1)]
}

// dropHolds takes away what was planned on a node: those jobs are planned anew.
func (s *Scheduler) dropHolds(n *node, why string) {
	for len(n.holds) > 0 {
		s.breach(s.index(n.holds[0].id), why)
	}
}

func (s *Scheduler) removeNode(e job.NodeRemoved) error {
	i, ok := s.nodeNumber(e.Node)
	if !ok || s.nodes[i].gone {
		return &Refused{Event: "remove node " + e.Node, Why: "there is no such node", Nearest: s.nearestNode(e.Node)}
	}
	if runs := s.nodes[i].runs; len(runs) > 0 {
		return &Refused{Event: "remove node " + e.Node, Why: fmt.Sprintf("job %v runs on it", runs[0]), Nearest: "drain it first"}
	}
	n := s.own(i)
	s.dropHolds(n, "node "+e.Node+" was removed")
	n.gone = true
	s.stale, s.recheck = true, true
	return nil
}

func (s *Scheduler) setImages(e job.ImagesSet) error {
	i, ok := s.nodeNumber(e.Node)
	if !ok || s.nodes[i].gone {
		return &Refused{Event: "set images of node " + e.Node, Why: "there is no such node", Nearest: s.nearestNode(e.Node)}
	}
	images := slices.Clone(e.Images)
	slices.Sort(images)
	s.own(i).images = images
	return nil
}

// grow notes that a node has more to give than before.
func (s *Scheduler) grow(i int32) {
	if len(s.grown) == 0 || s.grown[len(s.grown)-1] != i { // twice is no harm
		s.grown = append(s.grown, i)
	}
}

// names finds nodes by name. It is shared with forks until one of them adds a name.
type names struct {
	tok *token
	m   map[string]int32
}

func (x *names) add(s *Scheduler, name string, i int32) {
	if x.tok != s.tok {
		m := make(map[string]int32, len(x.m)+1)
		maps.Copy(m, x.m)
		*x = names{s.tok, m}
	}
	x.m[name] = i
}

func (s *Scheduler) nodeNumber(name string) (int32, bool) {
	i, ok := s.names.m[name]
	return i, ok
}

// nearestNode is a node whose name is like name.
func (s *Scheduler) nearestNode(name string) string {
	best, at := 3, ""
	for _, n := range s.nodes {
		if d := distance(n.spec.Name, name, best); !n.gone && d < best {
			best, at = d, n.spec.Name
		}
	}
	return at
}

// distance is how many letters have to be changed, added or dropped to make a of b, at
// most limit.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit || len(a) > 64 || len(b) > 64 {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return min(limit, row[len(b)])
}
