package server

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/lease"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Nodes that are hosts of their own have leases, see package internal/lease: their heartbeats
// are answered, and no rank of a later attempt starts before those of an earlier one that was
// on a lost node are dead, by what that node had heard.

// Events of it.
type (
	// councilGiven is whom a node asks that has lost the controller: it may have this council,
	// or one before.
	councilGiven struct {
		At      job.Time
		Node    string
		Number  uint64
		Members []string
	}
	// councilHeard is that a node has one, and none before it.
	councilHeard struct {
		At     job.Time
		Node   string
		Number uint64
	}
	// attemptDead is that no rank of an attempt runs any more on a node that was lost.
	attemptDead struct {
		At   job.Time
		Node string
		Of   attempt
	}
)

// council is one as it is kept.
type council struct {
	Number  uint64
	Members []string
}

// mostMembers is how many nodes a council has where there are enough.
const mostMembers = 5

func (c *core) newGrants() *lease.Grants {
	return lease.NewGrants(lease.Spans{Lease: lease.Default, Lost: time.Duration(c.lostAfter()) * time.Millisecond}, c.store.Epoch(), c.steady())
}

// leased says whether a node is a host of its own.
func (s *state) leased(name string) bool { return strings.HasPrefix(s.met[name].Socket, tlsSocket) }

// followLease takes an event of leases.
func (s *state) followLease(e any) {
	switch e := e.(type) {
	case councilGiven:
		s.councils[e.Node] = append(slices.Clone(s.councils[e.Node]), council{e.Number, e.Members})
	case councilHeard:
		s.councils[e.Node] = slices.DeleteFunc(slices.Clone(s.councils[e.Node]), func(c council) bool { return c.Number < e.Number })
	case attemptDead:
		if slices.Contains(s.dirty[e.Node], e.Of) {
			s.dead[e.Of] = append(slices.Clone(s.dead[e.Of]), e.Node)
		}
	}
}

// beat answers a heartbeat of a node with a lease.
func (c *core) beat(s *session, m *wire.Heartbeat) {
	if m.Seq == 0 || !c.leased(s.node) {
		return
	}
	// What is shortened is reckoned with when the controller starts again: nodes may have the longer.
	c.leases.Lost = max(c.leases.Lost, time.Duration(c.lostAfter())*time.Millisecond)
	now := c.councilFor(s.node)
	a, known := c.leases.Beat(s.node, lease.Heartbeat{Seq: m.Seq, Heard: m.Heard}, lease.Council{Number: now.Number}, c.steady())
	if all := c.councils[s.node]; len(all) > 1 && all[0].Number < known {
		c.emit(councilHeard{At: c.now, Node: s.node, Number: known})
	}
	answer := &wire.Answer{
		Seq: a.Seq, Number: a.Number, LeaseMs: a.Spans.Lease.Milliseconds(), LostMs: a.Spans.Lost.Milliseconds(), Council: now.Number,
	}
	for _, name := range now.Members {
		answer.Members = append(answer.Members, &wire.Member{Name: name, Address: c.met[name].Socket})
	}
	out := &wire.ControllerMessage{Message: &wire.ControllerMessage_Answer{Answer: answer}}
	if known == now.Number {
		s.send(out) // it says nothing that would have to be durable, and a slow disk must not end ranks
		return
	}
	c.send(s.node, out)
}

// councilFor is whom a node asks. It is another one where others are there and some of it are
// down.
func (c *core) councilFor(name string) council {
	var last council
	if all := c.councils[name]; len(all) > 0 {
		last = all[len(all)-1]
	}
	if n := c.nodes[name]; last.Number > 0 && c.now < n.councilled.Add(5*job.Second) {
		return last
	}
	c.nodes[name].councilled = c.now
	var there []string
	for other, n := range c.nodes {
		if other != name && n.session != nil && c.leased(other) && n.state&job.NodeDown == 0 {
			there = append(there, other)
		}
	}
	down := slices.ContainsFunc(last.Members, func(m string) bool { n := c.nodes[m]; return n == nil || n.state&job.NodeDown != 0 })
	if last.Number > 0 && len(last.Members) >= min(len(there), mostMembers) && (!down || len(there) == 0) {
		return last
	}
	next := council{max(last.Number+1, c.store.Epoch()<<32), spread(name, there)}
	if last.Number > 0 && slices.Equal(next.Members, last.Members) {
		return last
	}
	c.emit(councilGiven{At: c.now, Node: name, Number: next.Number, Members: next.Members})
	return next
}

// spread chooses members far from a node and each other, by name, which is mostly by rack:
// those that are cut off together with a node are of no use to it.
func spread(name string, others []string) []string {
	slices.Sort(others)
	at, _ := slices.BinarySearch(others, name)
	k := min(mostMembers, len(others))
	members := make([]string, 0, k)
	for i := range k {
		members = append(members, others[(at+(2*i+1)*len(others)/(2*k))%len(others)])
	}
	slices.Sort(members)
	return members
}

