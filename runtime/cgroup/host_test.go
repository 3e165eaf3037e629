package cgroup_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// helperMode is in the environment of a test program that is a process in a cgroup.
const helperMode = "GANGWAY_CGROUP_HELPER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(helperMode); mode != "" {
		helper(mode)
		return
	}
	code := m.Run()
	for _, instance := range []string{"test", "bench", "above", ""} { // groups share these, and leave them
		dirs, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*/gangway", instance))
		for _, dir := range dirs {
			_ = os.Remove(dir)
		}
	}
	os.Exit(code)
}

// helper waits to be placed, until its stdin ends, and does as mode says.
func helper(mode string) {
	_, _ = os.Stdin.Read(make([]byte, 1))
	switch mode {
	case "sleep":
		time.Sleep(time.Hour)
	case "memory":
		var all [][]byte
		for range 1024 {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = 1
			}
			all = append(all, page)
		}
		_ = all
	case "null", "zero":
		f, err := os.OpenFile("/dev/"+mode, os.O_RDWR, 0)
		if err != nil {
			os.Exit(1)
		}
		_ = f.Close()
	case "abandon":
		g, err := cgroup.Open(context.Background(), cgroup.Options{Instance: "test", Name: "abandoned", UID: os.Getuid()})
		if err != nil || g.Limit(cgroup.Limits{CPUs: 1, Memory: 1 << 30}) != nil {
			os.Exit(1)
		}
	case "namespace", "inside":
		if err := helpInNamespace(mode == "inside"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	case "burn":
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
		}
	case "forks":
		var all []*exec.Cmd
		for range 40 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = []string{helperMode + "=sleep"}
			in, err := cmd.StdinPipe()
			if err != nil || cmd.Start() != nil {
				os.Exit(1)
			}
			_ = in
			all = append(all, cmd)
		}
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
}

// process is a helper that waits to go on.
type process struct {
	*exec.Cmd
	release func()
}

func start(t *testing.T, mode string) process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperMode + "=" + mode}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return process{cmd, func() { _ = in.Close() }}
}

// placed starts a helper in the ranks of g.
func placed(t *testing.T, g *cgroup.Group, mode string) process {
	t.Helper()
	p := start(t, mode)
	if err := g.Ranks().Place(p.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return p
}

// within is a context that ends after d.
func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// open makes a group on any rung but the last, or skips the test, and checks afterwards
// that nothing of it is left.
func open(t *testing.T, name string) *cgroup.Group {
	t.Helper()
	g, err := cgroup.Open(t.Context(), cgroup.Options{Instance: "test", Name: name, UID: os.Getuid(), Runtime: os.Getenv("XDG_RUNTIME_DIR")})
	if err != nil {
		t.Fatal(err)
	}
	if want := os.Getenv("GANGWAY_VM_RUNG"); want != "" && !strings.HasPrefix(g.Rung().String(), want) {
		t.Fatalf("rung %q, want %q: %v", g.Rung(), want, g.Refused())
	}
	if g.Rung() == cgroup.None {
		t.Skipf("needs a cgroup to test in; here: %v", g.Refused())
	}
	t.Cleanup(func() {
		if err := g.Remove(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.Dir()); err == nil && g.Rung() != cgroup.Systemd {
			t.Errorf("%s is left", g.Dir())
		}
	})
	return g
}

// atTop says whether g is root's at the top.
func atTop(g *cgroup.Group) bool {
	return g.Rung() == cgroup.Root && strings.Contains(g.Dir(), "/gangway/test/")
}

// needs skips a test where one of the named limits could not be set.
func needs(t *testing.T, g *cgroup.Group, what string) {
	t.Helper()
	for _, m := range g.Missing() {
		if m.What == what {
			t.Skipf("needs a cgroup that limits %s: %s", what, m.Why)
		}
	}
}

func limit(t *testing.T, g *cgroup.Group, l cgroup.Limits) {
	t.Helper()
	if err := g.Limit(l); err != nil {
		t.Fatal(err)
	}
}

func TestGroupMemory(t *testing.T) {
	g := open(t, "memory")
	limit(t, g, cgroup.Limits{Memory: 64 << 20})
	needs(t, g, "memory")
	watch, err := g.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if o := watch.OOM(); o != nil {
		t.Fatalf("before anything ran: %v", o)
	}
	bystander := placed(t, g, "sleep")
	sup := start(t, "sleep")
	if err := g.Sup().Place(sup.Process.Pid); err != nil {
		t.Fatal(err)
	}
	rank, err := g.Rank(1)
	if err != nil {
		t.Fatal(err)
	}
	hog := start(t, "memory")
	if err := rank.Place(hog.Process.Pid); err != nil {
		t.Fatal(err)
	}
	hog.release()
	if err := hog.Wait(); err == nil {
		t.Fatal("1 GiB fits into 64 MiB")
	}
	o := watch.OOM()
	if o == nil {
		t.Fatal("no report")
	}
	t.Log(o)
	if o.Above || o.Limit != 64<<20 || o.Peak < 60<<20 || o.Peak > 65<<20 || o.Kills < 1 || o.Rank != 1 {
		t.Errorf("report %+v", o)
	}
	if len(o.Largest) == 0 || o.Largest[0].PID != hog.Process.Pid {
		t.Errorf("largest %v, want first %d", o.Largest, hog.Process.Pid)
	}
	if err := bystander.Wait(); err == nil { // all ranks die together
		t.Error("the other rank ended well")
	}
	if err := sup.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the supervisor ended: %v", err)
	}
}

