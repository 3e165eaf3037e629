package sched

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// kind is what nodes have in common that are the same for every job.
type kind struct {
	total   vec
	spec    *job.Node // of one of them
	parts   []uint64  // set of partitions they are in
	prim    int       // the resource that is indexed: GPUs, else CPUs
	devices [slots - slotGRES]*affinity
}

func (k *kind) in(part int) bool { return k.parts[part/64]&(1<<(part%64)) != 0 }

// buckets is into how many parts the indexed resource is divided at most.
const buckets = 64

// bucket is where a node with that much free is.
func (k *kind) bucket(free int32) int16 {
	if t := k.total[k.prim]; t > buckets {
		return int16(int64(free) * buckets / int64(t))
	}
	return int16(free)
}

// cell is all nodes of a kind, in the order of the topology, so that those below a switch
// are next to each other.
type cell struct {
	tok    *token
	kind   *kind
	nodes  []int32
	free   [][]uint64 // by bucket: a set of positions; the last one is of nodes on which nothing runs
	count  []int32    // by bucket: how many there are
	spans  [][]span   // by level: the switches below which there are nodes of this kind
	leaf   []int32    // by position: index into spans[0]
	fresh  []int32    // by leaf: how many nodes nothing runs on
	trees  []seen
	change []int32 // positions that have changed since the trees were made
}

// span is the positions [lo,hi) of the nodes below a switch.
type span struct{ domain, lo, hi int32 }

// net is the topology, as numbers.
type net struct {
	levels int       // of switches; at least 1
	domain [][]int32 // by level, by node: which switch is above
	count  []int32   // by level: how many switches
	block  []int32   // by node: which block; -1: none
	blocks int32
	wide   []wide  // blocks taken together, by rising size
	order  []int32 // by node: its place in a walk through the tree
}

// refresh makes the index anew if nodes, partitions or the topology have changed.
func (s *Scheduler) refresh() {
	if !s.stale {
		return
	}
	s.stale = false
	s.net = s.walk()
	members := s.members()
	byKind := map[string]int{}
	s.cells = nil
	order := make([]int32, 0, len(s.nodes))
	for i := range s.nodes {
		order = append(order, int32(i))
	}
	slices.SortFunc(order, func(a, b int32) int { return cmp.Compare(s.net.order[a], s.net.order[b]) })
	var sig []byte
	for _, i := range order {
		n := s.own(i)
		n.place = place{cell: -1, bucket: -1}
		if n.gone {
			continue
		}
		sig = signature(sig[:0], n, members[i])
		c, ok := byKind[string(sig)]
		if !ok {
			c = len(s.cells)
			byKind[string(sig)] = c
			s.cells = append(s.cells, newCell(s.tok, n, members[i]))
		}
		n.place.cell, n.place.pos = int32(c), int32(len(s.cells[c].nodes))
		s.cells[c].nodes = append(s.cells[c].nodes, i)
	}
	for _, c := range s.cells {
		s.fillCell(c)
	}
	for i := range s.classes {
		s.resolve(s.ownClass(int32(i)))
	}
	if s.regroup {
		s.regroup = false
		s.reclass()
	}
	s.measure()
}

// members is the set of partitions of each node.
func (s *Scheduler) members() [][]uint64 {
	words := (len(s.parts) + 63) / 64
	all := make([]uint64, words*len(s.nodes))
	sets := make([][]uint64, len(s.nodes))
	for i := range sets {
		sets[i] = all[i*words : (i+1)*words]
	}
	for p := range s.parts {
		s.parts[p].missing = 0
		for _, name := range s.parts[p].spec.Nodes {
			if i, ok := s.nodeNumber(name); ok && !s.nodes[i].gone {
				sets[i][p/64] |= 1 << (p % 64)
			} else {
				s.parts[p].missing++
			}
		}
	}
	return sets
}

// signature is the same for nodes of the same kind.
func signature(b []byte, n *node, parts []uint64) []byte {
	for _, v := range n.total {
		b = binary.AppendVarint(b, int64(v))
	}
	b = binary.AppendVarint(b, int64(n.spec.Weight))
	b = binary.AppendVarint(b, int64(n.spec.ThreadsPerCore))
	b = binary.AppendVarint(b, int64(n.spec.Sockets))
	for _, w := range parts {
		b = binary.AppendUvarint(b, w)
	}
	text := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	for i := range n.spec.GRES {
		g := &n.spec.GRES[i]
		text(g.Name)
		text(g.Type)
		b = binary.AppendVarint(b, int64(len(g.Links)))
		for _, row := range g.Links {
			b = binary.AppendVarint(b, int64(len(row)))
			for _, l := range row {
				b = binary.AppendVarint(b, int64(l))
			}
		}
		b = binary.AppendVarint(b, int64(len(g.Sockets)))
		for _, l := range g.Sockets {
			b = binary.AppendVarint(b, int64(l))
		}
	}
	features := slices.Sorted(slices.Values(n.spec.Features))
	for _, f := range features {
		text(f)
	}
	return b
}

