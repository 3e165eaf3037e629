package agent

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/wire"
)

// heartbeats are sent until the session ends.
func (a *Agent) heartbeats(ctx context.Context, every time.Duration) {
	if every <= 0 {
		every = time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		m := &wire.Heartbeat{FreeMemory: freeMemory("/proc/meminfo"), FreeDisk: freeDisk(a.Store), Load: load("/proc/loadavg")}
		a.lease.beat(m)
		a.inputs.put(sayIn{&wire.AgentMessage{Message: &wire.AgentMessage_Heartbeat{Heartbeat: m}}})
		if digests, changed := a.images.changed(); changed {
			a.inputs.put(sayIn{&wire.AgentMessage{Message: &wire.AgentMessage_Inventory{Inventory: &wire.Inventory{Images: digests}}}})
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// freeMemory is what programs may still have, in bytes; 0: not known.
func freeMemory(name string) int64 { return MemoryOf(name, "MemAvailable") }

// MemoryOf reads a line of /proc/meminfo, in bytes; 0: not known.
func MemoryOf(name, field string) int64 {
	f, err := os.Open(name)
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return n << 10
		}
	}
	return 0
}

// freeDisk is what this user may still write to a directory's disk, in bytes; 0: not known.
func freeDisk(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

// load is that of the last minute; 0: not known.
func load(name string) float64 {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), " ")
	n, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return n
}
