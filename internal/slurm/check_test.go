package slurm_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// mistake is a configuration of lines that can be read, and cannot do what was meant.
type mistake struct {
	name  string
	files map[string]string // what is added to slurm.conf, and other files
	want  string            // a finding
	// theirs is what Slurm's controller says of it when it starts; empty: nothing, it does not notice.
	theirs string
}

// twoNodes are what most mistakes are made with.
const twoNodes = "NodeName=n1 CPUs=4 RealMemory=1000\nNodeName=n2 CPUs=4 RealMemory=1000\n"

func mistakes() []mistake {
	conf := func(text string) map[string]string { return map[string]string{"slurm.conf": text} }
	const p = "PartitionName=p Nodes=n[1-2] Default=YES\n"
	return []mistake{
		{"a partition of nodes that nobody defines", conf(twoNodes + "PartitionName=p Nodes=n[1-9] Default=YES\n"), "slurm.conf:3: error: Nodes=n[1-9]: no line defines n[3-9]", "invalid node name n3 in partition"},
		{"two default partitions", conf(twoNodes + p + "PartitionName=q Nodes=n1 Default=YES\n"), "slurm.conf:4: error: Default=YES: there can be one: p was it before", "changing default partition from p to q"},
		{"no partition", conf(twoNodes), "slurm.conf: error: no line defines a partition", "No PartitionName information available"},
		{"no default partition", conf(twoNodes + "PartitionName=p Nodes=n[1-2]\n"), "slurm.conf: warning: no partition is the default", ""},
		{"a default above the maximum", conf(twoNodes + "PartitionName=p Nodes=n1 Default=YES MaxTime=5 DefaultTime=10\n"), "slurm.conf:3: error: DefaultTime=10: it is longer than MaxTime", ""},
		{"more nodes asked for than there are", conf(twoNodes + "PartitionName=p Nodes=n1 Default=YES MinNodes=2\n"), "slurm.conf:3: error: MinNodes=2: it has 1 nodes", ""},
		{"a partition without nodes", conf(twoNodes + p + "PartitionName=q\n"), "slurm.conf:4: error: PartitionName=q: it has no nodes", ""},
		{"memory by default that no node has", conf(twoNodes + "PartitionName=p Nodes=n1 Default=YES DefMemPerNode=2000\n"), "slurm.conf:3: error: DefMemPerNode=2000: no node of partition p has more than 1000 MiB", ""},
		{"a node without memory", conf("NodeName=n1 CPUs=4\nPartitionName=p Nodes=n1 Default=YES\n"), "slurm.conf:1: error: NodeName=n1: RealMemory is missing", ""},
		{"a node of no partition", conf(twoNodes + "PartitionName=p Nodes=n1 Default=YES\n"), "slurm.conf: warning: NodeName=n2: it is in no partition", ""},
		{"a resource of a type that is not said", conf("NodeName=n1 CPUs=4 RealMemory=9 Gres=gpu:2\nPartitionName=p Nodes=n1 Default=YES\n"), "slurm.conf:1: error: Gres=gpu: GresTypes has no gpu", ""},
		{"another resource than is said", conf("GresTypes=gpu\nNodeName=n1 CPUs=4 RealMemory=9 Gres=fpga:2\nPartitionName=p Nodes=n1 Default=YES\n"), "slurm.conf:2: error: Gres=fpga: GresTypes has no fpga", "Invalid GRES configured on node n1: fpga:2"},
		{"words of consumable resources", conf("SelectTypeParameters=CR_Foo\n" + twoNodes + p), "slurm.conf:1: error: SelectTypeParameters=CR_Foo: nobody knows CR_Foo", "Bad SelectTypeParameter: CR_Foo"},
		{"flags of the prolog", conf("PrologFlags=Alloc,Foo\n" + twoNodes + p), "slurm.conf:1: error: PrologFlags=Foo: nobody knows Foo", "Invalid PrologFlag: Foo"},
		{"X11", conf("PrologFlags=X11\n" + twoNodes + p), "slurm.conf:1: error: PrologFlags=X11: X11 is not forwarded", ""},
		{"preemption without a way", conf("PreemptType=preempt/partition_prio\n" + twoNodes + p), "slurm.conf:1: error: PreemptType=preempt/partition_prio: PreemptMode does not say how", "PreemptType and PreemptMode values incompatible"},
		{"preemption of equals", conf("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n" + twoNodes + p + "PartitionName=q Nodes=n1 PriorityJobFactor=9\n"), "slurm.conf:1: error: PreemptType=preempt/partition_prio: all partitions have one PriorityTier", ""},
		{"weights that do not count", conf("PriorityType=priority/basic\nPriorityWeightAge=5\n" + twoNodes + p), "slurm.conf:2: error: PriorityWeightAge=5: weights count with", ""},
		{"a topology that is not there", conf("TopologyPlugin=topology/tree\n" + twoNodes + p), "slurm.conf:1: error: TopologyPlugin=topology/tree: no file says which nodes are close", "topology.conf: No such file or directory"},
		{"nodes out of the topology", map[string]string{"slurm.conf": "TopologyPlugin=topology/tree\n" + twoNodes + p, "topology.conf": "SwitchName=s Nodes=n1,ghost\n"}, "topology.conf: warning: NodeName=n2: no switch of topology.conf has it", "switches lack access to 1 nodes: n2"},
		{"a leaf of unknown nodes", map[string]string{"slurm.conf": "TopologyPlugin=topology/tree\n" + twoNodes + p, "topology.conf": "SwitchName=s Nodes=n[1-2],ghost\n"}, "topology.conf:1: error: Nodes=n[1-2],ghost: no line of slurm.conf defines ghost", "Invalid hostnames in switch configuration: ghost"},
		{"a topology that is not read", map[string]string{"slurm.conf": twoNodes + p, "topology.conf": "SwitchName=s Nodes=n[1-2]\n"}, "topology.conf: warning: TopologyPlugin is not set", ""},
		{"a key said twice", conf("KillWait=30\nKillWait=31\n" + twoNodes + p), "slurm.conf:2: warning: KillWait=31: slurm.conf:1 has it too", "KillWait 1 specified more than once, latest value used"},
		{"a key of control groups", map[string]string{"slurm.conf": twoNodes + p, "cgroup.conf": "ConstrainCore=yes\n"}, "cgroup.conf:1: warning: ConstrainCore=yes: unknown in cgroup.conf", "unrecognized key: ConstrainCore"},
		{"a switch of control groups", map[string]string{"slurm.conf": twoNodes + p, "cgroup.conf": "ConstrainCores=maybe\n"}, "cgroup.conf:1: error: ConstrainCores=maybe: want YES or NO", `"maybe" is not a valid option for "ConstrainCores"`},
		{"a percentage of control groups", map[string]string{"slurm.conf": twoNodes + p, "cgroup.conf": "AllowedRAMSpace=x\n"}, "cgroup.conf:1: error: AllowedRAMSpace=x: want a percentage", "AllowedRAMSpace value (x) is not a valid number"},
		{"control groups that are not used", map[string]string{"slurm.conf": "TaskPlugin=task/affinity\n" + twoNodes + p, "cgroup.conf": "ConstrainCores=yes\n"}, "cgroup.conf:1: error: ConstrainCores=yes: TaskPlugin has no task/cgroup", ""},
		{
			"GPUs that are open to all",
			map[string]string{"slurm.conf": "GresTypes=gpu\nTaskPlugin=task/cgroup\nNodeName=n1 CPUs=4 RealMemory=9 Gres=gpu:2\nPartitionName=p Nodes=n1 Default=YES\n", "cgroup.conf": "ConstrainCores=yes\n"},
			"cgroup.conf: error: NodeName=n1: ConstrainDevices is off", "",
		},
		{"two controllers", conf("SlurmctldHost=a\nSlurmctldHost=b\n" + twoNodes + p), "slurm.conf:2: warning: SlurmctldHost=b: there is one controller", ""},
	}
}

