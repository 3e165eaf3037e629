package step

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

func contextOfSignals() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:govet // for as long as the process
	return ctx
}

type (
	specFunc  = func(ranks int) *job.StepSpec
	startFunc = func(t *testing.T, spec *job.StepSpec, environ ...string) *testStep
)

// TestSupervise: ranks start together, know who they are, their output comes with their
// number, and how they ended is told and written down, with the last lines of who failed.
func TestSupervise(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := start(t, command(spec(3), "env=RANK", "env=SLURM_PROCID", "env=WORLD_SIZE", "env=MASTER_ADDR", "env=GANGWAY_STEP", "err=oops", "exitrank=1"))
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		end := s.ended()
		if end.Fault != nil || end.Start == 0 || end.End < end.Start || len(end.Ranks) != 3 || end.Node != "n1" || end.Key.Job != 17 {
			t.Errorf("%+v", end)
		}
		for i, r := range end.Ranks {
			want, tail := 0, ""
			if i == 1 {
				want, tail = 3, "oops"
			}
			if r.Rank != i || r.Exit != want || r.Signal != 0 || r.Node != "n1" || r.At < end.Start || r.At > end.End || string(r.Tail) != tail {
				t.Errorf("rank %d: %+v", i, r)
			}
		}
		streams, others := c.output()
		for i := range 3 {
			want := fmt.Sprintf("RANK=%d\nSLURM_PROCID=%[1]d\nWORLD_SIZE=3\nMASTER_ADDR=127.0.0.1\nGANGWAY_STEP=test/n1/17.1.0.1\n", i)
			if got := streams[fmt.Sprintf("%d.1", i)]; got != want {
				t.Errorf("rank %d says %q", i, got)
			}
			if got := streams[fmt.Sprintf("%d.2", i)]; got != "oops\n" {
				t.Errorf("stderr of rank %d: %q", i, got)
			}
		}
		if len(others) != 4 || others[3] != "end" {
			t.Errorf("%q", others)
		}
	})
}

// TestSuperviseCommands: what cannot be executed is the rank's failure, with the code that
// a shell gives.
func TestSuperviseCommands(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		for name, want := range map[string]int{"no-such-command": 127, "/no/such/file": 127, "/proc": 126} {
			bad := spec(2)
			bad.Program.Args = [][]byte{[]byte(name)}
			s := start(t, bad)
			c := s.io(stdio.Hello{Primary: true, Follow: true})
			s.begin()
			end := s.ended()
			if end.Fault != nil || len(end.Ranks) != 2 || end.Ranks[0].Exit != want || end.Ranks[1].Exit != want {
				t.Errorf("%s: %+v", name, end)
			}
			streams, _ := c.output()
			if got := streams["0.2"]; !strings.HasPrefix(got, "gangway: error: execute "+name) {
				t.Errorf("%s: %q", name, got)
			}
		}
	})
}

