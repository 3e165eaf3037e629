// Package sched is the scheduler: a pure, deterministic state machine over the events of
// package internal/job. It decides which jobs start where, when those that wait are
// expected to start, and says why they wait.
//
// First use: [New], then [Scheduler.Apply] for what happens outside (nodes, partitions,
// submitted and ended jobs), and [Scheduler.Decide] to get, and log, what follows from it.
// The state is a function of the sequence of events: who applies the logged events, the
// decisions among them, in their order has the same state, without Decide.
//
// A Scheduler has one owner: nothing in it is safe for concurrent use. [Scheduler.Fork]
// makes an independent copy. The package opens nothing, knows no clock and no randomness;
// it imports internal/job only, and starts and kills nothing itself.
package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Scheduler is the state. Its zero value is of no use: see [New].
type Scheduler struct {
	tok  *token // what carries another one is shared
	now  job.Time
	hash uint64

	config                       job.Config
	network                      job.Network
	parts                        []part
	restricted                   bool // a partition is not for everyone
	nodes                        []*node
	names                        names
	licenses                     []license
	licenseTok                   *token
	licenseAt                    map[string]int // by name; never changed
	nodesTok, jobsTok, arraysTok *token         // of the lists

	jobs       []*record // by rising id
	arrays     []*array
	last       job.ID   // the highest id that was ever used
	unfinished int      // jobs that have not ended
	remembered int      // of those that have: how many were left when that was last tidied
	planned    int      // jobs that have a plan
	singles    []job.ID // jobs that wait for those of the same name

	// What the next Decide has to look at.
	arrivals []job.ID // may be started, and are not planned
	grown    []int32  // nodes that have more to give
	lost     []job.ID // run on nodes that are down
	expired  []job.ID // cannot end before their deadline any more
	recheck  bool     // what is planned may no longer be allowed
	regrow   bool     // licences were given back
	retry    bool     // what could not be planned may be now
	anew     bool     // everything is to be planned anew
	wake     clock    // when something about a job changes
	due      clock    // when a job is planned to start
	ends     clock    // when a running job reaches its limit

	// The index, which follows from the above.
	stale       bool
	regroup     bool // partitions have changed, and with them classes
	size        clusterSize
	weighted    bool // nodes have different weights
	costly      bool // of the class that is being placed: nodes differ in what they cost it
	net         *net
	cells       []*cell
	kinds       classIndex
	classes     []*class
	classesKept int // how many there were when that was last tidied

	lengths *lengthTable
	pass    *pass // while what is free only becomes less

	largePass int

	out           []job.Event  // of Decide
	open          job.Promised // that is to be the next of these
	flushes       uint64       // which one that is, from 1 on
	scratch       []byte
	arrivalsSpare []job.ID // while those of one round are looked at, the others are collected
	grownSpare    []int32
	cands         []cand
	set           []uint64
	line          timeline
	one           [1]pick
	sorted        sorted
	runList       []run
	blockList     []run
	counts        []int32
}

// New is a scheduler without nodes, partitions and jobs.
func New() *Scheduler {
	return &Scheduler{tok: new(token), now: 1, hash: 14695981039346656037, stale: true, flushes: 1, net: &net{levels: 1}, lengths: usual(), largePass: largePass}
}

// Config is the latest that was set; its slices are shared.
func (s *Scheduler) Config() job.Config { return s.config }

// Network is the latest that was set; its slices are shared.
func (s *Scheduler) Network() job.Network { return s.network }

// Now is the moment of the latest event or decision.
func (s *Scheduler) Now() job.Time { return s.now }

// Hash is of all decisions so far.
func (s *Scheduler) Hash() uint64 { return s.hash }

// Next is when Decide has to be called though nothing happens until then; job.Never if
// only events can change anything.
func (s *Scheduler) Next() job.Time {
	next := job.Never
	for _, h := range []timers{s.wake.timers, s.due.timers} {
		if len(h) > 0 {
			next = min(next, h[0].t)
		}
	}
	return max(next, s.now)
}

