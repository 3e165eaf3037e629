package sched

import (
	"cmp"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// token says who may change something: what carries another token is shared with a fork,
// and is copied before it is changed.
type token struct{ _ byte }

// key is a job's place in the order in which jobs are looked at. It does not change with
// time: the age that orders never saturates, so no two jobs ever change places.
type key struct {
	tier uint32
	prio int64
	id   job.ID
}

// compare is negative if a is looked at before b.
func (a key) compare(b key) int {
	if a.tier != b.tier {
		return cmp.Compare(b.tier, a.tier)
	}
	if a.prio != b.prio {
		return cmp.Compare(b.prio, a.prio)
	}
	return cmp.Compare(a.id, b.id)
}

// entry is a job in a queue.
type entry struct {
	key
	limit job.Duration
}

// blockSize is how many entries a block has at most.
const blockSize = 128

// block is a piece of a queue.
type block struct {
	tok     *token
	entries []entry
	least   job.Duration // the least limit among them
}

func (b *block) measure() {
	b.least = job.Forever
	for i := range b.entries {
		b.least = min(b.least, b.entries[i].limit)
	}
}

// queue is jobs in their order.
type queue struct {
	blocks []*block
	spare  *block // an empty one: most queues are empty again and again
	n      int
}

// find returns the block and the place in it where k is or would be.
func (q *queue) find(k key) (int, int, bool) {
	b, _ := slices.BinarySearchFunc(q.blocks, k, func(b *block, k key) int {
		return b.entries[len(b.entries)-1].compare(k)
	})
	if b == len(q.blocks) {
		return b, 0, false
	}
	i, ok := slices.BinarySearchFunc(q.blocks[b].entries, k, func(e entry, k key) int { return e.compare(k) })
	return b, i, ok
}

// own makes block b changeable.
func (q *queue) own(b int, tok *token) *block {
	if q.blocks[b].tok != tok {
		old := q.blocks[b]
		entries := make([]entry, len(old.entries), blockSize)
		copy(entries, old.entries)
		q.blocks[b] = &block{tok, entries, old.least}
	}
	return q.blocks[b]
}

func (q *queue) insert(e entry, tok *token) {
	b, i, ok := q.find(e.key)
	if ok {
		return
	}
	if b == len(q.blocks) {
		if b == 0 || len(q.blocks[b-1].entries) == blockSize {
			q.blocks = append(q.blocks, q.newBlock(tok))
		} else {
			b--
		}
		i = len(q.blocks[b].entries)
	}
	own := q.own(b, tok)
	if len(own.entries) == blockSize {
		half := &block{tok: tok, entries: append(make([]entry, 0, blockSize), own.entries[blockSize/2:]...)}
		own.entries = own.entries[:blockSize/2]
		q.blocks = slices.Insert(q.blocks, b+1, half)
		own.measure()
		half.measure()
		if i > blockSize/2 {
			own, i = half, i-blockSize/2
		}
	}
	own.entries = slices.Insert(own.entries, i, e)
	own.least = min(own.least, e.limit)
	q.n++
}

// newBlock is an empty block. The spare one is left alone if it may be a fork's too.
func (q *queue) newBlock(tok *token) *block {
	if b := q.spare; b != nil && b.tok == tok {
		q.spare, b.least = nil, job.Forever
		return b
	}
	return &block{tok: tok, entries: make([]entry, 0, 4), least: job.Forever}
}

func (q *queue) remove(k key, tok *token) bool {
	b, i, ok := q.find(k)
	if !ok {
		return false
	}
	own := q.own(b, tok)
	limit := own.entries[i].limit
	own.entries = slices.Delete(own.entries, i, i+1)
	q.n--
	if len(own.entries) == 0 {
		q.spare = own
		q.blocks = slices.Delete(q.blocks, b, b+1)
	} else if limit == own.least {
		own.measure()
	}
	return true
}

// after returns the first entry after k with a limit of at most d. The zero key is before
// all if first is set.
func (q *queue) after(k key, first bool, d job.Duration) (entry, bool) {
	b, i := 0, 0
	if !first {
		var ok bool
		if b, i, ok = q.find(k); ok {
			i++
		}
	}
	for ; b < len(q.blocks); b, i = b+1, 0 {
		if q.blocks[b].least > d {
			continue
		}
		for _, e := range q.blocks[b].entries[i:] {
			if e.limit <= d {
				return e, true
			}
		}
	}
	return entry{}, false
}

// lane is what of a queue is still to be merged: never nothing.
type lane struct {
	rest []entry
	more []*block
}

// from returns the entries from k on, or all, and how many there are; 0: none.
func (q *queue) from(k key, all bool) (lane, int) {
	b, i := 0, 0
	if !all {
		b, i, _ = q.find(k)
	}
	if b == len(q.blocks) {
		return lane{}, 0
	}
	l := lane{q.blocks[b].entries[i:], q.blocks[b+1:]}
	n := len(l.rest)
	for _, x := range l.more {
		n += len(x.entries)
	}
	return l, n
}

// lanes is a heap, that with the first entry first.
type lanes []lane

func (h lanes) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].rest[0].compare(h[c].rest[0].key) < 0 {
			c++
		}
		if h[c].rest[0].compare(h[i].rest[0].key) >= 0 {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

// run is how many entries of the first lane come before those of the others.
func (h lanes) run() int {
	rest := h[0].rest
	if len(h) == 1 {
		return len(rest)
	}
	next := h[1].rest[0].key
	if len(h) > 2 && h[2].rest[0].compare(next) < 0 {
		next = h[2].rest[0].key
	}
	n := 1
	for n < len(rest) && rest[n].compare(next) < 0 {
		n++
	}
	return n
}

// merge makes one sorted list of n entries in all.
func (h lanes) merge(n int) []entry {
	list := make([]entry, 0, n)
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	for len(h) > 0 {
		run, l := h.run(), &h[0]
		list = append(list, l.rest[:run]...)
		if l.rest = l.rest[run:]; len(l.rest) == 0 && len(l.more) > 0 {
			l.rest, l.more = l.more[0].entries, l.more[1:]
		}
		if len(l.rest) == 0 {
			h[0] = h[len(h)-1]
			h = h[:len(h)-1]
		}
		h.down(0)
	}
	return list
}

// fork is a copy that shares the blocks.
func (q *queue) fork() queue { return queue{blocks: slices.Clone(q.blocks), n: q.n} }

// timer is a moment at which something about a job changes. Those that no longer mean
// anything are found when they are due.
type timer struct {
	t  job.Time
	id job.ID
}

func (a timer) before(b timer) bool { return a.t < b.t || a.t == b.t && a.id < b.id }

// timers is a heap, the earliest first.
type timers []timer

// clock is timers that may be shared with a fork.
type clock struct {
	timers
	tok *token
}

// ownClock makes timers changeable.
func (s *Scheduler) ownClock(c *clock) *timers {
	if c.tok != s.tok {
		c.timers, c.tok = slices.Clone(c.timers), s.tok
	}
	return &c.timers
}

func (h *timers) push(t timer) {
	*h = append(*h, t)
	h.up(len(*h) - 1)
}

// up moves timer i to where it belongs.
func (h timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h[i].before(h[p]) {
			break
		}
		h[i], h[p] = h[p], h[i]
		i = p
	}
}

// down is the opposite of up.
func (h timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].before(h[c]) {
			c++
		}
		if !h[c].before(h[i]) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func (h timers) heapify() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

func (h *timers) pop() timer {
	s := *h
	top := s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	s.down(0)
	return top
}
