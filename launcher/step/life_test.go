package step

import (
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/job"
)

// world is what a life lives in: it does what the life says, and knows what it may say.
type world struct {
	t       *rapid.T
	l       life
	now     time.Time
	alive   int // ranks
	prepare bool
	ready   bool
	starts  int
	cleans  int
	ends    int
	kills   int
	next    []any // what follows from what was done
}

func (w *world) tell(in any) {
	for _, do := range w.l.step(in, w.now) {
		if w.ends > 0 {
			w.t.Fatalf("%T after the end", do)
		}
		switch do := do.(type) {
		case tellPreparedDo:
			if !w.ready || w.cleans > 0 {
				w.t.Fatal("prepared was told of what is not")
			}
		case startDo:
			w.starts++
			if w.starts > 1 || !w.ready || w.cleans > 0 {
				w.t.Fatalf("start %d, ready %v, cleans %d", w.starts, w.ready, w.cleans)
			}
			w.alive = w.l.ranks
			w.next = append(w.next, startedIn{1})
		case tellStartedDo:
			if w.starts != 1 {
				w.t.Fatal("started was told of what is not")
			}
		case signalDo:
			if w.starts == 0 {
				w.t.Fatal("a signal before the start")
			}
			if do.sig == syscall.SIGKILL {
				w.kills++
				for ; w.alive > 0; w.alive-- {
					w.next = append(w.next, exitIn{true})
				}
			}
		case cleanDo:
			if w.cleans++; w.cleans > 1 {
				w.t.Fatal("cleaned twice")
			}
			for ; w.alive > 0; w.alive-- {
				w.next = append(w.next, exitIn{true})
			}
			w.next = append(w.next, cleanedIn{})
		case endDo:
			w.ends++
			if w.cleans != 1 || w.alive > 0 {
				w.t.Fatal("ended before it was clean")
			}
		case cancelDo:
			if w.ready {
				w.t.Fatal("a prepare was cancelled that is over")
			}
			w.next = append(w.next, failedIn{job.Fault{What: "cancelled"}})
		}
	}
}

// settle lets happen what follows.
func (w *world) settle() {
	for len(w.next) > 0 {
		in := w.next[0]
		w.next = w.next[1:]
		if _, ok := in.(failedIn); ok {
			w.prepare = false
		}
		w.tell(in)
	}
}

// TestLife: whatever happens, in whatever order, ranks are started once and only when they
// are prepared, all is cleaned up once before the end, and who is told to end does, when the
// grace is over at the latest.
func TestLife(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, now: time.Unix(1e9, 0), prepare: true}
		w.l = life{
			ranks: rapid.IntRange(1, 4).Draw(t, "ranks"), killOnBadExit: rapid.Bool().Draw(t, "kill on bad exit"),
			waitAfterExit: time.Duration(rapid.IntRange(0, 2).Draw(t, "wait")) * time.Second, grace: time.Second,
		}
		for range rapid.IntRange(0, 25).Draw(t, "events") {
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0:
				if w.prepare {
					w.prepare, w.ready = false, true
					w.tell(preparedIn{})
				}
			case 1:
				if w.prepare {
					w.prepare = false
					w.tell(failedIn{job.Fault{What: "no"}})
				}
			case 2:
				w.tell(startIn{})
			case 3:
				if w.alive > 0 {
					w.alive--
					w.tell(exitIn{rapid.Bool().Draw(t, "bad")})
				}
			case 4:
				w.tell(killIn{grace: time.Duration(rapid.IntRange(0, 3).Draw(t, "grace")) * time.Second, why: "because"})
			case 5:
				w.tell(renewIn{time.Duration(rapid.IntRange(0, 3).Draw(t, "lease")) * time.Second})
				w.tell(holdIn{time.Duration(rapid.IntRange(0, 3).Draw(t, "hold")) * time.Second})
			case 6:
				w.now = w.now.Add(time.Second)
				w.tell(timeIn{})
			default:
				w.settle()
			}
		}
		// The end, whatever was before.
		w.tell(killIn{grace: 2 * time.Second, why: "the end"})
		for w.settle(); w.ends == 0; w.settle() {
			at := w.l.wake()
			if at.IsZero() {
				if w.prepare { // which goes on until it notices
					w.prepare = false
					w.tell(failedIn{job.Fault{}})
					continue
				}
				t.Fatalf("nothing ends it: %+v, %d alive", w.l, w.alive)
			}
			if at.After(w.now.Add(2 * time.Second)) {
				t.Fatalf("it ends in %v only", at.Sub(w.now))
			}
			w.now = at
			w.tell(timeIn{})
		}
		if w.starts == 0 && w.l.fault == nil {
			t.Fatal("the ranks never ran, and nobody knows why")
		}
		if w.starts > 0 && w.l.fault == nil && w.l.started == 0 {
			t.Fatal("nobody knows when the ranks started")
		}
	})
}

