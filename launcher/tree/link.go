package tree

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/gangway-hpc/gangway/internal/wire"
)

const (
	// gathering is how long an answer waits for others to go with.
	gathering = 2 * time.Millisecond
	// lazily is how long one waits that may.
	lazily = 250 * time.Millisecond
	// idleSpan is after which a stream ends that carries nothing.
	idleSpan = time.Minute
	// dialSpan is how long an agent below may take to be reached.
	dialSpan = 2 * time.Second
)

// entry is an answer that is not known to be with the controller.
type entry struct {
	answer *wire.Reply
	own    *wire.AgentMessage // of this node; nil: it only says which command is here
	from   *downlink          // of a node below; nil: of this one
	at     time.Time
}

// uplink is a way to the controller: an agent above, or the session itself. All is under the
// Relay's lock.
type uplink struct {
	relay *Relay
	send  func(*wire.Up) error
	end   context.CancelFunc // of the stream; nil: it is the session
	below map[string]*downlink
	kept  []entry // sent and not taken, then not sent
	sent  int     // so many of kept
	count uint64  // taken
	// missed are nodes that could not be reached, which nobody knows yet.
	missed []*wire.Target
	ready  chan struct{}
	urgent bool // something of what is not sent
	over   bool
}

func newUplink(r *Relay, send func(*wire.Up) error) *uplink {
	return &uplink{relay: r, send: send, below: map[string]*downlink{}, ready: make(chan struct{}, 1)}
}

// put has an answer go up.
func (u *uplink) put(e entry) {
	e.at = time.Now()
	u.kept = append(u.kept, e)
	u.wake(!e.answer.Lazy)
}

func (u *uplink) wake(urgent bool) {
	u.urgent = u.urgent || urgent
	select {
	case u.ready <- struct{}{}:
	default:
	}
}

// miss has it known that a node could not be reached.
func (u *uplink) miss(t *wire.Target) {
	u.missed = append(u.missed, &wire.Target{Node: t.Node, Seq: t.Seq})
	u.wake(true)
}

// take is what is to be sent.
func (u *uplink) take() *wire.Up {
	u.relay.mu.Lock()
	defer u.relay.mu.Unlock()
	up := &wire.Up{Missed: u.missed}
	for i := u.sent; i < len(u.kept); i++ {
		up.Answers = append(up.Answers, u.kept[i].answer)
	}
	u.sent, u.missed, u.urgent = len(u.kept), nil, false
	return up
}

// flush sends what is gathered, until the way ends.
func (u *uplink) flush() {
	for {
		select {
		case <-u.ready:
		case <-u.relay.ctx.Done():
			return
		}
		if !u.gather() {
			return
		}
		up := u.take()
		if len(up.Answers)+len(up.Missed) == 0 {
			continue
		}
		if u.send(up) != nil {
			u.relay.mu.Lock()
			u.lost()
			u.relay.mu.Unlock()
			return
		}
	}
}

// gather waits for what goes with what there is. False: the way has ended.
func (u *uplink) gather() bool {
	for began := time.Now(); ; {
		u.relay.mu.Lock()
		urgent, over := u.urgent, u.over
		u.relay.mu.Unlock()
		switch wait := lazily - time.Since(began); {
		case over:
			return false
		case urgent:
			time.Sleep(gathering)
			return true
		case wait <= 0:
			return true
		default:
			select {
			case <-u.ready:
			case <-time.After(wait):
			case <-u.relay.ctx.Done():
				return false
			}
		}
	}
}

// taken is that the controller has so many answers of this way, in all.
func (u *uplink) taken(count uint64) {
	n := int(min(count-min(count, u.count), uint64(u.sent))) // what was never sent cannot be taken
	told := map[*downlink]bool{}
	for _, e := range u.kept[:n] {
		if e.from != nil {
			e.from.taken++
			told[e.from] = true
		}
	}
	u.kept, u.sent, u.count = u.kept[n:], u.sent-n, u.count+uint64(n)
	for d := range told {
		d.wake()
	}
}

// late says whether something is with the agent above for too long.
func (u *uplink) late(now time.Time) bool {
	return u.sent > 0 && now.Sub(u.kept[0].at) > Patience
}

// lost is the end of the agent above, or of the stream from it: what it was to pass on goes by
// this node's session, and so does what comes from below.
func (u *uplink) lost() {
	r := u.relay
	if u.over || u.end == nil {
		return
	}
	u.over = true
	u.end()
	u.wake(true)
	delete(r.above, u)
	for id, way := range r.of {
		if way == u {
			delete(r.of, id)
		}
	}
	if r.ctx.Err() != nil {
		return
	}
	for _, e := range u.kept {
		switch {
		case e.from == nil && e.own != nil:
			r.Direct(e.own)
		default:
			r.session.put(e)
		}
	}
	r.session.missed = append(r.session.missed, u.missed...)
	for node, d := range u.below {
		d.up = r.session
		if r.session.below[node] == nil {
			r.session.below[node] = d
		} else {
			d.cancel()
		}
	}
	u.kept, u.sent, u.missed, u.below = nil, 0, nil, nil
}

