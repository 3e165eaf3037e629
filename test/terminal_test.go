package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a terminal that a program runs in, its first process the session's leader.
type terminal struct {
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	done   chan struct{}

	mu   sync.Mutex
	text string // all that was printed
	from int    // what has been looked at
}

// onTerminal starts a command in a new terminal.
func onTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &terminal{master: os.NewFile(uintptr(fd), "ptmx"), cmd: cmd, done: make(chan struct{})}
	t.Cleanup(func() { _ = s.master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if s.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.slave.Close() })
	s.resize(t, 24, 80)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	cmd.Env = append(cmd.Env, "TERM=vt100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := s.master.Read(b)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.text += string(b[:n])
			s.mu.Unlock()
		}
	}()
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // how it ended is asked of the process
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-s.done
		if t.Failed() {
			t.Logf("the terminal showed:\n%s", s.shown())
		}
	})
	return s
}

func (s *terminal) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// expect waits until something is printed after what was waited for before.
func (s *terminal) expect(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found string
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		at := re.FindStringIndex(s.text[s.from:])
		if at != nil {
			found = s.text[s.from+at[0] : s.from+at[1]]
			s.from += at[1]
		}
		return at != nil
	})
	return found
}

func (s *terminal) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func (s *terminal) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end of the program, which must exit with a code.
func (s *terminal) ends(t *testing.T, code int) {
	t.Helper()
	waitFor(t, func() bool {
		select {
		case <-s.done:
			return true
		default:
			return false
		}
	})
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit %d, want %d", got, code)
	}
}

// modes are the terminal's.
func (s *terminal) modes(t *testing.T) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

// TestTerminal sits at a terminal and types.
func TestTerminal(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	p.run(t, image, "--", "true").want(t, 0, "", "")
	running := p.start(t, image, "--container-name=tty")
	defer running.stop(t)
	run := func(args ...string) *exec.Cmd {
		return p.command(append([]string{"run", "-q", "--container-image=" + image}, args...)...)
	}
	for name, cmd := range map[string]func() *exec.Cmd{
		"run":      func() *exec.Cmd { return run("-t", "--", "sh") },
		"exec":     func() *exec.Cmd { return p.command("exec", "-t", "tty", "sh") },
		"writable": func() *exec.Cmd { return run("-t", "--container-writable", "--container-remap-root", "--", "sh") },
	} {
		t.Run(name, func(t *testing.T) { testShell(t, onTerminal(t, cmd())) })
	}
	t.Run("command ends by Ctrl-C", func(t *testing.T) {
		s := onTerminal(t, run("-t", "--", "sh", "-c", "echo up; exec sleep 1000"))
		before := s.modes(t)
		s.expect(t, "up\r\n")
		s.enter(t, "\x03")
		s.ends(t, 130)
		if after := s.modes(t); after != before {
			t.Errorf("modes %+v, were %+v", after, before)
		}
	})
	t.Run("killed", func(t *testing.T) {
		s := onTerminal(t, run("-t", "--", "sh", "-c", "echo up; exec sleep 1000"))
		before := s.modes(t)
		s.expect(t, "up\r\n")
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		s.ends(t, 143)
		if after := s.modes(t); after != before {
			t.Errorf("modes %+v, were %+v", after, before)
		}
	})
	t.Run("terminal is closed", func(t *testing.T) {
		s := onTerminal(t, run("-t", "--container-mounts="+p.mkdir(t, "hup")+":/hup", "--", "sh", "-c", "trap 'echo hup > /hup/got; exit 0' HUP; echo up; while :; do sleep 1000 & wait; done"))
		s.expect(t, "up\r\n")
		_ = s.slave.Close()
		_ = s.master.Close()
		s.ends(t, 0)
		if b, err := os.ReadFile(filepath.Join(p.dir, "hup/got")); err != nil || string(b) != "hup\n" {
			t.Errorf("the command was not told: %q, %v", b, err)
		}
	})
	t.Run("input is no terminal", func(t *testing.T) {
		cmd := run("-t", "--", "sh", "-c", "tty; cat; echo end")
		cmd.Stdin = strings.NewReader("typed\n")
		outcomeOf(t, cmd).want(t, 0, `(?s)/dev/(pts/0|console)\r\n.*typed\r\nend\r\n$`, "")
	})
	t.Run("much output", func(t *testing.T) {
		s := onTerminal(t, run("-t", "--", "sh", "-c", "seq 20000; echo last"))
		s.expect(t, "20000\r\nlast\r\n")
		s.ends(t, 0)
	})
	t.Run("job control", func(t *testing.T) { testJobControl(t, p, image) })
	t.Run("stopped when the terminal goes", func(t *testing.T) {
		s := onTerminal(t, p.shell())
		s.expect(t, `host\$ `)
		s.enter(t, p.bin+" run -q --container-image="+image+" -- sh -c 'echo up; exec sleep 1000'\n")
		s.expect(t, "[\r\n]up\r\n")
		s.enter(t, "\x1a")
		s.expect(t, "Stopped")
		_ = s.slave.Close()
		_ = s.master.Close()
		waitFor(t, func() bool { return !inTerminal(t, p, s, "sleep") && !inTerminal(t, p, s, "gangway") })
	})
}

