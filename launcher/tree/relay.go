package tree

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Below is a stream to an agent below.
type Below interface {
	Send(*wire.Down) error
	Recv() (*wire.Up, error)
}

// Above is a stream from an agent above.
type Above interface {
	Send(*wire.Up) error
	Recv() (*wire.Down, error)
	Context() context.Context
}

// Options say whose part of trees it is. Deliver and Direct are called with a lock held: they
// must not wait, nor call the Relay.
type Options struct {
	Node   string
	Secret Secret
	// Deliver has the node do a command.
	Deliver func(*wire.ControllerMessage)
	// Direct says something in the node's own session.
	Direct func(*wire.AgentMessage)
	// Dial opens a stream to another node, until ctx ends.
	Dial func(ctx context.Context, node, address string) (Below, error)
	Log  *slog.Logger
}

// Relay is a node's part of all trees, for one session with the controller.
type Relay struct {
	Options
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	seq     uint64           // of the latest answer
	got     uint64           // the highest number of a command
	direct  uint64           // messages of the session that came
	early   map[uint64]early // commands that wait for others
	session *uplink          // the node's own
	above   map[*uplink]bool
	of      map[job.ID]*uplink // by which way commands of a job came; of 0 those of the cluster
}

// early is a command that waits for messages of the session, or for those before it.
type early struct {
	after uint64
	up    *uplink
	m     *wire.ControllerMessage
}

// New makes a node's part. It ends with ctx, or by Close.
func New(ctx context.Context, o Options) *Relay {
	r := &Relay{Options: o, above: map[*uplink]bool{}, early: map[uint64]early{}, of: map[job.ID]*uplink{}}
	r.ctx, r.cancel = context.WithCancel(ctx)
	r.session = newUplink(r, func(up *wire.Up) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.ctx.Err() == nil {
			o.Direct(&wire.AgentMessage{Message: &wire.AgentMessage_Relayed{Relayed: up}})
		}
		return nil
	})
	go r.session.flush()
	go r.watch()
	return r
}

// Close ends it with all of its streams. What it has not passed on its nodes say again.
func (r *Relay) Close() { r.cancel() }

// Session takes what came in the node's own session. It is called for each message after the
// Welcome, once the node has it, in their order.
func (r *Relay) Session(m *wire.ControllerMessage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := m.Message.(type) {
	case *wire.ControllerMessage_Forward:
		r.forward(r.session, m.Forward)
		return
	case *wire.ControllerMessage_Taken:
		r.session.taken(m.Taken)
		return
	}
	for ; r.got < m.Floor; r.got++ { // what was to come by others is here
		delete(r.early, r.got+1)
	}
	r.direct++
	r.inOrder()
}

// inOrder has the node do the commands whose turn it is.
func (r *Relay) inOrder() {
	for {
		e, ok := r.early[r.got+1]
		if !ok || e.after > r.direct {
			return
		}
		delete(r.early, r.got+1)
		r.got++
		r.deliver(e.up, e.m)
		r.answer(e.up, nil, nil, false)
	}
}

// Say says something of a job by the way that its commands come, or of the node by the
// cluster's, which is job 0. It returns false if there is none but the node's own session.
func (r *Relay) Say(id job.ID, m *wire.AgentMessage, lazy bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	u := r.of[id]
	if u == nil || r.ctx.Err() != nil {
		return false
	}
	body, err := proto.Marshal(m)
	if err != nil {
		return false
	}
	r.answer(u, body, m, lazy)
	return true
}

// Forget ends that there is a way of a job.
func (r *Relay) Forget(id job.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, id)
}

// answer seals one of the node's own.
func (r *Relay) answer(u *uplink, body []byte, m *wire.AgentMessage, lazy bool) {
	r.seq++
	a := &wire.Reply{Node: r.Node, Seq: r.seq, Got: r.got, Body: body, Lazy: lazy}
	r.Secret.SealAnswer(a)
	if u.over {
		u = r.session
	}
	u.put(entry{answer: a, own: m})
}

// forward takes a command, and passes it on. It says whether it was one for this node.
func (r *Relay) forward(u *uplink, f *wire.Forward) bool {
	if len(f.Targets) == 0 || f.Targets[0].Node != r.Node {
		return false
	}
	t := f.Targets[0]
	if err := r.Secret.openCommand(t, f.Body); err != nil {
		r.Log.Warn("command of another agent is refused", "err", err)
		return false
	}
	if t.Seq <= r.got { // it came by another way already
		r.answer(u, nil, nil, false)
	} else {
		m := &wire.ControllerMessage{}
		if err := proto.Unmarshal(f.Body, m); err != nil {
			r.Log.Warn("command of another agent is refused", "err", err)
			return false
		}
		r.early[t.Seq] = early{t.After, u, m}
		r.inOrder()
	}
	r.split(u, f, f.Targets[1:])
	return true
}

// deliver has the node do a command, and say what it says to it by the way that it came.
func (r *Relay) deliver(u *uplink, m *wire.ControllerMessage) {
	if id, ok := wire.JobOf(m); ok {
		if u == r.session {
			delete(r.of, id) // it is the direct way
		} else if !u.over {
			r.of[id] = u
		} else {
			delete(r.of, id)
		}
	}
	r.Deliver(m)
}

// split gives parts of a command's nodes to the first of each.
func (r *Relay) split(u *uplink, f *wire.Forward, rest []*wire.Target) {
	for _, part := range Split(rest, int(f.Width)) {
		r.pass(u, &wire.Forward{Body: f.Body, Width: f.Width, Targets: part})
	}
}

// pass gives a part of a command to the first of its nodes.
func (r *Relay) pass(u *uplink, f *wire.Forward) {
	if r.ctx.Err() != nil {
		return
	}
	first := f.Targets[0]
	if first.Node == r.Node { // no tree has a node twice
		return
	}
	d := u.below[first.Node]
	if d == nil {
		d = newDownlink(u, first)
		u.below[first.Node] = d
		go d.run()
	}
	d.put(f)
}

// Serve is a stream from an agent above, until it ends. Who is above makes sure that it is an
// agent of the cluster.
func (r *Relay) Serve(stream Above) {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	defer context.AfterFunc(stream.Context(), cancel)()
	u := newUplink(r, stream.Send)
	u.end = cancel
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return
	}
	r.above[u] = true
	r.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		u.flush()
	}()
	go func() {
		defer cancel()
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if !r.hear(u, m) {
				return
			}
		}
	}()
	<-ctx.Done()
	r.mu.Lock()
	u.lost()
	r.mu.Unlock()
	select {
	case <-sent:
	case <-time.After(Patience): // it is stuck, until the stream ends with this
	}
}

// hear takes what an agent above says. False: there is nothing to be had from it.
func (r *Relay) hear(u *uplink, m *wire.Down) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.over {
		return false
	}
	switch m := m.Message.(type) {
	case *wire.Down_Forward:
		return r.forward(u, m.Forward)
	case *wire.Down_Taken:
		u.taken(m.Taken)
		return true
	}
	return false
}

// watch gives up agents above that do not take what is said, and streams that nobody needs.
func (r *Relay) watch() {
	t := time.NewTicker(Patience / 10)
	defer t.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-t.C:
		}
		r.mu.Lock()
		now := time.Now()
		for u := range r.above {
			if u.late(now) {
				r.Log.Info("an agent above takes nothing: what is said goes the direct way")
				u.lost()
				continue
			}
			u.look(now)
		}
		r.session.look(now)
		r.mu.Unlock()
	}
}
