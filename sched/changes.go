package sched

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// all tries everything that a job could ask less of: first what is given up whole.
func (x *search) all() {
	x.conditions()
	x.gres()
	x.licenses()
	x.nodes()
	x.amounts()
	x.topology()
	x.partitions()
}

// without tries a change that has no parts.
func (x *search) without(text string, set func(*job.Spec)) {
	spec := *x.r.spec
	set(&spec)
	x.try(change{1, false, func(int) (string, job.Spec) { return text, spec }})
}

// fewer tries less of an amount, down to one that is still of use.
func (x *search) fewer(n, least, unit int64, uneven bool, text func(int64) string, set func(*job.Spec, int64)) {
	c := change{int((n - least + unit - 1) / unit), uneven, func(step int) (string, job.Spec) {
		left, spec := max(least, n-int64(step)*unit), *x.r.spec
		set(&spec, left)
		return text(left), spec
	}}
	x.try(c)
}

// flag writes an option of so much.
func flag(name string) func(int64) string {
	return func(n int64) string { return fmt.Sprintf("%s=%d", name, n) }
}

// conditions tries to give up what nodes have to be.
func (x *search) conditions() {
	spec := x.r.spec
	if c := spec.Constraint; c != nil {
		for i := range c.And {
			rest := *c
			rest.And = slices.Delete(slices.Clone(c.And), i, i+1)
			if len(rest.And) > 0 {
				x.without("--constraint="+constraintText(&rest), func(p *job.Spec) { p.Constraint = &rest })
			}
		}
		x.without("without --constraint", func(p *job.Spec) { p.Constraint = nil })
	}
	if len(spec.NodeList) > 0 {
		x.without("without --nodelist", func(p *job.Spec) { p.NodeList = nil })
	}
	if len(spec.Exclude) > 0 {
		x.without("without --exclude", func(p *job.Spec) { p.Exclude = nil })
	}
	if len(spec.NodeList)*len(spec.Exclude) > 0 {
		x.without("without --nodelist and --exclude", func(p *job.Spec) { p.NodeList, p.Exclude = nil, nil })
	}
	if spec.Exclusive {
		x.without("without --exclusive", func(p *job.Spec) { p.Exclusive = false })
	}
	if spec.Contiguous {
		x.without("without --contiguous", func(p *job.Spec) { p.Contiguous = false })
	}
	if spec.ThreadsPerCore > 0 {
		x.without("without --threads-per-core", func(p *job.Spec) { p.ThreadsPerCore = 0 })
	}
}

// constraintText is a constraint as Slurm writes it.
func constraintText(c *job.Constraint) string {
	list := func(all []*job.Constraint, between string) string {
		var texts []string
		for _, x := range all {
			texts = append(texts, constraintText(x))
		}
		return strings.Join(texts, between)
	}
	text := c.Feature
	switch {
	case len(c.OneOf) > 0:
		text = "[" + list(c.OneOf, "|") + "]"
	case len(c.And) == 1:
		return constraintText(c.And[0])
	case len(c.And) > 1:
		text = list(c.And, "&")
	case len(c.Or) > 0:
		text = "(" + list(c.Or, "|") + ")"
	}
	if c.Count > 0 {
		text += fmt.Sprintf("*%d", c.Count)
	}
	return text
}

// gres tries any type of each, and fewer of them.
func (x *search) gres() {
	spec := x.r.spec
	set := func(p *job.Spec, i int, change func(*job.GRESRequest)) {
		p.GRES = slices.Clone(p.GRES)
		change(&p.GRES[i])
	}
	for i := range spec.GRES {
		g := &spec.GRES[i]
		if g.Type != "" {
			x.without("any type of "+g.Name, func(p *job.Spec) { set(p, i, func(g *job.GRESRequest) { g.Type = "" }) })
		}
		least := int64(1)
		if g.Per == job.PerJob {
			least = int64(max(1, spec.MinNodes))
		}
		x.fewer(g.Count, least, 1, x.shared(), gresText(spec.GRES, g), func(p *job.Spec, n int64) { set(p, i, func(g *job.GRESRequest) { g.Count = n }) })
	}
}

