package sched

import (
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
)

// This file says what a snapshot has of each type, in the order in which it has it. A field
// that is new is a line here, and a version more (see [version]);
// TestSavedFields fails where a field is missing.

// savedState is the part of a snapshot that is neither jobs nor what they ask for.
type savedState struct {
	now       job.Time
	hash      uint64
	last      job.ID
	config    job.Config
	network   job.Network
	parts     []savedPart
	nodes     []savedNode
	arrays    []savedArray
	singles   []job.ID
	arrivals  []job.ID
	grown     []int32
	lost      []job.ID
	expired   []job.ID
	recheck   bool
	regrow    bool
	retry     bool
	anew      bool
	wakeTimes []job.Time
	wakeJobs  []job.ID
}

func (c *codec) state(s *savedState) {
	number(c, &s.now)
	c.bits(&s.hash)
	number(c, &s.last)
	c.config(&s.config)
	c.network(&s.network)
	list(c, &s.parts, (*codec).part)
	list(c, &s.nodes, (*codec).node)
	list(c, &s.arrays, (*codec).array)
	numberList(c, &s.singles)
	numberList(c, &s.arrivals)
	numberList(c, &s.grown)
	numberList(c, &s.lost)
	numberList(c, &s.expired)
	c.bool(&s.recheck)
	c.bool(&s.regrow)
	c.bool(&s.retry)
	c.bool(&s.anew)
	numberList(c, &s.wakeTimes)
	numberList(c, &s.wakeJobs)
}

type savedPart struct {
	spec job.Partition
	gone bool
}

func (c *codec) part(p *savedPart) {
	c.partition(&p.spec)
	c.bool(&p.gone)
}

type savedNode struct {
	spec   job.Node
	state  job.NodeState
	reason string
	gone   bool
	images []string
}

func (c *codec) node(n *savedNode) {
	c.nodeSpec(&n.spec)
	number(c, &n.state)
	c.string(&n.reason)
	c.bool(&n.gone)
	stringList(c, &n.images)
}

type savedArray struct {
	first                              job.ID
	n, throttle                        int
	active, started, ended, ok, failed int
	dependents                         []job.ID
}

func (c *codec) array(a *savedArray) {
	number(c, &a.first)
	number(c, &a.n)
	number(c, &a.throttle)
	number(c, &a.active)
	number(c, &a.started)
	number(c, &a.ended)
	number(c, &a.ok)
	number(c, &a.failed)
	numberList(c, &a.dependents)
}

// savedJob is a job. spec is the number of what it asks for, which tasks of an array share.
type savedJob struct {
	id                           job.ID
	array                        int32
	task                         uint32
	spec                         int
	soft, never, met, queued     bool
	state, toState               job.State
	held                         uint8
	submit, eligible, start, end job.Time
	limit                        job.Duration
	attempt, requeues, exit      int
	promise                      job.Time
	breach, lost                 string
	plan                         *savedPlan
	alloc                        *job.Allocation
	licenses                     []job.License
	ends                         job.Time
	dependents                   []job.ID
}

func (c *codec) job(j *savedJob) {
	number(c, &j.id)
	number(c, &j.array)
	number(c, &j.task)
	number(c, &j.spec)
	c.bool(&j.soft)
	c.bool(&j.never)
	c.bool(&j.met)
	c.bool(&j.queued)
	number(c, &j.state)
	number(c, &j.toState)
	number(c, &j.held)
	number(c, &j.submit)
	number(c, &j.eligible)
	number(c, &j.start)
	number(c, &j.end)
	number(c, &j.limit)
	number(c, &j.attempt)
	number(c, &j.requeues)
	number(c, &j.exit)
	number(c, &j.promise)
	c.string(&j.breach)
	c.string(&j.lost)
	optional(c, &j.plan, (*codec).plan)
	optional(c, &j.alloc, (*codec).allocation)
	list(c, &j.licenses, (*codec).license)
	number(c, &j.ends)
	numberList(c, &j.dependents)
}

type savedPlan struct {
	part       int
	start, end job.Time
	picks      []pick
	licenses   []job.License
}

func (c *codec) plan(p *savedPlan) {
	number(c, &p.part)
	number(c, &p.start)
	number(c, &p.end)
	list(c, &p.picks, (*codec).pick)
	list(c, &p.licenses, (*codec).license)
}

func (c *codec) pick(p *pick) {
	number(c, &p.node)
	for i := range p.v {
		number(c, &p.v[i])
	}
}

func (c *codec) config(v *job.Config) {
	number(c, &v.Weights.Age)
	number(c, &v.Weights.Size)
	number(c, &v.Weights.Partition)
	number(c, &v.Weights.Nice)
	number(c, &v.Weights.MaxAge)
	c.bool(&v.Weights.FavorSmall)
	list(c, &v.Licenses, (*codec).license)
	number(c, &v.MaxArray)
	number(c, &v.MaxJobs)
	number(c, &v.MaxRequeue)
	number(c, &v.Backfill)
	number(c, &v.MinJobAge)
	number(c, &v.DefaultLimit)
}

func (c *codec) network(v *job.Network) {
	list(c, &v.Switches, func(c *codec, s *job.Switch) {
		c.string(&s.Name)
		stringList(c, &s.Switches)
		stringList(c, &s.Nodes)
	})
	list(c, &v.Blocks, func(c *codec, b *job.Block) {
		c.string(&b.Name)
		stringList(c, &b.Nodes)
	})
	numberList(c, &v.BlockSizes)
}

