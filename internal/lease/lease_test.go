package lease

import (
	"testing"
	"time"
)

var spans = Spans{Lease: 8 * time.Second, Lost: time.Minute}

const second = time.Second

// held is a node that has heard the controller at a time, with a council of so many.
func held(members int, at time.Duration) *Holder {
	h := New(nil, "boot", 0)
	h.Tick(at)
	a := Answer{Seq: h.Beat(at).Seq, Number: 7, Spans: spans, Council: Council{Number: 1}}
	for range members {
		a.Council.Members = append(a.Council.Members, Member{})
	}
	h.Answered(a, at)
	return h
}

// endBy lets time go on in small steps, and says when all was to end; 0: it was not.
func (h *Holder) endBy(from, to time.Duration, each func(now time.Duration)) time.Duration {
	for now := from; now <= to; now += 100 * time.Millisecond {
		if h.Tick(now).End {
			return now
		}
		if each != nil {
			each(now)
		}
	}
	return 0
}

// TestHolder: when the ranks of a node that has heard the controller at 100 s are to end.
func TestHolder(t *testing.T) {
	t.Parallel()
	const at = 100 * second
	votes := func(h *Holder, silences ...time.Duration) func(time.Duration) {
		return func(now time.Duration) {
			if now == at+5*second {
				h.Votes(now-second/2, 1, silences, now)
			}
		}
	}
	for name, c := range map[string]struct {
		members int
		each    func(*Holder) func(time.Duration)
		want    time.Duration // after at
	}{
		"nobody answers":               {3, nil, 6 * second},
		"one of three has lost it too": {3, func(h *Holder) func(time.Duration) { return votes(h, 5*second) }, 6 * second},
		"two of three have":            {3, func(h *Holder) func(time.Duration) { return votes(h, 5*second, 6*second) }, 10500 * time.Millisecond},
		"one of two has":               {2, func(h *Holder) func(time.Duration) { return votes(h, 5*second) }, 10500 * time.Millisecond},
		"one heard it too late":        {3, func(h *Holder) func(time.Duration) { return votes(h, 5*second, -second) }, 6 * second},
		"votes of an older council":    {1, func(h *Holder) func(time.Duration) { h.Council.Number = 2; return votes(h, 5*second) }, 6 * second},
		"it has no others":             {0, nil, 0},
		"an answer to what was sent earlier": {3, func(h *Holder) func(time.Duration) {
			b := h.Beat(at + second)
			return func(now time.Duration) {
				if now == at+5*second {
					h.Answered(Answer{Seq: b.Seq, Number: 8, Spans: spans, Council: h.Council}, now)
				}
			}
		}, 7 * second},
	} {
		t.Run(name, func(t *testing.T) {
			h := held(c.members, at)
			var each func(time.Duration)
			if c.each != nil {
				each = c.each(h)
			}
			got := h.endBy(at, at+30*second, each)
			if c.want == 0 && got != 0 || c.want != 0 && got != at+c.want {
				t.Errorf("all ends at %s, want %s after %s", got, c.want, at)
			}
			if got != 0 && (h.Valid(got) || h.Firm(got)) {
				t.Error("ranks may start")
			}
		})
	}
}

// TestEndedStaysEnded: what was told to end does not go on by what others say, and ranks may
// start again when the controller answers.
func TestEndedStaysEnded(t *testing.T) {
	t.Parallel()
	h := held(1, 100*second)
	end := h.endBy(100*second, 120*second, nil)
	h.Votes(end, 1, []time.Duration{30 * second}, end)
	if h.Valid(end) || h.Tick(end+second).End {
		t.Error("it goes on")
	}
	b := h.Beat(130 * second)
	h.Answered(Answer{Seq: b.Seq, Number: 9, Spans: spans, Council: h.Council}, 131*second)
	if !h.Valid(131 * second) {
		t.Error("nothing may start though the controller answers")
	}
	h.Answered(Answer{Seq: b.Seq, Number: 10, Spans: spans, Council: h.Council}, 150*second)
	if h.Firm(150 * second) {
		t.Error("an answer counts twice")
	}
}

// TestVote: who says that it has lost the controller is not counted on for long enough.
func TestVote(t *testing.T) {
	t.Parallel()
	h := held(1, 100*second)
	if b := h.Beat(101 * second); b.Heard != 7 {
		t.Errorf("it has heard %d", b.Heard)
	}
	if _, lost := h.Vote(102900 * time.Millisecond); lost {
		t.Error("it has lost the controller while that may count on it")
	}
	silence, lost := h.Vote(103 * second)
	if !lost || silence != 3*second {
		t.Errorf("silent for %s: lost %v", silence, lost)
	}
	promise := 103*second + spans.Dead(false)
	if b := h.Beat(promise - 1); b.Heard != 0 {
		t.Error("it is counted on in spite of its promise")
	}
	if b := h.Beat(promise); b.Heard != 7 {
		t.Error("it is not counted on for ever")
	}
	if _, lost := New(nil, "boot", 0).Vote(time.Hour); lost {
		t.Error("a node that never heard a controller has lost it")
	}
}

