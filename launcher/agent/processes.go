package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/launcher/control"
)

// process is a process of the machine that cannot be mistaken for a later one with its
// number.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat
}

// processOf is the process that has a number now.
func processOf(pid int) (process, error) {
	start, _, err := statOf(pid)
	return process{pid, start}, err
}

// StartOf is when a process started: field 22 of /proc/PID/stat.
func StartOf(pid int) (uint64, error) {
	start, _, err := statOf(pid)
	return start, err
}

// alive says whether it runs. One that has ended and that nobody waited for does not.
func (p process) alive() bool {
	start, state, err := statOf(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// statOf reads /proc/PID/stat, in which the name may hold anything but ends with the last
// parenthesis.
func statOf(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("read /proc/%d/stat: too short", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// keeper says which of the processes with a marker are not meant; nil: all are.
type keeper func(pid int, marker string) bool

// marked returns the processes whose marker begins with prefix, but for those to be kept.
func marked(prefix string, keep keeper) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if m := markerOf(pid); m != "" && strings.HasPrefix(m, prefix) && (keep == nil || !keep(pid, m)) {
			found = append(found, pid)
		}
	}
	return found
}

// markerOf is the marker in the environment with which a process was started; empty: it
// has none, or has ended. Others' processes cannot be looked at, and have none of ours.
func markerOf(pid int) string {
	b := environOf(pid)
	for v := range bytes.SplitSeq(b, []byte{0}) {
		if m, ok := bytes.CutPrefix(v, []byte(control.Marker+"=")); ok {
			if _, state, err := statOf(pid); err != nil || state == 'Z' || state == 'X' {
				return ""
			}
			return string(m)
		}
	}
	return ""
}

// maxEnviron bounds what is read of an environment, of which a kernel allows far less.
const maxEnviron = 64 << 20

// environOf is the environment with which a process was started. All processes of the machine
// are looked at for each step that ends, so this makes no more calls than it must: os.ReadFile
// makes twice as many.
func environOf(pid int) []byte {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 0, 8<<10)
	for len(b) < maxEnviron {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return b
		}
		b = slices.Grow(b[:len(b)+n], 4<<10)
	}
	return b
}

// kill ends the processes whose marker begins with prefix, but for those to be kept, again
// and again until there are none, and returns those that are still there when the time is
// over.
func kill(prefix string, keep keeper, patience time.Duration) []int {
	for deadline := time.Now().Add(patience); ; {
		left := marked(prefix, keep)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			killMarked(pid, prefix)
		}
		if time.Now().After(deadline) {
			return left
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// killMarked kills a process, if its number has not become another's since.
func killMarked(pid int, prefix string) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) { // before Linux 5.3, or by a filter
		if strings.HasPrefix(markerOf(pid), prefix) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended, just now
		}
		return
	}
	if err != nil {
		return // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	if strings.HasPrefix(markerOf(pid), prefix) {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may have ended
	}
}
