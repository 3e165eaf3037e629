package lease

import "time"

// Saved is what a holder keeps on disk. Times are of the clock of Boot.
type Saved struct {
	Boot    string
	Permit  time.Duration // ranks may run until then, less what their end takes
	Heard   time.Duration // when the last answer came
	Promise time.Duration // until when nobody may count on this node
	Spans   Spans
	Council Council
	// Cut is that ranks were ended because the node was cut off, and that the controller has
	// not heard so yet.
	Cut bool
}

// Holder is a node's side.
type Holder struct {
	Saved
	seq    uint64
	sent   map[uint64]time.Duration // heartbeats without an answer
	number uint64                   // of the last answer; 0: this agent has had none
	ended  bool                     // ranks were told to end, and none may start
	until  time.Duration            // what the permit is drawn out to, while others are asked
	drawn  bool                     // it was, since anything was heard
	looked time.Duration            // when the time was last looked at
	asked  time.Duration            // when others were last asked
	blank  bool                     // nothing was ever heard: there are no ranks
}

// Heartbeat is what a node says. Heard is the number of the latest answer that it has, 0 if
// it must not be counted on.
type Heartbeat struct{ Seq, Heard uint64 }

// Answer is what the controller answers.
type Answer struct {
	Seq, Number uint64
	Spans       Spans
	Council     Council
}

// Verdict is what is to be done now.
type Verdict struct {
	Ask bool // the council
	End bool // all ranks: by TERM, KILL, and then from outside, see [Spans]
}

// New is the side of a node whose agent starts now, with what one before it has saved; nil:
// there was none. A time that was saved in another life of the machine says nothing.
func New(saved *Saved, boot string, now time.Duration) *Holder {
	h := &Holder{sent: map[uint64]time.Duration{}, looked: now, blank: saved == nil}
	if saved != nil {
		h.Saved = *saved
		if saved.Boot != boot {
			h.Permit, h.Heard, h.Promise = 0, now, now+saved.Spans.Dead(false)
		}
		h.linger(now)
	}
	h.Boot = boot
	return h
}

// linger gives a node as much time as it takes to ask that did not look at the time for a
// while: its agent was stopped or replaced, which is not to be cut off. It does so once.
func (h *Holder) linger(now time.Duration) {
	if !h.drawn {
		h.until, h.drawn = now+h.Spans.Lease/2, true
	}
}

// Beat is a heartbeat that is sent now, or later.
func (h *Holder) Beat(now time.Duration) Heartbeat {
	h.seq++
	h.sent[h.seq] = now
	delete(h.sent, h.seq-mostSent)
	if now < h.Promise {
		return Heartbeat{Seq: h.seq}
	}
	return Heartbeat{h.seq, h.number}
}

// Answered takes an answer. It counts from when its heartbeat was sent, however long it took.
// What is saved has to be on disk before the next heartbeat; firmly, if it is true that
// somebody reckons with it who does not know of a crash of this machine.
func (h *Holder) Answered(a Answer, now time.Duration) (firmly bool) {
	at, ok := h.sent[a.Seq]
	if !ok || a.Spans.Lease <= 0 {
		return false
	}
	delete(h.sent, a.Seq)
	firmly = h.blank || h.Spans != a.Spans || a.Council.Number > h.Council.Number
	if h.blank || a.Council.Number > h.Council.Number {
		h.Council = a.Council
	}
	h.blank, h.Spans, h.Heard, h.number = false, a.Spans, now, a.Number
	h.Permit = max(h.Permit, at+h.Spans.Lease)
	h.ended, h.drawn = h.ended && !h.Firm(now), h.drawn && !h.Firm(now)
	return firmly
}

// Firm says whether ranks may run by what others have said.
func (h *Holder) Firm(now time.Duration) bool { return now < h.Permit-h.Spans.Lease/endPart }

// Blank says that no controller ever spoke of leases here.
func (h *Holder) Blank() bool { return h.blank }

// Valid says whether ranks may run, and start. Where no controller ever spoke of leases there
// are none.
func (h *Holder) Valid(now time.Duration) bool {
	return h.blank || !h.ended && (h.Firm(now) || now < h.until-h.Spans.Lease/endPart)
}

// Vote is asked by another node: has this one lost the controller, and for how long has it
// heard nothing? What it allows by that it has to promise, and to save before it answers.
func (h *Holder) Vote(now time.Duration) (silence time.Duration, lost bool) {
	silence = now - h.Heard
	if h.blank || silence < h.Spans.trust() {
		return silence, false
	}
	h.Promise = max(h.Promise, now+h.Spans.Dead(false))
	return silence, true
}

// Votes takes the silences of those of a council who have lost the controller, and were asked
// at a time. Who has heard it after this node's permit was over may have helped to give this
// node up, and does not count. What has ended does not begin again.
func (h *Holder) Votes(asked time.Duration, council uint64, silences []time.Duration, now time.Duration) {
	lost := 0
	for _, silence := range silences {
		if now-silence+h.Spans.trust() <= h.Permit {
			lost++
		}
	}
	if council == h.Council.Number && lost >= Needed(len(h.Council.Members)) && !h.ended {
		h.Permit = max(h.Permit, asked+h.Spans.Lease)
		h.drawn = h.drawn && !h.Firm(now)
	}
}

// Tick says what is to be done. It is to be asked several times a second.
func (h *Holder) Tick(now time.Duration) (v Verdict) {
	late := now-h.looked > h.Spans.Lease/endPart
	h.looked = now
	if h.blank || h.ended {
		return v
	}
	if late {
		h.linger(now)
	}
	if len(h.Council.Members) == 0 {
		h.Permit = max(h.Permit, now+h.Spans.Lease) // nobody else could have its jobs
	}
	switch {
	case !h.Valid(now):
		h.ended, v.End = true, true
	case (h.number == 0 || now >= h.Heard+h.Spans.trust()) && now >= h.asked+h.Spans.Lease/slackPart:
		h.asked, v.Ask = now, true
	}
	return v
}
