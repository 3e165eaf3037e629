package step

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// usages are what the ranks that run have used so far, each with the processes that come
// from it. What has left its rank, as a daemon does, is not counted.
func (s *supervisor) usages() []job.RankUsage {
	s.mu.Lock()
	var all []job.RankUsage
	for _, m := range s.ranks {
		if m.process != nil {
			all = append(all, job.RankUsage{Rank: m.rank, Node: s.Node, PIDs: []int{m.process.PID()}})
		}
	}
	s.mu.Unlock()
	for i := range all {
		measure(&all[i])
	}
	return all
}

// maxMeasured bounds how many processes of a rank are looked at.
const maxMeasured = 10_000

// measure looks at a process and all that it has started. Some may end meanwhile.
func measure(u *job.RankUsage) {
	var resident, virtual, mostResident, mostVirtual int64
	for at := 0; at < len(u.PIDs) && at < maxMeasured; at++ {
		pid := u.PIDs[at]
		dir := "/proc/" + strconv.Itoa(pid) + "/"
		addTimes(u, dir+"stat")
		kib := fields(dir+"status", "VmRSS", "VmHWM", "VmSize", "VmPeak")
		resident, virtual = resident+kib[0]<<10, virtual+kib[2]<<10
		mostResident, mostVirtual = max(mostResident, kib[1]<<10), max(mostVirtual, kib[3]<<10)
		moved := fields(dir+"io", "rchar", "wchar")
		u.Read, u.Write = u.Read+moved[0], u.Write+moved[1]
		u.PIDs = append(u.PIDs, proc.Children(pid)...)
	}
	u.RSS, u.Virtual = max(resident, mostResident), max(virtual, mostVirtual)
}

// tick is what /proc counts processor time in, ms: USER_HZ is 100 on all of Linux.
const tick = 10

// addTimes adds the processor time of a process and of its children that it has waited for, and
// its pages that were read from disk: fields 12 to 17 of /proc/PID/stat (proc(5)).
func addTimes(u *job.RankUsage, name string) {
	b, err := os.ReadFile(name)
	if err != nil {
		return
	}
	words := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(words) < 15 {
		return
	}
	number := func(field int) int64 {
		n, _ := strconv.ParseInt(words[field-3], 10, 64) // the kernel writes numbers
		return n
	}
	u.Pages += number(12)
	u.User += job.Duration(number(14)+number(16)) * tick
	u.System += job.Duration(number(15)+number(17)) * tick
}

// fields reads numbers of a file of lines NAME: NUMBER; 0 for those that are not there.
func fields(name string, keys ...string) []int64 {
	values := make([]int64, len(keys))
	b, err := os.ReadFile(name)
	if err != nil {
		return values
	}
	for line := range strings.Lines(string(b)) {
		key, rest, _ := strings.Cut(line, ":")
		for i := range keys {
			if key == keys[i] {
				n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				values[i] = min(max(n, 0), math.MaxInt64>>10)
			}
		}
	}
	return values
}
