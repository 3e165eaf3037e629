package server

import (
	"errors"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// simLink is a connection of an agent to a controller. It keeps the order of what goes through,
// as a stream does; what is under way when it ends may come, to a session that is over by
// then, or not.
type simLink struct {
	n        *simNode
	m        *simMaster
	srv      *session // nil: Hello has not come
	cli      *agent.Session
	over     bool // at the agent
	lossy    bool // nothing goes through any more
	late     bool // what is under way at the end still comes
	up, down time.Duration
}

// connect opens a session, if that can be.
func (n *simNode) connect() {
	s := n.s
	if n.agent == nil || n.link != nil {
		return
	}
	if s.master == nil || s.master.frozen || n.cutOff {
		gen := n.gen
		s.after(s.between(10*time.Millisecond, time.Second), func() {
			if n.gen == gen {
				n.connect()
			}
		})
		return
	}
	l := &simLink{n: n, m: s.master, cli: n.agent.Open(), late: s.chance(0.5)}
	n.link = l
	l.m.links = append(l.m.links, l)
	n.kick()
}

// cut ends the connection: the agent finds out at once, the controller some time.
func (l *simLink) cut() {
	if l.over {
		return
	}
	l.over = true
	l.m.links = slices.DeleteFunc(l.m.links, func(other *simLink) bool { return other == l })
	if l.srv != nil {
		l.n.s.after(l.n.s.between(0, 3*time.Second), func() {
			l.srv.close(errors.New("the connection is cut"))
			l.m.post(func(c *core) { c.gone(l.srv) })
		})
	}
	n := l.n
	if n.link == l {
		n.link = nil
		l.cli.Close()
		n.kick()
		n.connectSoon()
	}
}

func (n *simNode) connectSoon() {
	gen := n.gen
	n.s.after(n.s.between(time.Millisecond, time.Second), func() {
		if n.gen == gen {
			n.connect()
		}
	})
}

// arrives is when a message is there that is sent now, after those before it.
func (l *simLink) arrives(last *time.Duration) time.Duration {
	s := l.n.s
	at := s.now + s.between(50*time.Microsecond, 2*time.Millisecond)
	if s.breaks(0.002) {
		at += s.between(0, 5*time.Second)
	}
	*last = max(at, *last+1)
	return *last - s.now
}

// flushUp sends what the agent has to say.
func (l *simLink) flushUp() {
	for _, m := range l.cli.Take() {
		l.n.checkSaid(m)
		l.sendUp(m)
	}
}

func (l *simLink) sendUp(m *wire.AgentMessage) {
	if f := l.n.s.bug.up; f != nil {
		if m = f(l.n.s, m); m == nil {
			return
		}
	}
	times := 1
	if m.GetHello() == nil && l.n.s.breaks(0.01) {
		times = 2
	}
	for range times {
		l.n.s.after(l.arrives(&l.up), func() {
			if l.broken() {
				return
			}
			l.m.post(func(c *core) { l.hearUp(c, m) })
		})
	}
}

// broken says whether a message is lost now.
func (l *simLink) broken() bool {
	if l.n.cutOff {
		l.lossy = true
	}
	return l.lossy || l.over && !l.late
}

func (l *simLink) hearUp(c *core, m *wire.AgentMessage) {
	l.n.s.note("ctl", "hears", l.n.name, kindOfMessage(m.Message))
	hello := m.GetHello()
	if hello == nil {
		if l.srv != nil {
			c.message(l.srv, m)
		}
		return
	}
	l.srv = &session{node: hello.Node, ready: make(chan struct{}, 1), ended: make(chan struct{})}
	if err := c.hello(l.srv, hello); err != nil {
		l.n.s.note("ctl", "refuses", l.n.name, err)
		l.n.s.after(0, l.cut)
	}
}

// flushDown sends what the controller has to say.
func (l *simLink) flushDown() {
	if l.srv == nil {
		return
	}
	s := l.n.s
	for _, m := range l.srv.take() {
		if f := s.bug.down; f != nil {
			if m = f(l, m); m == nil {
				continue
			}
		}
		times := 1
		if m.GetWelcome() == nil && s.breaks(0.01) {
			times = 2
		}
		for range times {
			s.after(l.arrives(&l.down), func() {
				if l.broken() {
					return
				}
				l.hearDown(m)
			})
		}
	}
	if l.srv.over() && !l.over {
		s.after(s.between(0, 100*time.Millisecond), l.cut)
	}
}

func (l *simLink) hearDown(m *wire.ControllerMessage) {
	n := l.n
	n.do(n.gen, func() {
		n.s.note(n.name, "hears", kindOfMessage(m.Message))
		l.cli.Hear(m)
		if m.GetWelcome() != nil && n.link == l {
			l.beat()
		}
		n.kick()
	})
}

// beat sends heartbeats as long as the connection lasts and the agent is well.
func (l *simLink) beat() {
	gen := l.n.gen
	l.n.s.after(time.Second, func() {
		if l.over || l.n.gen != gen {
			return
		}
		if !l.n.frozen {
			l.sendUp(&wire.AgentMessage{Message: &wire.AgentMessage_Heartbeat{Heartbeat: &wire.Heartbeat{}}})
		}
		l.beat()
	})
}

// kindOfMessage is for the trace.
func kindOfMessage(m any) string {
	switch m := m.(type) {
	case *wire.AgentMessage_Hello:
		return "Hello"
	case *wire.AgentMessage_Heartbeat:
		return "Heartbeat"
	case *wire.AgentMessage_Progress:
		return "Progress"
	case *wire.AgentMessage_Prepared:
		return "Prepared " + m.Prepared.Key.Of().String()
	case *wire.AgentMessage_Started:
		return "Started " + m.Started.Key.Of().String()
	case *wire.AgentMessage_Ended:
		return "Ended"
	case *wire.AgentMessage_Cleaned:
		return "Cleaned " + job.ID(m.Cleaned.Job).String()
	case *wire.AgentMessage_Signalled:
		return "Signalled"
	case *wire.ControllerMessage_Welcome:
		return "Welcome"
	case *wire.ControllerMessage_Prepare:
		return "Prepare " + m.Prepare.Key.Of().String()
	case *wire.ControllerMessage_Start:
		return "Start " + m.Start.Key.Of().String()
	case *wire.ControllerMessage_Renew:
		return "Renew"
	case *wire.ControllerMessage_Signal:
		return "Signal"
	case *wire.ControllerMessage_Kill:
		return "Kill " + m.Kill.Key.Of().String()
	case *wire.ControllerMessage_EndedAck:
		return "EndedAck " + m.EndedAck.Key.Of().String()
	case *wire.ControllerMessage_Release:
		return "Release " + job.ID(m.Release.Job).String()
	}
	return "another"
}