// TestGroupMemoryAbove: it is said when the memory that ran out is not that of the ranks.
func TestGroupMemoryAbove(t *testing.T) {
	j := newJob(t, "/gangway-job/above")
	j.set(t, "64M", "memory.max", "memory.limit_in_bytes")
	g := j.open(t, "memory")
	limit(t, g, cgroup.Limits{Memory: 512 << 20})
	needs(t, g, "memory")
	watch, err := g.Watch()
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	hog := placed(t, g, "memory")
	hog.release()
	if err := hog.Wait(); err == nil {
		t.Fatal("1 GiB fits into 64 MiB")
	}
	o := watch.OOM()
	if o == nil || !o.Above || o.Limit != 512<<20 || !strings.Contains(o.String(), "a control group above") {
		t.Errorf("report %+v", o)
	}
	t.Log(o)
}

func TestGroupPids(t *testing.T) {
	g := open(t, "pids")
	limit(t, g, cgroup.Limits{Pids: 16})
	needs(t, g, "processes")
	p := placed(t, g, "forks")
	p.release()
	if err := p.Wait(); err == nil {
		t.Error("40 processes fit into 16")
	}
}

func TestGroupDevices(t *testing.T) {
	g := open(t, "devices")
	one, five := int64(1), int64(5)
	limit(t, g, cgroup.Limits{Devices: []specs.LinuxDeviceCgroup{
		{Allow: false, Access: "rwm"},
		{Allow: true, Type: "c", Major: &one, Minor: &five, Access: "rw"},
	}})
	needs(t, g, "devices")
	zero, null := placed(t, g, "zero"), placed(t, g, "null")
	zero.release()
	null.release()
	if err := zero.Wait(); err != nil {
		t.Errorf("/dev/zero is allowed: %v", err)
	}
	if err := null.Wait(); err == nil {
		t.Error("/dev/null is not allowed, and was opened")
	}
}

func TestGroupCPUs(t *testing.T) {
	g := open(t, "cpu")
	limit(t, g, cgroup.Limits{CPUs: 0.2, CPUSet: cgroup.Set{0}})
	needs(t, g, "CPU time")
	before, began := g.Stats().CPU, time.Now()
	p := placed(t, g, "burn")
	p.release()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	s, took := g.Stats(), time.Since(began)
	t.Logf("%v: %+v", took, s)
	if share := (s.CPU - before).Seconds() / took.Seconds(); share < 0.05 || share > 0.3 {
		t.Errorf("used %.2f of a CPU, with a limit of 0.2", share)
	}
	if s.Throttled == 0 {
		t.Error("was not throttled")
	}
}

func TestGroupCPUSet(t *testing.T) {
	g := open(t, "cpuset")
	limit(t, g, cgroup.Limits{CPUSet: cgroup.Set{0}})
	p := placed(t, g, "sleep")
	status, err := os.ReadFile("/proc/" + pidOf(p) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(status), "Cpus_allowed_list:\t0\n") {
		t.Errorf("not confined to CPU 0; missing: %v", g.Missing())
	}
}

