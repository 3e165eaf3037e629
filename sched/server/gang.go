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
	Ready bool   // all of the prepare has worked there
	End   *job.StepEnd
	// Due are the signals that the step's supervisor there is not known to have yet, in their
	// order.
	Due []dueSignal
}

// dueSignal is a signal for the ranks of a node.
type dueSignal struct {
	ID     uint64 // rising; a supervisor takes none twice
	Signal int    // negative: to a batch script's shell alone
}

// gang is one try to run a step on its nodes: all are prepared, then all start, and what
// fails on one ends it on all. It is told what happens by its fields, and what follows
// from that by decide. It knows no clock, and sends nothing.
type gang struct {
	Key      job.StepKey
	Nodes    []gangNode
	Starting bool // START was, or is being, sent

	// Asked is that somebody wants its end: what follows is no failure of a node.
	Asked bool
	Grace job.Duration // of the latest end
	Why   string

	Failing *failing // nil: it is not ended, or because somebody wants its end

	held      string // the node on which ranks of an earlier attempt may still run; empty: none
	killing   bool
	moved     *job.Fault // a node has another image than the job's
	killAt    job.Time   // when it is to be ended because a rank has ended; 0: not
	deadline  job.Time   // of START; 0: none
	renewed   job.Time
	prepareBy job.Time
}

// failing is why a gang is ended by itself.
type failing struct {
	Why   string // for the nodes
	Grace job.Duration
	Cause *job.Fault `json:",omitempty"` // if that is not an end of a node
	Of    []string   `json:",omitempty"` // nodes of Cause
	First []string   `json:",omitempty"` // nodes that had failed by then
	Moved bool       `json:",omitempty"` // it is begun anew with the image that is pinned
}

// action is what a gang wants to be done.
type action struct {
	do      actionKind
	node    string
	grace   job.Duration
	why     string
	failing *failing
}

type actionKind uint8

