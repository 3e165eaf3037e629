package sched

import (
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// checkNetwork refuses a topology that is not a forest, or blocks that overlap.
func checkNetwork(n *job.Network) error {
	refuse := func(why, nearest string) error { return &Refused{Event: "set network", Why: why, Nearest: nearest} }
	at := map[string]int{}
	for i := range n.Switches {
		name := n.Switches[i].Name
		if _, twice := at[name]; twice || name == "" {
			return refuse(fmt.Sprintf("switch %q is given twice or has no name", name), "")
		}
		at[name] = i
	}
	parent, leaf := map[string]string{}, map[string]string{}
	for i := range n.Switches {
		sw := &n.Switches[i]
		for _, child := range sw.Switches {
			if _, ok := at[child]; !ok {
				return refuse(fmt.Sprintf("switch %s has the child %q, which is no switch", sw.Name, child), nearest(child, slices.Values(switchNames(n))))
			}
			if other, ok := parent[child]; ok {
				return refuse(fmt.Sprintf("switch %s is below both %s and %s", child, other, sw.Name), "")
			}
			parent[child] = sw.Name
		}
		for _, node := range sw.Nodes {
			if other, ok := leaf[node]; ok {
				return refuse(fmt.Sprintf("node %s is below both switch %s and switch %s", node, other, sw.Name), "")
			}
			leaf[node] = sw.Name
		}
	}
	for i := range n.Switches {
		steps := 0
		for name := n.Switches[i].Name; name != ""; name = parent[name] {
			if steps++; steps > len(n.Switches) {
				return refuse(fmt.Sprintf("switch %s is below itself", n.Switches[i].Name), "")
			}
		}
	}
	names, in := map[string]bool{}, map[string]string{}
	for _, b := range n.Blocks {
		if names[b.Name] || b.Name == "" {
			return refuse(fmt.Sprintf("block %q is given twice or has no name", b.Name), "")
		}
		names[b.Name] = true
		for _, node := range b.Nodes {
			if other, ok := in[node]; ok {
				return refuse(fmt.Sprintf("node %s is in both block %s and block %s", node, other, b.Name), "")
			}
			in[node] = b.Name
		}
	}
	for i, size := range n.BlockSizes {
		if size <= 0 || size%n.BlockSizes[0] != 0 || i > 0 && size <= n.BlockSizes[i-1] {
			return refuse(fmt.Sprintf("block size %d is not positive, or no larger multiple of the one before", size), "")
		}
	}
	return nil
}

func switchNames(n *job.Network) []string {
	var all []string
	for i := range n.Switches {
		all = append(all, n.Switches[i].Name)
	}
	return all
}

// nearest is the name among all that is like name, "" if none is.
func nearest(name string, all func(func(string) bool)) string {
	best, at := 3, ""
	for other := range all {
		if d := distance(other, name, best); d < best {
			best, at = d, other
		}
	}
	return at
}

// walk numbers the switches, from the leaves up, and the nodes in the order of the tree.
// Nodes that are below no switch come last, below a switch of their own.
func (s *Scheduler) walk() *net {
	sw := slices.Clone(s.network.Switches)
	sw = s.ownSwitches(sw)
	at := make(map[string]int, len(sw))
	for i := range sw {
		at[sw[i].Name] = i
	}
	parent := make([]int, len(sw))
	for i := range parent {
		parent[i] = -1
	}
	for i := range sw {
		for _, child := range sw[i].Switches {
			parent[at[child]] = i
		}
	}
	height := make([]int, len(sw))
	levels := 1
	for i := range sw {
		for h, j := 0, i; j >= 0; h, j = h+1, parent[j] {
			height[j] = max(height[j], h)
			levels = max(levels, h+1)
		}
	}
	t := &net{levels: levels, domain: make([][]int32, levels), count: make([]int32, levels), order: make([]int32, len(s.nodes)), block: make([]int32, len(s.nodes))}
	for l := range t.domain {
		t.domain[l] = make([]int32, len(s.nodes))
		for i := range t.domain[l] {
			t.domain[l][i] = -1
		}
	}
	next := int32(0)
	number := make([][]int32, levels) // by level, by switch
	for l := range number {
		number[l] = make([]int32, len(sw))
	}
	var visit func(i int)
	visit = func(i int) {
		for _, name := range sw[i].Nodes {
			n, ok := s.nodeNumber(name)
			if !ok || t.domain[0][n] >= 0 {
				continue
			}
			t.order[n] = next
			next++
			up := i
			for l := range levels {
				for height[up] < l && parent[up] >= 0 {
					up = parent[up]
				}
				if number[l][up] == 0 {
					t.count[l]++
					number[l][up] = t.count[l]
				}
				t.domain[l][n] = number[l][up] - 1
			}
		}
		for _, child := range sw[i].Switches {
			visit(at[child])
		}
	}
	for i := range sw {
		if parent[i] < 0 {
			visit(i)
		}
	}
	for n := range s.nodes {
		if t.domain[0][n] < 0 {
			t.order[n] = next
			next++
			for l := range levels {
				t.domain[l][n] = t.count[l]
			}
		}
	}
	for l := range levels {
		t.count[l]++
	}
	s.walkBlocks(t)
	return t
}

// ownSwitches adds the leaves that nodes name themselves.
func (s *Scheduler) ownSwitches(sw []job.Switch) []job.Switch {
	at, below := map[string]int{}, map[string]bool{}
	for i := range sw {
		at[sw[i].Name] = i
		for _, n := range sw[i].Nodes {
			below[n] = true
		}
	}
	for _, n := range s.nodes {
		if n.gone || n.spec.Switch == "" || below[n.spec.Name] {
			continue
		}
		i, ok := at[n.spec.Switch]
		if !ok {
			i = len(sw)
			at[n.spec.Switch] = i
			sw = append(sw, job.Switch{Name: n.spec.Switch})
		}
		sw[i].Nodes = append(slices.Clip(sw[i].Nodes), n.spec.Name)
	}
	return sw
}

func (s *Scheduler) walkBlocks(t *net) {
	for i := range t.block {
		t.block[i] = -1
	}
	at := map[string]int32{}
	for _, b := range s.network.Blocks {
		at[b.Name] = t.blocks
		for _, name := range b.Nodes {
			if n, ok := s.nodeNumber(name); ok {
				t.block[n] = t.blocks
			}
		}
		t.blocks++
	}
	for i, n := range s.nodes {
		if n.gone || n.spec.Block == "" || t.block[i] >= 0 {
			continue
		}
		b, ok := at[n.spec.Block]
		if !ok {
			b = t.blocks
			at[n.spec.Block] = b
			t.blocks++
		}
		t.block[i] = b
	}
	for i, size := range s.network.BlockSizes {
		if i == 0 {
			continue
		}
		w := wide{size, slices.Clone(t.block)}
		for n, b := range w.block {
			if b >= 0 {
				w.block[n] = b / int32(size/s.network.BlockSizes[0])
			}
		}
		t.wide = append(t.wide, w)
	}
}

// wide is blocks that follow each other, taken together for segments that are larger than
// one of them.
type wide struct {
	size  int
	block []int32 // by node
}

// blocksOf is by node the block that a segment of that many nodes has to be in.
func (t *net) blocksOf(segment int, sizes []int) []int32 {
	if len(sizes) > 0 && segment > sizes[0] {
		for i := range t.wide {
			if segment <= t.wide[i].size {
				return t.wide[i].block
			}
		}
	}
	return t.block
}
