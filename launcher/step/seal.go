package step

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ErrSeal says that a container is to see the host's processes, and that this program is
// not one that nobody can change: call Seal, and run it again, or set Options.Unsealed.
// A container that sees the supervisor can kill it, and then write to the program that
// it was, if it kept that open and the user may write there.
var ErrSeal = errors.New("the container sees the processes of the host, and could change this program")

// sealed are the seals of a program that nobody can change.
const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Sealed says whether this process runs from a copy of its program that Seal made.
func Sealed() bool {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer f.Close()
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_WRITE != 0
}

// Seal executes this program anew, with args, from a copy in memory that nobody can
// change. It returns only if that cannot be done.
func Seal(args []string) error {
	fd, err := sealedCopy()
	if err != nil {
		return &fault.Error{What: fmt.Errorf("copy this program to memory: %w", err), Hint: "to be safe without: leave out --pid=host, or let nobody write to the program"}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", fd), args, os.Environ()); err != nil {
		return fmt.Errorf("execute this program from memory: %w", err)
	}
	return nil
}

// sealedCopy returns a copy of this program in memory, sealed.
func sealedCopy() (_ int, err error) {
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return -1, err
	}
	defer program.Close()
	st, err := program.Stat()
	if err != nil {
		return -1, err
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("gangway", flags|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3 all may be executed
		fd, err = unix.MemfdCreate("gangway", flags)
	}
	if err != nil {
		return -1, fmt.Errorf("make file in memory: %w", err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	for left := st.Size(); left > 0; {
		n, err := unix.Sendfile(fd, int(program.Fd()), nil, int(min(left, 1<<30)))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return -1, err
		case n == 0:
			return -1, io.ErrUnexpectedEOF
		}
		left -= int64(max(n, 0))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed); err != nil {
		return -1, fmt.Errorf("seal file in memory: %w", err)
	}
	return fd, nil
}

// checkSeal returns ErrSeal where a container is to see the host's processes.
func (s *step) checkSeal(ctx context.Context) error {
	switch {
	case Sealed():
		nameProcess()
	case s.Request.HostPID && !s.Unsealed:
		if s.Request.Writable || s.Name != "" {
			// The probe mounts the program, which a sealed one cannot be.
			if _, err := ProbeWritable(ctx, s.Options); err != nil {
				s.Log.Debug("what can be written to is not known", "err", err)
			}
		}
		return ErrSeal
	}
	return nil
}

// askSeal returns ErrSeal when it turned out late. The run that follows makes a
// container of its own, if it must make one.
func (s *step) askSeal() error {
	if s.named != nil && s.NameUse == "create" {
		// The last that is closed: the container is in use until then.
		s.closers = slices.Insert(s.closers, 0, func() error { return RemoveContainer(s.Containers, s.Name) })
	}
	return ErrSeal
}

// nameProcess gives a sealed process the name of its program back: that of a file in
// memory is a number.
func nameProcess() {
	if f, err := os.OpenFile("/proc/self/comm", os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString(filepath.Base(os.Args[0])) // it is for people only
		_ = f.Close()
	}
}
