package server

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Programs of administrators run on nodes: agents are told which by Welcome, what a prolog and
// an epilog are to know of a job by what brings it and what takes it away, and when a node's
// health is due. That one has failed comes back with what it was for.

// programs are those that agents run; they may be none.
func (c *core) programs() *job.Programs {
	if p := c.opts.Cluster.Programs; p != nil {
		return p
	}
	return &job.Programs{}
}

// programsText is what Welcome has of them.
func (c *core) programsText() []byte {
	if c.opts.Cluster.Programs == nil {
		return nil
	}
	return mustJSON(c.opts.Cluster.Programs)
}

// tellPrograms tells all nodes of them, if they are others than they were.
func (c *core) tellPrograms(was []byte) {
	text := c.programsText()
	if bytes.Equal(was, text) {
		return
	}
	for i := range c.known {
		if n := c.nodes[c.known[i].Name]; n != nil {
			n.check = 0 // its health is checked by the new clock
		}
		c.send(c.known[i].Name, &wire.ControllerMessage{Message: &wire.ControllerMessage_Configure{Configure: &wire.Configure{
			Epoch: c.store.Epoch(), Programs: text, Address: c.opts.Address,
		}}})
	}
}

// mustJSON is for plain data of package job, which always has a JSON form.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// jobEnv is what programs on a node are told of an attempt, as far as it is still known; nil:
// there are none.
func (c *core) jobEnv(a attempt, node string) []byte {
	if !c.programs().OfJobs() {
		return nil
	}
	e := job.JobEnv{ID: a.Job, Restarts: max(0, a.Attempt-1), Array: c.arrayFacts(a.Job)}
	v, known := c.sched.Job(a.Job)
	if known && v.Spec != nil {
		e.UID, e.User, e.Name, e.Account = v.Spec.UID, v.Spec.User, v.Spec.Name, v.Spec.Account
		if v.Spec.Constraint != nil {
			e.Constraints = constraintText(v.Spec.Constraint)
		}
	}
	if sub := c.submission(a.Job); sub != nil {
		e.GID, e.Comment, e.WorkDir = sub.Facts.GID, sub.Facts.Comment, string(sub.Facts.SubmitDir)
		if p := sub.Facts.Program; p != nil && len(p.Cwd) > 0 {
			e.WorkDir = string(p.Cwd)
		}
	}
	if text, ok := c.comments[a.Job]; ok {
		e.Comment = text
	}
	if r := c.runOf(a); r != nil {
		envOfRun(&e, r, node)
	}
	return mustJSON(e)
}

// runOf is an attempt that runs, or has ended lately; nil: it is not known any more.
func (c *core) runOf(a attempt) *run {
	if r := c.runs[a.Job]; r != nil && r.Of == a {
		return r
	}
	for i := len(c.past) - 1; i >= 0; i-- {
		if c.past[i].Of == a {
			return c.past[i]
		}
	}
	return nil
}

// envOfRun takes what an attempt has, and how it ended.
func envOfRun(e *job.JobEnv, r *run, node string) {
	e.Partition, e.Start, e.End = r.Alloc.Partition, r.Start, r.Start.Add(r.Alloc.Limit)
	for i := range r.Alloc.Nodes {
		share := &r.Alloc.Nodes[i]
		e.Nodes, e.CPUsPerNode = append(e.Nodes, share.Node), append(e.CPUsPerNode, share.CPUs)
		if share.Node == node {
			e.Devices = share.Devices
		}
	}
	if r.Fate == nil {
		return
	}
	e.Ended = &job.JobExit{Exit: r.Fate.Exit, Signal: r.Fate.Signal}
	for _, st := range r.Done {
		if st.Spec.Key.Step >= 0 && st.Result != nil {
			e.Ended.Derived = max(e.Ended.Derived, st.Result.Exit)
		}
	}
}

// maxReason bounds what an agent may say of its node.
const maxReason = 200

// agentUser is who drains nodes by an agent's word.
const agentUser = "gangwayd"

// drain keeps a node from getting anything new. What runs there goes on.
func (c *core) drain(name, reason string) {
	n := c.nodes[name]
	if n == nil || reason == "" || n.state&(job.NodeDrain|job.NodeFail) != 0 {
		return
	}
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "?")
	c.log.Warn("node is drained", "node", name, "why", reason)
	n.user = agentUser
	if err := c.setNodeState(name, n.state|job.NodeDrain, reason); err != nil {
		c.log.Error("set node's state", "node", name, "err", err)
	}
}