// Refused is the error of an event that cannot be: the state is as it was.
type Refused struct {
	Event   string // what was refused: "submit job 7"
	Why     string
	Nearest string // what could be instead; empty: not known
}

// Error is all of it in one line.
func (r *Refused) Error() string {
	text := r.Event + ": " + r.Why
	if r.Nearest != "" {
		text += " (" + r.Nearest + ")"
	}
	return text
}

// part is a partition.
type part struct {
	spec    *job.Partition
	gone    bool
	missing int // nodes that do not exist
}

// starts says whether jobs are started in it.
func (p *part) starts() bool {
	return !p.gone && (p.spec.State == job.PartitionUp || p.spec.State == job.PartitionDrain)
}

// refuses is why jobs of a spec may not be in it; empty if they may.
func (p *part) refuses(spec *job.Spec) string {
	if why := p.bars(spec); why != "" || !p.tooShort(spec) {
		return why
	}
	return "time limit " + spanText(spec.TimeLimit) + " is above its maximum " + spanText(p.spec.MaxTime)
}

// tooShort says whether jobs of a spec may run for longer than it lets any.
func (p *part) tooShort(spec *job.Spec) bool {
	most := p.spec.MaxTime
	return most > 0 && spec.TimeLimit > most && (spec.TimeMin == 0 || spec.TimeMin > most)
}

// bars is refuses without what follows from time limits.
func (p *part) bars(spec *job.Spec) string {
	in := func(list []string, name string) bool { return slices.Contains(list, name) }
	a := p.spec
	switch {
	case p.gone:
		return "it was removed"
	case len(a.AllowUsers) > 0 && !in(a.AllowUsers, spec.User), in(a.DenyUsers, spec.User):
		return "user " + spec.User + " is not allowed"
	case len(a.AllowGroups) > 0 && spec.User != "root" && !slices.ContainsFunc(spec.Groups, func(g string) bool { return in(a.AllowGroups, g) }):
		return "user " + spec.User + " is in none of the groups " + strings.Join(a.AllowGroups, ", ")
	case len(a.AllowAccount) > 0 && !in(a.AllowAccount, spec.Account), in(a.DenyAccount, spec.Account):
		return notAllowed("account", spec.Account)
	case len(a.AllowQOS) > 0 && !in(a.AllowQOS, spec.QOS), in(a.DenyQOS, spec.QOS):
		return notAllowed("QOS", spec.QOS)
	case a.MaxNodes > 0 && spec.MinNodes > a.MaxNodes:
		return fmt.Sprintf("%d nodes are above its maximum of %d nodes", spec.MinNodes, a.MaxNodes)
	case max(spec.MinNodes, spec.MaxNodes) > 0 && max(spec.MinNodes, spec.MaxNodes) < a.MinNodes:
		return fmt.Sprintf("%d nodes are below its minimum of %d nodes", max(spec.MinNodes, spec.MaxNodes), a.MinNodes)
	}
	return ""
}

// notAllowed is why a partition does not take jobs of an account or a QOS.
func notAllowed(what, name string) string {
	if name == "" {
		return "it takes no job without " + what
	}
	return what + " " + name + " is not allowed"
}

func (s *Scheduler) partNumber(name string) (int, bool) {
	for i := range s.parts {
		if s.parts[i].spec.Name == name && !s.parts[i].gone {
			return i, true
		}
	}
	return 0, false
}

// partitionsOf are the partitions that spec names, or the default one.
func (s *Scheduler) partitionsOf(spec *job.Spec) []int { return s.partitionsIn(nil, spec) }

