package server

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

const (
	// gatherSpan is how often heartbeats are gathered anew that come one by one.
	gatherSpan = 10 * job.Second
	// apartSpan is how long nothing goes by way of other agents to a node that did not get
	// something so.
	apartSpan = time.Minute
	// forwardRoom is what a forwarded command may have besides its body, in bytes.
	forwardRoom = 2 << 20
)

var errOld = errors.New("an answer came so late that others may be lost: say all again")

// mail is something that is said to nodes: the same to all.
type mail struct {
	message *wire.ControllerMessage
	prepare *step // whose specification message is to have
	to      []*session
	at      int // among the effects of its turn
	width   int // in how many parts it is cut at most; what is for no more nodes goes to each
}

// post has something said to a node once all that was decided so far is durable. What is said
// to several nodes in a row, and is the same, goes out together.
func (c *core) post(s *session, m *wire.ControllerMessage, prepare *step) {
	last := c.out.mail
	if last != nil && last.at == len(c.out.effects) && last.prepare == prepare && proto.Equal(last.message, m) {
		last.to = append(last.to, s)
		return
	}
	l := &mail{message: m, prepare: prepare, to: []*session{s}, width: c.width()}
	c.after(func() { c.dispatch(l) })
	l.at, c.out.mail = len(c.out.effects), l
}

// dispatch sends mail. It runs in the committer's goroutine.
func (c *core) dispatch(l *mail) {
	if l.prepare != nil {
		if l.message = c.complete(l.message, l.prepare, l.to); l.message == nil {
			return
		}
	}
	_, passed := wire.JobOf(l.message) // the rest is of the session itself, as a probe
	// Agents of this machine and those of others do not reach each other.
	for _, remote := range []bool{false, true} {
		to := slices.DeleteFunc(slices.Clone(l.to), func(s *session) bool { return strings.HasPrefix(s.relay, tlsSocket) != remote })
		if passed && len(to) > l.width && c.forward(l.message, to, l.width) {
			continue
		}
		for _, s := range to {
			s.send(l.message)
		}
	}
}

// width is that of trees, as configured now.
func (c *core) width() int { return cmp.Or(c.opts.Cluster.TreeWidth, tree.Width) }

// forward sends mail by way of the first agents of a tree, in the order of the topology. It
// returns false if it is too much for one message.
func (c *core) forward(m *wire.ControllerMessage, to []*session, width int) bool {
	body, err := proto.Marshal(m)
	if err != nil || len(body) > MaxMessage-forwardRoom {
		return false
	}
	hash := tree.Hash(body)
	slices.SortFunc(to, func(a, b *session) int { return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(a.node, b.node)) })
	var through []*session
	var targets []*wire.Target
	for _, s := range to {
		if t := s.ahead(m); t != nil {
			s.secret.SealCommand(t, hash)
			through, targets = append(through, s), append(targets, t)
		} else {
			s.send(m)
		}
	}
	c.meter.forwards.Add(float64(len(targets)))
	at := 0
	for _, part := range tree.Split(targets, width) {
		below := &passing{to: through[at : at+len(part)], targets: part}
		at += len(part)
		below.to[0].pass(below, &wire.ControllerMessage{Message: &wire.ControllerMessage_Forward{Forward: &wire.Forward{
			Body: body, Width: int32(width), Targets: part,
		}}})
	}
	if len(targets) > 0 {
		time.AfterFunc(tree.Patience, func() {
			n := 0
			for i, s := range through {
				n += s.missed(targets[i].Seq)
			}
			c.meter.missed.Add(float64(n))
		})
	}
	return true
}

// passing is a part of mail that an agent is to pass on.
type passing struct {
	to      []*session
	targets []*wire.Target
}

// pending is a command that is under way to a node by others.
type pending struct {
	seq     uint64
	message *wire.ControllerMessage
}

// ahead makes the target of a command that goes to this session's node by way of others; nil:
// it has to go by the session.
func (s *session) ahead(m *wire.ControllerMessage) *wire.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.relay == "" || time.Now().Before(s.apart) {
		return nil
	}
	s.down++
	s.pending = append(s.pending, pending{s.down, m})
	return &wire.Target{Node: s.node, Address: s.relay, Seq: s.down, After: s.sent}
}

// pass gives the session's agent something to pass on. It is no message to the node itself: that
// is what it holds for it.
func (s *session) pass(p *passing, m *wire.ControllerMessage) {
	s.mu.Lock()
	known := s.passes
	s.mu.Unlock()
	open := []*passing{p}
	for _, k := range known {
		if !k.arrived() {
			open = append(open, k)
		}
	}
	s.mu.Lock()
	over := s.err != nil
	if !over {
		s.queue, s.passes = append(s.queue, m), open
	}
	s.mu.Unlock()
	if over {
		p.adopt()
		return
	}
	s.wake()
}