// TestSuperviseSignals: a signal kills with its number; a failing rank ends the others
// where that is asked for; TERM is followed by KILL when the grace is over.
func TestSuperviseSignals(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := start(t, command(spec(1), "kill"))
		s.begin()
		if end := s.ended(); end.Ranks[0].Signal != int(syscall.SIGKILL) || end.Ranks[0].Exit != 0 {
			t.Errorf("%+v", end.Ranks)
		}

		bad := command(spec(3), "exitrank=2", "sleep=1m")
		bad.Program.KillOnBadExit = true
		s = start(t, bad)
		s.begin()
		if end := s.ended(); end.Ranks[2].Exit != 3 || end.Ranks[0].Signal != int(syscall.SIGTERM) || end.Ranks[2].At > end.Ranks[0].At {
			t.Errorf("kill on bad exit: %+v", end.Ranks)
		}

		s = start(t, command(spec(2), "exitrank=0", "sleep=1m"))
		s.begin()
		s.send(control.Request{Signal: int(syscall.SIGINT)})
		if end := s.ended(); end.Ranks[1].Signal != int(syscall.SIGINT) {
			t.Errorf("a signal to all: %+v", end.Ranks)
		}

		// What comes before a rank is there is not lost: nobody sends it again.
		for sig, request := range map[syscall.Signal]control.Request{
			syscall.SIGTERM: {Signal: int(syscall.SIGTERM)},
			syscall.SIGKILL: {Kill: &control.Kill{Why: "at once"}},
		} {
			s = start(t, command(spec(8), "sleep=1m"))
			s.await() // that it is prepared
			s.send(control.Request{Start: &control.Start{}})
			s.send(request)
			s.await() // that it has started
			for _, r := range s.ended().Ranks {
				if r.Signal != int(sig) {
					t.Errorf("%v at the start: %+v", sig, r)
				}
			}
		}

		wait := command(spec(2), "exitrank=0", "sleep=1m")
		wait.Program.WaitAfterExit = 50 * job.Millisecond
		s = start(t, wait)
		s.begin()
		if end := s.ended(); end.Ranks[1].Signal != int(syscall.SIGTERM) {
			t.Errorf("wait after exit: %+v", end.Ranks)
		}
	})
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		// A signal to the rank alone leaves what it waits for alive, one to all does not.
		for sig, want := range map[int]int{-int(syscall.SIGHUP): 5, int(syscall.SIGHUP): 6} {
			s := start(t, command(spec(1), "trap"))
			c := s.io(stdio.Hello{Primary: true, Follow: true})
			s.begin()
			for f, err := c.r.Next(); f.Type != stdio.Stdout; f, err = c.r.Next() { // its child runs
				if err != nil {
					t.Fatal(err)
				}
			}
			s.send(control.Request{Signal: sig})
			if end := s.ended(); end.Ranks[0].Exit != want {
				t.Errorf("signal %d: %+v", sig, end.Ranks)
			}
		}
	})
	s := supervise(t, stepSpec(2, "sh", "-c", `trap "echo told" TERM; echo ready; while :; do sleep 0.05; done`))
	c := s.io(stdio.Hello{Primary: true, Follow: true})
	s.begin()
	for ready := map[uint32]bool{}; len(ready) < 2; { // what both have said, their traps are set before
		f, err := c.r.Next()
		if err != nil {
			t.Fatal(f, err)
		}
		if f.Type == stdio.Stdout {
			ready[f.Rank] = true
		}
	}
	begin := time.Now()
	s.send(control.Request{Kill: &control.Kill{GraceMS: 60000, Why: "time limit"}})
	s.send(control.Request{Kill: &control.Kill{GraceMS: 300, Why: "less patience"}})
	end := s.ended()
	if took := time.Since(begin); end.Ranks[0].Signal != int(syscall.SIGKILL) || took < 250*time.Millisecond || took > 5*time.Second {
		t.Errorf("after %v: %+v", took, end.Ranks)
	}
	if streams, _ := c.output(); !strings.HasSuffix(streams["0.1"], "told\n") {
		t.Errorf("%q", streams)
	}
}

// TestSuperviseNothingLeft: children that outlive their rank end with the step, and all of
// it ends when the supervisor is killed.
func TestSuperviseNothingLeft(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := command(spec(2), "child", "exit=0")
		marker := "TESTDIR=" + t.TempDir()
		s.Program.Environ = append(s.Program.Environ, []byte(marker))
		x := start(t, s)
		x.begin()
		if end := x.ended(); end.Fault != nil || len(end.Ranks) != 2 {
			t.Errorf("%+v", end)
		}
		if left := marked(strings.TrimPrefix(marker, "TESTDIR=")); len(left) > 0 {
			t.Errorf("processes %v are left", left)
		}

		s = command(spec(2), "out=ready", "sleep=1m")
		s.Program.Environ = append(s.Program.Environ, []byte(marker))
		x = start(t, s)
		c := x.io(stdio.Hello{Follow: true})
		x.begin()
		for range 2 {
			if _, err := c.r.Next(); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); len(marked(strings.TrimPrefix(marker, "TESTDIR="))) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("ranks live on without a supervisor")
			}
		}
	})
}

