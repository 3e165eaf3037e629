// Package proc starts other programs so that they get no more than was meant for them,
// and leave nothing behind.
//
//	cmd := exec.CommandContext(ctx, name, args...)
//	proc.Confine(cmd)
//	err := cmd.Run()
//
// StartSession starts a program that shall have no terminal, and not outlive this process
// even where that is killed. AsNobody gives a program of root's another user and no rights,
// for what strangers wrote. Unescape is for paths that files of /proc name.
// It may be used by any number of goroutines. It does not say what a program may call or
// use up: there are no filters and no limits.
package proc

import (
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waitDelay is how long the output of a program is waited for that a process it left
// behind holds open.
const waitDelay = time.Second

// Confine makes a command of exec.CommandContext end with all processes that it starts
// when its context does, and keeps files from it that it was not given. What it leaves
// running on purpose does not hold up cmd.Wait, which then returns exec.ErrWaitDelay.
func Confine(cmd *exec.Cmd) {
	// A signal to one process would leave the others: programs are often scripts.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	CloseOnExec()
}

// CloseOnExec marks all open files but stdin, stdout and stderr to be closed in
// programs that this process starts or becomes. Go does so with what it opens
// itself; what was inherited, from a shell or a batch system, would go on to every
// program. Files in exec.Cmd's ExtraFiles are handed on nevertheless.
//
// Nothing can be done about an error, so there is none: where neither the kernel
// (close_range(2), Linux 5.11) nor /proc helps, the files stay as they are.
func CloseOnExec() {
	if unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) != nil {
		closeOnExecByName("/proc/self/fd")
	}
}

// closeOnExecByName does it for older kernels.
func closeOnExecByName(dir string) {
	names, _ := os.ReadDir(dir)
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}