// adopt sends what this session's agent has not passed on: it is gone.
func (s *session) adopt() {
	s.mu.Lock()
	passes := s.passes
	s.passes = nil
	s.mu.Unlock()
	for _, p := range passes {
		p.adopt()
	}
}

// arrived says whether all nodes have it.
func (p *passing) arrived() bool {
	for i, s := range p.to {
		s.mu.Lock()
		waits := s.waits(p.targets[i].Seq)
		s.mu.Unlock()
		if waits {
			return false
		}
	}
	return true
}

// adopt sends what an agent has not passed on to its nodes: it is gone.
func (p *passing) adopt() {
	for i, s := range p.to {
		s.again(p.targets[i].Seq)
	}
}

// waits says whether a command is not known to have come. The caller has the lock.
func (s *session) waits(seq uint64) bool {
	return slices.ContainsFunc(s.pending, func(p pending) bool { return p.seq == seq })
}

// again sends a command in the session that is not known to have come by another way, and with it
// all others: they come in their order. What comes that way from now on does not count.
func (s *session) again(seq uint64) (n int) {
	s.mu.Lock()
	if s.waits(seq) {
		n = len(s.pending)
		s.recall()
	}
	s.mu.Unlock()
	s.wake()
	return n
}

// missed is again of what should have come by now: the next commands do not go that way.
func (s *session) missed(seq uint64) int {
	n := s.again(seq)
	if n > 0 {
		s.mu.Lock()
		s.apart = time.Now().Add(apartSpan)
		s.mu.Unlock()
	}
	return n
}

// recall queues the commands that are under way elsewhere. The caller has the lock.
func (s *session) recall() {
	for _, p := range s.pending {
		s.queue = append(s.queue, &wire.ControllerMessage{Message: p.message.Message, Floor: p.seq})
		s.sent++
	}
	s.pending = nil
}

// has notes that the node has the commands up to one.
func (s *session) has(got uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(p pending) bool { return p.seq <= got })
}

// relayed takes answers that an agent has passed on, and says that they are here. What has not
// the seal of its node's session is from an earlier one, or from nobody.
func (c *core) relayed(by *session, up *wire.Up) {
	for _, t := range up.Missed {
		if n := c.nodes[t.Node]; n != nil && n.session != nil {
			c.meter.missed.Add(float64(n.session.missed(t.Seq)))
		}
	}
	refused := 0
	for _, a := range up.Answers {
		n := c.nodes[a.Node]
		if n == nil || n.session == nil || n.session.secret.OpenAnswer(a) != nil {
			refused++
			continue
		}
		s := n.session
		switch s.answers.Take(a.Seq) {
		case tree.Again:
			continue
		case tree.Old: // what it said may be lost: it says it again in another session
			s.close(errOld)
			continue
		}
		s.has(a.Got)
		n.seen = c.now
		c.leases.Seen(a.Node, c.steady())
		if len(a.Body) == 0 {
			continue
		}
		m := &wire.AgentMessage{}
		if err := proto.Unmarshal(a.Body, m); err != nil {
			c.log.Warn("answer cannot be read", "node", a.Node, "err", err)
			continue
		}
		switch m.Message.(type) {
		case *wire.AgentMessage_Relayed, *wire.AgentMessage_Hello:
			continue // these are of a session
		case *wire.AgentMessage_Heartbeat:
			s.gathered = c.now
		}
		c.message(s, m)
	}
	if refused > 0 {
		c.log.Warn("answers that were passed on are refused: they are not of a session that is", "node", by.node, "count", refused)
	}
	c.meter.answers.Add(float64(len(up.Answers)))
	by.taken += uint64(len(up.Answers))
	by.tell(&wire.ControllerMessage{Message: &wire.ControllerMessage_Taken{Taken: by.taken}})
}

// gatherBeats has the heartbeats of a large cluster come together, where many come one by one.
// Those of nodes with a lease always do.
func (c *core) gatherBeats() {
	if c.now < c.gathered.Add(gatherSpan) {
		return
	}
	c.gathered = c.now
	var to []*session
	alone := 0
	for _, n := range c.nodes {
		if n.session == nil || n.session.relay == "" || c.leased(n.session.node) {
			continue
		}
		to = append(to, n.session)
		if c.now >= n.session.gathered.Add(3*heartbeatSpan) {
			alone++
		}
	}
	if len(to) <= c.width() || alone <= c.width()+len(to)/20 {
		return // the first agents of the tree say theirs in their own session
	}
	m := &wire.ControllerMessage{Message: &wire.ControllerMessage_Gather{Gather: &wire.Gather{}}}
	for _, s := range to {
		c.post(s, m, nil)
	}
}
