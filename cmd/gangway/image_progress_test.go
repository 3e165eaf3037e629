package main

import (
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
)

// TestLinesSummary: what was cached says nothing of how long the rest takes.
func TestLinesSummary(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1000, 0)
	l := &lines{out: &out, name: "torch:1", now: func() time.Time { return now }, layers: map[int]*layerLine{}}
	l.progress(image.Progress{Layer: 0, Layers: 2, Phase: image.PhaseCached, Done: 100_000_000, Total: 100_000_000})
	l.progress(image.Progress{Layer: 1, Layers: 2, Phase: image.PhaseFetch, Total: 4_000_000})
	now = now.Add(linesEvery + time.Second)
	l.progress(image.Progress{Layer: 1, Layers: 2, Phase: image.PhaseFetch, Done: 1_100_000, Total: 4_000_000})
	if want := "torch:1: 101.1 MB of 104.0 MB, 100.0 kB/s, 29 s left\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("%q does not end in %q", out.String(), want)
	}
}
