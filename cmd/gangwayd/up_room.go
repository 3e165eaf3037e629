package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// What a node's daemon takes, and the thread that keeps it running: measured were 3 MiB of
// its own and 7 threads while nothing runs.
const (
	memoryOfNode  = 8 << 20
	threadsOfNode = 10
	filesOfNode   = 4 // open at the same time in one daemon: the controller has a session to each node
)

// room is one thing of which a machine has only so much.
type room struct {
	nodes int64  // for which it is enough
	why   string // for people
}

// rooms are those of this machine for this user. What is not known is no limit.
func rooms() []room {
	all := []room{{8000, "one process keeps all daemons running, a thread each"}} // Go's limit is 10,000
	if n := agent.MemoryOf("/proc/meminfo", "MemAvailable"); n > 0 {
		all = append(all, room{n / memoryOfNode, fmt.Sprintf("%d MiB of memory are free, and a node takes %d MiB", n>>20, memoryOfNode>>20)})
	}
	threads := func(n int64, of string) {
		all = append(all, room{n / threadsOfNode, fmt.Sprintf("%s allows %d threads, and a node takes %d", of, n, threadsOfNode)})
	}
	for _, name := range []string{"/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"} {
		b, _ := os.ReadFile(name)
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			threads(n, name)
		}
	}
	if n := limit(unix.RLIMIT_NPROC); n > 0 && os.Geteuid() != 0 { // root has no such limit
		threads(n, "ulimit -u")
	}
	if n := limit(unix.RLIMIT_NOFILE); n > 0 {
		all = append(all, room{n / filesOfNode, fmt.Sprintf("ulimit -Hn allows %d open files, and a node takes %d", n, filesOfNode)})
	}
	return all
}

// limit is the hard limit of a resource, or the soft one where that is what counts; 0: none.
func limit(resource int) int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(resource, &l); err != nil {
		return 0
	}
	n := l.Max // Go raises that of files, and daemons too
	if resource == unix.RLIMIT_NPROC {
		n = l.Cur
	}
	if n > math.MaxInt64/2 {
		return 0
	}
	return int64(n)
}

// fits refuses more nodes than a machine has room for: daemons that are started and fail,
// or take what the user's other programs need, are of no use to anybody.
func fits(nodes int, all []room) error {
	least := slices.MinFunc(all, func(a, b room) int { return int(min(a.nodes, math.MaxInt32) - min(b.nodes, math.MaxInt32)) })
	if int64(nodes) <= least.nodes {
		return nil
	}
	return &fault.Error{
		What:  fmt.Errorf("run %d nodes on this machine: it has room for %d", nodes, least.nodes),
		Cause: least.why,
		Hint:  fmt.Sprintf("gangway up --nodes %d, or less", max(1, least.nodes)),
		Code:  fault.CodeUsage,
	}
}
