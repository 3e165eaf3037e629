package proc

import (
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// inherits says whether a program that is started here has the file.
func inherits(t *testing.T, fd int) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", "if test -e /proc/$$/fd/"+strconv.Itoa(fd)+"; then echo yes; else echo no; fi").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out) == "yes\n"
}

// TestCloseOnExec: an inherited file does not go on to programs, on kernels with and
// without close_range; stdin, stdout and stderr do.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func(){
		"all":     CloseOnExec,
		"by name": func() { closeOnExecByName("/proc/self/fd") },
	} {
		t.Run(name, func(t *testing.T) {
			var p [2]int
			if err := unix.Pipe2(p[:], 0); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			if !inherits(t, p[0]) || !inherits(t, p[1]) {
				t.Fatal("the pipe is not inherited, so nothing is tested")
			}
			mark()
			for _, fd := range p {
				if inherits(t, fd) {
					t.Errorf("file %d is inherited", fd)
				}
				if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
					t.Errorf("file %d is closed here: %v", fd, err)
				}
			}
			for fd := range 3 {
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
					t.Errorf("file %d: flags %d, %v", fd, flags, err)
				}
			}
		})
	}
}