// testShell types into a shell of a container.
func testShell(t *testing.T, s *terminal) {
	before := s.modes(t)
	s.expect(t, `[$#] `)
	s.enter(t, "tty; test -t 0 && test -t 1 && test -t 2 && echo is a 'terminal'\n")
	s.expect(t, "/dev/(pts/[0-9]+|console)\r\n")
	s.expect(t, "is a terminal\r\n")
	s.enter(t, "stty size\n")
	s.expect(t, "24 80\r\n")
	s.enter(t, "sh -c 'trap \"stty size\" WINCH; echo wait''ing; while :; do sleep 1000 & wait; done'\n")
	s.expect(t, "waiting\r\n")
	s.resize(t, 33, 111)
	s.expect(t, "33 111\r\n")
	s.enter(t, "\x03")
	s.expect(t, `[$#] `)
	s.enter(t, "sh -c 'echo slee''ping; exec sleep 1000'\n")
	s.expect(t, "sleeping\r\n")
	s.enter(t, "\x1a") // the shell of the container has jobs of its own
	s.expect(t, "Stopped")
	s.enter(t, "kill -9 %1; fg; echo re''ady; cat; echo in''put ended\n")
	s.expect(t, "ready\r\n")
	s.enter(t, "typed\n\x04")
	s.expect(t, "typed\r\ntyped\r\ninput ended\r\n")
	s.enter(t, "exit 7\n")
	s.ends(t, 7)
	if after := s.modes(t); after != before {
		t.Errorf("modes %+v, were %+v", after, before)
	}
}

// testJobControl runs a container from a shell that has jobs, without a terminal of the
// container's own.
func testJobControl(t *testing.T, p *person, image string) {
	s := onTerminal(t, p.shell())
	s.expect(t, `host\$ `)
	start := p.bin + " run -q --container-image=" + image + " -- "
	// INT comes to the command once, though the terminal sends it to both.
	s.enter(t, start+`sh -c 'trap "echo got INT" INT; echo up; n=0; while [ $n -lt 3 ]; do sleep 0.2; n=$((n+1)); done; echo done'`+"\n")
	s.expect(t, "[\r\n]up\r\n")
	s.enter(t, "\x03")
	if got := s.expect(t, `(?s)\^C.*done\r\n`); strings.Count(got, "got INT") != 1 {
		t.Errorf("INT came %d times: %q", strings.Count(got, "got INT"), got)
	}
	s.expect(t, `host\$ `)
	s.enter(t, start+"sleep 1000; echo code $?\n")
	s.expect(t, "sleep 1000; echo code .*\n")
	waitFor(t, func() bool { return len(processesNamed(t, p, "sleep")) >= 1 && inTerminal(t, p, s, "sleep") })
	s.enter(t, "\x03")
	s.expect(t, "code 130\r\n")
	s.expect(t, `host\$ `)
	// Ctrl-Z stops both, and fg continues both.
	s.enter(t, start+`sh -c 'echo up; read line; echo "read $line"; exit 5'`+"\n")
	s.expect(t, "[\r\n]up\r\n")
	s.enter(t, "\x1a")
	s.expect(t, "Stopped")
	s.expect(t, `host\$ `)
	s.enter(t, "jobs -l; echo st''ate\n")
	s.expect(t, "(?s)Stopped.*state\r\n")
	s.enter(t, "fg\n")
	s.expect(t, "run -q")
	s.enter(t, "hello\n")
	s.expect(t, "read hello\r\n")
	s.expect(t, `host\$ `)
	s.enter(t, "echo code $?\n")
	s.expect(t, "code 5\r\n")
	// The same of a command in a container that runs elsewhere.
	s.enter(t, p.bin+` exec tty sh -c 'echo up; read line; echo "read $line"; exit 6'`+"\n")
	s.expect(t, "[\r\n]up\r\n")
	s.enter(t, "\x1a")
	s.expect(t, "Stopped")
	s.expect(t, `host\$ `)
	s.enter(t, "fg\n")
	s.expect(t, "exec tty")
	s.enter(t, "hello\n")
	s.expect(t, "read hello\r\n")
	s.expect(t, `host\$ `)
	s.enter(t, "echo code $?\n")
	s.expect(t, "code 6\r\n")
	s.enter(t, "exit\n")
	s.ends(t, 0)
}