// TestMistakes: each is found, where it is.
func TestMistakes(t *testing.T) {
	for _, m := range mistakes() {
		report, err := slurm.LintFS(dir(m.files), "slurm.conf")
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else if !slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool { return strings.HasPrefix(f.String(), m.want) }) {
			t.Errorf("%s: %v\nwant %s", m.name, report.Findings, m.want)
		}
	}
}

// TestMistakesAgainstSlurm: what Slurm's controller says of these when it starts is as the list
// says, so that nobody need wait for it to find them.
func TestMistakesAgainstSlurm(t *testing.T) {
	needs(t, "slurmctld")
	var work errgroup.Group
	work.SetLimit(8) // most of the time is waiting
	for _, m := range mistakes() {
		if m.theirs != "" {
			work.Go(func() error {
				if log, ok := controllerSays(t, m); !ok {
					t.Errorf("%s: Slurm does not say %q:\n%s", m.name, m.theirs, log)
				}
				return nil
			})
		}
	}
	_ = work.Wait()
}

// controllerSays starts Slurm's controller until it says what it is to say of a mistake, or has
// ended, or ten seconds are over.
func controllerSays(t *testing.T, m mistake) (log string, ok bool) {
	at, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Error(err)
		return "", false
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Error(err)
		return "", false
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	for name, text := range m.files {
		if name == "slurm.conf" {
			for n := 1; n <= 2; n++ { // an address for each node, so that it resolves no names
				text = strings.Replace(text, fmt.Sprintf("NodeName=n%d", n), fmt.Sprintf("NodeName=n%d NodeAddr=127.0.0.1 Port=%d", n, n+2000), 1)
			}
			text += fmt.Sprintf("ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=%d\nAuthType=auth/none\nCredType=cred/none\nSlurmUser=root\nStateSaveLocation=%s\n"+
				"SlurmctldPidFile=%s/pid\nProctrackType=proctrack/pgid\nMpiDefault=none\n", port, at, at)
		}
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
			t.Error(err)
			return "", false
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "slurmctld", "-D", "-c", "-f", filepath.Join(at, "slurm.conf"))
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return "", false
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed, or refused its configuration
	}()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if log += lines.Text() + "\n"; strings.Contains(lines.Text(), m.theirs) {
			return log, true
		}
	}
	return log, false
}
