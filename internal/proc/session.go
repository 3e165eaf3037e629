package proc

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// StartSession starts a command that was confined, in a session of its own, which has no
// terminal: it cannot open /dev/tty either. It dies with this process, however that ends,
// and so does all of its process group that did not close file 3. Of that file, the only
// one which the command gets besides cmd.ExtraFiles, it can read nothing.
//
// What cmd.Wait says comes from the channel, once; nobody else is to call it.
func StartSession(cmd *exec.Cmd) (<-chan error, error) {
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var l leash
	if len(cmd.ExtraFiles) == 0 {
		l = newLeash()
	}
	if l.end != nil {
		cmd.ExtraFiles = []*os.File{l.end}
	}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the command dies with the thread
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			l.tie(cmd.Process.Pid)
		}
		started <- err
		if err == nil {
			err = cmd.Wait()
		}
		l.untie()
		ended <- err
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return ended, nil
}

// leash is a pipe that nothing is written to. When this process is gone, nobody has its
// other end, and the kernel tells the process group that this end was tied to, by the
// signal that was asked for: SIGKILL. PR_SET_PDEATHSIG is for one process, not for what
// it has started.
type leash struct{ end, other *os.File }

// newLeash makes one; without descriptors it has no ends, and there is that of one process.
func newLeash() leash {
	end, other, err := os.Pipe()
	if err != nil {
		return leash{}
	}
	return leash{end, other}
}

// tie ties the process group to it. Where a kernel does not do so there is no error, as
// above.
func (l leash) tie(group int) {
	_ = l.control(func(fd uintptr) error {
		if _, err := unix.FcntlInt(fd, unix.F_SETOWN, -group); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(fd, unix.F_SETSIG, int(unix.SIGKILL)); err != nil {
			return err // and no SIGIO instead
		}
		return setAsync(fd, unix.O_ASYNC)
	})
}

// untie lets those live that the command left behind.
func (l leash) untie() {
	if l.end == nil {
		return
	}
	_ = l.control(func(fd uintptr) error { return setAsync(fd, 0) })
	_, _ = l.end.Close(), l.other.Close() // nothing was written
}

func (l leash) control(f func(fd uintptr) error) error {
	if l.end == nil {
		return os.ErrInvalid
	}
	c, err := l.end.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(fd) }); err != nil {
		return err
	}
	return inner
}

// setAsync sets or clears O_ASYNC.
func setAsync(fd uintptr, value int) error {
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(fd, unix.F_SETFL, flags&^unix.O_ASYNC|value)
	}
	return err
}
