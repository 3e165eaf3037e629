package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/socket"
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
	c, _, err := declared(t, &upFlags{stateDir: dir, nodes: 12, gres: "gpu:h100:8,tmpdisk:10", cpus: 64, memory: "100G", lostAfter: 5 * time.Second, given: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Nodes) != 12 || c.Nodes[0].Name != "n01" || c.Nodes[11].Name != "n12" || !c.Declared || c.Name != "trial" || c.ID == "" || c.LostAfter != 5*job.Second {
		t.Errorf("%+v", c)
	}
	n := c.Nodes[3]
	if n.CPUs != 64 || n.Memory != 100<<10 || len(n.GRES) != 2 || n.GRES[0].Count != 8 || n.GRES[0].Type != "h100" || n.Addr != "127.0.0.1" {
		t.Errorf("%+v", n)
	}
	if p := c.Partitions; len(p) != 1 || !p[0].Default || len(p[0].Nodes) != 12 || p[0].MemoryPerCPU != 1600 || p[0].DefaultTime != 0 || p[0].MaxTime != 0 {
		t.Errorf("%+v", p)
	}
	for gres, want := range map[string]int{"gpu:8": 0, "gpu": 0, "foo": 1, "h100:8": 1, "gpu:h100:2,foo:2,bar:3": 2} {
		_, s, err := declared(t, &upFlags{stateDir: filepath.Join(t.TempDir(), "s"), nodes: 1, gres: gres, given: true})
		if err != nil || len(s.warnings) != want {
			t.Errorf("--gres %s: %v, %q", gres, err, s.warnings)
		}
		for _, w := range s.warnings {
			if !strings.Contains(w, "if that was to be GPUs: --gres gpu:8") {
				t.Errorf("--gres %s: %s", gres, w)
			}
		}
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
	for _, bad := range []*upFlags{{nodes: 0}, {nodes: 1, cpus: -1}, {nodes: 1, memory: "x"}, {nodes: 1, gres: "gpu:h100:x"}, {nodes: 1, name: "a/b"}, {nodes: 100_000}} {
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
	if err := long.makeSockets(getenv, c); err != nil || len(long.agent("n1")) > socket.Longest {
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
	// It has its name before anybody can find it.
	if _, err := newDiscovery(getenv, "a", "/t"); err == nil || !strings.Contains(fault.Text("", err, false), "it is starting") {
		t.Errorf("a second cluster of a name: %v", err)
	}
	if err := d.publish(); err != nil {
		t.Fatal(err)
	}
	if found := api.Discover(dirs); len(found) != 1 || found[0].Socket != "unix:/s" || found[0].PID != os.Getpid() {
		t.Errorf("%+v", found)
	}
	if _, err := newDiscovery(getenv, "a", "/t"); err == nil || !strings.Contains(fault.Text("", err, false), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("a second cluster of a name: %v", err)
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
	b2, err := newDiscovery(getenv, "b", "/t")
	if err != nil {
		t.Fatal("a name that a dead one had:", err)
	}
	if err := b2.remove(); err != nil {
		t.Error(err)
	}
	// What is left of the name that a cluster had before goes, and nobody else's.
	for name, socket := range map[string]string{"old": "unix:/u", "other": "unix:/v"} {
		stale.Name, stale.Socket = name, socket
		b, err := json.Marshal(stale)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dirs[0], "clusters", name+".json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	renamed, err := newDiscovery(getenv, "new", "/u")
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dirs[0], "clusters", "o*")); err != nil || len(left) != 1 || filepath.Base(left[0]) != "other.json" {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := errors.Join(renamed.remove(), os.Remove(filepath.Join(dirs[0], "clusters", "other.json"))); err != nil {
		t.Error(err)
	}
	if err := d.remove(); err != nil {
		t.Fatal(err)
	}
	if found := api.Discover(dirs); len(found) != 0 {
		t.Errorf("%+v", found)
	}
	if left, err := os.ReadDir(filepath.Join(dirs[0], "clusters")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestFits: more nodes than there is room for are refused, by what there is least of.
func TestFits(t *testing.T) {
	all := []room{{9, "nine"}, {7, "seven"}, {1 << 40, "many"}}
	if err := fits(7, all); err != nil {
		t.Error(err)
	}
	err := fits(8, all)
	if f, ok := errors.AsType[*fault.Error](err); !ok || fault.Code(err) != fault.CodeUsage || f.Cause != "seven" || !strings.Contains(f.Hint, "--nodes 7") {
		t.Errorf("%v", err)
	}
	for _, r := range rooms() {
		if r.nodes < 1 || r.why == "" {
			t.Errorf("%+v", r)
		}
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

// TestStore: where images are, by what the user has set: the same for agents and commands.
func TestStore(t *testing.T) {
	conf := t.TempDir()
	if err := os.MkdirAll(filepath.Join(conf, "gangway"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "gangway", "gangway.toml"), []byte("[image]\nstore = \"/t\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ store, cache, home, config, want string }{
		{"/s", "/c", "/h", "", "/s"},
		{"", "/c", "/h", "", "/c/gangway"},
		{"", "", "/h", "", "/h/.cache/gangway"},
		{"", "", "", "", ""},
		{"", "/c", "/h", conf, "/t"},
		{"/s", "/c", "/h", conf, "/s"},
	} {
		env := map[string]string{"GANGWAY_STORE": c.store, "XDG_CACHE_HOME": c.cache, "HOME": c.home, "XDG_CONFIG_HOME": c.config}
		if got, err := storeDir(func(n string) string { return env[n] }); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
	if _, err := agent.StartOf(os.Getpid()); err != nil {
		t.Error(err)
	}
}

// shells are daemons that are shell scripts, all of which have said that they are ready.
func shells(t *testing.T, script string) *daemons {
	t.Helper()
	d := &daemons{dir: t.TempDir(), program: "/bin/sh", environ: os.Environ(), say: func(text string) { t.Log(text) }}
	for _, name := range []string{daemonController, "n1", "n2"} {
		d.start(name, "-c", script)
	}
	for _, one := range d.all {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if b, _ := os.ReadFile(d.log(one)); len(b) > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(one.name, "does not start")
			}
		}
	}
	return d
}

// TestEndAtOnce: daemons that do not end are killed, all of them, when a second signal
// comes; it is said which.
func TestEndAtOnce(t *testing.T) {
	d := shells(t, "trap '' TERM INT; echo ready; while :; do sleep 0.05; done")
	signals := make(chan os.Signal, 1)
	time.AfterFunc(sameSignal+100*time.Millisecond, func() { signals <- syscall.SIGINT })
	err := d.end(false, signals)
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Hint == "" || !strings.Contains(err.Error(), "agent of n1, agent of n2, controller") {
		t.Errorf("%v", err)
	}
	for _, one := range d.all {
		if one.cmd != nil {
			t.Errorf("%s still runs", one.name)
		}
	}
}

// TestEndTwice: a signal that comes twice, as timeout(1) sends it, hurries nobody.
func TestEndTwice(t *testing.T) {
	d := shells(t, "trap 'sleep 0.3; exit 0' TERM INT; echo ready; while :; do sleep 0.05; done")
	signals := make(chan os.Signal, 1)
	signals <- syscall.SIGTERM
	if err := d.end(false, signals); err != nil {
		t.Error(err)
	}
}

// TestLogs: a log that is long is turned when its daemon is started, and one that is not
// goes on.
func TestLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, c := range []struct {
		before int64
		after  int64
	}{{0, 2}, {maxLog, maxLog + 2}, {maxLog + 1, 2}} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, c.before); err != nil {
			t.Fatal(err)
		}
		f, err := openLog(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("x\n"); err != nil {
			t.Error(err)
		}
		st, err := os.Stat(path)
		if err = errors.Join(err, f.Close()); err != nil || st.Size() != c.after {
			t.Errorf("after %d bytes: %v, %v", c.before, st, err)
		}
	}
	if st, err := os.Stat(path + ".1"); err != nil || st.Size() != maxLog+1 {
		t.Errorf("the one before: %v, %v", st, err)
	}
}
