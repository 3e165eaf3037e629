// Package lease says how long the ranks of a node may run without word from the controller,
// and when the controller may let the next attempt of a job run without word from a node.
//
// First use: [New] in an agent, whose [Holder.Tick] says when its ranks are to end;
// [Grants] in the controller, whose [Grants.Over] says that they have.
//
// All of it is pure: times are handed in, of a clock that only runs and counts while the
// machine sleeps, each side's its own; only spans are compared. Neither side has to be known
// by the other to have the right time of day.
//
// A node cannot tell whether it is cut off or the controller is gone, and ranks must outlive
// the controller. So each node has a council of a few others. C members are split: a node
// that has lost the controller goes on while [Needed](C) of them say that they have lost it
// too, and the controller gives a node up only while C+1-Needed(C) of them are known to hear
// it. These two have a member in common. One who says that it has lost the controller has not
// heard it for longer than the controller counts on it, and promises not to be counted until
// what it allowed is over. So never both at once, whatever is lost, late or cut.
package lease

import "time"

// Spans are those that both sides reckon with. The controller says them.
type Spans struct {
	// Lease is how long after the last sign of the controller no rank of a node is left.
	Lease time.Duration
	// Lost is how long a node is waited for that others reach.
	Lost time.Duration
}

// Default is how long ranks run without word from a controller.
const Default = 8 * time.Second

// Parts of a lease. Ranks are told to end at three quarters of it, killed an eighth later,
// and a sixteenth later with their supervisors.
const (
	endPart   = 4 // from the end: Lease/4 is what the end of ranks may take
	gracePart = 8
	slackPart = 16
)

// Beat is how often a node says that it is there.
func (s Spans) Beat() time.Duration { return min(time.Second, s.Lease/8) }

// Grace is what ranks have between TERM and KILL.
func (s Spans) Grace() time.Duration { return s.Lease / gracePart }

// Slack is when after that what is left is killed from outside.
func (s Spans) Slack() time.Duration { return s.Lease / slackPart }

// trust is how long an answer counts: the node has heard the controller.
func (s Spans) trust() time.Duration { return s.Lease * 3 / 8 }

// margin is for clocks that do not run alike, and for processes that take a moment to die.
func (s Spans) margin() time.Duration { return s.Lease / slackPart }

// Away is how long ranks run without the agent of their node: it may be replaced, and has
// then to be there again. Their supervisors see to that.
func (s Spans) Away() time.Duration { return max(s.Lost-s.Lease*5/4, s.Lease) }

// Dead is when at the latest no rank runs on a node since it was last heard of: with its
// agent, or whatever became of that.
func (s Spans) Dead(agent bool) time.Duration {
	if agent {
		return s.Lease + s.margin()
	}
	return s.Lease + s.Away() + s.Lease/endPart + s.margin()
}

// Needed is how many of a council of n have to have lost the controller.
func Needed(n int) int { return (n + 1) / 2 }

// Hearing is how many of them have to hear it; more than there are if there are none: a node
// without others is not given up.
func Hearing(n int) int { return n + 1 - Needed(n) }

// Member is a node of a council, and where its agent is.
type Member struct{ Name, Address string }

// Council is whom a node asks.
type Council struct {
	Number  uint64 // rising
	Members []Member
}