// TestSuperviseInput: what the client sends comes to rank 0, once, also where it is sent
// again after a reconnection; its end comes too.
func TestSuperviseInput(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := start(t, command(spec(2), "cat"))
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		if f, err := c.r.Next(); err != nil || f.Type != stdio.Taken || f.Offset != 0 {
			t.Fatalf("%+v, %v", f, err)
		}
		send := func(f stdio.Frame) {
			t.Helper()
			if err := stdio.Write(c, f); err != nil {
				t.Fatal(err)
			}
		}
		send(stdio.Frame{Type: stdio.Stdin, Data: []byte("hello ")})
		_ = c.Close()
		c = s.io(stdio.Hello{Primary: true, Follow: true})
		if f, err := c.r.Next(); err != nil || f.Type != stdio.Taken && f.Type != stdio.Stdout && f.Type != stdio.RankExit {
			t.Fatalf("%+v, %v", f, err)
		}
		send(stdio.Frame{Type: stdio.Stdin, Data: []byte("hello world")})
		send(stdio.Frame{Type: stdio.Stdin, Offset: 6, Data: []byte("world\n")})
		send(stdio.Frame{Type: stdio.StdinEOF, Offset: 12})
		if end := s.ended(); end.Ranks[0].Exit != 0 || end.Ranks[1].Exit != 0 {
			t.Errorf("%+v", end)
		}
		late := s.io(stdio.Hello{})
		if streams, _ := late.output(); streams["0.1"] != "hello world\n" || streams["1.1"] != "" {
			t.Errorf("%q", streams)
		}
	})
}

// TestSuperviseTerminal: rank 0 has a terminal of the client's size, in which what is
// typed is echoed; the end of the input is the sign for it.
func TestSuperviseTerminal(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		x := command(spec(2), "cat", "size")
		x.Program.Terminal = true
		s := start(t, x)
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		if f, err := c.r.Next(); err != nil || f.Type != stdio.Taken {
			t.Fatalf("%+v, %v", f, err)
		}
		// Also before there is a rank.
		for _, f := range []stdio.Frame{stdio.NewWinSize(33, 77), {Type: stdio.Stdin, Data: []byte("typed\n")}, {Type: stdio.StdinEOF, Offset: 6}} {
			if err := stdio.Write(c, f); err != nil {
				t.Fatal(err)
			}
		}
		s.begin()
		if end := s.ended(); end.Ranks[0].Exit != 0 || end.Ranks[0].Signal != 0 || end.Ranks[1].Exit != 0 {
			t.Errorf("%+v", end)
		}
		streams, _ := c.output()
		if got := streams["0.1"]; !strings.HasPrefix(got, "typed\r\n") || !strings.HasSuffix(got, "size 33 77 true\r\n") || strings.Count(got, "typed") != 2 {
			t.Errorf("%q", got)
		}
		if got := streams["1.1"]; got != "size 0 0 false\n" {
			t.Errorf("rank 1: %q", got)
		}
	})
}

// TestSuperviseExec: a further program runs where a rank is, knows it, has its input and
// its status; what cannot run says why; all of it ends with the step.
func TestSuperviseExec(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		s := start(t, command(spec(2), "sleep=1m"))
		client := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		program := string(command(spec(2)).Program.Args[0])
		x := s.exec(stdio.Exec{Rank: 1, Args: blobs([]string{program, rankArg, "env=RANK", "env=MORE", "cat", "exit=4"}), Environ: blobs([]string{"MORE=x"})})
		for _, f := range []stdio.Frame{{Type: stdio.Stdin, Data: []byte("input\n")}, {Type: stdio.StdinEOF, Offset: 6}} {
			if err := stdio.Write(x, f); err != nil {
				t.Fatal(err)
			}
		}
		if streams, others := x.output(); streams["1.1"] != "RANK=1\nMORE=x\ninput\n" || fmt.Sprint(others) != "[exit 1 with 4]" {
			t.Errorf("%q %q", streams, others)
		}
		x = s.exec(stdio.Exec{Rank: 0, Args: blobs([]string{"/no/such/file"})})
		if streams, others := x.output(); !strings.Contains(streams["0.2"], "execute /no/such/file") || fmt.Sprint(others) != "[exit 0 with 127]" {
			t.Errorf("%q %q", streams, others)
		}
		x = s.exec(stdio.Exec{Rank: 7, Args: blobs([]string{"true"})})
		if streams, others := x.output(); !strings.Contains(streams["7.2"], "does not have it") || fmt.Sprint(others) != "[exit 7 with 125]" {
			t.Errorf("%q %q", streams, others)
		}
		x = s.exec(stdio.Exec{Rank: 0, Terminal: true, Args: blobs([]string{program, rankArg, "cat", "size"})})
		for _, f := range []stdio.Frame{stdio.NewWinSize(33, 77), {Type: stdio.StdinEOF}} {
			if err := stdio.Write(x, f); err != nil {
				t.Fatal(err)
			}
		}
		if streams, _ := x.output(); streams["0.1"] != "size 33 77 true\r\n" {
			t.Errorf("%q", streams)
		}
		x = s.exec(stdio.Exec{Rank: 0, Args: blobs([]string{program, rankArg, "out=there", "sleep=1m"})})
		if f, err := x.r.Next(); err != nil || f.Type != stdio.Stdout {
			t.Fatalf("%+v, %v", f, err)
		}
		s.send(control.Request{Kill: &control.Kill{}})
		if end := s.ended(); len(end.Ranks) != 2 || end.Ranks[0].Signal != int(syscall.SIGKILL) {
			t.Errorf("%+v", end)
		}
		if _, others := x.output(); len(others) != 1 {
			t.Errorf("%q", others)
		}
		client.output()
	})
}

