package sim

import (
	"math/bits"
	"time"
)

// histogram counts durations in the manner of HDR histograms: each power of two is cut
// into 32 parts, so that a quantile is at most 3 % off, from 1 ns to hours.
type histogram struct {
	counts [64 * subBuckets]uint32
	n      uint64
	sum    time.Duration
	max    time.Duration
}

const (
	subBits    = 5
	subBuckets = 1 << subBits
)

// bucket is where a value is counted.
func bucket(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return (shift+1)<<subBits + int(v>>shift) - subBuckets
}

// upper is the largest value of a bucket.
func upper(b int) uint64 {
	if b < subBuckets {
		return uint64(b)
	}
	shift := b>>subBits - 1
	return uint64(b&(subBuckets-1)+subBuckets+1)<<shift - 1
}

// add counts a duration; negative ones are 0.
func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))]++
	h.n++
	h.sum += d
	h.max = max(h.max, d)
}

// quantile is a value that the part q of all is not above.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.n))
	seen := uint64(0)
	for b, n := range h.counts {
		if seen += uint64(n); n > 0 && seen > rank {
			return min(time.Duration(upper(b)), h.max)
		}
	}
	return h.max
}

// Latency is a histogram of durations in short, in microseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p999_us"`
	Max   float64 `json:"max_us"`
}

func (h *histogram) latency() Latency {
	us := func(d time.Duration) float64 { return round(float64(d.Nanoseconds())/1e3, 3) }
	l := Latency{
		Count: h.n, P50: us(h.quantile(0.5)), P90: us(h.quantile(0.9)), P99: us(h.quantile(0.99)), P999: us(h.quantile(0.999)), Max: us(h.max),
	}
	if h.n > 0 {
		l.Mean = us(h.sum / time.Duration(h.n))
	}
	return l
}
