package slurm_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// referee is a configuration that Slurm 22.05 and we have to read alike.
const referee = `
NodeName=DEFAULT RealMemory=2048000 CPUs=128 State=CLOUD
NodeName=gpu-node-[001-004] \
  Gres=gpu:h100:8 # comment
nodename=cpu[1-2] Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 CPUs=16 Feature=a,b Weight=7
NodeName=x1 CPUs=8 CoresPerSocket=2 RealMemory=1000
NodeName=DEFAULT CPUs=12 Sockets=4
NodeName=y[08-11] CoresPerSocket=3
NodeName=z CPUs=9 Sockets=2 CoresPerSocket=4
PartitionName=DEFAULT MaxTime=72:00:00
PartitionName=gpu Nodes=gpu-node-[001-004] Default=YES State=UP PriorityJobFactor=2
PartitionName=cpu Nodes=cpu[1-2] MaxTime=1-0 DefaultTime=30 OverSubscribe=FORCE:2 MinNodes=1 MaxNodes=2 PriorityTier=5
partitionname=All nodes=ALL MaxTime=0:90 DefaultTime=1:1 OverSubscribe=EXCLUSIVE State=DRAIN
PartitionName=odd Nodes=y[09-10],z,x1 MaxTime=UNLIMITED Priority=9 OverSubscribe=YES
`

const refereeTopology = `
SwitchName=spine Switches=leaf[1-2]
SwitchName=leaf1 Nodes=gpu-node-[001-002]
SwitchName=leaf2 Nodes=gpu-node-[003-004],cpu[1-2],x1,y[08-11],z
`

// record is one line of "scontrol -o show ...".
type record map[string]string

// startController runs Slurm's own controller on the configuration, and returns what shows
// its records of a kind. It is killed when the test ends.
func startController(t *testing.T) (conf string, show func(kind string) []record) {
	t.Helper()
	for _, program := range []string{"slurmctld", "scontrol"} {
		needs(t, program)
	}
	at := t.TempDir()
	conf = filepath.Join(at, "slurm.conf")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	text := fmt.Sprintf(`ClusterName=Referee
SlurmctldHost=localhost
SlurmctldPort=%d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%s
SlurmctldPidFile=%s/pid
ProctrackType=proctrack/pgid
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
TopologyPlugin=topology/tree
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
MaxArraySize=2001
PriorityType=priority/multifactor
PriorityMaxAge=14-0
PriorityWeightAge=1000
PriorityWeightJobSize=20
PriorityWeightPartition=300000
Licenses=matlab:50,foo:1
`, port, at, at) + referee
	for name, text := range map[string]string{"slurm.conf": text, "topology.conf": refereeTopology, "gres.conf": "Name=gpu File=/dev/null\n"} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	controller := exec.CommandContext(ctx, "slurmctld", "-D", "-i")
	controller.Env = append(os.Environ(), "SLURM_CONF="+conf)
	var log bytes.Buffer // to be looked at when it has ended
	controller.Stdout, controller.Stderr = &log, &log
	if err := controller.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = controller.Wait(); close(ended) }()
	t.Cleanup(func() { stop(); <-ended })
	ask := func(args ...string) (string, error) {
		cmd := exec.Command("scontrol", append([]string{"-o", "show"}, args...)...)
		cmd.Env = controller.Env
		out, err := cmd.Output()
		return string(out), err
	}
	deadline := time.After(30 * time.Second)
	for up := false; !up; {
		out, err := ask("node")
		up = err == nil && strings.Contains(out, "NodeName=")
		select {
		case <-ended:
			t.Fatalf("slurmctld ended:\n%s", log.String())
		case <-deadline:
			t.Skip("needs a slurmctld that starts in 30 s")
		case <-time.After(100 * time.Millisecond):
		}
	}
	return conf, func(kind string) []record {
		out, err := ask(kind)
		if err != nil {
			t.Fatal(err)
		}
		var all []record
		for line := range strings.Lines(out) {
			r := record{}
			if key, value, ok := strings.Cut(line, " = "); ok { // of "show config"
				r[strings.TrimSpace(key)] = strings.TrimSpace(value)
				line = ""
			}
			for word := range strings.FieldsSeq(line) {
				key, value, _ := strings.Cut(word, "=")
				r[key] = value
			}
			if len(r) > 0 {
				all = append(all, r)
			}
		}
		return all
	}
}