func TestGroupFreeze(t *testing.T) {
	g := open(t, "freeze")
	p := placed(t, g, "sleep")
	p.release()
	ctx := within(t, 5*time.Second)
	if err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		_ = p.Wait()
	}()
	if err := g.Kill(ctx); err != nil { // frozen ones too
		t.Error(err)
		_ = p.Process.Kill()
	}
	<-waited
}

// TestGroupStuck: a process that does not go away is reported, and not waited for without end.
// What cannot be killed cannot be made here: a process that Remove does not kill, because
// it is the supervisor's, stands for it.
func TestGroupStuck(t *testing.T) {
	g := open(t, "stuck")
	if g.Rung() == cgroup.Systemd {
		t.Skip("needs another rung: systemd removes its scopes itself")
	}
	sup := start(t, "sleep")
	if err := g.Sup().Place(sup.Process.Pid); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := g.Remove(within(t, 300*time.Millisecond))
	stuck, ok := errors.AsType[*cgroup.StuckError](err)
	if !ok || len(stuck.Processes) != 1 || stuck.Processes[0].PID != sup.Process.Pid || stuck.Processes[0].Name != "exe" {
		t.Fatalf("got %v, want the process %d named", err, sup.Process.Pid)
	}
	t.Log(err)
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("took %v", d)
	}
	_ = sup.Process.Kill()
	_ = sup.Wait()
}

// TestGroupSweep: what a killed supervisor left is removed.
func TestGroupSweep(t *testing.T) {
	g := open(t, "sweep")
	if !atTop(g) {
		t.Skip("needs root at the top: elsewhere the second is inside the first, see TestGroupSweepInside")
	}
	p := start(t, "abandon")
	p.release()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	left := strings.Replace(g.Dir(), "sweep", "abandoned", 1)
	if _, err := os.Stat(left); err != nil {
		t.Fatal(err)
	}
	if n, err := cgroup.Sweep(cgroup.Options{Instance: "test", UID: os.Getuid()}); n < 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
}

// TestGroupHeld: what a Group holds is not removed.
func TestGroupHeld(t *testing.T) {
	g := open(t, "held")
	if _, err := cgroup.Sweep(cgroup.Options{Instance: "test", UID: os.Getuid()}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(g.Dir()); err != nil {
		t.Error(err)
	}
	if !atTop(g) {
		return // the second would be inside the first
	}
	if _, err := cgroup.Open(t.Context(), cgroup.Options{Instance: "test", Name: "held", UID: os.Getuid()}); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second group of that name: %v", err)
	}
}

func TestGroupStartInto(t *testing.T) {
	g := open(t, "into")
	rank, err := g.Rank(3)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := rank.FD()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("needs CLONE_INTO_CGROUP: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperMode + "=sleep"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = intoCgroup(fd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := rank.Settle(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/" + pidOf(process{Cmd: cmd}) + "/cgroup")
	if err != nil || !strings.Contains(string(text), "/ranks/rank-3\n") {
		t.Errorf("is in %s, %v", text, err)
	}
}

// TestGroupSettings: what was set can be read.
func TestGroupSettings(t *testing.T) {
	g := open(t, "settings")
	limit(t, g, cgroup.Limits{CPUs: 1.5, Weight: 200, CPUSet: cgroup.Set{0, 1}, Mems: cgroup.Set{0}, Memory: 256 << 20, Swap: 64 << 20, Pids: 100, HugeTLB: map[string]uint64{"2MB": 4 << 20}})
	t.Logf("version %d, rung %v, missing %v", g.Version(), g.Rung(), g.Missing())
	if g.Version() == 2 && (g.Rung() == cgroup.Root || g.Rung() == cgroup.Delegated) && len(g.Missing()) > 0 {
		t.Errorf("misses %v", g.Missing())
	}
	if g.Version() != 2 {
		t.Skip("needs cgroup version 2")
	}
	for file, want := range map[string]string{
		"cpu.max": "150000 100000", "cpu.weight": "200", "cpuset.cpus": "0-1", "cpuset.mems": "0",
		"ranks/memory.max": "268435456", "ranks/memory.oom.group": "1", "ranks/memory.swap.max": "67108864", "ranks/pids.max": "100", "ranks/hugetlb.2MB.max": "4194304",
	} {
		got, err := os.ReadFile(g.Dir() + "/" + file)
		if err != nil && g.Rung() != cgroup.Root {
			continue // this controller is not delegated
		}
		if strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, %v, want %q", file, got, err, want)
		}
	}
}

