package step

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/stdio"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// TestSuperviseLimits: ranks have the soft limits of where they were submitted, not above the
// hard ones of this process, and their own number, whatever number was there.
func TestSuperviseLimits(t *testing.T) {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		t.Fatal(err)
	}
	limits := map[string]uint64{"AS": 1 << 40, "DATA": 1 << 39, "STACK": 4 << 20, "FSIZE": 1 << 35, "MEMLOCK": 0, "NPROC": 1 << 62, "CORE": core.Max, "CPU": 3600, "RSS": 1 << 41}
	words := []string{"pid"}
	var want strings.Builder
	want.WriteString("own number: true\n")
	for name, value := range limits {
		var l unix.Rlimit
		if err := unix.Getrlimit(limitNumbers()[name], &l); err != nil {
			t.Fatal(err)
		}
		words = append(words, "limit="+name)
		fmt.Fprintln(&want, name, min(value, l.Max), error(nil))
	}
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		limited := command(spec(2), words...)
		limited.Program.Limits = limits
		limited.Program.Environ = append(limited.Program.Environ, []byte("SLURM_TASK_PID=1"))
		s := start(t, limited)
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		if end := s.ended(); end.Fault != nil || end.Ranks[0].Exit != 0 {
			t.Errorf("%+v", end)
		}
		streams, _ := c.output()
		for rank := range 2 {
			if got := streams[fmt.Sprintf("%d.1", rank)]; got != want.String() {
				t.Errorf("rank %d: %q, want %q", rank, got, want.String())
			}
		}
	})
}

// TestSuperviseCPUs: ranks run on the CPUs that --cpu-bind gives them, and know it; one that
// is not there is who asked's mistake, and what cannot be done is said.
func TestSuperviseCPUs(t *testing.T) {
	may := mayUse()
	last := may[len(may)-1]
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		bound := command(spec(2), "cpus", "env=SLURM_CPU_BIND_TYPE", "env=SLURM_CPU_BIND_LIST")
		bound.CPUBind = fmt.Sprintf("verbose,map_cpu:%d,%d", last, may[0])
		s := start(t, bound)
		c := s.io(stdio.Hello{Primary: true, Follow: true})
		s.begin()
		s.ended()
		streams, _ := c.output()
		for rank, cpu := range []int{last, may[0]} {
			want := fmt.Sprintf("cpus [%d]\nSLURM_CPU_BIND_TYPE=map_cpu:\nSLURM_CPU_BIND_LIST=%d,%d\n", cpu, last, may[0])
			if got := streams[fmt.Sprintf("%d.1", rank)]; got != want {
				t.Errorf("rank %d: %q, want %q", rank, got, want)
			}
			told := regexp.MustCompile(fmt.Sprintf(`^cpu-bind=MAP  - n1, task  %d  %[1]d \[[1-9]\d*\]: mask 0x%X set\n$`, rank, 1<<cpu))
			if got := streams[fmt.Sprintf("%d.2", rank)]; !told.MatchString(got) {
				t.Errorf("of rank %d is told %q, want %s", rank, got, told)
			}
		}
	})
	bad := command(stepSpec(1), "cpus")
	bad.CPUBind = "map_cpu:8000"
	if end := startSupervisor(t, bad).kept(); end.Fault == nil || end.Fault.Node || !strings.Contains(end.Fault.What, "--cpu-bind=map_cpu:8000") {
		t.Errorf("%+v", end)
	}
}

// TestSuperviseMemory: who needs more memory than the step has is killed, and it is said why,
// in a container or without one.
func TestSuperviseMemory(t *testing.T) {
	rung, _, err := TryLimits(t.Context(), Options{Getenv: os.Getenv})
	if err != nil {
		t.Fatal(err)
	}
	if rung == cgroup.None.String() {
		t.Skip("needs a control group that an ordinary user can have: a systemd user session, or a delegated group")
	}
	forms(t, func(t *testing.T, spec specFunc, start startFunc) {
		greedy := command(spec(2), "memory=256")
		greedy.Nodes[0].Memory, greedy.Nodes[0].JobMemory = 64, 1024
		s := start(t, greedy)
		s.begin()
		end := s.ended()
		if r := end.Ranks[0]; end.Fault != nil || r.Signal != int(unix.SIGKILL) || !r.OOM {
			t.Errorf("%+v", end)
		}
		if groups, err := filepath.Glob("/sys/fs/cgroup/*/gangway*/step-*"); err != nil || len(groups) > 0 {
			t.Errorf("left: %q %v", groups, err)
		}
	})
}

// TestMemoryLimit: of the job, of the step if that has less, or none.
func TestMemoryLimit(t *testing.T) {
	for _, test := range []struct {
		job       job.Memory
		node, all int64
		want      int64
	}{
		{job.Memory{}, 1024, 1024, 0},
		{job.Memory{}, 512, 1024, 512 << 20},
		{job.Memory{MiB: 1024}, 1024, 1024, 1024 << 20},
		{job.Memory{MiB: 1024}, 0, 0, 0},
	} {
		s := &supervisor{spec: &job.StepSpec{Job: job.JobFacts{Memory: test.job}, Nodes: []job.StepNode{{Memory: test.node, JobMemory: test.all}}}}
		if got := s.memoryLimit(); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

// TestStartRank: what must not be stopped at its start is not, and runs all the same; the
// environment is otherwise as it was given.
func TestStartRank(t *testing.T) {
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(shell)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		mode  os.FileMode
		stops bool
	}{{0o755, true}, {0o755 | os.ModeSetuid, false}, {0o755 | os.ModeSetgid, false}} {
		name := filepath.Join(t.TempDir(), "sh")
		if err := os.WriteFile(name, b, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, test.mode); err != nil {
			t.Fatal(err)
		}
		got := startForTest(t, name, `printf %s "${SLURM_TASK_PID-none}:$A:$B"; [ "${SLURM_TASK_PID-$$}" = $$ ]`, "A=1", "B=2")
		if stopped := !strings.HasPrefix(got, "none:"); stopped != test.stops || !strings.HasSuffix(got, ":1:2") {
			t.Errorf("%v: %s", test.mode, got)
		}
	}
}

// startForTest runs a shell by startRank and returns what it prints.
func startForTest(t *testing.T, shell, script string, environ ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	type result struct {
		p   *os.Process
		err error
	}
	done := make(chan result)
	b := &bare{fork: make(chan func())}
	go b.thread()
	defer close(b.fork)
	b.fork <- func() {
		p, err := startRank(shell, []string{"sh", "-c", script}, &os.ProcAttr{Env: environ, Files: []*os.File{nil, w, os.Stderr}, Sys: &unix.SysProcAttr{}}, rankOptions{number: true, place: func(int) error { return nil }})
		done <- result{p, err}
	}
	one := <-done
	if one.err != nil {
		t.Fatal(one.err)
	}
	st, err := one.p.Wait()
	if err != nil || !st.Success() {
		t.Errorf("%v %v", st, err)
	}
	_ = w.Close()
	said := make([]byte, 1000)
	n, err := r.Read(said)
	if err != nil {
		t.Fatal(err)
	}
	return string(said[:n])
}
