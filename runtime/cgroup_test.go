package runtime

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// TestPlaced: a group that processes cannot be made in, as one that is none, is no reason
// not to start them: whoever places them is told.
func TestPlaced(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	var placed atomic.Int32
	c := shell(t, "echo ran; cat")
	c.Cgroup = dir
	c.Placed = func(pid int, made bool) error {
		if made || pid <= 0 {
			t.Errorf("process %d was made in a directory that is no cgroup: %v", pid, made)
		}
		placed.Add(1)
		return nil
	}
	out, status := output(t, c)
	if strings.TrimSpace(out) != "ran" || status.Code != 0 || placed.Load() != 1 {
		t.Errorf("%q, %+v, placed %d", out, status, placed.Load())
	}
}