// shell is the user's, of the machine.
func (p *person) shell() *exec.Cmd {
	return &exec.Cmd{
		Path: "/bin/bash", Args: []string{"bash", "--norc", "--noprofile", "-i"}, Dir: filepath.Join(p.dir, "home"), Env: append(p.environ(), "PS1=host$ "),
		SysProcAttr: &syscall.SysProcAttr{Credential: p.cred},
	}
}

// processesNamed are the user's processes of a name, by number.
func processesNamed(t *testing.T, p *person, name string) []int {
	t.Helper()
	var pids []int
	for _, comm := range glob(t, "/proc/[0-9]*/comm") {
		b, _ := os.ReadFile(comm) // it may have ended
		var st unix.Stat_t
		var pid int
		if _, err := fmt.Sscanf(comm, "/proc/%d/comm", &pid); err == nil && string(b) == name+"\n" && unix.Stat(filepath.Dir(comm), &st) == nil && int(st.Uid) == p.uid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// inTerminal says whether such a process is in the session of a terminal.
func inTerminal(t *testing.T, p *person, s *terminal, name string) bool {
	t.Helper()
	for _, pid := range processesNamed(t, p, name) {
		if sid, err := unix.Getsid(pid); err == nil && sid == s.cmd.Process.Pid {
			return true
		}
	}
	return false
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestSignals sends signals to gangway run, and to gangway exec: each comes to the command
// once.
func TestSignals(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	const count = `for s in TERM HUP USR1 USR2 INT QUIT WINCH; do trap "echo $s" $s; done; echo up > /tmp/up; echo up; while :; do sleep 1000 & wait $!; done`
	all := map[string]syscall.Signal{"TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "WINCH": syscall.SIGWINCH}
	host := p.start(t, image, "--container-name=host")
	defer host.stop(t)
	for name, cmd := range map[string]*exec.Cmd{
		"run":  p.command("run", "-q", "--container-image="+image, "--", "sh", "-c", count),
		"exec": p.command("exec", "host", "sh", "-c", count),
	} {
		t.Run(name, func(t *testing.T) {
			var out output
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("output: %s", out.String())
				}
			})
			waitFor(t, func() bool { return out.String() == "up\n" })
			want := "up\n"
			for _, name := range []string{"TERM", "HUP", "USR1", "USR2", "INT", "QUIT", "WINCH", "USR1", "TERM"} {
				if err := cmd.Process.Signal(all[name]); err != nil {
					t.Fatal(err)
				}
				want += name + "\n"
				waitFor(t, func() bool { return len(out.String()) >= len(want) })
				if out.String() != want {
					t.Fatalf("the command got %q, want %q", out.String(), want)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if name == "exec" { // its command is told as by a terminal, and may go on
				want += "HUP\n"
				waitFor(t, func() bool { return len(out.String()) >= len(want) })
				host.stop(t)
			}
			_ = cmd.Wait() // it was killed
			if got, _, _ := strings.Cut(out.String(), "gangway: error: the container's supervisor died"); got != want {
				t.Errorf("the command got %q, want %q", out.String(), want)
			}
		})
	}
	t.Run("processes left behind", func(t *testing.T) {
		// A daemon does not keep the container, nor its output the caller.
		p.run(t, image, "--", "sh", "-c", "setsid sleep 1001 & (setsid sh -c 'sleep 1002 & sleep 1003' &); echo left; exit 4").want(t, 4, "^left\n$", "")
		for _, pid := range processesNamed(t, p, "sleep") {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(b), "100") && !strings.HasSuffix(strings.TrimRight(string(b), "\x00"), "1000") {
				t.Errorf("process %d is left: %q", pid, b)
			}
		}
		// The dead whose parents are gone are buried.
		p.run(t, image, "--", "sh", "-c", `for i in 1 2 3 4 5 6 7 8; do (sh -c 'exit 0' & exec sleep 0.01) & done; wait; for i in 1 2 3 4; do (sleep 0.01 &) ; done; sleep 0.3; cat /proc/[0-9]*/status | grep -c '^State:.Z'; echo end`).want(t, 0, "^0\nend\n$", "")
	})
}

// output is what a program printed so far.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
