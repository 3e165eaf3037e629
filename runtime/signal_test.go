package runtime

import (
	"bufio"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSignals: those that PID 1 gets from here, from outside and from inside all reach
// the first process, once.
func TestSignals(t *testing.T) {
	r, w := pipe(t)
	c := shell(t, `
		for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s" $s; done
		echo ready
		while :; do sleep 0.01; done`)
	c.Stdout = w
	box := start(t, c)
	w.Close()
	in := bufio.NewReader(r)
	line(t, in)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH} {
		if err := box.Signal(s); err != nil {
			t.Fatal(err)
		}
		if got := line(t, in); "SIG"+got != unix.SignalName(s) {
			t.Errorf("%v: %q", s, got)
		}
		if err := syscall.Kill(box.Init(), s); err != nil {
			t.Fatal(err)
		}
		if got := line(t, in); "SIG"+got != unix.SignalName(s) {
			t.Errorf("%v to PID 1: %q", s, got)
		}
	}
	p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/sh", "-c", "kill -USR1 1"}})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(); err != nil || status.Code != 0 {
		t.Errorf("%+v, %v", status, err)
	}
	if got := line(t, in); got != "USR1" {
		t.Errorf("from inside: %q", got)
	}
	if err := box.Signal(0); err == nil {
		t.Error("signal 0 was sent")
	}
	if err := box.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status, err := box.Wait(); err != nil || status.Signal != syscall.SIGKILL || status.Code != 137 {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestStop: a first process that is stopped is told of, and goes on when it is continued.
func TestStop(t *testing.T) {
	r, w := pipe(t)
	c := shell(t, `echo ready; kill -STOP $$; echo on; exit 3`)
	c.Stdout = w
	box := start(t, c)
	w.Close()
	in := bufio.NewReader(r)
	line(t, in)
	if s := <-box.Stopped(); s != syscall.SIGSTOP {
		t.Errorf("%v", s)
	}
	if err := box.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := line(t, in); got != "on" {
		t.Errorf("%q", got)
	}
	if status, err := box.Wait(); err != nil || status.Code != 3 {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestTerminal: the first process and one that joins each have a terminal of the
// container's own, which they control.
func TestTerminal(t *testing.T) {
	c := shell(t, `tty; test -t 0 && echo tty; stty size; ls -l /dev/console | cut -c1; trap 'echo interrupted' INT; echo ready; read x; echo got $x; exec sleep 1000`)
	c.Spec.Process.Terminal = true
	box, err := Prepare(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	master := box.Terminal()
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 12, Col: 34}); err != nil {
		t.Fatal(err)
	}
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(master)
	for _, want := range []string{"/dev/pts/0\r", "tty\r", "12 34\r", "c\r", "ready\r"} {
		if got := line(t, in); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	master.WriteString("\x03") // Ctrl-C
	if got := line(t, in); !strings.HasSuffix(got, "interrupted\r") {
		t.Errorf("%q", got)
	}

	p, err := box.Join(t.Context(), JoinProcess{Args: []string{"/bin/sh", "-c", "tty; read x; echo got $x"}, Terminal: true})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Terminal().Close()
	in = bufio.NewReader(p.Terminal())
	if got := line(t, in); got != "/dev/pts/1\r" {
		t.Errorf("%q", got)
	}
	p.Terminal().WriteString("word\n")
	if got := line(t, in) + line(t, in); got != "word\rgot word\r" {
		t.Errorf("%q", got)
	}
	if status, err := p.Wait(); err != nil || status.Code != 0 {
		t.Errorf("%+v, %v", status, err)
	}
}

// TestTerminalSignal: what a terminal sends to the whole process group arrives once, though
// the supervisor, who gets it too, hands it on.
func TestTerminalSignal(t *testing.T) {
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, ptmx.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	slave := os.NewFile(fd, "slave")
	defer slave.Close()
	// Nothing but what is printed arrives, and all of it: without NOFLSH the kernel throws
	// away what is being printed when it has sent the signal.
	modes, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	modes.Lflag = modes.Lflag&^unix.ECHO | unix.NOFLSH
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, modes); err != nil {
		t.Fatal(err)
	}
	cmd := again(t, "forwarder", t.TempDir())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(ptmx)
	if got := line(t, in); got != "ready\r" {
		t.Fatalf("%q", got)
	}
	for i := range 3 {
		ptmx.WriteString("\x03")
		if got := line(t, in); got != "interrupt\r" {
			t.Fatalf("%d: %q", i, got)
		}
		if err := cmd.Process.Signal(syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		if got := line(t, in); got != "user defined signal 1\r" {
			t.Fatalf("%d: %q", i, got)
		}
	}
	ptmx.WriteString("end\n")
	if got := line(t, in); got != "count 3\r" {
		t.Errorf("%q", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestJoin: a process that joins sees what the first process sees, with no more rights.
func TestJoin(t *testing.T) {
	for _, fake := range []bool{false, true} {
		script := `cd /; for n in user mnt pid ipc uts cgroup net; do readlink /proc/self/ns/$n; done; grep -E '^(Cap|NoNew|Seccomp:|Uid|Gid)' /proc/self/status; pwd; umask; cat /proc/self/oom_score_adj; hostname; ls /proc/self/fd`
		c := shell(t, script+`; echo done; exec sleep 1000`)
		c.FakeRoot = fake
		if fake {
			c.Spec.Linux.UIDMappings[0].ContainerID, c.Spec.Linux.GIDMappings[0].ContainerID = 0, 0
		}
		adj := 321
		c.Spec.Process.OOMScoreAdj = &adj
		r, w := pipe(t)
		c.Stdout = w
		box := start(t, c)
		w.Close()
		in := bufio.NewReader(r)
		var first strings.Builder
		for l := line(t, in); l != "done"; l = line(t, in) {
			first.WriteString(l + "\n")
		}
		r, w = pipe(t)
		p, err := box.Join(t.Context(), JoinProcess{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Stdout: w})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		joined, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if string(joined) != first.String() {
			t.Errorf("joined:\n%sfirst:\n%s", joined, first.String())
		}
		if !strings.Contains(string(joined), "\n321\nbox\n") {
			t.Errorf("%s", joined)
		}
		if status, err := p.Wait(); err != nil || status.Code != 0 {
			t.Errorf("%+v, %v", status, err)
		}
		if _, err := box.Join(t.Context(), JoinProcess{Args: []string{"nothing"}}); err == nil || !strings.Contains(err.Error(), "command not found") {
			t.Errorf("%v", err)
		}
	}
}

// TestFakeRoot: changes of owner and user seem to succeed, and the capabilities are there.
func TestFakeRoot(t *testing.T) {
	c := small(t, `id -u; touch /tmp/x && chown 1234:5678 /tmp/x && stat -c %u:%g /tmp/x; mount -t tmpfs none /opt && echo mounted; grep Seccomp: /proc/self/status`)
	c.FakeRoot = true
	c.Spec.Linux.UIDMappings[0].ContainerID, c.Spec.Linux.GIDMappings[0].ContainerID = 0, 0
	out, _ := output(t, c)
	if want := "0\n0:0\nmounted\nSeccomp:\t2\n"; out != want {
		t.Errorf("%q, want %q", out, want)
	}
}