const (
	doStarting actionKind = iota // note that it starts, then START everywhere
	doStart
	doFail // note why it is ended
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
	if f := g.over(p, now); f != nil {
		f.Moved = g.moved != nil
		for n := range g.failedNodes {
			f.First = append(f.First, n.Name)
		}
		return append([]action{{do: doFail, failing: f}}, g.fail(f)...)
	}
	switch {
	case !g.Starting && g.held == "" && g.count(prepared) == len(g.Nodes):
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

// over says why a gang of which some nodes have not ended is to be ended; nil: it is not.
func (g *gang) over(p *job.Program, now job.Time) *failing {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Phase != ended {
			continue
		}
		bad := slices.ContainsFunc(n.End.Ranks, failed)
		switch {
		case n.End.Fault != nil:
			return &failing{Why: fmt.Sprintf("it failed on node %s: %s", n.Name, n.End.Fault.What)}
		case !g.Starting:
			return &failing{Why: "it ended on node " + n.Name + " before it began"}
		case bad && p.KillOnBadExit:
			return &failing{Why: "a rank failed on node " + n.Name, Grace: 2 * job.Second}
		case p.WaitAfterExit > 0 && g.killAt == 0:
			g.killAt = now.Add(p.WaitAfterExit)
		}
	}
	if g.moved != nil && !g.Starting {
		return &failing{Why: g.moved.What, Cause: g.moved}
	}
	if g.killAt > 0 && now >= g.killAt {
		return &failing{Why: "the first rank ended longer ago than ranks are waited for"}
	}
	switch {
	case g.Starting && now >= g.deadline:
		return g.late(fmt.Sprintf("the ranks did not start within %d s", startSpan/job.Second), running)
	case !g.Starting && now >= g.prepareBy:
		return g.late("the node did not get ready", prepared)
	}
	return nil
}

// late is that nodes are not as far as they have to be by now; nil: all are.
func (g *gang) late(what string, below phase) *failing {
	f := &failing{Why: what, Cause: &job.Fault{What: what, Node: true}}
	for n := range g.each {
		if n.Phase < below {
			f.Of = append(f.Of, n.Name)
		}
	}
	if len(f.Of) == 0 {
		return nil
	}
	return f
}

// fail ends a gang that has failed.
func (g *gang) fail(f *failing) []action {
	g.Failing = f
	return g.kill(f.Grace, f.Why)
}

// kill ends a gang on all nodes.
func (g *gang) kill(grace job.Duration, why string) []action {
	g.killing, g.Grace, g.Why = true, grace, why
	var all []action
	for n := range g.each {
		all = append(all, action{do: doKill, node: n.Name, grace: grace, why: why})
	}
	return all
}

// stop ends a gang because somebody wants that. Where no rank runs none needs a grace.
func (g *gang) stop(grace job.Duration, why string) []action {
	g.Asked = true
	if !g.Starting {
		grace = 0
	}
	return g.kill(grace, why)
}

// again is what a node is to be told that has come back and knows the step, or that may
// not have heard the last word.
func (g *gang) again(n *gangNode) []action {
	switch {
	case n.Phase == ended:
		return nil
	case g.killing:
		return []action{{do: doKill, node: n.Name, grace: g.Grace, why: g.Why}}
	case g.Starting && n.Phase == prepared:
		return []action{{do: doStart, node: n.Name}}
	}
	return nil
}

// inherit takes over the signals that came before any rank of an earlier try ran.
func (g *gang) inherit(old *gang) {
	var due []dueSignal
	for i := range old.Nodes {
		for _, d := range old.Nodes[i].Due {
			if !slices.Contains(due, d) {
				due = append(due, d)
			}
		}
	}
	for i := range g.Nodes {
		g.Nodes[i].Due = slices.Clone(due)
	}
}

func failed(r job.RankEnd) bool { return r.Exit != 0 || r.Signal != 0 || r.OOM }

// result is how a gang ended whose nodes have all ended: the cause is the first fault, and
// of ranks the one that failed first. tried says that it was tried on other nodes before.
func (g *gang) result(now job.Time, tried bool) result {
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
	if !g.Asked {
		g.faults(all, &r)
		g.blame(&r, tried)
	}
	switch {
	case g.Asked && r.Failed == nil && r.Start == 0:
		r.State = job.CancelledState
	case r.Fault != nil && (r.Failed == nil || r.Start == 0 || g.Failing != nil && g.Failing.Cause != nil):
		r.State, r.Exit = job.Failed, cmp.Or(r.Fault.Code, 125)
	case r.Failed != nil:
		r.State, r.Exit, r.Signal = job.Failed, r.Failed.Exit, r.Failed.Signal
		if r.Failed.OOM {
			r.State = job.OutOfMemory
		}
	}
	return r
}

// blame decides whose a fault is that may be the node's as well as the user's: the node's if
// others could, the user's if no other one could. Where no other one has shown either, it is the
// node's once: what is missing on one node only must not end all that comes there.
func (g *gang) blame(r *result, tried bool) {
	if r.Fault == nil || !r.Fault.Doubtful {
		return
	}
	others := slices.ContainsFunc(g.Nodes, func(n gangNode) bool { return n.Ready && !slices.Contains(r.FaultNodes, n.Name) })
	all := len(g.Nodes) > 1 && len(r.FaultNodes) == len(g.Nodes)
	f := *r.Fault
	f.Node = others || !all && !tried
	r.Fault = &f
}

// faults finds the one cause of a gang that failed, and the nodes that have it.
func (g *gang) faults(all []*job.StepEnd, r *result) {
	var first []string
	if g.Failing != nil {
		first = g.Failing.First
		if g.Failing.Cause != nil {
			r.Fault, r.FaultNodes = g.Failing.Cause, g.Failing.Of
			return
		}
	}
	// What failed before the others were ended is the cause; of those only what failed alike.
	slices.SortStableFunc(all, func(a, b *job.StepEnd) int {
		rank := func(e *job.StepEnd) int {
			if slices.Contains(first, e.Node) {
				return 0
			}
			return 1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	for _, e := range all {
		switch {
		case e.Fault == nil:
		case r.Fault == nil && len(first) > 0 && !slices.Contains(first, e.Node):
		case r.Fault == nil:
			r.Fault, r.FaultNodes = e.Fault, []string{e.Node}
		case r.Fault.What == e.Fault.What && r.Fault.Cause == e.Fault.Cause:
			r.FaultNodes = append(r.FaultNodes, e.Node)
		}
	}
}