// gresText writes another number of a request, as an option if it is that option's only one.
func gresText(all []job.GRESRequest, g *job.GRESRequest) func(int64) string {
	name := gresName(g.Name, g.Type)
	options := [...]string{job.PerJob: "--gpus", job.PerNode: "--gpus-per-node", job.PerTask: "--gpus-per-task", job.PerSocket: "--gpus-per-socket"}
	twice := 0
	for i := range all {
		if all[i].Per == g.Per && (g.Per == job.PerNode || all[i].Name == g.Name) {
			twice++
		}
	}
	switch {
	case twice == 1 && g.Name == "gpu" && g.Type == "":
		return flag(options[g.Per])
	case twice == 1 && g.Name == "gpu":
		return func(n int64) string { return fmt.Sprintf("%s=%s:%d", options[g.Per], g.Type, n) }
	case twice == 1 && g.Per == job.PerNode:
		return func(n int64) string { return fmt.Sprintf("--gres=%s:%d", name, n) }
	}
	return func(n int64) string { return fmt.Sprintf("%d %s in place of %d", n, name, g.Count) }
}

// licenses tries fewer of each, and none.
func (x *search) licenses() {
	spec := x.r.spec
	for i, l := range spec.Licenses {
		text := func(n int64) string {
			if n == 0 {
				return "without licence " + l.Name
			}
			return fmt.Sprintf("%d of licence %s in place of %d", n, l.Name, l.Count)
		}
		x.fewer(l.Count, 0, 1, false, text, func(p *job.Spec, n int64) {
			p.Licenses = slices.Clone(p.Licenses)
			if p.Licenses[i].Count = n; n == 0 {
				p.Licenses = slices.Delete(p.Licenses, i, i+1)
			}
		})
	}
	if len(spec.Licenses) > 1 || len(spec.AnyLicense) > 0 {
		x.without("without --licenses", func(p *job.Spec) { p.Licenses, p.AnyLicense = nil, nil })
	}
}

// nodes tries fewer nodes. Where there are tasks to be shared out, fewer nodes have more of
// them each, so that fewer need not be better.
func (x *search) nodes() {
	spec := x.r.spec
	if spec.MinNodes < 2 {
		return
	}
	unit, least := max(1, spec.Topology.Segment), max(1, len(spec.NodeList))
	least = (least + unit - 1) / unit * unit
	at := func(step int) (string, job.Spec) {
		p := *spec
		p.MinNodes = max(least, spec.MinNodes-step*unit)
		if spec.MaxNodes > spec.MinNodes {
			return fmt.Sprintf("--nodes=%d-%d", p.MinNodes, p.MaxNodes), p
		}
		p.MaxNodes = 0
		return fmt.Sprintf("--nodes=%d", p.MinNodes), p
	}
	x.try(change{(spec.MinNodes - least) / unit, x.shared(), at})
}

// shared says whether an amount is shared out among nodes, or how many these are follows from
// amounts: then fewer may be worse.
func (x *search) shared() bool {
	return x.r.spec.MinNodes == 0 || x.r.spec.Tasks > 0 || perJob(x.r.spec) > 0
}

// amounts tries fewer tasks and CPUs, less memory, and less time.
func (x *search) amounts() {
	spec := x.r.spec
	least := int64(1)
	if spec.MinNodes > 0 {
		least = int64(spec.MinNodes)
	}
	x.fewer(int64(spec.Tasks), least, 1, true, flag("--ntasks"), func(p *job.Spec, n int64) { p.Tasks = int(n) })
	if spec.Tasks == 0 {
		x.fewer(int64(spec.TasksPerNode), 1, 1, false, flag("--ntasks-per-node"), func(p *job.Spec, n int64) { p.TasksPerNode = int(n) })
	}
	x.fewer(int64(spec.CPUsPerTask), 1, 1, x.shared(), flag("--cpus-per-task"), func(p *job.Spec, n int64) { p.CPUsPerTask = int(n) })
	x.fewer(int64(spec.CPUsPerGPU), 1, 1, x.shared(), flag("--cpus-per-gpu"), func(p *job.Spec, n int64) { p.CPUsPerGPU = int(n) })
	x.memory()
	x.time()
}

