package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// declared is the cluster that flags make in a state directory.
func declared(t *testing.T, u *upFlags) (*job.Cluster, *state, error) {
	t.Helper()
	s, err := openState(t.Context(), u.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	c, err := u.declare(t.Context(), s)
	return c, s, err
}

// TestDeclare: nodes are what flags say, and stay so until other flags come; name and id
// stay.
func TestDeclare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "trial")
	c, _, err := declared(t, &upFlags{stateDir: dir, nodes: 12, gres: "gpu:h100:8,tmpdisk:10", cpus: 64, memory: "100G", given: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Nodes) != 12 || c.Nodes[0].Name != "n01" || c.Nodes[11].Name != "n12" || !c.Declared || c.Name != "trial" || c.ID == "" {
		t.Errorf("%+v", c)
	}
	n := c.Nodes[3]
	if n.CPUs != 64 || n.Memory != 100<<10 || len(n.GRES) != 2 || n.GRES[0].Count != 8 || n.GRES[0].Type != "h100" || n.Addr != "127.0.0.1" {
		t.Errorf("%+v", n)
	}
	if p := c.Partitions; len(p) != 1 || !p[0].Default || len(p[0].Nodes) != 12 || p[0].MemoryPerCPU != 1600 || p[0].DefaultTime != 0 || p[0].MaxTime != 0 {
		t.Errorf("%+v", p)
	}
	if got := describe(c); got != "n[01-12] with 64 CPUs and gpu:h100:8,tmpdisk:10 each" {
		t.Error(got)
	}
	again, _, err := declared(t, &upFlags{stateDir: dir, nodes: 1})
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("%v: %+v", err, again)
	}
	other, _, err := declared(t, &upFlags{stateDir: dir, nodes: 2, given: true})
	if err != nil || len(other.Nodes) != 2 || other.ID != c.ID || other.Name != "trial" || other.Nodes[0].CPUs < 1 || other.Nodes[0].Memory < 1 {
		t.Errorf("%v: %+v", err, other)
	}
	named, _, err := declared(t, &upFlags{stateDir: dir, nodes: 1, name: "b"})
	if err != nil || named.Name != "b" || len(named.Nodes) != 2 || named.ID != c.ID {
		t.Errorf("%v: %+v", err, named)
	}
	for _, bad := range []*upFlags{{nodes: 0}, {nodes: 1, cpus: -1}, {nodes: 1, memory: "x"}, {nodes: 1, gres: "gpu:h100:x"}, {nodes: 1, name: "a/b"}} {
		bad.stateDir, bad.given = filepath.Join(t.TempDir(), "s"), true
		if _, _, err := declared(t, bad); fault.Code(err) != fault.CodeUsage {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestSlurmConf: nodes, partitions and topology are those of Slurm's files.
func TestSlurmConf(t *testing.T) {
	conf := t.TempDir()
	for name, text := range map[string]string{
		"slurm.conf": "ClusterName=Big\nGresTypes=gpu\nTopologyPlugin=topology/tree\n" +
			"NodeName=gpu[1-3] CPUs=16 RealMemory=1000 Gres=gpu:a100:4\nNodeName=later State=FUTURE\n" +
			"PartitionName=long Nodes=gpu[1-3] Default=YES MaxTime=1-0\nPartitionName=short Nodes=gpu1\n",
		"gres.conf":     "NodeName=gpu[1-3] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n",
		"topology.conf": "SwitchName=s1 Nodes=gpu[1-3]\n",
	} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, s, err := declared(t, &upFlags{stateDir: filepath.Join(t.TempDir(), "s"), slurmConf: conf, given: true})
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "big" || len(c.Nodes) != 3 || c.Nodes[2].Name != "gpu3" || c.Nodes[2].CPUs != 16 || c.Nodes[2].GRES[0].Count != 4 || c.Nodes[2].Addr != "127.0.0.1" ||
		len(c.Partitions) != 2 || c.Partitions[0].MaxTime != job.Day || len(c.Network.Switches) != 1 {
		t.Errorf("%+v, %v", c, s.warnings)
	}
	if _, _, err := declared(t, &upFlags{stateDir: filepath.Join(t.TempDir(), "s"), slurmConf: t.TempDir(), given: true}); err == nil {
		t.Error("a directory without slurm.conf is taken")
	}
}

// TestHeld: a state directory has one "up" at a time, and it is said which.
func TestHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	s, err := openState(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = openState(t.Context(), dir)
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || !strings.Contains(f.Cause, "has run it since 2") || f.Hint == "" {
		t.Errorf("%v", err)
	}
	s.close()
	if s, err = openState(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	s.close()
}

// TestLongNames: sockets whose names would be too long lie in the run directory.
func TestLongNames(t *testing.T) {
	run, err := os.MkdirTemp("", "gw")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(run) }()
	getenv := func(name string) string { return map[string]string{"GANGWAY_RUNTIME_DIR": run}[name] }
	c := &job.Cluster{Nodes: []job.Node{{Name: "n1"}}}
	short := &state{dir: filepath.Join(run, "s")}
	if err := short.makeSockets(getenv, c); err != nil || short.sockets != short.dir {
		t.Errorf("%v: %s", err, short.sockets)
	}
	long := &state{dir: filepath.Join(run, strings.Repeat("long", 30))}
	if err := long.makeSockets(getenv, c); err != nil || len(long.agent("n1")) > longestSocket {
		t.Errorf("%v: %s", err, long.sockets)
	}
	if to, err := os.Readlink(filepath.Join(long.dir, "controller.sock")); err != nil || to != long.controller() {
		t.Errorf("%v: %s", err, to)
	}
	if err := long.makeSockets(getenv, c); err != nil {
		t.Error("again:", err)
	}
	bad := func(string) string { return "/tmp/" + strings.Repeat("x", 100) }
	if err := long.makeSockets(bad, c); err == nil {
		t.Error("no error where no name fits")
	}
}

// TestDiscovery: commands find the cluster while this process lives; files of the dead are
// no clusters.
func TestDiscovery(t *testing.T) {
	run := t.TempDir()
	getenv := func(name string) string { return map[string]string{"GANGWAY_RUNTIME_DIR": run}[name] }
	dirs := []string{filepath.Join(run, "gangway")}
	d, err := newDiscovery(getenv, "a", "/s")
	if err != nil {
		t.Fatal(err)
	}
	if err := d.publish(); err != nil {
		t.Fatal(err)
	}
	if found := api.Discover(dirs); len(found) != 1 || found[0].Socket != "unix:/s" || found[0].PID != os.Getpid() {
		t.Errorf("%+v", found)
	}
	if _, err := newDiscovery(getenv, "a", "/t"); err == nil {
		t.Error("a second cluster of a name")
	}
	stale := d.file
	stale.Name, stale.Start = "b", stale.Start+1
	b, err := json.Marshal(stale)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dirs[0], "clusters", "b.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newDiscovery(getenv, "b", "/t"); err != nil {
		t.Error("a name that a dead one had:", err)
	}
	if err := d.remove(); err != nil {
		t.Fatal(err)
	}
	if found := api.Discover(dirs); len(found) != 0 {
		t.Errorf("%+v", found)
	}
}

func TestLastError(t *testing.T) {
	if got := lastError("x\ngangwayd: error: one\ngangwayd: error: two: three\ngangwayd: hint: h\n"); got != "two: three" {
		t.Error(got)
	}
	if got := lastError("nothing\n"); got != "" {
		t.Error(got)
	}
}

// TestStore: where images are, by what the user has set.
func TestStore(t *testing.T) {
	for _, c := range []struct{ store, cache, home, want string }{
		{"/s", "/c", "/h", "/s"}, {"", "/c", "/h", "/c/gangway"}, {"", "", "/h", "/h/.cache/gangway"}, {"", "", "", ""},
	} {
		env := map[string]string{"GANGWAY_STORE": c.store, "XDG_CACHE_HOME": c.cache, "HOME": c.home}
		if got, err := storeDir(func(n string) string { return env[n] }); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
	if _, err := agent.StartOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}
