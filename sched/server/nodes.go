package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// node is what is known of a node beside what the scheduler knows. All but spec and state
// is of the present.
type node struct {
	spec    job.Node // as declared, or as the agent found it
	session *session // nil: there is none
	seen    job.Time // when it was last heard of
	hello   *wire.Hello
	beat    *wire.Heartbeat
	images  []string
	state   job.NodeState // as the scheduler has it
	reason  string
	user    string
	since   job.Time
	told    job.Time // when a release was last repeated
	// Of leases.
	councilled job.Time          // when its council was last looked at
	probe      *probing          // nil: nobody is asked for it
	reach      wire.Probed_Reach // what was last found
	vanished   bool              // its agent was there when it went away
	check      job.Time          // when its health is checked next; 0: it was not thought of
	refused    string            // why its agent was refused last; empty: it was not
}

// heartbeatSpan is how often agents say that they are there.
const heartbeatSpan = job.Second

// automatic are the states that come and go by themselves; all others are an administrator's.
const automatic = job.NodeUnknown | job.NodeSuspect

// lostReason is why a node is down that is up again when it is heard of. It stands after the
// reason that the node had before, for which it may be drained.
const (
	lostReason = "Not responding"
	lostAlso   = "; " + lostReason
)

// lostWith is the reason of a node that is lost, and had one before.
func lostWith(reason string) string {
	if reason == "" {
		return lostReason
	}
	return reason + lostAlso
}

// lostWithout is the contrary of lostWith; ok says that the node was lost.
func lostWithout(reason string) (before string, ok bool) {
	if reason == lostReason {
		return "", true
	}
	return strings.CutSuffix(reason, lostAlso)
}

// addressOf is by which address ranks reach a node.
func (c *core) addressOf(name string) string {
	if met := c.met[name]; met.Address != "" {
		return met.Address
	}
	if n := c.nodes[name]; n != nil {
		return n.spec.Addr
	}
	return ""
}

// send says something to a node, once all that was decided so far is durable. If it has no
// session nothing is said: it hears what counts when it comes back.
func (c *core) send(name string, m *wire.ControllerMessage) {
	if n := c.nodes[name]; n != nil && n.session != nil {
		c.post(n.session, m, nil)
	}
}

// away says whether a node has no session, or one that just ends.
func (c *core) away(name string) bool {
	n := c.nodes[name]
	return n == nil || n.session == nil || n.session.over()
}

// blocked says whether something of a job that has lost the node has to be cleaned there,
// before anything is started.
func (c *core) blocked(name string) bool {
	return slices.ContainsFunc(c.dirty[name], func(a attempt) bool {
		r := c.runs[a.Job]
		return r == nil || r.Of != a
	})
}

// setNodeState changes a node's state.
func (c *core) setNodeState(name string, state job.NodeState, reason string) error {
	n := c.nodes[name]
	if n == nil {
		return fmt.Errorf("there is no node %s", name)
	}
	if n.state == state && n.reason == reason {
		return nil
	}
	if state&job.NodeDown != 0 && n.state&job.NodeDown == 0 {
		c.endOn(name)
	}
	if err := c.apply(job.NodeStateSet{At: c.now, Node: name, State: state, Reason: reason}); err != nil {
		return err
	}
	now, _ := lostWithout(reason)
	if was, _ := lostWithout(n.reason); now != was || now == "" {
		n.since = c.now
	}
	n.state, n.reason = state, reason
	return nil
}

// hello takes a node's session in: what goes on there is found again.
func (c *core) hello(s *session, h *wire.Hello) error {
	n := c.nodes[h.Node]
	switch {
	case h.Protocol != wire.Protocol:
		return fmt.Errorf("the agent speaks protocol %d, version %s; this controller speaks %d, version %s: install one release on both", h.Protocol, h.Version, wire.Protocol, c.opts.Version)
	case h.Cluster != c.opts.Cluster.Name:
		return fmt.Errorf("the agent is of cluster %s, this is %s", h.Cluster, c.opts.Cluster.Name)
	case n == nil:
		return fmt.Errorf("there is no node %s", h.Node)
	case c.another(n, h):
		return fmt.Errorf("node %s is here already, at %s: another host has its name, or a copy of its state directory; end one of the two agents, and have its host join under a name of its own", h.Node, c.met[h.Node].Address)
	case h.Epoch > c.store.Epoch():
		return fmt.Errorf("the agent has seen epoch %d, this controller has %d: it is an old one", h.Epoch, c.store.Epoch())
	}
	if n.session != nil && n.session != s {
		n.session.close(fmt.Errorf("node %s has opened another session", h.Node))
	}
	n.session, n.hello, n.seen, n.probe, n.reach, n.vanished = s, h, c.now, nil, 0, false
	s.place = c.places[h.Node]
	c.leases.Seen(h.Node, c.steady())
	c.log.Info("node is here", "node", h.Node, "steps", len(h.Steps))
	if met := (meeting{h.Address, h.Socket}); c.met[h.Node] != met {
		c.emit(nodeMet{At: c.now, Node: h.Node, meeting: met})
	}
	lacks := ""
	if !h.Declared {
		lacks = c.hardware(n, h)
	}
	if !slices.Equal(n.images, h.Images) {
		c.setImages(h.Node, h.Images)
	}
	if h.CutOff && n.state&job.NodeDown == 0 { // it was, for what ran there
		if err := c.setNodeState(h.Node, n.state|job.NodeDown, lostWith(n.reason)); err != nil {
			c.log.Error("set node's state", "node", h.Node, "err", err)
		}
	}
	if before, lost := lostWithout(n.reason); n.state&automatic != 0 || lost && n.state&job.NodeDown != 0 {
		state := n.state &^ automatic
		if lost {
			state &^= job.NodeDown
		}
		if state == 0 {
			before = ""
		}
		if err := c.setNodeState(h.Node, state, before); err != nil {
			c.log.Error("set node's state", "node", h.Node, "err", err)
		}
	}
	c.drain(h.Node, lacks)
	c.adopt(n, h)
	return nil
}

