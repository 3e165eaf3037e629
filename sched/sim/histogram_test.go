package sim

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestHistogram: quantiles are at most a thirty-second above the true ones.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(100*time.Hour)), 1, 200).Draw(t, "values")
		var h histogram
		for _, v := range values {
			h.add(time.Duration(v))
		}
		slices.SortFunc(values, func(a, b int64) int { return cmp.Compare(a, b) })
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			want := values[min(int(q*float64(len(values))), len(values)-1)]
			got := int64(h.quantile(q))
			if got < want || float64(got) > float64(want)*(1+1.0/subBuckets)+1 {
				t.Fatalf("quantile %v is %d, want %d", q, got, want)
			}
		}
	})
	var h histogram
	h.add(-1)
	if l := h.latency(); l.Count != 1 || l.Max != 0 || (&histogram{}).latency().Count != 0 {
		t.Errorf("%+v", l)
	}
	for b := range 59 * subBuckets {
		if bucket(upper(b)) != b || bucket(upper(b)+1) != b+1 {
			t.Fatalf("bucket %d ends at %d", b, upper(b))
		}
	}
}