// enter has the prolog of a run begin on its nodes, where that does not wait for steps.
func (c *core) enter(r *run) {
	if r.now.entering || !c.programs().Alloc || len(c.programs().Prolog) == 0 {
		return
	}
	r.now.entering, r.now.entered = true, map[string]bool{}
	for i := range r.Alloc.Nodes {
		c.enterOn(r, r.Alloc.Nodes[i].Node)
	}
}

// enterOn has it begin on one, unless something of an earlier job has to be cleaned there first.
func (c *core) enterOn(r *run, node string) {
	if !r.now.entering || r.now.entered[node] || r.Fate != nil || !r.on(node) || c.blocked(node) {
		return
	}
	c.send(node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Enter{Enter: &wire.Enter{
		Job: uint32(r.Of.Job), Attempt: int32(r.Of.Attempt), Epoch: c.store.Epoch(), Env: c.jobEnv(r.Of, node),
	}}})
}

// enterAll has those begin that are due on a node.
func (c *core) enterAll(node string) {
	if !c.programs().Alloc {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(c.runs)) {
		c.enterOn(c.runs[id], node)
	}
}

// entered takes that the prolog of a run has ended on a node.
func (c *core) entered(node string, m *wire.Entered) {
	a := attempt{job.ID(m.Job), int(m.Attempt)}
	r := c.runs[a.Job]
	if r == nil || r.Of != a || !r.now.entering || r.now.entered[node] || !r.on(node) {
		return
	}
	r.now.entered[node] = true
	c.touch(a.Job)
	if len(m.Fault) == 0 {
		return
	}
	var f job.Fault
	if err := json.Unmarshal(m.Fault, &f); err != nil {
		f = job.Fault{What: "run the prolog on node " + node}
	}
	c.drain(node, m.Drain)
	c.prologFailed(r, &f)
}

// deferred says whether a script has to wait for the prolog on nodes of its job.
func (c *core) deferred(r *run) bool {
	return r.now.entering && c.programs().DeferBatch && len(r.now.entered) < len(r.Alloc.Nodes)
}

// prologFailed ends a run that cannot begin, or go on, on a node: a script waits for other
// nodes, or for that one to be mended; an allocation that somebody holds is over.
func (c *core) prologFailed(r *run, f *job.Fault) {
	v, _ := c.sched.Job(r.Of.Job)
	began := slices.ContainsFunc(r.Done, func(st *step) bool { return st.Begun > 0 })
	for _, st := range r.Steps {
		began = began || st.Begun > 0
	}
	end := fate{State: job.Failed, Fault: f, Exit: 125}
	if r.Facts.Program != nil && (!began || v.Spec != nil && v.Spec.Requeue) {
		end.Requeue, end.Hold = true, r.Of.Attempt >= maxAttempts
	}
	c.finish(r, end)
}

// refusedBy takes that a node has not prepared a step for a reason of its own, before the
// step's end there is taken: the node is drained, and what cannot go on without it ends.
func (c *core) refusedBy(node string, end *job.StepEnd, drain string) {
	st := c.step(end.Key)
	if drain == "" || st == nil || end.Fault == nil {
		return
	}
	if n := st.Gang.node(node); n == nil || n.Phase == ended {
		return // it is said again
	}
	c.drain(node, drain)
	if r := c.runs[end.Key.Job]; end.Key.Step != job.BatchStep && r.Facts.Program != nil && r.Fate == nil {
		if v, _ := c.sched.Job(r.Of.Job); v.Spec != nil && v.Spec.Requeue {
			c.prologFailed(r, end.Fault)
		}
	}
}

// taking are those of some nodes that are not drained: a job need not be kept away from others.
func (c *core) taking(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { n := c.nodes[name]; return n != nil && n.state&job.NodeDrain != 0 })
}

// waitsForEpilog says whether a node is there that is not clean, and has an epilog to run: that
// takes as long as it takes.
func (c *core) waitsForEpilog(left []string) bool {
	return len(c.programs().Epilog) > 0 && slices.ContainsFunc(left, func(name string) bool { return !c.away(name) })
}