// TestHold: ranks that may run without their agent for a span end when it is over; those of a
// node that has no lease never do.
func TestHold(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := life{ranks: 1}
	l.step(preparedIn{}, now)
	l.step(startIn{}, now)
	l.step(startedIn{5}, now)
	if !l.wake().IsZero() {
		t.Errorf("ranks without a lease end at %v", l.wake())
	}
	l.step(holdIn{10 * time.Second}, now)
	now = now.Add(9 * time.Second)
	l.step(holdIn{10 * time.Second}, now)
	if now = now.Add(10 * time.Second); !l.wake().Equal(now) {
		t.Errorf("they end at %v, want %v", l.wake(), now)
	}
	if do := l.step(timeIn{}, now); len(do) < 2 || do[1] != (signalDo{syscall.SIGTERM}) || l.fault == nil || !l.fault.Node {
		t.Errorf("when it is over: %v, fault %v", do, l.fault)
	}
	now = now.Add(holdGrace)
	if do := l.step(timeIn{}, now); len(do) != 1 || do[0] != (signalDo{syscall.SIGKILL}) {
		t.Errorf("after the grace: %v", do)
	}
	l.step(exitIn{true}, now)
	if l.step(cleanedIn{}, now); l.stage != stageOver || !l.wake().IsZero() {
		t.Errorf("then it is %v, and wakes at %v", l.stage, l.wake())
	}
}

// TestLease: what is prepared has a whole lease from then on, however long that took, and is given
// up when nobody renews it.
func TestLease(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := life{ranks: 1}
	l.step(renewIn{30 * time.Second}, now) // as a supervisor begins
	now = now.Add(time.Minute)
	if do := l.step(timeIn{}, now); len(do) > 0 || !l.wake().IsZero() {
		t.Errorf("while it is prepared: %v, then at %v", do, l.wake())
	}
	if do := l.step(preparedIn{}, now); len(do) != 1 || !l.wake().Equal(now.Add(30*time.Second)) {
		t.Errorf("prepared: %v, until %v", do, l.wake())
	}
	now = now.Add(20 * time.Second)
	l.step(renewIn{30 * time.Second}, now)
	if do := l.step(timeIn{}, now.Add(29*time.Second)); len(do) > 0 || l.fault != nil {
		t.Errorf("renewed: %v, %v", do, l.fault)
	}
	if do := l.step(timeIn{}, now.Add(30*time.Second)); len(do) == 0 || l.fault == nil || !l.fault.Node {
		t.Errorf("not renewed again: %v, %v", do, l.fault)
	}
}

// FuzzSpec: whatever a specification is, it is refused or it makes sense.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"Key":{"Job":1},"Tasks":2,"Nodes":[{"Name":"a","Ranks":[0,1]}],"Program":{"Args":["eA=="]}}`))
	f.Add([]byte(`{"Tasks":1,"Nodes":[{"Ranks":[-1]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		spec, err := parseSpec(b)
		if err != nil {
			return
		}
		for _, n := range spec.Nodes {
			for _, r := range n.Ranks {
				if r < 0 || r >= spec.Tasks {
					t.Errorf("rank %d of %d", r, spec.Tasks)
				}
			}
		}
		if len(spec.Program.Script) == 0 && len(spec.Program.Args) == 0 {
			t.Error("nothing to run")
		}
	})
}

// TestPortRange: outside of what the kernel gives to connections.
func TestPortRange(t *testing.T) {
	for text, want := range map[string][2]int{
		"32768\t60999\n": {firstPort, lastPort}, "1024 65535": {firstPort, lastPort}, "15000 60999": {firstPort, 14999}, "9000\t30000": {30001, 65535},
		"": {firstPort, lastPort}, "x y": {firstPort, lastPort},
	} {
		if first, last := portRange(text); first != want[0] || last != want[1] {
			t.Errorf("%q: %d to %d, want %v", text, first, last, want)
		}
	}
}

// TestPorts: what is held nobody else gets, until it is free; nothing is left of it.
func TestPorts(t *testing.T) {
	a, err := holdPort("x")
	if err != nil {
		t.Fatal(err)
	}
	b, err := holdPort("x")
	if err != nil || a.number == b.number {
		t.Fatalf("%d twice, %v", a.number, err)
	}
	a.release()
	c, err := holdPort("x")
	if err != nil || c.number == a.number {
		t.Errorf("a port that a step uses was given on: %v", err)
	}
	for _, p := range []*port{a, b, c} {
		if err := p.free(); err != nil {
			t.Error(err)
		}
	}
	d, err := holdPort("x")
	if err != nil || d.number != a.number {
		t.Errorf("a free port is not given: %v", err)
	}
	if err := d.free(); err != nil {
		t.Error(err)
	}
}

// TestWholeLines: the last lines, none of them cut off.
func TestWholeLines(t *testing.T) {
	long := make([]byte, tailSize)
	for i := range long {
		long[i] = 'x'
		if i%1000 == 999 {
			long[i] = '\n'
		}
	}
	for in, want := range map[string]string{"": "", "a\nb\n\n": "a\nb", "one": "one"} {
		if got := string(wholeLines([]byte(in))); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if got := wholeLines(long); len(got) != tailSize-1000 || got[0] != 'x' {
		t.Errorf("%d bytes are left", len(got))
	}
	var many []byte
	for range 100 {
		many = append(many, "line\n"...)
	}
	if got := wholeLines(many); len(got) != maxLines*5-1 {
		t.Errorf("%d bytes of lines", len(got))
	}
}
