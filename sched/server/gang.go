package server

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Spans of a gang's life.
const (
	leaseSpan    = 30 * job.Second  // that a prepared step is kept without word from the controller
	renewSpan    = 10 * job.Second  // after which the lease is renewed
	progressSpan = 120 * job.Second // without progress a prepare has failed
	prepareSpan  = job.Hour         // that a prepare may take
	startSpan    = 10 * job.Second  // from START until all run
)

// phase is how far a step is on one node.
type phase uint8

const (
	unheard  phase = iota // nothing was heard since the step was made or the controller started
	prepared              // it waits for START
	running
	ended
)

// gangNode is one node of a gang.
type gangNode struct {
	Name  string
	Phase phase
	Port  int    // for MASTER_PORT, held on this node
	Image string // the digest
	End   *job.StepEnd
}

// gang is one try to run a step on its nodes: all are prepared, then all start, and what
// fails on one ends it on all. It is told what happens by its fields, and what follows
// from that by decide. It knows no clock, and sends nothing.
type gang struct {
	Key      job.StepKey
	Nodes    []gangNode
	Starting bool // START was, or is being, sent

	killing   bool
	asked     bool // to be ended: what follows is no failure of a node
	grace     job.Duration
	why       string
	cause     *job.Fault // what made the gang end, if that is not an end of a node
	causeOf   []string   // nodes of cause
	first     []string   // nodes that had failed when the others were ended
	killAt    job.Time   // when it is to be ended because a rank has ended; 0: not
	deadline  job.Time   // of START; 0: none
	renewed   job.Time
	prepareBy job.Time
}

// action is what a gang wants to be done.
type action struct {
	do    actionKind
	node  string
	grace job.Duration
	why   string
}

type actionKind uint8

const (
	doStarting actionKind = iota // note that it starts, then START everywhere
	doStart
	doKill
	doRenew
	doDone // all nodes have ended
)

func newGang(spec *job.StepSpec) *gang {
	g := &gang{Key: spec.Key, Nodes: make([]gangNode, len(spec.Nodes))}
	for i := range spec.Nodes {
		g.Nodes[i].Name = spec.Nodes[i].Name
	}
	return g
}

func (g *gang) node(name string) *gangNode {
	for i := range g.Nodes {
		if g.Nodes[i].Name == name {
			return &g.Nodes[i]
		}
	}
	return nil
}

// each yields the nodes that have not ended.
func (g *gang) each(yield func(*gangNode) bool) {
	for i := range g.Nodes {
		if g.Nodes[i].Phase != ended && !yield(&g.Nodes[i]) {
			return
		}
	}
}

// failedNodes yields the nodes with a fault.
func (g *gang) failedNodes(yield func(*gangNode) bool) {
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Phase == ended && n.End.Fault != nil && !yield(n) {
			return
		}
	}
}

// count is the number of nodes that are at least in a phase.
func (g *gang) count(p phase) int {
	n := 0
	for i := range g.Nodes {
		if g.Nodes[i].Phase >= p {
			n++
		}
	}
	return n
}

// decide says what is to be done, given how things are. It may be called at any time.
func (g *gang) decide(p *job.Program, now job.Time) []action {
	if g.prepareBy == 0 {
		g.prepareBy = now.Add(prepareSpan + job.Minute)
	}
	if g.Starting && g.deadline == 0 {
		g.deadline = now.Add(startSpan)
	}
	if g.count(ended) == len(g.Nodes) {
		return []action{{do: doDone}}
	}
	if g.killing {
		return nil
	}
	if grace, why, end := g.over(p, now); end {
		for n := range g.failedNodes {
			if !slices.Contains(g.first, n.Name) {
				g.first = append(g.first, n.Name)
			}
		}
		return g.kill(grace, why)
	}
	switch {
	case !g.Starting && g.count(prepared) == len(g.Nodes):
		g.Starting, g.deadline = true, now.Add(startSpan)
		return []action{{do: doStarting}}
	case !g.Starting && now >= g.renewed.Add(renewSpan):
		g.renewed = now
		var all []action
		for n := range g.each {
			if n.Phase == prepared {
				all = append(all, action{do: doRenew, node: n.Name})
			}
		}
		return all
	}
	return nil
}

