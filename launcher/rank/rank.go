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
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Distribution is how ranks are dealt to nodes.
type Distribution struct {
	Kind  Kind
	Plane int // of Plane: so many at a time
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

// ParseDistribution reads --distribution. What follows a colon is about sockets and cores,
// and is taken as it is; nothing, and "*", is block.
func ParseDistribution(text string) (Distribution, error) {
	first, _, _ := strings.Cut(strings.ToLower(text), ":")
	first, _, _ = strings.Cut(first, ",") // pack, nopack
	switch first {
	case "", "*", "block", "pack", "nopack":
		return Distribution{Kind: Block}, nil
	case "cyclic":
		return Distribution{Kind: Cyclic}, nil
	case "arbitrary":
		return Distribution{Kind: Arbitrary}, nil
	}
	if size, ok := strings.CutPrefix(first, "plane="); ok {
		n, err := strconv.Atoi(size)
		if err != nil || n < 1 || n > maxTasks {
			return Distribution{}, fmt.Errorf("distribution %q: a plane is a number of tasks, as in plane=4", text)
		}
		return Distribution{Kind: Plane, Plane: n}, nil
	}
	return Distribution{}, fmt.Errorf("distribution %q: there are block, cyclic, plane=N and arbitrary", text)
}

// String is how people write it.
func (d Distribution) String() string {
	switch d.Kind {
	case Cyclic:
		return "cyclic"
	case Plane:
		return "plane=" + strconv.Itoa(d.Plane)
	case Arbitrary:
		return "arbitrary"
	}
	return "block"
}

// maxTasks bounds a step; ranks are numbers of 32 bits for those who read them.
const maxTasks = 1 << 24

// Counts says how many of a number of tasks each node has, of which each has room for some:
// one each in turn, as long as there is room; with a plane, that many. Where there is room
// nowhere, every node has as many more as it needs: to refuse that is not for here.
func Counts(tasks int, room []int, d Distribution) ([]int, error) {
	if tasks < 0 || tasks > maxTasks {
		return nil, fmt.Errorf("lay out ranks: %d tasks, at most %d", tasks, maxTasks)
	}
	if len(room) == 0 {
		return nil, errors.New("lay out ranks: no nodes")
	}
	at := 1
	if d.Kind == Plane {
		at = max(1, d.Plane)
	}
	counts := make([]int, len(room))
	for left, over := tasks, false; left > 0; {
		before := left
		for i := range room {
			n := min(at, left)
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

// DealList deals ranks by a list of hosts, as a file named by SLURM_HOSTFILE has it: rank
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
