package sched

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// class is all jobs that ask for the same, but for their time limits, which are within the
// maximum of the same partitions: what keeps one of them from starting keeps the others.
type class struct {
	tok               *token
	spec              *job.Spec // of one of them
	tooLong           []int     // partitions whose maximum is below their limits
	queue             queue     // of those that may be started
	options           []option
	could             int      // nodes that could take a share of it, in the best option
	missing           int      // nodes its partitions have that do not exist yet
	soft              bool     // without what is only waited for for a while
	cursors           *cursors // of a replan
	checked, possible bool     // whether it could start if nothing else ran
}

// option is one way to satisfy a class: a partition, and one of the constraints of which
// one has to hold.
type option struct {
	part        int
	nodes, most int
	spec        *job.Spec
	total       *job.GRESRequest // shared out among the nodes as they have it; nil: each has a share
	twins       bool             // a cell is in cells more than once
	cells       []need
	must        []int32 // nodes that have to be among them
	never       []int32 // nodes that must not, sorted
	counts      []counted
}

// need is what an option takes of each node of a cell. If there is a total, that is with
// the least share of it, shares are what others take of all else, and slots where they are.
type need struct {
	cell   int32
	v      vec
	shares []vec // for 1, 2, ... of the total
	slots  []int
}

// counted is how many nodes have to have a feature.
type counted struct {
	feature *job.Constraint
	n       int
}