// over says whether a gang of which some nodes have not ended is to be ended.
func (g *gang) over(p *job.Program, now job.Time) (grace job.Duration, why string, end bool) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Phase != ended {
			continue
		}
		bad := slices.ContainsFunc(n.End.Ranks, failed)
		switch {
		case n.End.Fault != nil:
			return 0, fmt.Sprintf("it failed on node %s: %s", n.Name, n.End.Fault.What), true
		case !g.Starting:
			return 0, "it ended on node " + n.Name + " before it began", true
		case bad && p.KillOnBadExit:
			return 2 * job.Second, "a rank failed on node " + n.Name, true
		case p.WaitAfterExit > 0 && g.killAt == 0:
			g.killAt = now.Add(p.WaitAfterExit)
		}
	}
	if g.killAt > 0 && now >= g.killAt {
		return 0, "the first rank ended longer ago than ranks are waited for", true
	}
	late := func(what string, below phase) bool {
		g.causeOf = nil
		for n := range g.each {
			if n.Phase < below {
				g.causeOf = append(g.causeOf, n.Name)
			}
		}
		if len(g.causeOf) > 0 {
			g.cause = &job.Fault{What: what, Node: true}
		}
		return len(g.causeOf) > 0
	}
	switch {
	case g.Starting && now >= g.deadline && late(fmt.Sprintf("the ranks did not start within %d s", startSpan/job.Second), running):
		return 0, g.cause.What, true
	case !g.Starting && now >= g.prepareBy && late("the node did not get ready", prepared):
		return 0, g.cause.What, true
	}
	return 0, "", false
}

// kill ends a gang on all nodes.
func (g *gang) kill(grace job.Duration, why string) []action {
	g.killing, g.grace, g.why = true, grace, why
	var all []action
	for n := range g.each {
		all = append(all, action{do: doKill, node: n.Name, grace: grace, why: why})
	}
	return all
}

// stop ends a gang because somebody wants that.
func (g *gang) stop(grace job.Duration, why string) []action {
	g.asked = true
	return g.kill(grace, why)
}

// again is what a node is to be told that has come back and knows the step, or that may
// not have heard the last word.
func (g *gang) again(n *gangNode) []action {
	switch {
	case n.Phase == ended:
		return nil
	case g.killing:
		return []action{{do: doKill, node: n.Name, grace: g.grace, why: g.why}}
	case g.Starting && n.Phase == prepared:
		return []action{{do: doStart, node: n.Name}}
	}
	return nil
}

func failed(r job.RankEnd) bool { return r.Exit != 0 || r.Signal != 0 || r.OOM }

// result is how a gang ended whose nodes have all ended: the cause is the first fault, and
// of ranks the one that failed first.
func (g *gang) result(now job.Time) result {
	r := result{State: job.Completed, End: now}
	all := make([]*job.StepEnd, 0, len(g.Nodes))
	for i := range g.Nodes {
		n := &g.Nodes[i]
		all = append(all, n.End)
		if n.Image != "" && r.Image == "" {
			r.Image = n.Image
		}
	}
	slices.SortStableFunc(all, func(a, b *job.StepEnd) int { return cmp.Compare(a.End, b.End) })
	for _, e := range all {
		if e.Start > 0 && (r.Start == 0 || e.Start < r.Start) {
			r.Start = e.Start
		}
		r.Usage.User += e.Usage.User
		r.Usage.System += e.Usage.System
		r.Usage.Read += e.Usage.Read
		r.Usage.Write += e.Usage.Write
		r.Usage.MaxRSS = max(r.Usage.MaxRSS, e.Usage.MaxRSS)
		for i := range e.Ranks {
			if failed(e.Ranks[i]) {
				r.FailedRanks++
				if r.Failed == nil || e.Ranks[i].At < r.Failed.At {
					r.Failed = &e.Ranks[i]
				}
			}
		}
	}
	if !g.asked {
		g.faults(all, &r)
	}
	switch {
	case g.asked && r.Failed == nil && r.Start == 0:
		r.State = job.CancelledState
	case r.Fault != nil && (r.Failed == nil || r.Start == 0 || g.cause != nil):
		r.State, r.Exit = job.Failed, cmp.Or(r.Fault.Code, 125)
	case r.Failed != nil:
		r.State, r.Exit, r.Signal = job.Failed, r.Failed.Exit, r.Failed.Signal
		if r.Failed.OOM {
			r.State = job.OutOfMemory
		}
	}
	return r
}

// faults finds the one cause of a gang that failed, and the nodes that have it.
func (g *gang) faults(all []*job.StepEnd, r *result) {
	if g.cause != nil {
		r.Fault, r.FaultNodes = g.cause, g.causeOf
		return
	}
	// What failed before the others were ended is the cause; of those only what failed alike.
	slices.SortStableFunc(all, func(a, b *job.StepEnd) int {
		first := func(e *job.StepEnd) int {
			if slices.Contains(g.first, e.Node) {
				return 0
			}
			return 1
		}
		return cmp.Compare(first(a), first(b))
	})
	for _, e := range all {
		switch {
		case e.Fault == nil:
		case r.Fault == nil && len(g.first) > 0 && !slices.Contains(g.first, e.Node):
		case r.Fault == nil:
			r.Fault, r.FaultNodes = e.Fault, []string{e.Node}
		case r.Fault.What == e.Fault.What && r.Fault.Cause == e.Fault.Cause:
			r.FaultNodes = append(r.FaultNodes, e.Node)
		}
	}
}
