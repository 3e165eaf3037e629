// Package job is the vocabulary of scheduling: what a job asks for ([Spec]), what nodes and
// partitions are ([Node], [Partition]), what a job gets ([Allocation]), and what happens
// ([Event]). The words are Slurm's where it has them.
//
// First use: make a Spec and put it into a [Submitted] event for package sched. Package
// internal/slurm makes these values of what people write.
//
// The package has types and contracts only: it decides nothing, opens nothing, knows no
// clock. Values are plain data; whoever shares one between goroutines does not change it.
package job

import (
	"math"
	"strconv"
)

// ID names a job, or one task of an array: Slurm's raw job id. It is positive.
type ID uint32

// String is the id in decimal.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 10) }

// Time is a moment in milliseconds since 1970-01-01 UTC. The zero value is "not known" or
// "at once", as the field says.
type Time int64

// Duration is a span in milliseconds.
type Duration int64

// Units of Duration.
const (
	Millisecond Duration = 1
	Second               = 1000 * Millisecond
	Minute               = 60 * Second
	Hour                 = 60 * Minute
	Day                  = 24 * Hour
)

// Never is later than every moment, and Forever longer than every span that is used. Sums
// of times and spans are made by [Time.Add], which does not overflow.
const (
	Never   Time     = math.MaxInt64
	Forever Duration = math.MaxInt64
)

// Add is t and d, at most Never.
func (t Time) Add(d Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Sub is the span from u to t.
func (t Time) Sub(u Time) Duration { return Duration(t - u) }

// Spec is what a job asks for. The zero value of a field asks for nothing. It is not
// changed once it was submitted.
type Spec struct {
	Name    string
	UID     uint32
	User    string
	Groups  []string // the user's, for partitions that are for some
	Account string
	QOS     string

	Partitions []string // any of these; none is the default one

	MinNodes, MaxNodes int // 0: as few nodes as do; MaxNodes 0 with MinNodes: that many
	Tasks              int // 0: one a node
	TasksPerNode       int // at most that many if Tasks is given, else exactly
	CPUsPerTask        int // 0: 1
	CPUsPerGPU         int
	ThreadsPerCore     int // threads of a core that may be used; 0: all
	Memory             Memory
	GRES               []GRESRequest
	Exclusive          bool // whole nodes, with everything on them
	Oversubscribe      bool // may share CPUs, where the partition lets it: none does yet

	Constraint *Constraint // nil: none
	Prefer     *Constraint // soft
	NodeList   []string    // all of these, and others if it needs more
	Exclude    []string
	Contiguous bool
	Topology   Topology
	Licenses   []License // all of these
	AnyLicense []License // or one of these
	Spares     int       // further nodes held ready: carried for a later release, nothing is decided by it
	Image      string    // digest of the image, for locality; empty: none

	Begin     Time     // not before
	Deadline  Time     // must have ended by then
	TimeLimit Duration // 0: the partition's
	TimeMin   Duration // backfill may shorten the limit to this; 0: not

	Array        *Array // nil: one job
	Dependencies *Dependencies
	Hold         bool
	Nice         int32
	Priority     *uint32 // instead of a computed one; 0 is held by an administrator
	Requeue      bool    // on failure of a node
	MaxRequeue   int     // then it is held; 0: the cluster's
}

// Unit is what an amount is for.
type Unit uint8

// The units.
const (
	PerJob Unit = iota
	PerNode
	PerTask
	PerSocket
	PerCPU
	PerGPU
)

// Memory is an amount of memory in MiB.
type Memory struct {
	MiB int64 // 0: the partition's default
	Per Unit  // PerNode, PerCPU or PerGPU
	All bool  // all that the node has (--mem=0)
}

// GRESRequest is a number of generic resources.
type GRESRequest struct {
	Name  string // gpu
	Type  string // h100, a MIG profile; empty: any
	Count int64
	Per   Unit // PerJob, PerNode, PerTask or PerSocket
}

// Level is a level of topology, counted from the nodes: 0 is the leaf switch.
type Level = int

// Topology says how near to each other the nodes have to be.
type Topology struct {
	Switches int      // at most that many leaf switches; 0: any
	Wait     Duration // how long that is waited for; then any will do. Forever: it is required
	Required Level    // all nodes below one switch of this level: 1+level; 0: not asked for
	Segment  int      // nodes come in groups of so many, each within one block; 0: not
	Block    bool     // within blocks, without a segment size
}

// License is a number of licences.
type License struct {
	Name  string
	Count int64
}

// Constraint is an expression over features: one of the four.
type Constraint struct {
	Feature string        // a node has it; with Count: so many nodes do
	Count   int           // 0: all nodes
	And     []*Constraint // all
	Or      []*Constraint // any, and each node for itself
	OneOf   []*Constraint // [a|b]: all nodes the same one
}

// Array is the tasks of an array job.
type Array struct {
	Tasks    []Range // in rising order, not overlapping
	Throttle int     // most tasks that run at a time; 0: no limit
}

// Range is First, First+Step, ... up to Last.
type Range struct{ First, Last, Step uint32 }

// Len is how many numbers a range has.
func (r Range) Len() int {
	if r.Last < r.First || r.Step == 0 {
		return 0
	}
	return int((r.Last-r.First)/r.Step) + 1
}

// Len is how many tasks there are.
func (a *Array) Len() int {
	n := 0
	for _, r := range a.Tasks {
		n += r.Len()
	}
	return n
}

// DependencyType is when a dependency is met.
type DependencyType uint8

// The types, by Slurm's names.
const (
	After      DependencyType = iota // it has started or was cancelled, Delay ago
	AfterAny                         // it has ended
	AfterOK                          // it has ended with 0
	AfterNotOK                       // it has ended, and not with 0
	AfterCorr                        // the same task of that array has ended with 0
	AfterBurst                       // afterburstbuffer: it has ended
	Singleton                        // no other job of the same name and user came before
)

// Dependency is one condition.
type Dependency struct {
	Type  DependencyType
	Job   ID       // the job, or the whole array
	Task  *uint32  // one task of the array
	Delay Duration // After
}

// Dependencies are conditions, all of which have to be met, or one.
type Dependencies struct {
	Any  bool // one is enough ("?")
	List []Dependency
}
