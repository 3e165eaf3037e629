package lease

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

const step = 50 * time.Millisecond

// world is a controller and nodes with clocks of their own, whose messages are late, lost and
// overtake each other, and which are cut off, stopped, killed and started again. One job runs
// on one node at a time, and is begun elsewhere as soon as that is allowed.
type world struct {
	*rand.Rand
	spans Spans
	now   time.Duration
	nodes []*simNode
	ctl   *simControl
	down  map[[2]int]bool // links; the controller is the last
	post  []letter
	calm  bool // nothing more goes wrong
	log   []string
}

type letter struct {
	at       time.Duration
	from, to int
	open     func()
}

type simNode struct {
	w       *world
	i       int
	name    string
	clock   time.Duration // what it shows at the world's 0
	disk    *Saved
	h       *Holder       // nil: the agent is dead
	back    time.Duration // when it is started again, or goes on
	stopped bool
	beat    time.Duration
	session int                   // of which controller; 0: none
	hellos  int                   // sessions that were begun
	over    map[int]bool          // attempts that ran here, and do not any more
	ranks   map[int]time.Duration // attempts, and when they are dead; 0: they run
	hold    time.Duration         // when their supervisor ends them, by the world's clock
	clear   time.Duration         // since when nothing is wrong with it
}

type simControl struct {
	epoch    int
	g        *Grants // nil: it is dead
	back     time.Duration
	councils [][]Council
	number   uint64
	open     []bool // the node has a session, as far as is known
	seen     []time.Duration
	attempt  int
	at       int // the node that has it
	closed   []bool
	hello    []int // which session of a node is open
}

func newSim(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), down: map[[2]int]bool{}, spans: Spans{Lease: 8 * time.Second, Lost: 20 * time.Second}}
	n := 2 + w.IntN(5)
	w.ctl = &simControl{councils: make([][]Council, n), open: make([]bool, n), seen: make([]time.Duration, n), closed: make([]bool, n), hello: make([]int, n), at: -1}
	for i := range n {
		node := &simNode{w: w, i: i, name: fmt.Sprint("n", i), clock: time.Duration(w.IntN(1e6)) * time.Millisecond, ranks: map[int]time.Duration{}, over: map[int]bool{}}
		node.h = New(nil, "boot", node.time())
		w.nodes = append(w.nodes, node)
	}
	w.startControl()
	return w
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%8.2f ", w.now.Seconds())+fmt.Sprintf(format, args...))
}

func (n *simNode) time() time.Duration { return n.clock + n.w.now }

func (w *world) up(a, b int) bool { return !w.down[[2]int{min(a, b), max(a, b)}] }

func (w *world) send(from, to int, f func()) {
	if w.up(from, to) && (w.calm || w.IntN(50) > 0) {
		late := time.Duration(w.IntN(8)) * step
		if !w.calm && w.IntN(20) == 0 {
			late *= 20
		}
		w.post = append(w.post, letter{w.now + late, from, to, f})
	}
}

func (w *world) startControl() {
	c := w.ctl
	c.epoch++
	c.g = NewGrants(w.spans, uint64(c.epoch), w.now)
	for i := range w.nodes {
		c.open[i], c.seen[i], c.closed[i] = false, w.now, false
	}
	w.note("controller %d", c.epoch)
}

// council gives a node others to ask, now and then others than before.
func (w *world) council(i int) Council {
	c := w.ctl
	if k := len(c.councils[i]); k > 0 && w.IntN(40) > 0 {
		return c.councils[i][k-1]
	}
	c.number++
	made := Council{Number: c.number}
	for _, j := range w.Perm(len(w.nodes)) {
		if j != i && len(made.Members) < 5 {
			made.Members = append(made.Members, Member{Name: w.nodes[j].name})
		}
	}
	c.councils[i] = append(c.councils[i], made)
	return made
}

// run is one node's turn.
func (n *simNode) run() {
	w, c := n.w, n.w.ctl
	for a, dead := range n.ranks {
		if dead > 0 && w.now >= dead {
			delete(n.ranks, a)
			n.over[a] = true
		}
	}
	if w.now >= n.hold {
		n.endAll("nobody holds it", w.spans.Grace())
	}
	if n.back > 0 && w.now >= n.back {
		n.back, n.stopped = 0, false
		if n.h == nil {
			n.h, n.session = New(n.disk, "boot", n.time()), 0
		}
		n.clear = w.now
		w.note("%s is there again", n.name)
	}
	if n.h == nil || n.stopped {
		return
	}
	now := n.time()
	v := n.h.Tick(now)
	n.save()
	if v.End {
		w.note("%s ends all", n.name)
		n.endAll("lease", w.spans.Grace()+w.spans.Slack())
		n.session = 0
	}
	if v.Ask {
		n.ask()
	}
	if n.h.Firm(now) && !n.h.blank {
		n.hold = w.now + w.spans.Away()
	}
	if w.now < n.beat {
		return
	}
	n.beat = w.now + w.spans.Beat()
	b, hello := n.h.Beat(now), n.session != c.epoch
	if hello {
		n.hellos++
	}
	epoch, hellos := c.epoch, n.hellos
	runs, over := maps.Clone(n.ranks), maps.Clone(n.over)
	w.send(n.i, len(w.nodes), func() {
		if !w.hear(n, b, hello, hellos, epoch) || c.at != n.i {
			return
		}
		switch _, runs := runs[c.attempt]; {
		case over[c.attempt], hello && !runs:
			w.note("attempt %d is not on %s any more", c.attempt, n.name)
			c.at = -1
		case !runs:
			w.start(n.i)
		}
	})
}

