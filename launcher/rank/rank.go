// Package rank computes what the ranks of a step are told: which of them are on which
// node, what their environment says, and what their files are called.
//
// First use: [Counts] and [Deal] where a step is made; then [New] of a step on one of its
// nodes, [Env.Rank] for each rank there, and [Names.Expand] for its files.
//
// The package is pure: it opens nothing, asks nobody and knows no clock. Its functions may
// be called by any number of goroutines; values are not changed once they were made. It
// chooses no port and starts nothing.
package rank

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Distribution is how ranks are dealt to nodes, and then to the sockets of each.
type Distribution struct {
	Kind  Kind
	Plane int // of Plane: so many at a time
	// Pack takes as few nodes as do; with Block they are filled, one after the other.
	Pack bool
	// Sockets is how the tasks of a node are dealt to its sockets where they are bound to CPUs:
	// block, cyclic or fcyclic; empty: cyclic. Cores is written down only.
	Sockets, Cores string
}

// Kind is a way to deal ranks to nodes, in Slurm's words.
type Kind uint8

// The kinds.
const (
	Block     Kind = iota // node 0 gets the first ones, node 1 the next
	Cyclic                // one each in turn, as long as a node has room
	Plane                 // as Cyclic, a plane at a time
	Arbitrary             // as a list of hosts says, one for each rank
)

// ParseDistribution reads --distribution: how tasks are dealt to nodes, to sockets and to
// cores, with colons between, and behind a comma whether nodes are filled. Nothing, and "*", is
// block of nodes.
func ParseDistribution(text string) (Distribution, error) {
	var d Distribution
	levels, pack, _ := strings.Cut(strings.ToLower(text), ",")
	if levels == "pack" || levels == "nopack" {
		levels, pack = "*", levels
	}
	d.Pack = pack == "pack"
	parts := append(strings.Split(levels, ":"), "", "")
	for i, to := range []*string{&d.Sockets, &d.Cores} {
		switch word := parts[i+1]; word {
		case "", "*":
		case "block", "cyclic", "fcyclic":
			*to = word
		default:
			return Distribution{}, fmt.Errorf("distribution %q: to sockets and cores there are block, cyclic and fcyclic", text)
		}
	}
	first := parts[0]
	switch first {
	case "", "*", "block":
		return d, nil
	case "cyclic":
		d.Kind = Cyclic
		return d, nil
	case "arbitrary":
		d.Kind = Arbitrary
		return d, nil
	}
	if size, ok := strings.CutPrefix(first, "plane="); ok {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 || n > maxTasks {
			return Distribution{}, fmt.Errorf("distribution %q: a plane is a number of tasks, as in plane=4", text)
		}
		d.Kind, d.Plane = Plane, n
		return d, nil
	}
	return Distribution{}, fmt.Errorf("distribution %q: there are block, cyclic, plane=N and arbitrary", text)
}

// String is how people write it, and SLURM_DISTRIBUTION has it but for the size of a plane.
func (d Distribution) String() string {
	text := "block"
	switch d.Kind {
	case Cyclic:
		text = "cyclic"
	case Plane:
		text = "plane=" + strconv.Itoa(d.Plane)
	case Arbitrary:
		text = "arbitrary"
	}
	if d.Sockets != "" || d.Cores != "" {
		text += ":" + cmp.Or(d.Sockets, "*")
	}
	if d.Cores != "" {
		text += ":" + d.Cores
	}
	if d.Pack {
		text += ",pack"
	}
	return text
}

func (d Distribution) packed() bool { return d.Pack && d.Kind == Block }

// maxTasks bounds a step; ranks are numbers of 32 bits for those who read them.
const maxTasks = 1 << 24

// Counts says how many of a number of tasks each node has, of which each has room for some:
// one each in turn, as long as there is room; with a plane, that many, but none goes without
// as long as there are tasks for all. Packed blocks fill nodes, and the last ones may have
// none. Where there is room nowhere, every node has as many more as it needs: to refuse
// that is not for here.
func Counts(tasks int, room []int, d Distribution) ([]int, error) {
	if tasks < 0 || tasks > maxTasks {
		return nil, fmt.Errorf("lay out ranks: %d tasks, at most %d", tasks, maxTasks)
	}
	if len(room) == 0 {
		return nil, errors.New("lay out ranks: no nodes")
	}
	at := 1
	switch {
	case d.packed():
		at = maxTasks
	case d.Kind == Plane:
		at = max(1, d.Plane)
	}
	counts := make([]int, len(room))
	for left, over, first := tasks, false, true; left > 0; first = false {
		before := left
		for i := range room {
			n := min(at, left)
			if first && !d.packed() {
				n = min(n, max(1, left-withRoom(room[i+1:]))) // one for each node that comes
				n = min(n, left)
			}
			if !over {
				n = min(n, max(0, room[i]-counts[i]))
			}
			counts[i] += n
			left -= n
		}
		over = left == before
	}
	return counts, nil
}

// withRoom is how many nodes have room.
func withRoom(room []int) int {
	n := 0
	for _, r := range room {
		if r > 0 {
			n++
		}
	}
	return n
}

// Deal numbers the tasks of nodes, of which each has some: the result are each node's
// ranks, in the order of their local numbers, ascending.
func Deal(counts []int, d Distribution) ([][]int, error) {
	total := 0
	for i, n := range counts {
		if n < 0 || n > maxTasks || total+n > maxTasks {
			return nil, fmt.Errorf("lay out ranks: %d tasks on node %d, at most %d in all", n, i, maxTasks)
		}
		total += n
	}
	at := 1
	switch d.Kind {
	case Block:
		at = max(1, total)
	case Plane:
		at = max(1, d.Plane)
	case Arbitrary:
		return nil, errors.New("lay out ranks: an arbitrary distribution is dealt by a list of hosts")
	}
	all := make([][]int, len(counts))
	for i, n := range counts {
		all[i] = make([]int, 0, n)
	}
	for rank := 0; rank < total; {
		for i, n := range counts {
			for range min(at, n-len(all[i])) {
				all[i] = append(all[i], rank)
				rank++
			}
		}
	}
	return all, nil
}

// DealList deals ranks by a list of hosts, which a file named by SLURM_HOSTFILE may have: rank
// n is on the n-th host of it. Nodes without a rank have none.
func DealList(nodes, hosts []string) ([][]int, error) {
	at := map[string]int{}
	for i, name := range nodes {
		at[name] = i
	}
	all := make([][]int, len(nodes))
	for rank, host := range hosts {
		i, ok := at[host]
		if !ok {
			return nil, fmt.Errorf("lay out ranks: host %s of rank %d is not one of the step's nodes", host, rank)
		}
		all[i] = append(all[i], rank)
	}
	return all, nil
}

// RunLength writes numbers as Slurm's variables have them: 8(x4) or 72(x2),36.
func RunLength(counts []int) string {
	var b strings.Builder
	for i := 0; i < len(counts); {
		n := 1
		for i+n < len(counts) && counts[i+n] == counts[i] {
			n++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(counts[i]))
		if n > 1 {
			fmt.Fprintf(&b, "(x%d)", n)
		}
		i += n
	}
	return b.String()
}
