package sched

import (
	"math/bits"

	"github.com/gangway-hpc/gangway/internal/job"
)

// affinity says which devices of a node go well together.
type affinity struct {
	count int
	score func(mask uint64) int // nil: all are alike
	best  []uint8               // of up to 8 devices: by free mask and number, the best ones
}

// newAffinity looks at the links of a GRES, or else at where its devices are. Up to eight
// devices all choices are compared beforehand.
func newAffinity(g *job.GRES) *affinity {
	a := &affinity{count: int(g.Count)}
	link := func(i, j int) int {
		if len(g.Links) == a.count && len(g.Links[i]) == a.count {
			return 2 * g.Links[i][j]
		}
		return 0
	}
	near := func(i, j int) int {
		if len(g.Sockets) == a.count && g.Sockets[i] >= 0 && g.Sockets[i] == g.Sockets[j] {
			return 1
		}
		return 0
	}
	if len(g.Links) != a.count && len(g.Sockets) != a.count {
		return a
	}
	a.score = func(mask uint64) int {
		sum, low := 0, 1<<30
		for m := mask; m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m)
			for n := m & (m - 1); n != 0; n &= n - 1 {
				j := bits.TrailingZeros64(n)
				v := link(i, j) + near(i, j)
				sum += v
				low = min(low, v)
			}
		}
		if bits.OnesCount64(mask) < 2 {
			low = 0
		}
		return low<<10 + sum // the slowest link of a ring counts first
	}
	if a.count <= 8 {
		a.table()
	}
	return a
}

// table fills best: the score of what is chosen, and then that of what is left, decides;
// among equals the lowest numbers do.
func (a *affinity) table() {
	all := 1 << a.count
	scores := make([]int, all)
	for m := range scores {
		scores[m] = a.score(uint64(m))
	}
	a.best = make([]uint8, all*(a.count+1))
	value := make([]int, all*(a.count+1))
	for free := range all {
		for sub := free; ; sub = (sub - 1) & free {
			at := free*(a.count+1) + bits.OnesCount(uint(sub))
			v := scores[sub]<<16 + scores[free&^sub]
			if a.best[at] == 0 || v > value[at] || v == value[at] && sub < int(a.best[at]) {
				a.best[at], value[at] = uint8(sub), v
			}
			if sub == 0 {
				break
			}
		}
	}
}

// pick chooses k of the devices that are not used.
func (a *affinity) pick(used uint64, k int) uint64 {
	free := ^used
	if a.count < 64 {
		free &= 1<<a.count - 1
	}
	if bits.OnesCount64(free) == k {
		return free
	}
	if a.best != nil {
		return uint64(a.best[int(free)*(a.count+1)+k])
	}
	chosen := uint64(0)
	for range k {
		next := -1
		for m, score := free, 0; m != 0; m &= m - 1 {
			i := bits.TrailingZeros64(m)
			if a.score == nil {
				next = i
				break
			}
			if v := a.score(chosen | 1<<i); next < 0 || v > score {
				next, score = i, v
			}
		}
		chosen |= 1 << next
		free &^= 1 << next
	}
	return chosen
}