func (n *simNode) save() {
	s := n.h.Saved
	n.disk = &s
	if n.h.blank {
		n.disk = nil
	}
}

func (n *simNode) endAll(why string, within time.Duration) {
	for a, dead := range n.ranks {
		if dead == 0 {
			n.w.note("%s: attempt %d ends: %s", n.name, a, why)
			n.ranks[a] = n.w.now + within
		}
	}
}

// ask asks the council.
func (n *simNode) ask() {
	w, asked := n.w, n.time()
	council := n.h.Council
	var silences []time.Duration
	for _, m := range council.Members {
		for _, p := range w.nodes {
			if p.name != m.Name {
				continue
			}
			w.send(n.i, p.i, func() {
				if p.h == nil || p.stopped {
					return
				}
				silence, lost := p.h.Vote(p.time())
				p.save()
				if lost {
					w.send(p.i, n.i, func() {
						if n.h == nil || n.stopped {
							return
						}
						// Each silence is older by what the answer took: it is a bound all the same.
						silences = append(silences, silence)
						n.h.Votes(asked, council.Number, silences, n.time())
						n.save()
					})
				}
			})
		}
	}
}

// hear is a heartbeat at the controller; hello that it begins a session.
func (w *world) hear(n *simNode, b Heartbeat, hello bool, hellos, epoch int) bool {
	c := w.ctl
	if c.g == nil || epoch != c.epoch || hellos < c.hello[n.i] || hello == (hellos == c.hello[n.i]) {
		return false // it is of an older session
	}
	if hello {
		c.open[n.i], c.closed[n.i], c.hello[n.i] = true, false, hellos
		w.send(len(w.nodes), n.i, func() {
			if n.h == nil || n.stopped || n.hellos != hellos {
				return
			}
			n.session = epoch
			for a := range n.ranks { // what is not to go on
				if a != c.attempt || c.at != n.i {
					delete(n.ranks, a)
					n.over[a] = true
				}
			}
		})
	}
	c.seen[n.i] = w.now
	a, known := c.g.Beat(n.name, b, w.council(n.i), w.now)
	for known > 0 && len(c.councils[n.i]) > 1 && c.councils[n.i][0].Number < known {
		c.councils[n.i] = c.councils[n.i][1:]
	}
	w.send(len(w.nodes), n.i, func() {
		if n.h != nil && !n.stopped {
			n.h.Answered(a, n.time())
			n.save()
		}
	})
	return true
}

// control is the controller's turn: if the node of the job is lost, another gets it.
func (w *world) control() {
	c := w.ctl
	if c.g == nil {
		if w.now >= c.back {
			w.startControl()
		}
		return
	}
	for i, n := range w.nodes { // a process that dies closes its connections
		if n.h == nil && w.up(i, len(w.nodes)) {
			c.closed[i] = true
		}
	}
	if c.at >= 0 {
		silent := w.now - c.seen[c.at]
		vanished := silent > w.spans.Beat()*5/2 && !c.closed[c.at] && w.unreached(c.at)
		if !vanished && silent < w.spans.Lost || !c.g.Over(w.nodes[c.at].name, c.councils[c.at], vanished, w.now) {
			return
		}
		w.note("attempt %d on n%d is over", c.attempt, c.at)
		c.at = -1
	}
	for _, i := range w.Perm(len(w.nodes)) {
		n := w.nodes[i]
		if !c.open[i] || w.now-c.seen[i] > w.spans.Beat()*2 || len(n.ranks) > 0 {
			continue
		}
		c.attempt++
		c.at = i
		w.note("attempt %d to n%d", c.attempt, i)
		w.start(i)
		return
	}
}

// start lets the attempt of now begin on a node; what is lost is sent again.
func (w *world) start(i int) {
	n, a, hello := w.nodes[i], w.ctl.attempt, w.ctl.hello[i]
	w.send(len(w.nodes), i, func() {
		_, runs := n.ranks[a]
		switch {
		case n.h == nil || n.stopped || n.hellos != hello || runs || n.over[a]:
		case !n.h.Valid(n.time()):
			n.over[a] = true // refused
		default:
			n.ranks[a], n.hold = 0, max(n.hold, w.now+w.spans.Away())
		}
	})
}