// partitionsIn is partitionsOf in a list that is empty: one that is on the stack costs nothing.
func (s *Scheduler) partitionsIn(list []int, spec *job.Spec) []int {
	for _, name := range spec.Partitions {
		if i, ok := s.partNumber(name); ok && !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	if len(spec.Partitions) == 0 {
		for i := range s.parts {
			if s.parts[i].spec.Default && !s.parts[i].gone {
				return append(list, i)
			}
		}
		for i := range s.parts {
			if !s.parts[i].gone {
				return append(list, i) // the first one, if none is the default
			}
		}
	}
	return list
}

// year is how long jobs without any limit are planned to run.
const year = 365 * job.Day

// limitIn is the time limit of a job of that spec in a partition.
func (s *Scheduler) limitIn(spec *job.Spec, p int) job.Duration {
	limit, a := spec.TimeLimit, s.parts[p].spec
	if limit == 0 {
		limit = a.DefaultTime
	}
	if limit == 0 {
		limit = a.MaxTime
	}
	if limit == 0 {
		limit = s.config.DefaultLimit
	}
	if limit <= 0 {
		limit = year
	}
	if a.MaxTime > 0 {
		limit = min(limit, a.MaxTime)
	}
	return min(limit, math.MaxInt64/4)
}

func (s *Scheduler) setPartition(e job.PartitionSet) error {
	p := e.Partition
	what := "set partition " + p.Name
	switch {
	case p.Name == "":
		return &Refused{Event: what, Why: "it has no name"}
	case p.MaxTime < 0 || p.DefaultTime < 0 || p.MinNodes < 0 || p.MaxNodes < 0 || p.MemoryPerCPU < 0 || p.MemoryPerNode < 0:
		return &Refused{Event: what, Why: "a limit is negative"}
	case p.MaxNodes > 0 && p.MinNodes > p.MaxNodes:
		return &Refused{Event: what, Why: "MinNodes is above MaxNodes"}
	case p.Oversubscribe < 0 || p.Oversubscribe > 1:
		return &Refused{Event: what, Why: fmt.Sprintf("%d jobs that share CPUs (OverSubscribe) are not supported yet", p.Oversubscribe), Nearest: "OverSubscribe=NO"}
	case p.State > job.PartitionInactive:
		return &Refused{Event: what, Why: "its state is none"}
	}
	s.parts = slices.Clone(s.parts)
	if i, ok := s.partNumber(p.Name); ok {
		s.parts[i].spec = &p
	} else {
		s.parts = append(s.parts, part{spec: &p})
	}
	s.changedParts()
	return nil
}

func (s *Scheduler) removePartition(e job.PartitionRemoved) error {
	i, ok := s.partNumber(e.Partition)
	what := "remove partition " + e.Partition
	if !ok {
		return &Refused{Event: what, Why: "there is no such partition", Nearest: s.nearestPart(e.Partition)}
	}
	for _, r := range s.jobs {
		if !r.state.Done() && slices.Contains(s.partitionsOf(r.spec), i) {
			return &Refused{Event: what, Why: "job " + r.id.String() + " is in it"}
		}
	}
	s.parts = slices.Clone(s.parts)
	s.parts[i].gone = true
	s.changedParts()
	return nil
}

// changedParts has what is planned looked at again: it may no longer be allowed, or be had
// sooner.
func (s *Scheduler) changedParts() {
	s.stale, s.regroup = true, true
	s.restricted = false
	for i := range s.parts {
		a := s.parts[i].spec
		s.restricted = s.restricted || len(a.AllowUsers)+len(a.DenyUsers)+len(a.AllowAccount)+len(a.DenyAccount)+len(a.AllowQOS)+len(a.DenyQOS)+len(a.AllowGroups) > 0
	}
	s.recheck, s.regrow = true, true
}

func (s *Scheduler) nearestPart(name string) string {
	return nearest(name, func(yield func(string) bool) {
		for i := range s.parts {
			if !s.parts[i].gone && !yield(s.parts[i].spec.Name) {
				return
			}
		}
	})
}