// another says whether a node that speaks is also another machine than the one that has just
// been heard: one that has started anew was silent before.
func (c *core) another(n *node, h *wire.Hello) bool {
	return n.session != nil && !n.session.over() && n.hello.BootId != h.BootId && c.now.Sub(n.seen) < 3*heartbeatSpan
}

// hardware is what an agent found: it replaces what was known, if nothing runs there. What
// the node is for is not the agent's to say. What was declared stays; then it says in what the
// node has less.
func (c *core) hardware(n *node, h *wire.Hello) (lacks string) {
	var found job.Node
	err := json.Unmarshal(h.Hardware, &found)
	if err == nil && (found.CPUs < 1 || found.Memory < 1) {
		err = fmt.Errorf("it has %d CPUs and %d MiB of memory", found.CPUs, found.Memory)
	}
	if err != nil {
		c.log.Error("read hardware", "node", h.Node, "err", err)
		return ""
	}
	if c.opts.Cluster.Declared {
		return hasLess(&n.spec, &found)
	}
	spec := n.spec
	spec.Sockets, spec.CoresPerSocket, spec.ThreadsPerCore, spec.CPUs = found.Sockets, found.CoresPerSocket, found.ThreadsPerCore, found.CPUs
	spec.Memory, spec.GRES, spec.Addr = found.Memory, found.GRES, found.Addr
	spec.Name, spec.State, spec.Reason = h.Node, n.state, n.reason
	if err := c.apply(job.NodeSet{At: c.now, Node: spec}); err != nil {
		c.log.Warn("hardware stays as it was", "node", h.Node, "err", err)
		return ""
	}
	n.spec = spec
	return ""
}

// adopt sorts out which steps go on: the answer to a Hello.
func (c *core) adopt(n *node, h *wire.Hello) {
	w := &wire.Welcome{Protocol: wire.Protocol, Version: c.opts.Version, Epoch: c.store.Epoch(), HeartbeatMs: int64(heartbeatSpan), Programs: c.programsText(), Address: c.opts.Address, Secret: n.session.secret}
	known := map[job.StepKey]bool{}
	for _, s := range h.Steps {
		key := s.Key.Of()
		known[key] = true
		switch st := c.step(key); {
		case st == nil:
			if c.endKnown(key, h.Node) {
				w.Ended = append(w.Ended, s.Key)
			}
		case st.Gang.node(h.Node) == nil:
		case st.Gang.node(h.Node).Phase == ended:
			w.Ended = append(w.Ended, s.Key)
		default:
			w.Keep = append(w.Keep, s.Key)
		}
	}
	c.send(h.Node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Welcome{Welcome: w}})
	for _, a := range c.dirty[h.Node] {
		if r := c.runs[a.Job]; r == nil || r.Of != a || r.now.releasing {
			c.sendRelease(h.Node, a)
		}
	}
	for _, st := range c.stepsOn(h.Node) {
		g, r := st.Gang.node(h.Node), c.runs[st.Spec.Key.Job]
		if r == nil || g.Phase == ended {
			continue // by what was done for one before it
		}
		if known[st.Spec.Key] {
			c.act(r, st, st.Gang.again(g))
			if st.Gang.Starting && g.Phase != prepared { // else they come with START
				c.sendDue(st, h.Node)
			}
			continue
		}
		if st.Gang.Starting || st.Gang.killing {
			// It may have run there. What the node has forgotten is not started twice.
			why := "node " + h.Node + " does not know the step any more"
			if st.Gang.killing {
				why = st.Gang.Why
			}
			c.nodeEnd(h.Node, job.StepEnd{Key: st.Spec.Key, End: c.now, Fault: &job.Fault{What: why, Node: true}})
			continue
		}
		c.sendPrepare(st, h.Node)
	}
	c.enterAll(h.Node)
	for id := range c.runs {
		c.touched[id] = true
	}
}

