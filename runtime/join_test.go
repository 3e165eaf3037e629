package runtime

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hostPID lets a container be without a pid namespace.
func hostPID(c *Config) *Config {
	c.Spec.Linux.Namespaces = nil
	c.Spec.Mounts = slices.DeleteFunc(c.Spec.Mounts, func(m specs.Mount) bool { return m.Type == "proc" })
	c.Spec.Mounts = append(c.Spec.Mounts, specs.Mount{Destination: "/proc", Type: "bind", Source: "/proc", Options: []string{"rbind"}})
	return c
}

// TestJoinedEnds: without a pid namespace those that joined, their children in sessions and
// namespaces of their own included, end with the container, however that ends.
func TestJoinedEnds(t *testing.T) {
	for _, fake := range []bool{false, true} {
		for how, end := range map[string]func(box *Container, stdin *os.File) error{
			"by itself":    func(_ *Container, stdin *os.File) error { return stdin.Close() },
			"Kill":         func(box *Container, _ *os.File) error { return box.Kill() },
			"PID 1 killed": func(box *Container, _ *os.File) error { return syscall.Kill(box.Init(), syscall.SIGKILL) },
		} {
			c := hostPID(small(t, "setsid sleep 1000 & read x"))
			if fake {
				asRoot(c)
			}
			stdin, more := pipe(t)
			r, w := pipe(t)
			c.Stdin, c.Stdout = stdin, w
			box := start(t, c)
			p, err := box.Join(t.Context(), JoinProcess{
				Args: []string{"sh", "-c", "setsid sleep 1001 & unshare -Um sleep 1002 & unshare -U setsid sleep 1003 & echo ready; exec sleep 1004"},
				Env:  []string{"PATH=/usr/bin:/bin"}, Stdout: w,
			})
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			in := bufio.NewReader(r)
			line(t, in)
			pids, err := box.inside()
			if err != nil || len(pids) < 5 {
				t.Fatalf("%s: processes inside: %d, %v", how, pids, err)
			}
			if err := end(box, more); err != nil {
				t.Fatal(err)
			}
			if _, err := box.Wait(); err != nil {
				t.Errorf("%s: %v", how, err)
			}
			if status, err := p.Wait(); err != nil || status.Signal != syscall.SIGKILL {
				t.Errorf("%s: joined: %+v, %v", how, status, err)
			}
			for _, pid := range pids {
				// It has no namespaces any more, and ends.
				await(t, fmt.Sprintf("%s, fake root %v: process %d ends", how, fake, pid), func() bool { return !alive(pid) })
			}
			if _, err := in.ReadByte(); err == nil {
				t.Errorf("%s: more is written", how)
			}
			if _, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/true"}}); !errors.Is(err, errEnded) {
				t.Errorf("%s: join: %v", how, err)
			}
		}
	}
}

// TestKillStopped: a PID 1 that reads nothing keeps nobody from ending the container.
func TestKillStopped(t *testing.T) {
	box := start(t, shell(t, "exec sleep 1000"))
	if err := syscall.Kill(box.Init(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	full := make(chan error)
	go func() {
		for {
			if err := box.Signal(syscall.SIGWINCH); err != nil {
				full <- err
				return
			}
		}
	}()
	select {
	case err := <-full:
		if !errors.Is(err, syscall.EAGAIN) {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("Signal waits")
		_ = syscall.Kill(box.Init(), syscall.SIGKILL)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
}

// TestNonblocking: whether a file blocks is its other users' affair, too.
func TestNonblocking(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	defer r.Close()
	defer w.Close()
	c := shell(t, "exec sleep 1000")
	c.Stdin, c.Stdout, c.Stderr = r, w, w
	box := start(t, c)
	p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/echo", "x"}, Stdin: r, Stdout: w, Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Error(err)
	}
	if err := box.Close(); err != nil {
		t.Error(err)
	}
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("descriptor %d blocks now: %#x, %v", fd, flags, err)
		}
	}
}

// runRefused runs a container in a process that refuses a call if its first argument is a
// number: a directory, the call, the number.
func runRefused(args []string) error {
	var nr, first uint32
	if _, err := fmt.Sscan(args[1]+" "+args[2], &nr, &first); err != nil {
		return err
	}
	if err := install(refusing(nr, 0, first)); err != nil {
		return err
	}
	c, err := awkward(args[0], args[0]+"/stage", "true")
	if err != nil {
		return err
	}
	return runOnce(c, ProbeFeatures())
}

// refusing is a filter that refuses a call if one of its arguments, counted from 0, is a
// value.
func refusing(nr, arg, value uint32) []byte {
	const args = 16 // in struct seccomp_data
	b := instruction(bpfLoad, 0, 0, offsetNR)
	b = append(b, instruction(bpfEqual, 0, 3, nr)...)
	b = append(b, instruction(bpfLoad, 0, 0, args+8*arg)...)
	b = append(b, instruction(bpfEqual, 0, 1, value)...)
	b = append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ERRNO|uint32(syscall.EPERM))...)
	return append(b, instruction(bpfReturn, 0, 0, unix.SECCOMP_RET_ALLOW)...)
}

// TestHalfJoined: a process whose terminal cannot be used is not left behind.
func TestHalfJoined(t *testing.T) {
	out, err := again(t, "half joined", t.TempDir()).CombinedOutput()
	if want := "join container: receive terminal: operation not permitted; children left: 0\n"; err != nil || string(out) != want {
		t.Errorf("%v: %s", err, out)
	}
}

// halfJoined joins a container where no terminal can be made not to block: its argument is
// a directory.
func halfJoined(args []string) error {
	c, err := awkward(args[0], args[0]+"/stage", "exec sleep 1000")
	if err != nil {
		return err
	}
	box, err := Prepare(context.Background(), c)
	if err != nil {
		return err
	}
	if err := errors.Join(box.Start(), install(refusing(unix.SYS_FCNTL, 1, unix.F_SETFL))); err != nil {
		return err
	}
	_, err = box.Join(context.Background(), JoinProcess{Args: []string{"/bin/sleep", "1000"}, Terminal: true})
	left := -1 // PID 1
	statuses, gerr := filepath.Glob("/proc/[0-9]*/status")
	for _, status := range statuses {
		b, _ := os.ReadFile(status) // it may have ended
		if strings.Contains(string(b), fmt.Sprintf("PPid:\t%d\n", os.Getpid())) {
			left++
		}
	}
	fmt.Printf("%v; children left: %d\n", err, left)
	return errors.Join(gerr, box.Close())
}

// TestRefused: what a container cannot do without is named where it is refused.
func TestRefused(t *testing.T) {
	for want, call := range map[string][2]int{
		"signalfd4 PID 1 reads its signals: operation not permitted":       {unix.SYS_SIGNALFD4, 1<<32 - 1},
		"prctl empty the capability bounding set: operation not permitted": {unix.SYS_PRCTL, unix.PR_CAPBSET_DROP},
	} {
		out, err := again(t, "refused", t.TempDir(), fmt.Sprint(call[0]), fmt.Sprint(call[1])).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %s", want, err, out)
		}
	}
}