func (c *codec) partition(v *job.Partition) {
	c.string(&v.Name)
	stringList(c, &v.Nodes)
	c.bool(&v.Default)
	number(c, &v.MaxTime)
	number(c, &v.DefaultTime)
	number(c, &v.MinNodes)
	number(c, &v.MaxNodes)
	number(c, &v.Priority)
	number(c, &v.Tier)
	stringList(c, &v.AllowGroups)
	stringList(c, &v.AllowUsers)
	stringList(c, &v.DenyUsers)
	stringList(c, &v.AllowAccount)
	stringList(c, &v.DenyAccount)
	stringList(c, &v.AllowQOS)
	stringList(c, &v.DenyQOS)
	c.bool(&v.Exclusive)
	number(c, &v.Oversubscribe)
	number(c, &v.State)
	number(c, &v.MemoryPerCPU)
	number(c, &v.MemoryPerNode)
}

func (c *codec) nodeSpec(v *job.Node) {
	c.string(&v.Name)
	number(c, &v.Sockets)
	number(c, &v.CoresPerSocket)
	number(c, &v.ThreadsPerCore)
	number(c, &v.CPUs)
	number(c, &v.Memory)
	list(c, &v.GRES, func(c *codec, g *job.GRES) {
		c.string(&g.Name)
		c.string(&g.Type)
		number(c, &g.Count)
		list(c, &g.Links, numberList[int])
		numberList(c, &g.Sockets)
	})
	stringList(c, &v.Features)
	number(c, &v.Weight)
	number(c, &v.State)
	c.string(&v.Reason)
	c.string(&v.Switch)
	c.string(&v.Block)
	c.string(&v.Addr)
}

func (c *codec) license(v *job.License) {
	c.string(&v.Name)
	number(c, &v.Count)
}

func (c *codec) allocation(v *job.Allocation) {
	c.string(&v.Partition)
	list(c, &v.Nodes, func(c *codec, n *job.NodeShare) {
		c.string(&n.Node)
		number(c, &n.Tasks)
		number(c, &n.CPUs)
		number(c, &n.Memory)
		list(c, &n.Devices, func(c *codec, d *job.Devices) {
			c.string(&d.Name)
			c.string(&d.Type)
			c.bits(&d.Mask)
			number(c, &d.Count)
		})
	})
	number(c, &v.Limit)
}

func (c *codec) spec(v *job.Spec) {
	c.string(&v.Name)
	number(c, &v.UID)
	c.string(&v.User)
	stringList(c, &v.Groups)
	c.string(&v.Account)
	c.string(&v.QOS)
	stringList(c, &v.Partitions)
	number(c, &v.MinNodes)
	number(c, &v.MaxNodes)
	number(c, &v.Tasks)
	number(c, &v.TasksPerNode)
	number(c, &v.CPUsPerTask)
	number(c, &v.CPUsPerGPU)
	number(c, &v.ThreadsPerCore)
	number(c, &v.Memory.MiB)
	number(c, &v.Memory.Per)
	c.bool(&v.Memory.All)
	list(c, &v.GRES, func(c *codec, g *job.GRESRequest) {
		c.string(&g.Name)
		c.string(&g.Type)
		number(c, &g.Count)
		number(c, &g.Per)
	})
	c.bool(&v.Exclusive)
	c.bool(&v.Oversubscribe)
	c.anyConstraint(&v.Constraint, 0)
	c.anyConstraint(&v.Prefer, 0)
	stringList(c, &v.NodeList)
	stringList(c, &v.Exclude)
	c.bool(&v.Contiguous)
	number(c, &v.Topology.Switches)
	number(c, &v.Topology.Wait)
	number(c, &v.Topology.Required)
	number(c, &v.Topology.Segment)
	c.bool(&v.Topology.Block)
	list(c, &v.Licenses, (*codec).license)
	list(c, &v.AnyLicense, (*codec).license)
	number(c, &v.Spares)
	c.string(&v.Image)
	number(c, &v.Begin)
	number(c, &v.Deadline)
	number(c, &v.TimeLimit)
	number(c, &v.TimeMin)
	optional(c, &v.Array, (*codec).tasks)
	optional(c, &v.Dependencies, (*codec).dependencies)
	c.bool(&v.Hold)
	number(c, &v.Nice)
	optional(c, &v.Priority, number[uint32])
	c.bool(&v.Requeue)
	number(c, &v.MaxRequeue)
}

func (c *codec) tasks(a *job.Array) {
	list(c, &a.Tasks, func(c *codec, r *job.Range) {
		number(c, &r.First)
		number(c, &r.Last)
		number(c, &r.Step)
	})
	number(c, &a.Throttle)
}

func (c *codec) dependencies(v *job.Dependencies) {
	c.bool(&v.Any)
	list(c, &v.List, func(c *codec, d *job.Dependency) {
		number(c, &d.Type)
		number(c, &d.Job)
		optional(c, &d.Task, number[uint32])
		number(c, &d.Delay)
	})
}

// maxConstraint is how deep a constraint may be in others: more than any that is accepted.
const maxConstraint = 64

func (c *codec) anyConstraint(v **job.Constraint, depth int) {
	if depth > maxConstraint {
		c.fail(fmt.Errorf("a constraint is more than %d deep", maxConstraint))
		return
	}
	optional(c, v, func(c *codec, x *job.Constraint) {
		c.string(&x.Feature)
		number(c, &x.Count)
		for _, part := range []*[]*job.Constraint{&x.And, &x.Or, &x.OneOf} {
			list(c, part, func(c *codec, y **job.Constraint) { c.anyConstraint(y, depth+1) })
		}
	})
}
