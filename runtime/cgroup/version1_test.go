package cgroup

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
	"time"
)

// TestVersion1Only hides the hierarchy of version 2, as on machines that have none: the
// freezer and signals have to do.
func TestVersion1Only(t *testing.T) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	proc := lay(t, regexp.MustCompile(`(?m)^.* - cgroup2 .*\n`).ReplaceAllString(string(mounts), ""), string(own))
	g, err := Open(t.Context(), Options{Instance: "test", Name: "version1", Proc: proc, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if left := slices.ContainsFunc(g.trees, func(t *tree) bool { _, err := os.Stat(t.dir); return err == nil }); left {
			t.Error("something is left")
		}
	}()
	if g.Version() != 1 || g.freezer() == nil {
		t.Skipf("needs root and cgroup version 1 with a freezer; here: %v", g.Refused())
	}
	if err := g.Limit(Limits{CPUs: 1, CPUSet: Set{0}, Memory: 1 << 30, Pids: 64}); err != nil {
		t.Fatal(err)
	}
	for _, m := range g.Missing() {
		t.Log(m)
	}
	var all []*exec.Cmd
	for range 5 {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, cmd)
		if err := g.Ranks().Place(cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	for _, frozen := range []bool{true, false, true} {
		if err := g.freeze(t.Context(), frozen); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{true: "D", false: "S"}[frozen]
		time.Sleep(10 * time.Millisecond)
		if p := look("/proc", all[0].Process.Pid); p.State != want {
			t.Errorf("frozen %v: state %q, want %q", frozen, p.State, want)
		}
	}
	for _, cmd := range all {
		go func() { _ = cmd.Wait() }()
	}
	if err := g.Kill(t.Context()); err != nil { // they are frozen
		t.Error(err)
	}
	if s := g.Stats(); slices.Contains(s.Unknown, "MemoryPeak") || s.CPU == 0 {
		t.Errorf("%+v", s)
	}
}
