package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/agent"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// simNode is a node: its disk, its processes, and its agent.
type simNode struct {
	s      *sim
	name   string
	spec   job.Node
	boots  int
	gen    int // of the agent's process
	agent  *agent.Agent
	works  []*simWork
	kicked bool
	frozen bool
	held   []func()
	cutOff bool // from the network
	link   *simLink

	// On disk.
	epoch uint64
	dirs  map[job.StepKey]*simDir
	// Processes: supervisors, those that left something behind among them.
	sups   map[job.StepKey]*simStep
	strays []*simStep

	drained job.Time // since when nothing is to be placed here, as an administrator was told; 0: no
	reason  string
	asked   bool   // something is asked for it
	highest uint64 // epoch that the agent ever said it has seen
}

// simDir is a run directory.
type simDir struct {
	intent *control.Start
	end    *job.StepEnd
}

// simWork is what is to be done for a step by an agent's process.
type simWork struct {
	*agent.Work
	busy bool
}

// boot starts the node and its agent.
func (n *simNode) boot() {
	n.boots++
	n.s.note(n.name, "boots")
	n.start()
}

// start starts the agent.
func (n *simNode) start() {
	n.gen++
	n.s.note(n.name, "agent starts")
	n.agent = agent.New(agent.Options{
		Cluster: "id", Name: "sim", Node: n.spec, Declared: true, Dir: "/nowhere", Socket: "/nowhere", Store: n.s.images, Version: "sim",
		Log: slog.New(slog.DiscardHandler), Ground: &simGround{n, n.gen},
	})
	n.works, n.kicked, n.frozen, n.held = nil, false, false, nil
	if err := n.agent.Begin(context.Background()); err != nil {
		n.s.fail("agent of %s does not start: %v", n.name, err)
	}
	n.tick(n.gen)
	n.connect()
	n.kick()
}

func (n *simNode) tick(gen int) {
	n.s.after(time.Second/2, func() {
		if n.gen != gen {
			return
		}
		n.do(gen, func() {
			n.agent.Tick(context.Background())
			n.kick()
		})
		n.tick(gen)
	})
}

// do has an agent's process do something, unless it is not there any more.
func (n *simNode) do(gen int, f func()) {
	switch {
	case n.gen != gen || n.agent == nil:
	case n.frozen:
		n.held = append(n.held, func() { n.do(gen, f) })
	default:
		f()
	}
}

// kick has the agent's loop take what was posted.
func (n *simNode) kick() {
	if n.kicked || n.agent == nil {
		return
	}
	n.kicked = true
	gen := n.gen
	n.s.after(n.s.between(10*time.Microsecond, time.Millisecond), func() {
		n.do(gen, func() {
			n.kicked = false
			if n.boundary("before a turn") {
				return
			}
			n.agent.Turn(context.Background())
			n.settle()
		})
	})
}

// settle sees to what a turn has left.
func (n *simNode) settle() {
	if n.link != nil {
		n.link.flushUp()
	}
	for _, w := range n.works {
		if !w.busy && w.Pending() {
			w.busy = true
			gen := n.gen
			n.s.after(n.s.between(10*time.Microsecond, 3*time.Millisecond), func() { n.do(gen, func() { n.work(w) }) })
		}
	}
}

// work does the next thing for a step.
func (n *simNode) work(w *simWork) {
	w.busy = false
	if n.boundary("before something is done for a step") {
		return
	}
	gen := n.gen
	_, last := w.Next(context.Background())
	if n.gen != gen || n.boundary("after something was done for a step") {
		return
	}
	if last {
		n.works = slices.DeleteFunc(n.works, func(other *simWork) bool { return other == w })
	}
	n.kick()
	n.settle()
}

func (n *simNode) boundary(where string) bool {
	if n.s.doomed(n.name, n) {
		n.s.note(n.name, "agent crashes", where)
		n.crash()
		return true
	}
	return false
}

// crash ends the agent's process, and has another one start.
func (n *simNode) crash() {
	if n.agent == nil {
		return
	}
	n.die()
	gen := n.gen
	n.s.after(n.s.between(10*time.Millisecond, 8*time.Second), func() {
		if n.gen == gen {
			n.start()
		}
	})
}

func (n *simNode) die() {
	n.gen++
	n.agent = nil
	if l := n.link; l != nil {
		n.link = nil
		l.cut()
	}
	for _, st := range n.sups {
		st.watcher = nil
	}
}

// reboot ends all that runs on the node, and what was not on stable storage.
func (n *simNode) reboot() {
	n.die()
	n.s.note(n.name, "crashes")
	for _, st := range n.sups {
		st.alive = false
	}
	clear(n.sups)
	n.strays = nil
	for _, key := range slices.SortedFunc(maps.Keys(n.dirs), job.StepKey.Compare) {
		if d := n.dirs[key]; d.intent == nil && d.end == nil && n.s.chance(0.5) {
			delete(n.dirs, key) // it was not synced
		}
	}
	gen := n.gen
	n.s.after(n.s.between(time.Second, 60*time.Second), func() {
		if n.gen == gen {
			n.boot()
		}
	})
}

// freeze stops the agent's process for a while.
func (n *simNode) freeze(d time.Duration) {
	if n.agent == nil || n.frozen {
		return
	}
	n.frozen = true
	gen := n.gen
	n.s.after(d, func() {
		if n.gen != gen {
			return
		}
		n.frozen = false
		held := n.held
		n.held = nil
		for _, f := range held {
			f()
		}
	})
}