func (x *search) memory() {
	spec := x.r.spec
	m := spec.Memory
	name := [...]string{job.PerCPU: "--mem-per-cpu", job.PerGPU: "--mem-per-gpu"}
	option := "--mem"
	if int(m.Per) < len(name) && name[m.Per] != "" {
		option = name[m.Per]
	}
	if m.All || m.MiB == 0 { // what that is of a node
		m, option = job.Memory{Per: job.PerNode}, "--mem"
		for i := range x.s.classes[x.r.class].options {
			for _, need := range x.s.classes[x.r.class].options[i].cells {
				m.MiB = max(m.MiB, int64(need.v[slotMemory]))
			}
		}
	}
	text := func(n int64) string { return fmt.Sprintf("%s=%dM", option, n) }
	x.fewer(m.MiB, 1, max(1, m.MiB/maxParts), spec.MinNodes == 0, text, func(p *job.Spec, n int64) { p.Memory = job.Memory{MiB: n, Per: m.Per} })
}

// time tries a shorter limit, in whole minutes if it has some.
func (x *search) time() {
	spec, c := x.r.spec, x.s.classes[x.r.class]
	if len(c.options) == 0 {
		return
	}
	limit := x.s.leastIn(spec, c.options[0].part)
	unit := job.Millisecond
	if limit > job.Minute {
		unit = max(job.Minute, limit/maxParts/job.Minute*job.Minute)
		limit = (limit + job.Minute - 1) / job.Minute * job.Minute
	}
	text := func(d int64) string { return "--time=" + spanText(job.Duration(d)) }
	if spec.TimeMin > 0 {
		text = func(d int64) string { return "--time-min=" + spanText(job.Duration(d)) }
	}
	x.fewer(int64(limit), int64(unit), int64(unit), false, text, func(p *job.Spec, d int64) {
		if p.TimeMin > 0 {
			p.TimeMin = job.Duration(d)
		} else {
			p.TimeLimit = job.Duration(d)
		}
	})
}

// topology tries nodes that are less near to each other.
func (x *search) topology() {
	spec, net := x.r.spec, x.s.net
	t := spec.Topology
	if t.Switches > 0 && !x.r.soft {
		c := change{max(1, len(x.s.nodes)-t.Switches), false, nil}
		if need := x.s.classes[x.r.class]; len(need.options) > 0 {
			c.most = max(1, need.options[0].nodes-t.Switches)
		}
		c.at = func(step int) (string, job.Spec) {
			p := *spec
			if p.Topology.Switches += step; step == c.most {
				p.Topology.Switches, p.Topology.Wait = 0, 0
				return "without --switches", p
			}
			return fmt.Sprintf("--switches=%d", p.Topology.Switches), p
		}
		x.try(c)
	}
	if t.Required > 0 {
		levels := max(1, net.levels-t.Required+1)
		x.try(change{levels, false, func(step int) (string, job.Spec) {
			p := *spec
			if p.Topology.Required += step; step == levels {
				p.Topology.Required = 0
				return "without a level of topology", p
			}
			return fmt.Sprintf("level %d of topology in place of %d", p.Topology.Required-1, t.Required-1), p
		}})
	}
	if t.Segment > 1 {
		var sizes []int // which divide the segment
		for n := t.Segment - 1; n > 0; n-- {
			if t.Segment%n == 0 {
				sizes = append(sizes, n)
			}
		}
		x.try(change{len(sizes), true, func(step int) (string, job.Spec) {
			p := *spec
			p.Topology.Segment = sizes[step-1]
			return fmt.Sprintf("--segment=%d", sizes[step-1]), p
		}})
	}
	if t.Segment > 0 || t.Block {
		x.without("outside of blocks", func(p *job.Spec) { p.Topology.Segment, p.Topology.Block = 0, false })
	}
	if t.Switches > 0 && (t.Required > 0 || t.Segment > 0 || t.Block) || t.Required > 0 && (t.Segment > 0 || t.Block) {
		x.without("without --switches, --segment or a level of topology", func(p *job.Spec) { p.Topology = job.Topology{} })
	}
}

// maxPartitions is how many other partitions are tried.
const maxPartitions = 8

// partitions tries each of those that the job does not ask for.
func (x *search) partitions() {
	mine, tried := x.s.partitionsOf(x.r.spec), 0
	for i := range x.s.parts {
		if p := &x.s.parts[i]; !p.gone && p.starts() && !slices.Contains(mine, i) && p.refuses(x.r.spec) == "" && tried < maxPartitions {
			tried++
			x.without("--partition="+p.spec.Name, func(spec *job.Spec) { spec.Partitions = []string{p.spec.Name} })
		}
	}
}
