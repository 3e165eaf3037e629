package step

import (
	"fmt"
	"os"
	goruntime "runtime"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mostFiles bounds the limit of open files: programs that close all descriptors up to
// it, or allocate a table of them, take very long with those that some systems have.
const mostFiles = 1 << 20

// limitFiles gives the command the limit of open files that this process was started
// with. The Go runtime has raised the soft limit to the hard one since.
func limitFiles(s *specs.Spec) error {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	soft := own.Cur
	if was, err := FilesAtStart(); err == nil {
		soft = was.Cur
	} else if unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, &was) == nil && was.Max == own.Max {
		soft = was.Cur // whoever started this process has it still, as a rule
	}
	s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: min(soft, mostFiles), Hard: own.Max})
	return nil
}

// FilesAtStart returns the limit of open files as it was when this process was started.
// The Go runtime does not say, but gives it to the programs that it executes: one is, and
// ended before its first instruction. That is 0.2 ms.
func FilesAtStart() (was unix.Rlimit, err error) {
	goruntime.LockOSThread() // who traces is a thread
	defer goruntime.UnlockOSThread()
	// Who asks to be traced when this process is gone is traced by init, and stays for ever.
	attr := &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"gangway"}, &syscall.ProcAttr{Sys: attr})
	if err != nil {
		return was, fmt.Errorf("ask for the limit of open files at the start: %w", err)
	}
	err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was)
	_ = syscall.Kill(pid, syscall.SIGKILL) // it is ours, and there until it is waited for
	for {
		var status syscall.WaitStatus
		_, werr := syscall.Wait4(pid, &status, 0, nil)
		if werr != nil && werr != syscall.EINTR || werr == nil && !status.Stopped() {
			return was, err
		}
	}
}