// stepsOn are the steps that have not ended on a node, by their keys.
func (c *core) stepsOn(node string) []*step {
	var all []*step
	for _, r := range c.runs {
		for _, st := range r.Steps {
			if g := st.Gang.node(node); g != nil && g.Phase != ended {
				all = append(all, st)
			}
		}
	}
	slices.SortFunc(all, func(a, b *step) int { return a.Spec.Key.Compare(b.Spec.Key) })
	return all
}

// endKnown says whether the end of a step on a node is known, though the step is over.
func (c *core) endKnown(k job.StepKey, node string) bool {
	runs := []*run{c.runs[k.Job], c.lately(k.Job)}
	for _, r := range runs {
		if r == nil {
			continue
		}
		for _, st := range r.Done {
			if st.Spec.Key == k && st.Gang.node(node) != nil && st.Gang.node(node).Phase == ended {
				return true
			}
		}
	}
	return false
}

// gone is the end of a session.
func (c *core) gone(s *session) {
	s.adopt()
	if n := c.nodes[s.node]; n != nil && n.session == s {
		n.session = nil
		c.log.Info("node's session ended", "node", s.node)
	}
}

// cleanedBy takes that nothing of an attempt is left on a node.
func (c *core) cleanedBy(node string, m *wire.Cleaned) {
	a := attempt{job.ID(m.Job), int(m.Attempt)}
	if m.Left != "" {
		c.log.Warn("something is left of a job", "job", a.Job, "node", node, "err", m.Left)
	}
	if r := c.runs[a.Job]; r != nil && r.Of == a {
		if slices.Contains(c.dirty[node], a) { // else it is said again
			c.drain(node, m.Drain)
		}
		c.state.cleaned(node, a) // the end of the job says so durably
		c.touch(a.Job)
		return
	}
	if slices.Contains(c.dirty[node], a) {
		c.drain(node, m.Drain)
		c.emit(nodeCleaned{At: c.now, Node: node, Of: a})
	}
	if c.blocked(node) {
		return
	}
	for _, st := range c.stepsOn(node) {
		if st.Gang.node(node).Phase == unheard && !st.Gang.Starting && !st.Gang.killing {
			c.sendPrepare(st, node)
		}
	}
	c.enterAll(node)
}

func (c *core) setImages(name string, images []string) {
	if err := c.apply(job.ImagesSet{At: c.now, Node: name, Images: images}); err != nil {
		c.log.Error("set node's images", "node", name, "err", err)
		return
	}
	c.nodes[name].images = images
}

// lostAfter is how long a node may be silent until what ran there is lost.
func (c *core) lostAfter() job.Duration { return cmp.Or(c.opts.Cluster.LostAfter, 60*job.Second) }

// tickNodes sees which nodes have been silent for too long, and repeats what has to be
// cleaned.
func (c *core) tickNodes() {
	c.gatherBeats()
	suspect, lost := cmp.Or(c.opts.Cluster.SuspectAfter, 5*job.Second), c.lostAfter()
	for i := range c.known {
		name := c.known[i].Name
		n := c.nodes[name]
		if n == nil || n.state&(job.NodeDown|job.NodeUnknown|job.NodeFuture) != 0 {
			continue
		}
		switch silent := c.now.Sub(n.seen); {
		case silent >= lost && c.mayLose(name):
			c.lose(name, n)
			continue
		case silent >= suspect && n.state&job.NodeSuspect == 0:
			if err := c.setNodeState(name, n.state|job.NodeSuspect, n.reason); err != nil {
				c.log.Error("set node's state", "node", name, "err", err)
			}
		case silent < suspect && n.state&job.NodeSuspect != 0:
			if err := c.setNodeState(name, n.state&^job.NodeSuspect, n.reason); err != nil {
				c.log.Error("set node's state", "node", name, "err", err)
			}
		}
		c.tickProbes(name, n)
		if len(c.dirty[name]) > 0 && c.now >= n.told.Add(10*job.Second) {
			n.told = c.now
			for _, a := range c.dirty[name] {
				if r := c.runs[a.Job]; r == nil || r.Of != a || r.now.releasing {
					c.sendRelease(name, a)
				}
			}
		}
	}
}

// lose gives a node up: what ran there is lost. Its session is closed: an agent that could
// not say anything for so long, and can again, opens another one and says what it has.
func (c *core) lose(name string, n *node) {
	c.log.Warn("node is lost", "node", name)
	if n.session != nil {
		n.session.close(fmt.Errorf("node %s was not heard of for too long", name))
		n.session = nil
	}
	if err := c.setNodeState(name, n.state&^job.NodeSuspect|job.NodeDown, lostWith(n.reason)); err != nil {
		c.log.Error("set node's state", "node", name, "err", err)
	}
}