// unreached says whether two others, or the only one, do not reach a node.
func (w *world) unreached(x int) bool {
	asked, none := 0, 0
	for i := range w.nodes {
		if i == x || !w.up(i, len(w.nodes)) || w.nodes[i].h == nil {
			continue
		}
		if asked++; !w.up(i, x) {
			none++
		}
	}
	return none > 0 && none == asked
}

// wrong has something go wrong.
func (w *world) wrong() {
	c, ctl := w.ctl, len(w.nodes)
	i := w.IntN(len(w.nodes))
	n := w.nodes[i]
	well := n.h != nil && !n.stopped && w.now > n.clear+3*time.Second
	switch w.IntN(12) {
	case 0: // a link
		a, b := w.IntN(ctl+1), w.IntN(ctl+1)
		if a != b && (b == ctl || a == ctl || well) {
			w.cut(min(a, b), max(a, b), w.IntN(3) == 0)
		}
	case 1, 2, 3: // in two
		side := make([]bool, ctl+1)
		for x := range side {
			side[x] = w.IntN(2) == 0
		}
		for x := range side {
			for y := range x {
				w.cut(y, x, side[x] != side[y])
			}
		}
	case 4: // all links come back
		for l := range w.down {
			w.cut(l[0], l[1], false)
		}
	case 5: // the controller is killed
		if c.g != nil && w.IntN(2) == 0 {
			c.g, c.back = nil, w.now+time.Duration(w.IntN([]int{15, 60}[w.IntN(2)]))*time.Second
			w.note("controller is killed")
		}
	case 6: // an agent is killed. Not while its node is cut off as well: see [Spans.Dead].
		if well && w.whole(i) {
			w.note("%s: its agent is killed", n.name)
			n.h, n.back = nil, w.now+time.Duration(1+w.IntN(40))*time.Second
		}
	case 7: // or stopped, with its connections
		if well && w.whole(i) {
			w.note("%s: its agent is stopped", n.name)
			n.stopped, n.back = true, w.now+time.Duration(1+w.IntN(40))*time.Second
		}
	}
}

func (w *world) cut(a, b int, down bool) {
	if down != w.down[[2]int{a, b}] {
		w.note("link %d-%d down: %v", a, b, down)
	}
	for _, i := range []int{a, b} {
		if i < len(w.nodes) {
			if n := w.nodes[i]; down && (n.h == nil || n.stopped || w.now < n.clear+3*time.Second) {
				return
			}
		}
	}
	w.down[[2]int{a, b}] = down
	for _, i := range []int{a, b} {
		if i < len(w.nodes) && !down {
			w.nodes[i].clear = w.now
		}
	}
}

// whole says whether a node has all of its links.
func (w *world) whole(i int) bool {
	for j := range len(w.nodes) + 1 {
		if j != i && !w.up(i, j) {
			return false
		}
	}
	return true
}

func (w *world) turn() {
	w.now += step
	if !w.calm && w.IntN(60) == 0 {
		w.wrong()
	}
	var later, due []letter
	for _, l := range w.post {
		if l.at > w.now {
			later = append(later, l)
		} else {
			due = append(due, l)
		}
	}
	w.post = later
	w.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	for _, l := range due {
		if w.up(l.from, l.to) {
			l.open()
		}
	}
	for _, n := range w.nodes {
		n.run()
	}
	w.control()
}

// attempts are those with ranks.
func (w *world) attempts() map[int]bool {
	all := map[int]bool{}
	for _, n := range w.nodes {
		for a := range n.ranks {
			all[a] = true
		}
	}
	return all
}

// TestNeverTwo: whatever is cut, late, lost, stopped and killed, no two attempts of a job have
// ranks at a time; and when all is well again it runs.
func TestNeverTwo(t *testing.T) {
	worlds, taken := 60, 0
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		worlds = 2000
	}
	for seed := range uint64(worlds) {
		w := newSim(seed)
		for w.now < 10*time.Minute {
			w.calm = w.now > 8*time.Minute
			if w.calm && len(w.down) > 0 {
				w.down = map[[2]int]bool{}
			}
			w.turn()
			if len(w.attempts()) > 1 {
				t.Fatalf("seed %d: attempts %v run at once:\n%s", seed, w.attempts(), tail(w.log))
			}
		}
		if len(w.attempts()) != 1 {
			t.Fatalf("seed %d: at the end attempts %v run:\n%s", seed, w.attempts(), tail(w.log))
		}
		taken += w.ctl.attempt
	}
	if taken < 3*worlds {
		t.Errorf("%d attempts in %d worlds: too little happens", taken, worlds)
	}
	t.Logf("%d attempts in %d worlds", taken, worlds)
}

func tail(log []string) (text string) {
	for _, line := range log[max(0, len(log)-60):] {
		text += line + "\n"
	}
	return text
}