// TestSuperviseBatch: a script has its arguments, its files are named by Slurm's signs and
// their directories are made; nobody has to fetch anything.
func TestSuperviseBatch(t *testing.T) {
	spec := stepSpec(1, "first", "second")
	spec.Key.Step = job.BatchStep
	spec.Job.Array = &job.ArrayFacts{Job: 10, Task: 3, Count: 4}
	spec.Job.Restarts = 2
	spec.Program.Script = []byte("#!/bin/sh\necho $0 $1 $2 $SLURM_ARRAY_TASK_ID $SLURM_RESTART_COUNT ${RANK-none}; command -v sbatch; echo bad >&2; exit 7\n")
	spec.Program.Output = "logs/%x-%A_%a.out"
	cwd := t.TempDir()
	spec.Program.Cwd = []byte(cwd)
	s := supervise(t, spec)
	s.begin()
	end := s.ended()
	if end.Fault != nil || end.Ranks[0].Exit != 7 || !strings.HasSuffix(string(end.Ranks[0].Tail), "bad") {
		t.Errorf("%+v, %s", end, end.Ranks[0].Tail)
	}
	b, err := os.ReadFile(filepath.Join(cwd, "logs/train-10_3.out"))
	if want := fmt.Sprintf("%s/slurm_script first second 3 2 none\n", s.dir); err != nil || !strings.HasPrefix(string(b), want) || !strings.HasSuffix(string(b), "\nbad\n") {
		t.Errorf("%q, %v", b, err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if c, err := control.Dial(s.dir); err != nil {
			break
		} else if _ = c.Close(); time.Now().After(deadline) {
			t.Fatal("the supervisor of a batch script waits for somebody")
		}
	}
}

// TestSuperviseFiles: a file for each rank, one for all with labels, appending, nobody.
func TestSuperviseFiles(t *testing.T) {
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		cwd := t.TempDir()
		run := func(edit func(p *job.Program)) {
			t.Helper()
			x := command(spec(2), "env=RANK", "err=e")
			x.Program.Cwd = []byte(cwd)
			edit(&x.Program)
			s := start(t, x)
			s.begin()
			if end := s.ended(); end.Fault != nil || end.Ranks[0].Exit+end.Ranks[1].Exit != 0 {
				t.Fatalf("%+v", end)
			}
		}
		has := func(name string, want ...string) {
			t.Helper()
			b, err := os.ReadFile(filepath.Join(cwd, name))
			if slices.Contains(want, string(b)) {
				return
			}
			t.Errorf("%s: %q, %v, want %q", name, b, err, want)
		}
		run(func(p *job.Program) { p.Output, p.Error = "o.%t", "e.%N.%t" })
		has("o.0", "RANK=0\n")
		has("o.1", "RANK=1\n")
		has("e.n1.1", "e\n")
		run(func(p *job.Program) { p.Output, p.Error, p.Append = "o.%t", "none", true })
		has("o.1", "RANK=1\nRANK=1\n")
		run(func(p *job.Program) { p.Output, p.Error, p.Label = "both", "/dev/null", true })
		has("both", "0: RANK=0\n1: RANK=1\n", "1: RANK=1\n0: RANK=0\n")
		run(func(p *job.Program) { p.Output = "o.1" }) // both, with stderr
		has("o.1", "RANK=0\ne\nRANK=1\ne\n", "RANK=1\ne\nRANK=0\ne\n", "RANK=0\nRANK=1\ne\ne\n", "RANK=1\nRANK=0\ne\ne\n")
	})
}

