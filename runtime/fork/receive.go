package fork

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Record is what a process of a plan tells its supervisor. One field counts.
type Record struct {
	Errno   syscall.Errno // operation Index failed; -1 is the second fork
	Index   int
	Note    plan.Note
	Exited  bool // the first process ended with Status
	Status  syscall.WaitStatus
	Stopped syscall.Signal // the first process was stopped
	PID     int            // of a process that was left in namespaces
}

// Receive waits for the next record of a socket, and for the descriptor that comes with
// it, else -1. The error is io.EOF when there will be none.
func Receive(fd int) (Record, int, error) {
	var word [2]uint32
	buf := (*[8]byte)(unsafe.Pointer(&word))[:]
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return Record{}, -1, fmt.Errorf("recvmsg: %w", err)
	}
	if err != nil || n == 0 {
		return Record{}, -1, io.EOF
	}
	file := -1
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) == 1 {
		if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
			file = fds[0]
		}
	}
	r := Record{}
	switch word[0] &^ 0xffffff {
	case recFail:
		r.Index, r.Errno = int(word[0]&0xffffff), syscall.Errno(word[1])
		if r.Index == forkIndex {
			r.Index = -1
		}
	case recNote:
		r.Note = plan.Note(word[1])
	case recExit:
		r.Exited, r.Status = true, syscall.WaitStatus(word[1])
	case recStop:
		r.Stopped = syscall.Signal(word[1])
	case recPID:
		r.PID = int(word[1])
	}
	return r, file, nil
}

// Heard is the answer to the first process's end, after which PID 1 ends, too.
const Heard = 0

// Answer sends one word: what a Sync waits for, or a signal for the first process.
func Answer(fd int, value uint32) error { return send(fd, value, 0) }

// Offer is Answer to one who may not read: it does not wait, but returns EAGAIN.
func Offer(fd int, value uint32) error { return send(fd, value, unix.MSG_DONTWAIT) }

func send(fd int, value uint32, flags int) error {
	word := [2]uint32{value, 0}
	err := unix.Sendto(fd, (*[8]byte)(unsafe.Pointer(&word))[:], unix.MSG_NOSIGNAL|flags, nil)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// highest is the highest descriptor of this process, with room for those that other
// threads open meanwhile.
func highest(from int) int {
	const room = 256
	top := from
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		var limit syscall.Rlimit
		if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
			return math.MaxUint16
		}
		return int(min(limit.Cur, math.MaxUint16))
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil {
			top = max(top, fd)
		}
	}
	return top + room
}
