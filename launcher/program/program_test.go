package program_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/program"
)

// TestEnviron: what programs have for an environment, and nothing else.
func TestEnviron(t *testing.T) {
	at := program.Place{Cluster: "lab", Node: "n2", API: "unix:/c.sock"}
	j := &job.JobEnv{
		ID: 7, UID: 1000, GID: 100, User: "ann", Name: "train", Account: "ml", Partition: "gpu", Comment: "a b", Constraints: "a&b", WorkDir: "/home/ann",
		Nodes: []string{"n1", "n2", "n3"}, CPUsPerNode: []int{8, 8, 4}, Start: 1_700_000_000_000, End: 1_700_003_600_000, Restarts: 2,
		Array: &job.ArrayFacts{Job: 5, Task: 2, Count: 4, Min: 0, Max: 3, Step: 1}, Devices: []job.Devices{{Name: "gpu", Type: "h100", Mask: 0b1010, Count: 2}},
		Ended: &job.JobExit{Exit: 7, Signal: 0, Derived: 9},
	}
	const everywhere = "SLURM_CLUSTER_NAME=lab SLURMD_NODENAME=n2 GANGWAY_CLUSTER=unix:/c.sock"
	const ofJob = everywhere + " SLURM_JOB_ID=7 SLURM_JOBID=7 SLURM_JOB_UID=1000 SLURM_UID=1000 SLURM_JOB_GID=100 SLURM_JOB_USER=ann SLURM_JOB_NAME=train SLURM_JOB_ACCOUNT=ml" +
		" SLURM_JOB_PARTITION=gpu SLURM_JOB_COMMENT=a_b SLURM_JOB_CONSTRAINTS=a&b SLURM_JOB_WORK_DIR=/home/ann SLURM_JOB_NODELIST=n[1-3] SLURM_NODELIST=n[1-3]" +
		" SLURM_JOB_NUM_NODES=3 SLURM_JOB_CPUS_PER_NODE=8(x2),4 SLURM_JOB_START_TIME=1700000000 SLURM_JOB_END_TIME=1700003600 SLURM_JOB_RESTART_COUNT=2 SLURM_JOB_GPUS=1,3" +
		" SLURM_ARRAY_JOB_ID=5 SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_MAX=3 SLURM_ARRAY_TASK_STEP=1"
	for kind, want := range map[program.Kind]string{
		program.Prolog: ofJob + " SLURM_SCRIPT_CONTEXT=prolog_slurmd",
		program.Epilog: ofJob + " SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_EXIT_CODE=1792 SLURM_JOB_EXIT_CODE2=7:0 SLURM_JOB_DERIVED_EC=9",
	} {
		got := program.Environ(kind, at, j)
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], " ", "_")
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s:\n%s\nwant\n%s", kind, text, want)
		}
	}
	if got := strings.Join(program.Environ(program.Health, at, nil), " "); got != everywhere {
		t.Errorf("health check: %s", got)
	}
	// A user's words cannot keep the program from being started.
	got := program.Environ(program.Prolog, at, &job.JobEnv{ID: 7, Name: "a\x00b", Comment: strings.Repeat("x", 200<<10)})
	if slices.ContainsFunc(got, func(v string) bool { return strings.Contains(v, "NAME=a") || strings.Contains(v, "COMMENT") }) {
		t.Errorf("what no variable can hold is there")
	}
}

// script makes an executable in a directory.
func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFind: patterns in their order, and what each matches from behind, as with Slurm; what is
// not there is an error.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"10", "20", "B", "a", "one"} {
		script(t, dir, name, "")
	}
	in := func(names ...string) (all []string) {
		for _, name := range names {
			all = append(all, filepath.Join(dir, name))
		}
		return all
	}
	for _, c := range []struct {
		patterns, want []string
		err            string
	}{
		{in("[12Ba]*"), in("a", "B", "20", "10"), ""},
		{in("one", "?0"), in("one", "20", "10"), ""},
		{in("one", "none"), nil, "none: there is no such file"},
		{in("x*"), nil, "x*: there is no such file"},
		{in("["), nil, "syntax error in pattern"},
		{[]string{"one"}, nil, "one: it is no full path"},
	} {
		got, err := program.Find(c.patterns)
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v; want %q, %s", c.patterns, got, err, c.want, c.err)
		}
	}
}

// plain starts and waits as everybody does.
type plain struct{}

func (plain) Start(c *exec.Cmd) error { return c.Start() }
func (plain) Wait(c *exec.Cmd) error  { return c.Wait() }

// lines is a log that can be looked at.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// do runs programs, and returns what was logged.
func do(ctx context.Context, timeout time.Duration, env []string, paths ...string) (string, error) {
	log := &lines{}
	r := program.Run{Kind: program.Prolog, Paths: paths, Env: env, Timeout: timeout, Starter: plain{}, Log: slog.New(slog.NewTextHandler(log, nil))}
	err := r.Do(ctx)
	return log.String(), err
}

