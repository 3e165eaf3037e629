package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// background is a program that a test goes on beside.
type background struct {
	cmd  *exec.Cmd
	out  output
	done chan struct{}
}

// inBackground starts a program, which is killed at the end of the test.
func inBackground(t *testing.T, cmd *exec.Cmd) *background {
	t.Helper()
	b := &background{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &b.out, &b.out
	cmd.WaitDelay = time.Second // what it left in a container has its output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(b.done)
		_ = cmd.Wait() // how it ended is asked of the process
	}()
	t.Cleanup(func() {
		b.signal(t, syscall.SIGKILL)
		<-b.done
		if t.Failed() {
			t.Logf("%q printed:\n%s", cmd.Args, b.out.String())
		}
	})
	return b
}

func (b *background) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := b.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
}

// ended says whether it has.
func (b *background) ended() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// ends waits for the end, which must be by exit with a code.
func (b *background) ends(t *testing.T, code int) {
	t.Helper()
	waitFor(t, b.ended)
	if got := b.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("%q: exit %d, want %d", b.cmd.Args, got, code)
	}
}

// job is a container of several gangway runs.
type job struct {
	*person
	image, name string
}

// rank is one more run.
func (j *job) rank(options []string, script string) *exec.Cmd {
	args := append([]string{"run", "-q", "--container-image=" + j.image, "--container-name=" + j.name}, options...)
	return j.command(append(args, "--", "sh", "-c", script)...)
}

// await waits for a file in the container.
func (j *job) await(t *testing.T, name string) {
	t.Helper()
	waitFor(t, func() bool { return j.command("exec", j.name, "ls", name).Run() == nil })
}

// until is a script that ends when there is a file.
func until(name string) string { return "; while [ ! -e " + name + " ]; do sleep 0.05; done" }

// TestInterruptOutlived: a container whose command outlives an interrupt answers as before.
func TestInterruptOutlived(t *testing.T) {
	p := newPerson(t)
	j := &job{p, p.image(t, nil), "outlived"}
	first := inBackground(t, j.rank(nil, "trap 'touch /tmp/int' INT; trap 'touch /tmp/term' TERM; touch /tmp/up"+until("/tmp/end")))
	j.await(t, "/tmp/up")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		first.signal(t, s)
		for range 3 { // the first may have been accepted before
			outcomeOf(t, p.command("exec", j.name, "echo", "there")).want(t, 0, "^there\n$", "")
		}
		outcomeOf(t, j.rank(nil, "echo joined")).want(t, 0, "^joined\n$", "")
	}
	j.await(t, "/tmp/int") // a shell looks at signals between its commands
	j.await(t, "/tmp/term")
	outcomeOf(t, p.command("exec", j.name, "touch", "/tmp/end")).want(t, 0, "", "")
	waitFor(t, first.ended)
	if out := first.out.String(); out != "" {
		t.Errorf("it printed %q", out)
	}
}

// TestStoppedOrphan: a command that was stopped when its client died is told of that, as by
// a terminal, and keeps nobody waiting.
func TestStoppedOrphan(t *testing.T) {
	p := newPerson(t)
	j := &job{p, p.image(t, nil), "orphan"}
	first := inBackground(t, j.rank(nil, "touch /tmp/up"+until("/tmp/end")))
	j.await(t, "/tmp/up")
	second := inBackground(t, j.rank(nil, "touch /tmp/two; exec sleep 1000"))
	j.await(t, "/tmp/two")
	stopped := func() bool {
		for _, pid := range processesNamed(t, p, "sleep") {
			b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
			if err == nil && strings.Contains(string(b), "State:\tT") {
				return true
			}
		}
		return false
	}
	waitFor(t, func() bool { return len(processesNamed(t, p, "sleep")) > 0 })
	second.signal(t, syscall.SIGTSTP)
	waitFor(t, stopped)
	second.signal(t, syscall.SIGKILL)
	waitFor(t, func() bool { return !stopped() })
	outcomeOf(t, p.command("exec", j.name, "touch", "/tmp/end")).want(t, 0, "", "")
	first.ends(t, 0)
}

// TestTimeoutOfOwn: the time of a run is that of its command, not of those that others
// started in the container.
func TestTimeoutOfOwn(t *testing.T) {
	p := newPerson(t)
	j := &job{p, p.image(t, nil), "limited"}
	const limit = 4 * time.Second
	start := time.Now()
	first := inBackground(t, j.rank([]string{"--timeout=" + limit.String()}, "touch /tmp/up"+until("/tmp/two")))
	j.await(t, "/tmp/up")
	second := inBackground(t, j.rank(nil, "touch /tmp/two"+until("/tmp/end")))
	time.Sleep(time.Until(start.Add(limit + 2*time.Second)))
	if first.ended() || second.ended() {
		t.Error("the commands of others ended at the time of the first")
	} else {
		outcomeOf(t, p.command("exec", j.name, "touch", "/tmp/end")).want(t, 0, "", "")
	}
	second.ends(t, 0)
	first.ends(t, 0)
}

// TestLinger: while a run waits for the commands of others it says so, its terminal is as
// it was, and what ends programs ends it.
func TestLinger(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	const waits = "warning: the command has ended; waiting for those of others in the container, until interrupted: commands=1\r?\n"
	const other = "touch /tmp/two; exec sleep 1000"
	for name, key := range map[string]string{"intr": "\x03", "quit": "\x1c"} {
		t.Run(name, func(t *testing.T) {
			j := &job{p, image, name}
			s := onTerminal(t, j.rank([]string{"-t"}, "touch /tmp/up; exec sh"))
			before := s.modes(t)
			s.expect(t, `[$#] `)
			j.await(t, "/tmp/up")
			second := inBackground(t, j.rank(nil, other))
			j.await(t, "/tmp/two")
			s.enter(t, "exit 3\n")
			s.expect(t, waits)
			if now := s.modes(t); now != before {
				t.Errorf("modes %+v, were %+v", now, before)
			}
			s.enter(t, key)
			s.ends(t, 3)
			waitFor(t, second.ended)
		})
	}
	for name, signal := range map[string]syscall.Signal{"hup": syscall.SIGHUP, "term": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			j := &job{p, image, name}
			first := inBackground(t, j.rank(nil, "touch /tmp/up"+until("/tmp/two")))
			j.await(t, "/tmp/up")
			second := inBackground(t, j.rank(nil, other))
			waitFor(t, func() bool { return matches(waits, first.out.String()) })
			first.signal(t, signal)
			first.ends(t, 0)
			second.ends(t, 137)
		})
	}
}

// TestStoppedByOthers: what stops and continues a command in its container is not the
// caller's affair.
func TestStoppedByOthers(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	p.start(t, image, "--container-name=stops")
	const script = "(sleep 0.5; kill -CONT $$) & kill -STOP $$; echo went on"
	for _, args := range [][]string{{"run", "-q", "--container-image=" + image, "--"}, {"exec", "stops"}} {
		b := inBackground(t, p.command(append(args, "sh", "-c", script)...))
		b.ends(t, 0)
		if out := b.out.String(); out != "went on\n" {
			t.Errorf("%s: %q", args[0], out)
		}
	}
}