// TestSuperviseSlowReader: a client that does not read blocks no rank, and knows in the end
// what it has missed.
func TestSuperviseSlowReader(t *testing.T) {
	s := supervise(t, command(stepSpec(2), "fill=1600")) // 100 MiB each
	c := s.io(stdio.Hello{Primary: true, Follow: true})
	s.begin()
	s.ended()
	size, lost := map[uint32]uint64{}, uint64(0)
	for {
		f, err := c.r.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch f.Type {
		case stdio.Stdout:
			if f.Offset != size[f.Rank] {
				t.Fatalf("offset %d after %d", f.Offset, size[f.Rank])
			}
			size[f.Rank] += uint64(len(f.Data))
		case stdio.Gap:
			_, n, _, _ := f.Lost()
			size[f.Rank] += n
			lost += n
		case stdio.StepEnd:
			if size[0] != 1600<<16 || size[1] != 1600<<16 || lost == 0 {
				t.Errorf("%v, %d lost", size, lost)
			}
			st, err := os.Stat(filepath.Join(s.dir, spoolFile))
			if err != nil || st.Size() > spoolSize {
				t.Errorf("spool: %+v, %v", st, err)
			}
			return
		}
	}
}

// TestSuperviseWhole: a client that reads slowly, and after the ranks have ended, gets every
// byte, far more than is kept; what ranks leave in their pipes is part of it.
func TestSuperviseWhole(t *testing.T) {
	s := supervise(t, command(stepSpec(2), "fill=1600", "out=last")) // 100 MiB each
	c := s.io(stdio.Hello{Primary: true, Follow: true})
	s.begin()
	size, last := map[uint32]uint64{}, map[uint32]string{}
	for pauses := 0; ; {
		f, err := c.r.Next()
		if err != nil {
			t.Fatal(err)
		}
		switch f.Type {
		case stdio.Stdout:
			if f.Offset != size[f.Rank] {
				t.Fatalf("offset %d after %d", f.Offset, size[f.Rank])
			}
			size[f.Rank] += uint64(len(f.Data))
			last[f.Rank] = string(f.Data[max(0, len(f.Data)-5):])
			if all := size[0] + size[1]; all > uint64(pauses+1)*50<<20 { // three times
				pauses++
				time.Sleep(readerPatience * 7 / 10)
			}
		case stdio.Gap:
			_, n, _, _ := f.Lost()
			t.Fatalf("%d bytes of rank %d are lost", n, f.Rank)
		case stdio.StepEnd:
			if want := uint64(1600<<16 + 5); size[0] != want || size[1] != want || last[0] != "last\n" || last[1] != "last\n" {
				t.Errorf("%v of %d each, %v", size, want, last)
			}
			return
		}
	}
}

// TestDrain: the end of a rank waits for what it has written, as long as who takes that waits,
// and not for a child that has its output open.
func TestDrain(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // the child's
	f := &rankFiles{m: &member{}}
	goOn, took := make(chan struct{}), 0
	f.read(r, func(b []byte) { <-goOn; took += len(b) }, stdio.Stdout)
	if _, err := w.Write(make([]byte, 60_000)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.drain(10 * time.Millisecond)
	}()
	select {
	case <-done:
		t.Fatal("output that was written is not waited for")
	case <-time.After(200 * time.Millisecond):
	}
	close(goOn)
	<-done
	if given, more := f.taps[0].state(); given != 60_000 || more {
		t.Errorf("%d bytes were handed on, more: %v", given, more)
	}
}

