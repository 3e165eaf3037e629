package lease

import "time"

// Grants is the controller's side.
type Grants struct {
	Spans
	// Since is when this controller began: of what was before it knows nothing.
	Since  time.Duration
	number uint64
	nodes  map[string]*granted
}

// granted is what a node was granted.
type granted struct {
	seen  time.Duration
	heard time.Duration // when the latest answer was sent that it is known to have heard
	hears bool          // there is one
	sent  []answered    // that it is not known to have heard
}

type answered struct {
	number, council uint64
	at              time.Duration
}

// NewGrants begins. Epoch is of this run of the controller: answers of two are told apart.
func NewGrants(s Spans, epoch uint64, now time.Duration) *Grants {
	return &Grants{Spans: s, Since: now, number: epoch << 32, nodes: map[string]*granted{}}
}

func (g *Grants) node(name string) *granted {
	n := g.nodes[name]
	if n == nil {
		n = &granted{seen: g.Since}
		g.nodes[name] = n
	}
	return n
}

// Seen is that something of a node has come.
func (g *Grants) Seen(name string, now time.Duration) { g.node(name).seen = now }

// mostSent bounds the heartbeats, and the answers, that are remembered.
const mostSent = 16

// Beat answers a heartbeat of a node that is to have a council. known is the number of the
// one that it has for certain: it has heard an answer with it.
func (g *Grants) Beat(name string, b Heartbeat, c Council, now time.Duration) (a Answer, known uint64) {
	n := g.node(name)
	n.seen = now
	for i, s := range n.sent {
		if s.number == b.Heard {
			n.heard, n.hears, known = s.at, true, s.council
			n.sent = n.sent[i+1:]
			break
		}
	}
	g.number++
	if len(n.sent) == mostSent {
		n.sent = n.sent[1:]
	}
	n.sent = append(n.sent, answered{g.number, c.Number, now})
	return Answer{b.Seq, g.number, g.Spans, c}, known
}

// Hears says whether a node is known to hear this controller, and so has not allowed another
// one to go on without it.
func (g *Grants) Hears(name string, now time.Duration) bool {
	n := g.nodes[name]
	return n != nil && n.hears && now <= n.heard+g.trust()
}

// Doubt forgets who hears: the controller itself did not look at the time for a while.
func (g *Grants) Doubt() {
	for _, n := range g.nodes {
		n.hears, n.sent = false, nil
	}
}

// Backed says whether so many of each council that a node may have hear this controller that
// the node cannot go on without it.
func (g *Grants) Backed(councils []Council, now time.Duration) bool {
	for _, c := range councils {
		hearing := 0
		for _, m := range c.Members {
			if g.Hears(m.Name, now) {
				hearing++
			}
		}
		if hearing < Hearing(len(c.Members)) {
			return false
		}
	}
	return true
}

// Over says whether no rank that a node was given runs there any more, and is going to: it
// was not heard of for long enough, and its councils hear this controller. agent says that
// its agent was alive when the node went away.
func (g *Grants) Over(name string, councils []Council, agent bool, now time.Duration) bool {
	return now >= g.node(name).seen+g.Dead(agent) && g.Backed(councils, now)
}