// checkSaid compares what the agent says with what is so.
func (n *simNode) checkSaid(m *wire.AgentMessage) {
	switch m := m.Message.(type) {
	case *wire.AgentMessage_Hello:
		if m.Hello.Epoch < n.highest {
			n.s.fail("the agent of %s has seen epoch %d, and knows of %d only", n.name, n.highest, m.Hello.Epoch)
		}
		n.highest = m.Hello.Epoch
	case *wire.AgentMessage_Cleaned:
		at := attempt{job.ID(m.Cleaned.Job), int(m.Cleaned.Attempt)}
		for st := range n.running {
			if attemptOf(st.key) == at && m.Cleaned.Left == "" {
				n.s.fail("node %s says that nothing is left of %v, and ranks of step %v run", n.name, at, st.key)
			}
		}
	}
}

func attemptOf(key job.StepKey) attempt { return attempt{key.Job, key.Attempt} }

// running yields the steps of which ranks run.
func (n *simNode) running(yield func(*simStep) bool) {
	for _, key := range slices.SortedFunc(maps.Keys(n.sups), job.StepKey.Compare) {
		if st := n.sups[key]; st.phase == running && !yield(st) {
			return
		}
	}
	for _, st := range n.strays {
		if !yield(st) {
			return
		}
	}
}

// simGround is what the agent stands on.
type simGround struct {
	*simNode
	own int
}

func (g *simGround) Now() time.Time { return simBegin.Add(g.s.now) }
func (g *simGround) Boot() string   { return strconv.Itoa(g.boots) }
func (g *simGround) Epoch() uint64  { return g.epoch }

func (g *simGround) KeepEpoch(_ context.Context, epoch uint64) error {
	if !g.s.bug.forgetEpoch {
		g.epoch = epoch
	}
	return nil
}

func (g *simGround) Steps() ([]job.StepKey, error) {
	return slices.SortedFunc(maps.Keys(g.dirs), job.StepKey.Compare), nil
}

func (g *simGround) Hands(w *agent.Work) agent.Hands {
	return &simHands{simGround: g, key: w.Key, work: w}
}

func (g *simGround) Do(_ context.Context, w *agent.Work) {
	g.works = append(g.works, &simWork{Work: w})
}

func (g *simGround) Strays(lives func(job.StepKey) bool) []job.StepKey {
	g.kill(func(st *simStep) bool { return !lives(st.key) })
	return nil
}

func (g *simGround) Search(_ context.Context, id job.ID, att int, spare []job.StepKey, done func(string)) {
	g.s.after(g.s.between(time.Millisecond, 100*time.Millisecond), func() {
		g.do(g.own, func() {
			if !g.s.bug.lazySearch {
				g.kill(func(st *simStep) bool {
					return attemptOf(st.key) == attempt{id, att} && !(st.alive && slices.Contains(spare, st.key))
				})
			}
			done("")
			g.kick()
		})
	})
}

func (g *simGround) End() {}

// kill ends processes, at once.
func (n *simNode) kill(which func(*simStep) bool) {
	for _, key := range slices.SortedFunc(maps.Keys(n.sups), job.StepKey.Compare) {
		if st := n.sups[key]; which(st) {
			st.killed(false)
		}
	}
	n.strays = slices.DeleteFunc(n.strays, which)
}

// simHands do things for a step.
type simHands struct {
	*simGround
	key  job.StepKey
	work *agent.Work
}

func (h *simHands) Left() agent.Left {
	d := h.dirs[h.key]
	l := agent.Left{Alive: h.sups[h.key] != nil}
	if d != nil {
		l.Intended, l.End = d.intent != nil, d.end
		if d.intent != nil {
			l.Intent = *d.intent
		}
	}
	return l
}

func (h *simHands) Launch(_ context.Context, spec *job.StepSpec, lease time.Duration) error {
	if h.s.breaks(0.005) {
		return errors.New("no space left on device")
	}
	if h.sups[h.key] != nil {
		h.s.fail("step %v has a supervisor on node %s, and is started again", h.key, h.name)
	}
	h.dirs[h.key] = &simDir{}
	h.launch(spec, lease, h)
	return nil
}

func (h *simHands) Adopt(context.Context) {
	if st := h.sups[h.key]; st != nil {
		st.watch(h)
		return
	}
	h.work.Gone(h.dirs[h.key].endOf())
}

func (d *simDir) endOf() *job.StepEnd {
	if d == nil {
		return nil
	}
	return d.end
}

func (h *simHands) Tell(r control.Request) bool {
	st := h.sups[h.key]
	if st == nil || st.watcher != h {
		return false
	}
	st.tell(r)
	return true
}

func (h *simHands) Intend(_ context.Context, start control.Start) error {
	if h.s.breaks(0.002) {
		return errors.New("no space left on device")
	}
	if d := h.dirs[h.key]; d != nil && !h.s.bug.noIntent {
		d.intent = &start
	}
	return nil
}

func (h *simHands) Settle(end job.StepEnd) {
	if d := h.dirs[h.key]; d != nil {
		d.end = &end
	}
}

func (h *simHands) Remove() { delete(h.dirs, h.key) }
func (h *simHands) Leave()  {}

func (h *simHands) Destroy() {
	h.s.after(h.s.between(time.Millisecond, 50*time.Millisecond), func() {
		h.do(h.own, func() { h.kill(func(st *simStep) bool { return st.key == h.key }) })
	})
}

func (h *simHands) Clear() {
	h.kill(func(st *simStep) bool { return st.key == h.key })
	h.Remove()
}
