package sched

import (
	"math"
	"testing"
)

// TestShare: no weight and age overflow, and more time is never less.
func TestShare(t *testing.T) {
	for _, weight := range []uint64{0, 1, 1000, math.MaxUint32 << 10} {
		for _, whole := range []uint64{1, 60_000, 7 * 86_400_000, math.MaxInt64} {
			last := int64(0)
			for _, part := range []uint64{0, 1, 59_999, 60_000, 1 << 41, 1 << 45, math.MaxInt64 / 4} {
				got := share(weight, part, whole)
				if got < last || got > 1<<61 {
					t.Errorf("%d*%d/%d: %d after %d", weight, part, whole, got, last)
				}
				if weight == 1000 && whole == 60_000 && part == 60_000 && got != 1000 {
					t.Errorf("a whole share is %d", got)
				}
				last = got
			}
		}
	}
}