// TestGroupStats: the statistics are those that containerd's library reads.
func TestGroupStats(t *testing.T) {
	g := open(t, "stats")
	if g.Version() != 2 {
		t.Skip("needs cgroup version 2")
	}
	limit(t, g, cgroup.Limits{CPUs: 2, Memory: 128 << 20, Pids: 50})
	needs(t, g, "memory")
	p := placed(t, g, "burn")
	p.release()
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	ours := g.Stats()
	m, err := cgroup2.Load(strings.TrimPrefix(g.Dir(), "/sys/fs/cgroup") + "/ranks")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := m.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if theirs.Memory.UsageLimit != uint64(ours.MemoryLimit) || theirs.Pids.Limit != 50 || theirs.Memory.MaxUsage != uint64(ours.MemoryPeak) || theirs.Pids.Current != uint64(ours.Pids) {
		t.Errorf("ours %+v, containerd %v", ours, theirs)
	}
	if cpu := time.Duration(theirs.CPU.UsageUsec) * time.Microsecond; cpu > ours.CPU || cpu == 0 {
		t.Errorf("the ranks used %v of %v", cpu, ours.CPU)
	}
	if len(ours.Unknown) > 0 && !slices.Equal(ours.Unknown, []string{"MemoryPeak"}) && !slices.Contains(ours.Unknown, "ReadBytes") {
		t.Errorf("unknown: %v", ours.Unknown)
	}
}

// BenchmarkGroup is what a container costs: a group made, limited, entered by a process that
// is started in it, and removed. To start and to end the process is not counted.
func BenchmarkGroup(b *testing.B) {
	var all []time.Duration
	for b.Loop() {
		b.StopTimer()
		began, took := time.Now(), time.Duration(0)
		count := func() { took += time.Since(began) }
		g, err := cgroup.Open(b.Context(), cgroup.Options{Instance: "bench", Name: "run-1", UID: os.Getuid()})
		if err != nil || g.Rung() != cgroup.Root {
			b.Skip("needs root: ", err)
		}
		if err := g.Limit(cgroup.Limits{Memory: 1 << 30, Pids: 100, Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}); err != nil {
			b.Fatal(err)
		}
		dir, err := g.Ranks().FD()
		if err != nil {
			b.Skip("needs cgroup version 2, if only beside version 1: ", err)
		}
		count()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env, cmd.SysProcAttr = []string{helperMode + "=sleep"}, intoCgroup(dir)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := g.Ranks().Settle(cmd.Process.Pid); err != nil {
			b.Fatal(err)
		}
		count()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		began = time.Now()
		if err := errors.Join(dir.Close(), g.Remove(b.Context())); err != nil {
			b.Fatal(err)
		}
		count()
		all = append(all, took)
		b.StartTimer()
	}
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	b.ReportMetric(ms(all[len(all)/2]), "ms/median")
	b.ReportMetric(ms(all[len(all)*99/100]), "ms/p99")
	b.ReportMetric(0, "ns/op")
}

// TestGroupConcurrent: groups come and go while somebody sweeps, and none is lost.
func TestGroupConcurrent(t *testing.T) {
	if g := open(t, "first"); !atTop(g) {
		t.Skip("needs root at the top: others have no groups beside each other")
	}
	stop, swept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = cgroup.Sweep(cgroup.Options{Instance: "test", UID: os.Getuid()})
			}
		}
	}()
	var runs sync.WaitGroup
	for i := range 4 {
		runs.Go(func() {
			for n := range 15 {
				g, err := cgroup.Open(t.Context(), cgroup.Options{Instance: "test", Name: fmt.Sprintf("run-%d-%d", i, n)})
				if err != nil || g.Rung() != cgroup.Root {
					t.Errorf("open: %v", err)
					return
				}
				if err := errors.Join(g.Limit(cgroup.Limits{CPUs: 1, Memory: 1 << 30}), g.Remove(t.Context())); err != nil {
					t.Error(err)
				}
			}
		})
	}
	runs.Wait()
	close(stop)
	<-swept
}