// TestRun: programs run one after the other, up to the first that fails, with the environment
// that is given and no other; what they print is logged.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	first := script(t, dir, "first", "echo one; echo two >&2; pwd; /usr/bin/env; echo $0 >> "+dir+"/ran")
	bad := script(t, dir, "bad", "echo why; exit 3")
	dies := script(t, dir, "dies", "kill -9 $$")
	noShebang := filepath.Join(dir, "plain")
	if err := os.WriteFile(noShebang, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		paths []string
		err   string
	}{
		{[]string{first, first}, ""},
		{[]string{bad, first}, "bad: exit code 3: why"},
		{[]string{dies}, "dies: killed by signal 9"},
		{[]string{noShebang}, "permission denied"},
	} {
		log, err := do(t.Context(), time.Minute, []string{"A=b"}, c.paths...)
		if (err == nil) != (c.err == "") || err != nil && !strings.HasSuffix(err.Error(), c.err) {
			t.Errorf("%q: %v, want %s", c.paths, err, c.err)
		}
		if c.err != "" {
			continue
		}
		for _, want := range []string{"line=one", "line=two", "line=/", `line="A=b"`} {
			if strings.Count(log, want) != 2 {
				t.Errorf("the log has no %s:\n%s", want, log)
			}
		}
		if strings.Contains(log, "HOME=") {
			t.Errorf("it has an environment of its own:\n%s", log)
		}
	}
	if b, err := os.ReadFile(dir + "/ran"); err != nil || strings.Count(string(b), "\n") != 2 {
		t.Errorf("%v: %q ran", err, b)
	}
}

// TestRunEnds: what takes too long, or is not wanted any more, is killed with all that it has
// started in its group, and so is what one leaves behind.
func TestRunEnds(t *testing.T) {
	dir := t.TempDir()
	pid := func(name string) int {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
				return n
			}
			if time.Now().After(end) {
				t.Fatalf("%s was never started", name)
			}
		}
	}
	gone := func(n int) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); syscall.Kill(n, 0) == nil; time.Sleep(5 * time.Millisecond) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n)); bytes.Contains(b, []byte(") Z ")) {
				return // whoever reaps in this place does not
			}
			if time.Now().After(end) {
				t.Fatalf("process %d is left", n)
			}
		}
	}
	hangs := script(t, dir, "hangs", "sleep 1000 & echo $! > "+dir+"/child; echo begun; wait")
	log, err := do(t.Context(), 300*time.Millisecond, []string{"PATH=/bin:/usr/bin"}, hangs)
	if err == nil || !strings.Contains(err.Error(), "it did not end within 300ms, and was killed: begun") || !strings.Contains(log, "begun") {
		t.Errorf("%v\n%s", err, log)
	}
	gone(pid("child"))
	if err := os.Remove(filepath.Join(dir, "child")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		pid("child")
	}()
	if _, err := do(ctx, 0, []string{"PATH=/bin:/usr/bin"}, hangs); err == nil {
		t.Error("it has ended well")
	}
	gone(pid("child"))
	leaves := script(t, dir, "leaves", "sleep 1000 & echo $! > "+dir+"/left")
	if _, err := do(t.Context(), time.Minute, []string{"PATH=/bin:/usr/bin"}, leaves); err != nil {
		t.Error(err)
	}
	gone(pid("left"))
	// Another session's is not in the group; it does not keep what has ended from ending.
	began := time.Now()
	away := script(t, dir, "away", "setsid sh -c 'echo $$ > "+dir+"/away-pid; exec sleep 60' &\nwhile ! test -s "+dir+"/away-pid; do sleep 0.01; done")
	if _, err := do(t.Context(), time.Minute, []string{"PATH=/bin:/usr/bin"}, away); err != nil || time.Since(began) > 40*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	_ = syscall.Kill(pid("away-pid"), syscall.SIGKILL) // it is this test's to end
}

// TestRunSaysMuch: of very much output the begin is logged, and it does not wait to be read.
func TestRunSaysMuch(t *testing.T) {
	dir := t.TempDir()
	much := script(t, dir, "much", "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; head -c 300000 /dev/zero | tr '\\0' x; echo; echo last; exit 1")
	log, err := do(t.Context(), time.Minute, []string{"PATH=/bin:/usr/bin"}, much)
	if err == nil || !strings.HasSuffix(err.Error(), "exit code 1: last") {
		t.Errorf("%.200v", err)
	}
	if n := strings.Count(log, "\n"); n < 200 || n > 210 || len(log) > 100<<10 || !strings.Contains(log, "is not all logged") {
		t.Errorf("%d lines, %d bytes are logged", n, len(log))
	}
}
