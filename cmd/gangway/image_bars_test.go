package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
)

// TestBars plays what bars write to a terminal, and looks at what stays on it.
func TestBars(t *testing.T) {
	now := time.Unix(1000, 0)
	columns, lines := 100, 10
	screen := &terminal{}
	b := &bars{
		out: screen, now: func() time.Time { return now }, layers: map[int]*layerBar{},
		size: func() (int, int) { return columns, lines },
	}
	digest := func(n int) oci.Digest { return oci.Digest(fmt.Sprintf("sha256:%064d", n)) }
	tell := func(n int, phase image.Phase, done, total int64, other bool) {
		b.progress(image.Progress{Layer: n, Digest: digest(n), Phase: phase, Done: done, Total: total, Other: other})
		now = now.Add(200 * time.Millisecond)
	}
	tell(0, image.PhaseCached, 5e6, 5e6, false)
	tell(1, image.PhaseFetch, 0, 8e6, false)
	tell(2, image.PhaseWait, 0, 1e6, false)
	tell(1, image.PhaseFetch, 4e6, 8e6, false)
	tell(2, image.PhaseFetch, 5e5, 1e6, true)
	want := []string{
		"000000000000  cached   [==============================]     5.0 MB",
		"000000000000  fetch    [===============               ]     4.0 MB of    8.0 MB  6.7 MB/s",
		"000000000000  fetch*   [===============               ]   500.0 kB of    1.0 MB",
		"total         9.5 MB of 14.0 MB  5.6 MB/s  1s left",
	}
	if got := strings.Join(screen.lines, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	// A small terminal shows what is not finished, and no line is wrapped.
	columns, lines = 40, 3
	tell(2, image.PhaseFetch, 6e5, 1e6, true)
	if len(screen.lines) != 2 || !strings.Contains(screen.lines[0], "fetch ") || len(screen.lines[0]) > 39 {
		t.Errorf("small terminal: %q", screen.lines)
	}
	columns, lines = 100, 10
	tell(1, image.PhaseDone, 8e6, 8e6, false)
	tell(2, image.PhaseDone, 1e6, 1e6, false)
	b.end(true)
	if last := screen.lines[len(screen.lines)-1]; !strings.HasPrefix(last, "total         14.0 MB of 14.0 MB") || strings.Contains(last, "left") {
		t.Errorf("at the end: %q", last)
	}
}

// terminal understands what bars write: lines, and the escapes to go up and to clear.
type terminal struct{ lines []string }

func (s *terminal) Write(p []byte) (int, error) {
	text := string(p)
	if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
		var up int
		if _, err := fmt.Sscanf(rest, "%dA", &up); err != nil {
			return 0, err
		}
		text = rest[strings.IndexByte(rest, 'A')+1:]
		s.lines = s.lines[:len(s.lines)-up]
	}
	text = strings.TrimSuffix(text, "\x1b[J")
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		s.lines = append(s.lines, strings.TrimSuffix(line, "\x1b[K"))
	}
	return len(p), nil
}