func newCell(tok *token, n *node, parts []uint64) *cell {
	k := &kind{total: n.total, spec: n.spec, parts: slices.Clone(parts), prim: slotCPU}
	for i := range n.spec.GRES {
		g := &n.spec.GRES[i]
		if k.prim == slotCPU && g.Name == "gpu" && g.Count > 0 {
			k.prim = slotGRES + i
		}
		if identity(g) {
			k.devices[i] = newAffinity(g)
		}
	}
	return &cell{tok: tok, kind: k}
}

// fillCell makes the sets of a cell whose nodes are known.
func (s *Scheduler) fillCell(c *cell) {
	c.free = make([][]uint64, int(c.kind.bucket(c.kind.total[c.kind.prim]))+2)
	c.count = make([]int32, len(c.free))
	for b := range c.free {
		c.free[b] = make([]uint64, (len(c.nodes)+63)/64)
	}
	c.leaf = make([]int32, len(c.nodes))
	c.spans = make([][]span, s.net.levels)
	for level := range c.spans {
		for pos, i := range c.nodes {
			d := s.net.domain[level][i]
			if spans := c.spans[level]; len(spans) == 0 || spans[len(spans)-1].domain != d {
				c.spans[level] = append(spans, span{d, int32(pos), int32(pos)})
			}
			last := len(c.spans[level]) - 1
			c.spans[level][last].hi++
			if level == 0 {
				c.leaf[pos] = int32(last)
			}
		}
	}
	c.fresh = make([]int32, len(c.spans[0]))
	for _, i := range c.nodes {
		s.reindex(i)
	}
	c.change = nil
}

// ownCell makes a cell changeable.
func (s *Scheduler) ownCell(i int32) *cell {
	c := s.cells[i]
	if c.tok == s.tok {
		return c
	}
	d := *c
	d.tok = s.tok
	d.free = make([][]uint64, len(c.free))
	for b := range d.free {
		d.free[b] = slices.Clone(c.free[b])
	}
	d.count = slices.Clone(c.count)
	d.fresh = slices.Clone(c.fresh)
	d.trees = slices.Clone(c.trees)
	d.change = slices.Clone(c.change)
	s.cells[i] = &d
	return &d
}

// reindex puts a node where it belongs after what it has free has changed.
func (s *Scheduler) reindex(i int32) {
	n := s.own(i)
	if s.stale || n.place.cell < 0 {
		return
	}
	c := s.ownCell(n.place.cell)
	s.touch(c, n)
	bucket, fresh := int16(-1), false
	if n.open() {
		bucket, fresh = c.kind.bucket(n.free[c.kind.prim]), n.free == n.total
		if fresh {
			bucket = int16(len(c.free) - 1)
		}
	}
	word, bit := n.place.pos/64, uint64(1)<<(n.place.pos%64)
	if old := n.place.bucket; old != bucket {
		if old >= 0 {
			c.free[old][word] &^= bit
			c.count[old]--
		}
		if bucket >= 0 {
			c.free[bucket][word] |= bit
			c.count[bucket]++
		}
		n.place.bucket = bucket
	}
	if fresh != n.place.fresh {
		if n.place.fresh = fresh; fresh {
			c.fresh[c.leaf[n.place.pos]]++
		} else {
			c.fresh[c.leaf[n.place.pos]]--
		}
	}
}

// touch notes for the trees that a node's timeline has changed.
func (s *Scheduler) touch(c *cell, n *node) {
	if s.pass.keepsGaps(job.Forever) {
		s.pass.changes[c.nodes[n.place.pos]]++
	}
	if len(c.trees) == 0 {
		return
	}
	last := len(c.change) - 1
	if last >= 0 && c.change[last] == n.place.pos && c.trees[0].changes <= last {
		return // the first tree is the one that was used last
	}
	c.change = append(c.change, n.place.pos)
	if len(c.change) > 4*len(c.nodes)+1024 {
		c.trees, c.change = nil, nil
	}
}

// each yields the positions in the set, and stops when yield says so.
func each(set []uint64, yield func(pos int32) bool) bool {
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			if !yield(int32(w*64 + bits.TrailingZeros64(word))) {
				return false
			}
		}
	}
	return true
}
