// Package tree is how agents pass on for the controller: a command that is the same for many
// nodes goes down a tree of them, and what they say to it comes up together.
//
// First use: an agent makes a [Relay] when the controller has welcomed its session, has
// [Relay.Serve] hear the agents above, and says what it has to say by [Relay.Say]. The
// controller cuts its commands with [Split], and seals and opens with a [Secret].
//
// A tree is no state that anybody keeps. Each command brings the nodes that it is for, in the
// order of the topology; who gets it cuts the rest into parts, and gives each to the first of
// it. If that one cannot be reached, or goes away before all of its part have answered, who
// gave it the part adopts the rest: it cuts that anew. Answers take the way back. Each that
// passes one on keeps it until the controller has it, and says it in its own session with the
// controller if the agent above goes away or does not take it in time ([Patience]).
//
// Every command and answer has a seal of the node that it is for or from, with a number that
// counts once. So an agent can keep things from those below it, for as long as Patience; it
// cannot make, change or repeat any. It passes on only what is of jobs that it has part in, and
// heartbeats.
//
// The package opens no connection, and runs nothing. A Relay may be used by any number of
// goroutines.
package tree

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/gangway-hpc/gangway/internal/wire"
)

// Width is in how many parts commands are cut at most, unless it is said.
const Width = 32

// Patience is how long an answer may take to the controller by way of other agents, and a
// command to be known to be at its node. Then it goes the direct way. It is less than the time
// after which a silent node is suspected.
const Patience = 3 * time.Second

// Split cuts a list into at most width parts of nearly the same length, in its order. A width
// below 1 is 1.
func Split[T any](list []T, width int) [][]T {
	n := min(len(list), max(1, width))
	parts := make([][]T, 0, n)
	for i := range n {
		parts = append(parts, list[len(list)*i/n:len(list)*(i+1)/n])
	}
	return parts
}

// Secret is what the controller shares with a node, for one session.
type Secret []byte

// NewSecret makes one.
func NewSecret() Secret {
	s := make(Secret, 32)
	_, _ = rand.Read(s) // never fails
	return s
}

// seal is over the numbers and the text of something of one kind.
func (s Secret) seal(kind string, a, b uint64, text []byte) []byte {
	m := hmac.New(sha256.New, s)
	var head [16]byte
	binary.BigEndian.PutUint64(head[:8], a)
	binary.BigEndian.PutUint64(head[8:], b)
	_, _ = m.Write([]byte(kind)) // never fails, nor do these
	_, _ = m.Write(head[:])
	_, _ = m.Write(text)
	return m.Sum(nil)
}

const (
	kindCommand = "gangway command\x00"
	kindAnswer  = "gangway answer\x00"
)

// SealCommand completes a target of a command by its seal; the hash is [Hash]'s of its body.
func (s Secret) SealCommand(t *wire.Target, hash [sha256.Size]byte) {
	t.Mac = s.seal(kindCommand, t.Seq, t.After, hash[:])
}

// Hash is what seals of a command are over: it is made once for all of its nodes.
func Hash(body []byte) [sha256.Size]byte { return sha256.Sum256(body) }

var errSeal = errors.New("the seal is not of this session")

// openCommand refuses a command that the controller has not made for this session.
func (s Secret) openCommand(t *wire.Target, body []byte) error {
	hash := Hash(body)
	if len(s) == 0 || !hmac.Equal(t.Mac, s.seal(kindCommand, t.Seq, t.After, hash[:])) {
		return errSeal
	}
	return nil
}

// SealAnswer completes an answer by its seal.
func (s Secret) SealAnswer(a *wire.Reply) { a.Mac = s.seal(kindAnswer, a.Seq, a.Got, a.Body) }

// OpenAnswer refuses an answer that its node has not made in this session.
func (s Secret) OpenAnswer(a *wire.Reply) error {
	if len(s) == 0 || !hmac.Equal(a.Mac, s.seal(kindAnswer, a.Seq, a.Got, a.Body)) {
		return errSeal
	}
	return nil
}

// Window says which numbers have been taken, of rising ones that may come out of order.
type Window struct {
	top  uint64
	bits [windowSize / 64]uint64
}

// windowSize is how far a number may come after higher ones: what a node says within
// [Patience] is far less.
const windowSize = 1024

// Verdict is what becomes of a number.
type Verdict int

// The verdicts: it is taken; it was taken already; it is so old that nobody knows.
const (
	Taken Verdict = iota
	Again
	Old
)

// Take takes a number.
func (w *Window) Take(n uint64) Verdict {
	if n == 0 || w.top >= windowSize && n <= w.top-windowSize {
		return Old
	}
	for ; w.top < n; w.top++ {
		if n-w.top > windowSize { // what is between was never here
			w.bits, w.top = [windowSize / 64]uint64{}, n-windowSize
		}
		next := (w.top + 1) % windowSize
		w.bits[next/64] &^= 1 << (next % 64)
	}
	at, bit := n%windowSize/64, uint64(1)<<(n%64)
	if w.bits[at]&bit != 0 {
		return Again
	}
	w.bits[at] |= bit
	return Taken
}