// TestNewAgent: an agent goes on from what the one before it saved.
func TestNewAgent(t *testing.T) {
	t.Parallel()
	saved := held(1, 100*second).Saved
	h := New(&saved, "boot", 103*second)
	if h.Tick(103 * second); !h.Firm(105*second) || h.Firm(106*second) {
		t.Error("the permit is not what it was")
	}
	h = New(&saved, "boot", 200*second) // it was away for long
	if h.Firm(200*second) || !h.Valid(200*second) {
		t.Error("it has no time to ask")
	}
	h.Votes(200*second, 1, []time.Duration{100 * second}, 201*second)
	if !h.Firm(201 * second) {
		t.Error("the controller was away all the time, and it may not go on")
	}
	h = New(&saved, "boot", 200*second)
	h.Votes(200*second, 1, []time.Duration{80 * second}, 201*second) // one has heard it since
	if got := h.endBy(200*second, 210*second, nil); got != 202*second {
		t.Errorf("it ends at %s", got)
	}
	h = New(&saved, "another", 5*second)
	h.Answered(Answer{Seq: h.Beat(6 * second).Seq, Number: 9, Spans: spans, Council: saved.Council}, 6*second)
	if h.Beat(10*second).Heard != 0 || h.Beat(5*second+spans.Dead(false)).Heard != 9 {
		t.Error("what it promised in another life of the machine is forgotten")
	}
	if New(&saved, "another", 5*second).Firm(5 * second) {
		t.Error("times of another life of the machine count")
	}
	late := held(1, 100*second) // it was stopped
	if late.Tick(130*second).End || !late.Valid(131*second) || late.Tick(131*second).End || !late.Tick(133500*time.Millisecond).End {
		t.Error("who was stopped has not as much time as it takes to ask")
	}
}

// TestGrants: when the controller takes a node for dead.
func TestGrants(t *testing.T) {
	t.Parallel()
	g := NewGrants(spans, 1, 0)
	trio := []Council{{Number: 1, Members: []Member{{Name: "a"}, {Name: "b"}, {Name: "c"}}}}
	hear := func(now time.Duration, names ...string) {
		for _, name := range names {
			a, _ := g.Beat(name, Heartbeat{Seq: 1}, trio[0], now)
			g.Beat(name, Heartbeat{Seq: 2, Heard: a.Number}, trio[0], now)
		}
	}
	g.Seen("x", 100*second)
	dead := 100*second + spans.Dead(true)
	hear(dead, "a", "b")
	if g.Over("x", trio, true, dead-1) {
		t.Error("before its lease is over")
	}
	if !g.Over("x", trio, true, dead) {
		t.Error("its lease is over, and two of three hear this controller")
	}
	if g.Over("x", trio, false, dead) || g.Over("x", nil, false, 100*second+spans.Dead(false)-1) {
		t.Error("its agent may be dead, and its ranks not")
	}
	if g.Over("x", append(trio, Council{Members: []Member{{Name: "d"}}}), true, dead) {
		t.Error("it may have a council that does not hear this controller")
	}
	if g.Over("x", []Council{{}}, true, time.Hour) {
		t.Error("there are no others")
	}
	if g.Over("x", trio, true, dead+4*second) {
		t.Error("what was heard long ago counts")
	}
	slow, _ := g.Beat("c", Heartbeat{Seq: 5}, trio[0], dead)
	if g.Beat("c", Heartbeat{Seq: 6, Heard: slow.Number}, trio[0], dead+10*second); g.Hears("c", dead+10*second) {
		t.Error("what was heard long ago counts, since it is said now")
	}
	late := NewGrants(spans, 2, 1000*second)
	if now := 1000*second + spans.Dead(false); late.Over("x", nil, false, now-1) || !late.Over("x", nil, false, now) {
		t.Error("a controller that has just begun does not know when a node was last heard of")
	}
	hear(dead, "a", "b")
	if g.Doubt(); g.Backed(trio, dead) {
		t.Error("what was heard before a gap counts")
	}
	if a, known := g.Beat("a", Heartbeat{Seq: 9, Heard: 1 << 40}, trio[0], dead); g.Hears("a", dead) || known != 0 || a.Seq != 9 {
		t.Error("an answer of another controller counts")
	}
}

// TestSpans: what is said in documents.
func TestSpans(t *testing.T) {
	t.Parallel()
	got := []time.Duration{spans.Beat(), spans.Grace(), spans.Slack(), spans.Away(), spans.Dead(true), spans.Dead(false)}
	for i, want := range []time.Duration{second, second, second / 2, 50 * second, 8500 * time.Millisecond, 60500 * time.Millisecond} {
		if got[i] != want {
			t.Errorf("span %d is %s, want %s", i, got[i], want)
		}
	}
	for n := range 9 {
		if Needed(n)+Hearing(n) != n+1 {
			t.Errorf("of %d, %d and %d have nobody in common", n, Needed(n), Hearing(n))
		}
	}
}