// councilsOf are those that a node may have.
func (c *core) councilsOf(name string) []lease.Council {
	var all []lease.Council
	for _, one := range c.councils[name] {
		l := lease.Council{Number: one.Number}
		for _, m := range one.Members {
			l.Members = append(l.Members, lease.Member{Name: m})
		}
		all = append(all, l)
	}
	return all
}

// mayLose says whether a silent node may be given up: who hears too few of the others is cut
// off itself. Nodes of this host are always.
func (c *core) mayLose(name string) bool {
	return !c.leased(name) || c.leases.Backed(c.councilsOf(name), c.steady())
}

// lingers says on which node ranks of an earlier attempt of a run's job may still run; empty:
// on none.
func (c *core) lingers(r *run) string {
	if r.Of.Attempt < 2 {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(c.dirty)) {
		for _, a := range c.dirty[name] {
			if a.Job == r.Of.Job && a.Attempt < r.Of.Attempt && !c.deadOn(name, a, r) {
				return name
			}
		}
	}
	return ""
}

// deadOn says whether no rank of an attempt runs on a node that has not said so.
func (c *core) deadOn(name string, a attempt, next *run) bool {
	if slices.Contains(c.dead[a], name) {
		return true
	}
	n := c.nodes[name]
	switch {
	case n == nil:
		return true
	case !c.away(name): // it was told to clean, and says when it has; as long as others wait for that
		if c.now < next.Start.Add(cleanSpan) {
			return false
		}
		c.log.Warn("a later attempt starts though a node has not said that it is clean", "job", a.Job, "node", name)
	case c.leased(name):
		councils := c.councilsOf(name)
		if _, lost := lostWithout(n.reason); n.state&job.NodeDown != 0 && !lost {
			councils = nil // it is off: somebody has said so who can see it
		}
		if !c.leases.Over(name, councils, n.vanished, c.steady()) {
			return false
		}
	}
	c.emit(attemptDead{At: c.now, Node: name, Of: a})
	return true
}

// Probes.

// probing is a round in which others are asked for a node.
type probing struct {
	id    uint64
	began job.Time
	said  map[string]wire.Probed_Reach // by who was asked
}

const (
	mostWitnesses = 3
	probeAfter    = heartbeatSpan * 5 / 2 // of silence
	probeSpan     = 2500 * job.Millisecond
)

// tickProbes has others asked for a node that is silent, or has lost its session.
func (c *core) tickProbes(name string, n *node) {
	silent := c.now.Sub(n.seen)
	if !c.leased(name) || n.session != nil && !n.session.over() && silent < probeAfter || silent < heartbeatSpan {
		n.probe = nil
		return
	}
	if n.probe != nil && c.now < n.probe.began.Add(probeSpan) {
		return
	}
	witnesses := c.witnesses(name)
	c.probes++
	n.probe = &probing{id: c.probes, began: c.now, said: map[string]wire.Probed_Reach{}}
	for _, w := range witnesses {
		n.probe.said[w] = wire.Probed_UNKNOWN
		c.send(w, &wire.ControllerMessage{Message: &wire.ControllerMessage_Probe{Probe: &wire.Probe{
			Id: c.probes, Node: &wire.Member{Name: name, Address: c.met[name].Socket},
		}}})
	}
}

// witnesses are whom to ask for a node: those that are heard, those at its switch first.
func (c *core) witnesses(name string) []string {
	var all []string
	for other, n := range c.nodes {
		if other != name && c.leased(other) && !c.away(other) && c.now.Sub(n.seen) < probeAfter {
			all = append(all, other)
		}
	}
	place := c.places[name]
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(common(place, c.places[b]), common(place, c.places[a])), cmp.Compare(a, b))
	})
	return all[:min(len(all), mostWitnesses)]
}

// common is how many switches two places share.
func common(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	n := 0
	for n < len(x)-1 && n < len(y)-1 && x[n] == y[n] {
		n++
	}
	return n
}

// probed takes what one says who was asked for a node.
func (c *core) probed(from string, m *wire.Probed) {
	for name, n := range c.nodes {
		if n.probe == nil || n.probe.id != m.Id {
			continue
		}
		if _, asked := n.probe.said[from]; !asked {
			return
		}
		n.probe.said[from] = m.Reach
		if n.reach != m.Reach {
			c.log.Info("node is probed", "node", name, "from", from, "reach", m.Reach.String(), "err", m.Why)
			n.reach = m.Reach
		}
		if unreached(n.probe.said) && c.mayLose(name) {
			// Its agent was there when it went away: a process that dies closes its session.
			n.vanished, n.probe = n.session != nil && !n.session.over(), nil
			c.lose(name, n)
		}
		return
	}
}

// unreached says whether nobody reaches a node: at least two, where there are two to be asked.
func unreached(said map[string]wire.Probed_Reach) bool {
	none := 0
	for _, r := range said {
		switch r {
		case wire.Probed_NONE:
			none++
		case wire.Probed_HOST, wire.Probed_AGENT:
			return false
		}
	}
	return none > 0 && none >= min(2, len(said))
}