// classKey is the same for specs of the same class.
func (s *Scheduler) classKey(b []byte, spec *job.Spec) []byte {
	num := func(n int64) { b = binary.AppendVarint(b, n) }
	text := func(t string) { num(int64(len(t))); b = append(b, t...) }
	list := func(l []string) {
		num(int64(len(l)))
		for _, t := range l {
			text(t)
		}
	}
	flag := func(f bool) {
		if f {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	list(spec.Partitions)
	var few [4]int
	for _, p := range s.tooLong(few[:0], spec) {
		num(int64(p))
	}
	num(-1)
	for _, n := range [...]int{spec.MinNodes, spec.MaxNodes, spec.Tasks, spec.TasksPerNode, spec.CPUsPerTask, spec.CPUsPerGPU, spec.ThreadsPerCore} {
		num(int64(n))
	}
	num(spec.Memory.MiB)
	b = append(b, byte(spec.Memory.Per))
	flag(spec.Memory.All)
	num(int64(len(spec.GRES)))
	for i := range spec.GRES {
		text(spec.GRES[i].Name)
		text(spec.GRES[i].Type)
		num(spec.GRES[i].Count)
		b = append(b, byte(spec.GRES[i].Per))
	}
	flag(spec.Exclusive)
	flag(spec.Contiguous)
	b = appendConstraint(b, spec.Constraint)
	b = appendConstraint(b, spec.Prefer)
	list(spec.NodeList)
	list(spec.Exclude)
	num(int64(spec.Topology.Switches))
	num(int64(spec.Topology.Wait))
	num(int64(spec.Topology.Required))
	num(int64(spec.Topology.Segment))
	flag(spec.Topology.Block)
	for _, l := range [][]job.License{spec.Licenses, spec.AnyLicense} {
		num(int64(len(l)))
		for i := range l {
			text(l[i].Name)
			num(int64(l[i].Count))
		}
	}
	text(spec.Image)
	if s.restricted {
		text(spec.User)
		text(spec.Account)
		text(spec.QOS)
		list(spec.Groups)
	}
	return b
}

// tooLong is the partitions of spec that it may not be in because of its time limit, in a
// list that is empty. They are numbers: a class means the same when a maximum changes, and
// it is its jobs that change theirs.
func (s *Scheduler) tooLong(list []int, spec *job.Spec) []int {
	var few [4]int
	for _, p := range s.partitionsIn(few[:0], spec) {
		if s.parts[p].tooShort(spec) {
			list = append(list, p)
		}
	}
	return list
}

// admits says whether jobs of a class may be in a partition.
func (s *Scheduler) admits(c *class, p int) bool {
	return !slices.Contains(c.tooLong, p) && s.parts[p].bars(c.spec) == ""
}

func appendConstraint(b []byte, c *job.Constraint) []byte {
	if c == nil {
		return append(b, 0)
	}
	b = append(b, 1)
	b = append(binary.AppendVarint(b, int64(len(c.Feature))), c.Feature...)
	b = binary.AppendVarint(b, int64(c.Count))
	for _, l := range [][]*job.Constraint{c.And, c.Or, c.OneOf} {
		b = binary.AppendVarint(b, int64(len(l)))
		for _, x := range l {
			b = appendConstraint(b, x)
		}
	}
	return b
}

// classes finds classes by key. It is shared with forks until one of them adds a class.
type classIndex struct {
	tok *token
	m   map[string]int32
}

// classOf returns the class of a spec. soft is without what is only waited for for a while.
func (s *Scheduler) classOf(spec *job.Spec, soft bool) int32 {
	s.scratch = s.classKey(s.scratch[:0], spec)
	if soft {
		s.scratch = append(s.scratch, 's')
	}
	if c, ok := s.kinds.m[string(s.scratch)]; ok {
		return c
	}
	if s.kinds.tok != s.tok {
		m := make(map[string]int32, len(s.kinds.m)+1)
		maps.Copy(m, s.kinds.m)
		s.kinds = classIndex{s.tok, m}
	}
	c := &class{tok: s.tok, spec: spec, tooLong: s.tooLong(nil, spec), soft: soft}
	s.classes = append(s.classes, c)
	s.kinds.m[string(s.scratch)] = int32(len(s.classes) - 1)
	s.resolve(c)
	return int32(len(s.classes) - 1)
}

// ownClass makes a class changeable.
func (s *Scheduler) ownClass(i int32) *class {
	c := s.classes[i]
	if c.tok != s.tok {
		d := *c
		d.tok, d.queue, d.cursors = s.tok, c.queue.fork(), nil
		s.classes[i] = &d
		return &d
	}
	return c
}

// topology is what the class asks of it; after the wait for switches nothing.
func (c *class) topology() job.Topology {
	t := c.spec.Topology
	if c.soft {
		t.Switches = 0
	}
	return t
}

// resolve finds the nodes that a class could run on.
func (s *Scheduler) resolve(c *class) {
	c.options, c.could, c.missing, c.cursors = nil, 0, 0, nil
	c.checked, c.possible = false, false
	for _, p := range s.partitionsOf(c.spec) {
		part := &s.parts[p]
		c.missing += part.missing
		if !s.admits(c, p) {
			continue
		}
		for _, alt := range alternatives(c.spec.Constraint) {
			for _, shared := range []bool{false, true} {
				o, could, ok := s.option(c.spec, p, alt, shared)
				c.could = max(c.could, could)
				if ok {
					c.options = append(c.options, o)
				}
			}
		}
	}
	slices.SortStableFunc(c.options, func(a, b option) int {
		return cmp.Compare(s.parts[b.part].spec.Tier, s.parts[a.part].spec.Tier)
	})
}

// option works out one way to satisfy spec, and on how many nodes that could be. It is not
// ok if there are too few of them. shared is with a total that nodes share as they have it.
func (s *Scheduler) option(spec *job.Spec, p int, constraint *job.Constraint, shared bool) (option, int, bool) {
	o := option{part: p, spec: spec}
	part := s.parts[p].spec
	all, counts := splitCounts(constraint)
	o.counts = counts
	var eligible []int32
	for c := range s.cells {
		k := s.cells[c].kind
		if k.in(p) && satisfies(all, k.spec.Features) {
			eligible = append(eligible, int32(c))
		}
	}
	if !o.size(s, spec, part, eligible, shared) {
		return o, 0, false
	}
	could := 0
	o.never = s.numbers(spec.Exclude)
	o.must = s.numbers(spec.NodeList)
	for _, c := range eligible {
		needs := o.needs(part, s.cells[c].kind, c)
		o.cells = append(o.cells, needs...)
		o.twins = o.twins || len(needs) > 1
		for _, n := range s.cells[c].nodes {
			if len(needs) > 0 && !o.excludes(n) {
				could++
			}
		}
	}
	wantsGPU := slices.ContainsFunc(spec.GRES, func(g job.GRESRequest) bool { return g.Name == "gpu" })
	slices.SortStableFunc(o.cells, func(a, b need) int {
		ka, kb := s.cells[a.cell].kind, s.cells[b.cell].kind
		if ka.spec.Weight != kb.spec.Weight || wantsGPU {
			return cmp.Compare(ka.spec.Weight, kb.spec.Weight)
		}
		return cmp.Compare(min(ka.prim, slotGRES), min(kb.prim, slotGRES))
	})
	for _, m := range o.must {
		if !slices.ContainsFunc(o.cells, func(x need) bool { return x.cell == s.nodes[m].place.cell }) {
			return o, could, false
		}
	}
	return o, could, could >= o.nodes && len(o.must) == len(spec.NodeList)
}

func (o *option) excludes(n int32) bool {
	_, found := slices.BinarySearch(o.never, n)
	return found
}

// numbers are the sorted numbers of nodes that exist.
func (s *Scheduler) numbers(list []string) []int32 {
	var all []int32
	for _, name := range list {
		if i, ok := s.nodeNumber(name); ok && !s.nodes[i].gone {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// size sets how many nodes an option has: what was asked for, or as few as do on the
// largest of the nodes.
func (o *option) size(s *Scheduler, spec *job.Spec, part *job.Partition, eligible []int32, shared bool) bool {
	if shared {
		return o.sizeShared(spec, part)
	}
	o.nodes, o.most = spec.MinNodes, max(spec.MinNodes, spec.MaxNodes)
	for _, c := range o.counts {
		o.nodes = max(o.nodes, 0)
		o.most = max(o.most, c.n)
	}
	if o.nodes == 0 {
		o.nodes = math.MaxInt
		for _, c := range eligible {
			o.nodes = min(o.nodes, fewest(spec, part, s.cells[c].kind))
		}
		if o.nodes == math.MaxInt {
			return false
		}
		sum := 0
		for _, c := range o.counts {
			sum += c.n
		}
		o.nodes = max(o.nodes, sum, len(spec.NodeList), part.MinNodes)
		if spec.MaxNodes > 0 && o.nodes > spec.MaxNodes {
			return false
		}
		o.most = max(o.nodes, min(spec.MaxNodes, spec.Tasks))
	}
	if spec.Tasks > 0 && spec.TasksPerNode == 0 { // a node without a task is of no use
		o.nodes, o.most = min(o.nodes, spec.Tasks), min(o.most, spec.Tasks)
	}
	if part.MaxNodes > 0 {
		if o.nodes > part.MaxNodes {
			return false
		}
		o.most = min(o.most, part.MaxNodes)
	}
	o.most = max(o.most, o.nodes)
	if o.most >= part.MinNodes {
		o.nodes = max(o.nodes, part.MinNodes)
	}
	if seg := spec.Topology.Segment; seg > 1 { // a part of one is none
		o.nodes = (o.nodes + seg - 1) / seg * seg
		o.most = max(o.nodes, o.most/seg*seg)
		for _, limit := range []int{spec.MaxNodes, spec.Tasks, part.MaxNodes} {
			if limit > 0 && limit < o.nodes {
				return false
			}
		}
	}
	if perJob(spec) > 0 {
		o.most = o.nodes
	}
	if total := sharedTotal(spec); total != nil && total.Count%int64(o.nodes) != 0 {
		return false // see sizeShared
	}
	return o.nodes >= part.MinNodes
}

// maxAlternatives is how many constraints one may stand for: each costs a look at all kinds
// of nodes.
const maxAlternatives = 256

// countAlternatives is how many alternatives c has, or something above the most.
func countAlternatives(c *job.Constraint) int {
	n := 1
	switch {
	case c == nil:
	case len(c.OneOf) > 0:
		n = 0
		for _, x := range c.OneOf {
			n += countAlternatives(x)
		}
	case len(c.And) > 0:
		for _, x := range c.And {
			n = min(n*countAlternatives(x), maxAlternatives+1)
		}
	}
	return min(n, maxAlternatives+1)
}

// alternatives are the constraints of which one has to hold on all nodes: what [a|b] is
// without its brackets.
func alternatives(c *job.Constraint) []*job.Constraint {
	if c == nil {
		return []*job.Constraint{nil}
	}
	var all []*job.Constraint
	switch {
	case len(c.OneOf) > 0:
		for _, x := range c.OneOf {
			all = append(all, alternatives(x)...)
		}
	case len(c.And) > 0:
		all = []*job.Constraint{{}}
		for _, x := range c.And {
			var next []*job.Constraint
			for _, left := range all {
				for _, right := range alternatives(x) {
					next = append(next, &job.Constraint{And: append(slices.Clip(left.And), right)})
				}
			}
			all = next
		}
	default:
		all = []*job.Constraint{c}
	}
	return all
}

// splitCounts takes out of a constraint the features that not all nodes need.
func splitCounts(c *job.Constraint) (*job.Constraint, []counted) {
	switch {
	case c == nil:
		return nil, nil
	case c.Count > 0:
		return nil, []counted{{&job.Constraint{Feature: c.Feature, And: c.And, Or: c.Or}, c.Count}}
	case len(c.And) > 0:
		rest := &job.Constraint{}
		var counts []counted
		for _, x := range c.And {
			r, n := splitCounts(x)
			counts = append(counts, n...)
			if r != nil {
				rest.And = append(rest.And, r)
			}
		}
		if len(rest.And) == 0 {
			rest = nil
		}
		return rest, counts
	}
	return c, nil
}

// satisfies says whether a node with these features satisfies c.
func satisfies(c *job.Constraint, features []string) bool {
	if c == nil {
		return true
	}
	if c.Feature != "" && !slices.Contains(features, c.Feature) {
		return false
	}
	for _, x := range c.And {
		if !satisfies(x, features) {
			return false
		}
	}
	for _, any := range [][]*job.Constraint{c.Or, c.OneOf} {
		if len(any) > 0 && !slices.ContainsFunc(any, func(x *job.Constraint) bool { return satisfies(x, features) }) {
			return false
		}
	}
	return true
}

func (c counted) String() string { return fmt.Sprintf("%s*%d", c.feature.Feature, c.n) }