// TestLoadAgainstSlurm compares what Slurm's controller shows with what we read.
func TestLoadAgainstSlurm(t *testing.T) {
	conf, show := startController(t)
	c, err := slurm.Load(conf)
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]job.Node{}
	for _, n := range c.Nodes {
		nodes[n.Name] = n
	}
	check := func(name, key, ours, theirs string) {
		t.Helper()
		if ours != theirs {
			t.Errorf("%s: %s is %s, and %s for Slurm", name, key, ours, theirs)
		}
	}
	theirs := show("node")
	check("cluster", "nodes", strconv.Itoa(len(nodes)), strconv.Itoa(len(theirs)))
	for _, r := range theirs {
		n := nodes[r["NodeName"]]
		sockets := strconv.Itoa(n.Sockets)
		check(n.Name, "CPUTot", strconv.Itoa(n.CPUs), r["CPUTot"])
		check(n.Name, "Sockets", sockets, r["Sockets"])
		check(n.Name, "CoresPerSocket", strconv.Itoa(n.CoresPerSocket), r["CoresPerSocket"])
		check(n.Name, "ThreadsPerCore", strconv.Itoa(n.ThreadsPerCore), r["ThreadsPerCore"])
		check(n.Name, "RealMemory", strconv.FormatInt(n.Memory, 10), r["RealMemory"])
		check(n.Name, "Weight", strconv.Itoa(n.Weight), r["Weight"])
		features := "(null)"
		if len(n.Features) > 0 {
			features = strings.Join(n.Features, ",")
		}
		check(n.Name, "AvailableFeatures", features, r["AvailableFeatures"])
		gres := "(null)"
		if len(n.GRES) > 0 {
			gres = fmt.Sprintf("%s:%s:%d", n.GRES[0].Name, n.GRES[0].Type, n.GRES[0].Count)
		}
		check(n.Name, "Gres", gres, r["Gres"])
	}
	comparePartitions(t, c, show("partition"), check)
	config := record{}
	for _, r := range show("config") {
		maps.Copy(config, r)
	}
	check("config", "ClusterName", c.Name, config["ClusterName"])
	check("config", "MaxArraySize", strconv.Itoa(int(c.Config.MaxArray)), config["MaxArraySize"])
	check("config", "PriorityMaxAge", slurm.FormatTime(c.Config.Weights.MaxAge), config["PriorityMaxAge"])
	check("config", "PriorityWeightAge", strconv.Itoa(int(c.Config.Weights.Age)), config["PriorityWeightAge"])
	check("config", "PriorityWeightJobSize", strconv.Itoa(int(c.Config.Weights.Size)), config["PriorityWeightJobSize"])
	check("config", "PriorityWeightPartition", strconv.Itoa(int(c.Config.Weights.Partition)), config["PriorityWeightPartition"])
	check("config", "Licenses", fmt.Sprintf("%s:%d,%s:%d", c.Config.Licenses[0].Name, c.Config.Licenses[0].Count, c.Config.Licenses[1].Name, c.Config.Licenses[1].Count),
		config["Licenses"])
	for _, r := range show("topology") {
		for _, s := range c.Network.Switches {
			if s.Name == r["SwitchName"] && s.Nodes != nil {
				names, _ := slurm.Expand(r["Nodes"])
				slurm.SortHosts(names)
				ours := append([]string(nil), s.Nodes...)
				slurm.SortHosts(ours)
				check(s.Name, "Nodes", slurm.Fold(ours), slurm.Fold(names))
			}
		}
	}
}

func comparePartitions(t *testing.T, c *slurm.Cluster, theirs []record, check func(name, key, ours, theirs string)) {
	t.Helper()
	check("cluster", "partitions", strconv.Itoa(len(c.Partitions)), strconv.Itoa(len(theirs)))
	limit := func(d job.Duration, none string) string {
		if d == 0 {
			return none
		}
		return slurm.FormatTime(d)
	}
	for _, r := range theirs {
		for _, p := range c.Partitions {
			if p.Name != r["PartitionName"] {
				continue
			}
			check(p.Name, "Default", map[bool]string{true: "YES", false: "NO"}[p.Default], r["Default"])
			check(p.Name, "MaxTime", limit(p.MaxTime, "UNLIMITED"), r["MaxTime"])
			check(p.Name, "DefaultTime", limit(p.DefaultTime, "NONE"), r["DefaultTime"])
			check(p.Name, "MinNodes", strconv.Itoa(p.MinNodes), r["MinNodes"])
			check(p.Name, "PriorityJobFactor", strconv.Itoa(int(p.Priority)), r["PriorityJobFactor"])
			check(p.Name, "PriorityTier", strconv.Itoa(int(p.Tier)), r["PriorityTier"])
			check(p.Name, "TotalNodes", strconv.Itoa(len(p.Nodes)), r["TotalNodes"])
			check(p.Name, "State", [...]string{"UP", "DOWN", "DRAIN", "INACTIVE"}[p.State], r["State"])
			check(p.Name, "EXCLUSIVE", strconv.FormatBool(p.Exclusive), strconv.FormatBool(r["OverSubscribe"] == "EXCLUSIVE"))
			names, _ := slurm.Expand(r["Nodes"])
			slurm.SortHosts(names)
			ours := append([]string(nil), p.Nodes...)
			slurm.SortHosts(ours)
			check(p.Name, "Nodes", slurm.Fold(ours), slurm.Fold(names))
		}
	}
}

// TestThisMachine: what "slurmd -C" prints to be put into slurm.conf is read.
func TestThisMachine(t *testing.T) {
	needs(t, "slurmd")
	out, err := exec.Command("slurmd", "-C").Output()
	if err != nil {
		t.Skipf("needs a slurmd that runs: %v", err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	c := load(t, map[string]string{"slurm.conf": line})
	fields := record{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		fields[key] = value
	}
	if n := c.Nodes[0]; strconv.Itoa(n.CPUs) != fields["CPUs"] || strconv.FormatInt(n.Memory, 10) != fields["RealMemory"] || len(c.Warnings) > 0 {
		t.Errorf("%s is %+v, %v", line, n, c.Warnings)
	}
}