// look ends streams to agents below that carry nothing, and those to who does not take what it
// is given, or does not pass it on: others see to that then.
func (u *uplink) look(now time.Time) {
	for _, d := range u.below {
		if len(d.given) == 0 {
			if d.taken == d.came && now.Sub(d.used) > idleSpan {
				d.cancel()
			}
			continue
		}
		g, patience := d.given[0], Patience
		if g.waiting[d.node.Node] > 0 {
			patience /= 2
		}
		if now.Sub(g.at) > patience {
			d.cancel()
		}
	}
}

// downlink is the stream to an agent below. All but its running is under the Relay's lock.
type downlink struct {
	relay  *Relay
	up     *uplink // where what comes goes
	node   *wire.Target
	ctx    context.Context
	cancel context.CancelFunc
	queue  []*wire.Forward
	given  []*given // of which not all nodes are known to have it
	came   uint64   // answers
	taken  uint64   // of them, that are with the controller
	said   uint64   // of these, that it was told of
	used   time.Time
	ready  chan struct{}
}

// given is a command, and who is not known to have it.
type given struct {
	f       *wire.Forward
	waiting map[string]uint64
	at      time.Time
}

func newDownlink(u *uplink, t *wire.Target) *downlink {
	d := &downlink{relay: u.relay, up: u, node: t, used: time.Now(), ready: make(chan struct{}, 1)}
	d.ctx, d.cancel = context.WithCancel(u.relay.ctx)
	return d
}

func (d *downlink) put(f *wire.Forward) {
	g := &given{f, make(map[string]uint64, len(f.Targets)), time.Now()}
	for _, t := range f.Targets {
		g.waiting[t.Node] = t.Seq
	}
	d.given, d.queue, d.used = append(d.given, g), append(d.queue, f), time.Now()
	d.wake()
}

func (d *downlink) wake() {
	select {
	case d.ready <- struct{}{}:
	default:
	}
}

// run opens the stream and has it carry, until it ends.
func (d *downlink) run() {
	defer d.fail()
	defer d.cancel()
	slow := time.AfterFunc(dialSpan, d.cancel)
	stream, err := d.relay.Dial(d.ctx, d.node.Node, d.node.Address)
	if err == nil && !slow.Stop() {
		err = context.DeadlineExceeded
	}
	if err != nil {
		d.relay.Log.Info("agent below is not reached", "peer", d.node.Node, "err", err)
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer d.cancel()
		for {
			up, err := stream.Recv()
			if err != nil {
				if d.ctx.Err() == nil && !errors.Is(err, io.EOF) {
					d.relay.Log.Info("stream to agent below ended", "peer", d.node.Node, "err", err)
				}
				return
			}
			d.hear(up)
		}
	}()
	for d.ctx.Err() == nil {
		for _, m := range d.next() {
			if stream.Send(m) != nil {
				d.cancel()
			}
		}
		select {
		case <-d.ready:
		case <-d.ctx.Done():
		}
	}
	<-done
}

// next is what is to be sent.
func (d *downlink) next() (all []*wire.Down) {
	d.relay.mu.Lock()
	defer d.relay.mu.Unlock()
	for _, f := range d.queue {
		all = append(all, &wire.Down{Message: &wire.Down_Forward{Forward: f}})
	}
	d.queue = nil
	if d.taken > d.said {
		d.said = d.taken
		all = append(all, &wire.Down{Message: &wire.Down_Taken{Taken: d.taken}})
	}
	return all
}

// hear takes answers from below.
func (d *downlink) hear(up *wire.Up) {
	d.relay.mu.Lock()
	defer d.relay.mu.Unlock()
	d.used = time.Now()
	for _, a := range up.Answers {
		d.came++
		d.has(a.Node, a.Got)
		d.up.put(entry{answer: a, from: d})
	}
	for _, t := range up.Missed {
		d.has(t.Node, t.Seq) // who is above sees to it
		d.up.miss(t)
	}
}

// has notes that a node has the commands up to one.
func (d *downlink) has(node string, got uint64) {
	open := d.given[:0]
	for _, g := range d.given {
		if seq, ok := g.waiting[node]; ok && seq <= got {
			delete(g.waiting, node)
		}
		if len(g.waiting) > 0 {
			open = append(open, g)
		}
	}
	d.given = open
}

// fail is the end of the stream: of what was not known to be with its nodes the first is
// missed, and the others are adopted.
func (d *downlink) fail() {
	r := d.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.up.below[d.node.Node] == d {
		delete(d.up.below, d.node.Node)
	}
	if r.ctx.Err() != nil {
		return
	}
	for _, g := range d.given {
		var rest []*wire.Target
		for _, t := range g.f.Targets {
			switch _, waits := g.waiting[t.Node]; {
			case !waits:
			case t.Node == d.node.Node:
				d.up.miss(t)
			default:
				rest = append(rest, t)
			}
		}
		r.split(d.up, g.f, rest)
	}
	d.given = nil
}
