package server

import (
	"encoding/json"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

// MaxMessage bounds a message between controller and agents: the program of a step, with
// its environment, travels in one.
const MaxMessage = 64 << 20

// session is an agent's connection. Messages to it are queued without bound, since the
// core waits for nobody; what is queued for an agent follows from what runs there.
type session struct {
	node   string
	secret tree.Secret // seals what goes and comes by way of other agents
	relay  string      // where these reach the node; empty: nowhere
	place  string      // in the topology

	mu      sync.Mutex
	queue   []*wire.ControllerMessage
	err     error // why it was closed
	ready   chan struct{}
	ended   chan struct{}
	sent    uint64     // messages to the node itself
	down    uint64     // number of the latest command by way of others
	pending []pending  // of those, what is not known to have come
	passes  []*passing // what the node is to pass on
	apart   time.Time  // until then nothing goes to it by way of others

	// These are the core's.
	answers  tree.Window // of its answers that came by way of others
	taken    uint64      // answers of any that it has passed on
	gathered job.Time    // when its heartbeat came by way of others
}

func newSession(h *wire.Hello) *session {
	s := &session{node: h.Node, secret: tree.NewSecret(), ready: make(chan struct{}, 1), ended: make(chan struct{})}
	if strings.HasPrefix(h.Relay, tlsSocket) == strings.HasPrefix(h.Socket, tlsSocket) {
		s.relay = h.Relay // else it sends others to where it is not
	}
	return s
}

// send says something to the node, after all that was said to it before.
func (s *session) send(m *wire.ControllerMessage) {
	s.mu.Lock()
	if s.err == nil {
		s.recall()
		s.queue = append(s.queue, m)
		s.sent++
	}
	s.mu.Unlock()
	s.wake()
}

// tell says something to the agent that is about what it passes on.
func (s *session) tell(m *wire.ControllerMessage) {
	s.mu.Lock()
	if s.err == nil {
		s.queue = append(s.queue, m)
	}
	s.mu.Unlock()
	s.wake()
}

func (s *session) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// close ends the session, with a reason for the agent.
func (s *session) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err, s.queue, s.pending = err, nil, nil
		close(s.ended)
	}
}

// over says whether the session was closed: the core hears of that somewhat later.
func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err != nil
}

// take is what is queued.
func (s *session) take() []*wire.ControllerMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := s.queue
	s.queue = nil
	return queue
}

// service is the gRPC service for agents.
type service struct {
	wire.UnimplementedControllerServer
	server *Server
}

// Session implements wire.ControllerServer.
func (v *service) Session(stream grpc.BidiStreamingServer[wire.AgentMessage, wire.ControllerMessage]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return status.Error(codes.FailedPrecondition, "the first message is not Hello")
	}
	if err := v.allowed(stream.Context(), hello.Node, hello.Socket); err != nil {
		return err
	}
	s := newSession(hello)
	srv := v.server
	var refused error
	if err := srv.do(stream.Context(), func(c *core) { refused = c.noteRefused(hello, c.hello(s, hello)) }); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if hello.Protocol != wire.Protocol {
		return status.Error(codes.Unimplemented, refused.Error())
	}
	if refused != nil {
		return status.Error(codes.FailedPrecondition, refused.Error())
	}
	defer srv.put(func(c *core) { c.gone(s) })
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				s.close(err)
				return
			}
			srv.put(func(c *core) { c.message(s, m) })
		}
	}()
	for {
		for _, m := range s.take() {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-s.ready:
		case <-s.ended:
			return status.Error(codes.Aborted, s.err.Error())
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-srv.stopped:
			return status.Error(codes.Unavailable, "the controller is stopping")
		}
	}
}

// noteRefused logs why a node is refused, when that is another reason than it was before: agents
// ask again and again.
func (c *core) noteRefused(h *wire.Hello, err error) error {
	n := c.nodes[h.Node]
	if n == nil {
		return err // its agent has it in its log
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != n.refused {
		c.log.Warn("node is refused", "node", h.Node, "err", why)
	}
	n.refused = why
	return err
}

// message takes what an agent says. What an older session says does not count: the agent
// says it again in its newer one.
func (c *core) message(s *session, m *wire.AgentMessage) {
	n := c.nodes[s.node]
	if n == nil || n.session != s {
		return
	}
	n.seen = c.now
	c.leases.Seen(s.node, c.steady())
	switch m := m.Message.(type) {
	case *wire.AgentMessage_Heartbeat:
		n.beat = m.Heartbeat
		c.beat(s, m.Heartbeat)
	case *wire.AgentMessage_Progress:
		c.progress(s.node, m.Progress)
	case *wire.AgentMessage_Prepared:
		c.heard(s.node, m.Prepared.Key, func(st *step, g *gangNode) {
			g.Port, g.Image = int(m.Prepared.Port), m.Prepared.Image
			g.Phase, g.Ready = max(g.Phase, prepared), true
			st.note(m.Prepared.Notes)
			c.resolved(st, s.node, g.Image)
		})
	case *wire.AgentMessage_Started:
		c.heard(s.node, m.Started.Key, func(_ *step, g *gangNode) { g.Phase = max(g.Phase, running) })
	case *wire.AgentMessage_Ended:
		var end job.StepEnd
		if err := json.Unmarshal(m.Ended.End, &end); err != nil {
			c.log.Error("read end of a step", "node", s.node, "err", err)
			return
		}
		c.refusedBy(s.node, &end, m.Ended.Drain)
		c.nodeEnd(s.node, end)
	case *wire.AgentMessage_Cleaned:
		c.cleanedBy(s.node, m.Cleaned)
	case *wire.AgentMessage_Entered:
		c.entered(s.node, m.Entered)
	case *wire.AgentMessage_Signalled:
		c.signalled(s.node, m.Signalled)
	case *wire.AgentMessage_Precached:
		c.precached(s.node, m.Precached)
	case *wire.AgentMessage_Relayed:
		c.relayed(s, m.Relayed)
	case *wire.AgentMessage_Probed:
		c.probed(s.node, m.Probed)
	case *wire.AgentMessage_Inventory:
		c.setImages(s.node, m.Inventory.Images)
	}
}

// note keeps notes for the waiting user, each once.
func (st *step) note(notes []string) {
	for _, text := range notes {
		if !contains(st.notes, text) {
			st.notes = append(st.notes, text)
		}
	}
}
