package step

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gangway-hpc/gangway/launcher/control"
)

// TestTellPulled: of an image it is told how much there is, not too often, the end always,
// and nothing a second time: who does not move has no progress.
func TestTellPulled(t *testing.T) {
	s := &supervisor{changed: make(chan struct{})}
	told := func(done int64) bool {
		before := s.moves
		s.tellPulled(done, 100)
		if s.moves > before && s.progress != (control.Progress{Phase: pullPhase, Bytes: done, Total: 100}) {
			t.Errorf("%d: %+v", done, s.progress)
		}
		return s.moves > before
	}
	for i, test := range []struct {
		done int64
		want bool
	}{{0, true}, {10, false}, {100, true}, {100, false}} {
		if got := told(test.done); got != test.want {
			t.Errorf("%d: told: %v", i, got)
		}
	}
}

// TestWork: what this process computes, reads and writes is work; to wait is none.
func TestWork(t *testing.T) {
	before := workOf("/proc/self/io")
	if workOf("/proc/self/io").isMore(before) {
		t.Error("to look is work")
	}
	name := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(name, make([]byte, leastBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	if now := workOf("/proc/self/io"); now.bytes-before.bytes < leastBytes || !now.isMore(before) {
		t.Errorf("%+v after %+v", now, before)
	}
	before = workOf("/no/such/file") // then time alone counts
	for range 1 << 30 {
		if workOf("/no/such/file").isMore(before) {
			return
		}
	}
	t.Error("to compute is no work")
}