// TestSuperviseNotStarted: what fails, is cancelled, or is given up before START ends with a
// fault, and no rank.
func TestSuperviseNotStarted(t *testing.T) {
	image := rankImage(t)
	contained := func(flag string) *job.StepSpec {
		s := stepSpec(1)
		s.Program.Container = []string{flag}
		return command(s, "exit=0")
	}
	check := func(name string, s *testStep, what string, node bool) {
		t.Helper()
		end := s.kept()
		if end.Fault == nil || !strings.Contains(end.Fault.What, what) || end.Fault.Node != node || end.Start != 0 || len(end.Ranks) != 0 {
			t.Errorf("%s: %+v %+v", name, end, end.Fault)
		}
	}
	environ := []string{"IMAGE=" + image, "RUN=" + t.TempDir()}
	check("no image", startSupervisor(t, contained("--missing"), environ...), "there is none", true)
	for _, dir := range []string{"/no/such/directory", "/dev/null", strings.Repeat("/x", 3000)} {
		missing := stepSpec(1, "true")
		missing.Program.Cwd = []byte(dir)
		missing.Key.Step = job.BatchStep
		s := startSupervisor(t, missing)
		check("no directory", s, "enter working directory", false)
		if end := s.kept(); end.Fault.Doubtful != (len(dir) < 3000) { // a name that is too long is so everywhere
			t.Errorf("%.20s: %+v", dir, end.Fault)
		}
	}
	fifos := t.TempDir()
	unread, unwritten := stepSpec(1, "true"), stepSpec(1, "true")
	for name, file := range map[string]*string{"out": &unread.Program.Output, "in": &unwritten.Program.Input} {
		*file = filepath.Join(fifos, name)
		if err := syscall.Mkfifo(*file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("FIFO without a reader", startSupervisor(t, unread), "other end of the FIFO", false)
	check("FIFO without a writer", startSupervisor(t, unwritten), "other end of the FIFO", false)
	input := stepSpec(1, "true")
	input.Program.Input = "no-such-file"
	check("no input", startSupervisor(t, input), "open input", false)
	for _, name := range []string{"/proc/no/file", "/dev/null/file", "/", strings.Repeat("x", 300)} {
		output := stepSpec(1, "true")
		output.Program.Output = name
		check("output "+name, startSupervisor(t, output), "open output", false)
	}

	s := supervise(t, contained("--ok"), environ...)
	if e := s.await(); e.Prepared == nil {
		t.Fatalf("%+v", e)
	}
	s.send(control.Request{Kill: &control.Kill{GraceMS: 30000, Why: "another node is not ready"}})
	check("cancelled", s, "another node is not ready", false)

	s = supervise(t, contained("--ok"), append(environ, "LEASE=1500")...)
	if e := s.await(); e.Prepared == nil {
		t.Fatalf("%+v", e)
	}
	s.send(control.Request{Renew: 300})
	check("given up", s, "given up", true)
}

// TestSuperviseRefuses: what makes no sense is refused with a reason, and nothing changes.
func TestSuperviseRefuses(t *testing.T) {
	s := supervise(t, stepSpec(1, "true"))
	if e := s.await(); e.Prepared == nil || e.Prepared.Port == 0 {
		t.Fatalf("%+v", e)
	}
	for _, r := range []control.Request{{Signal: 99}, {Start: &control.Start{MasterPort: 70000}}} {
		s.send(r)
		if e := s.await(); e.Refused == "" {
			t.Errorf("%+v: %+v", r, e)
		}
	}
	if _, err := s.c.Write([]byte("{not json\n")); err != nil {
		t.Fatal(err)
	}
	if e := s.await(); e.Refused == "" {
		t.Errorf("%+v", e)
	}
	// Its connection is closed; another one finds the step as it was.
	s.c = s.dial()
	s.send(control.Request{Watch: true})
	s.begin()
	s.send(control.Request{Start: &control.Start{}}) // a second one changes nothing
	if end := s.ended(); end.Fault != nil || len(end.Ranks) != 1 {
		t.Errorf("%+v", end)
	}
}
