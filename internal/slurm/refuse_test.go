package slurm_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestRefusals: each text is refused with file, line, value and what is valid.
func TestRefusals(t *testing.T) {
	const nodes = "NodeName=n[1-4] CPUs=4\n"
	for _, c := range []struct{ file, text, want string }{
		{"slurm.conf", "NodeName=n1 CPUs=-1", "slurm.conf:1: CPUs=-1: want a whole number from 1 to 65535"},
		{"slurm.conf", "NodeName=n1 CPUs=1.5", "slurm.conf:1: CPUs=1.5: want a whole number"},
		{"slurm.conf", "\n\nNodeName=n1 \\\nRealMemory=99999999999999999999", "slurm.conf:3: RealMemory=99999999999999999999: want a whole number from 1"},
		{"slurm.conf", "NodeName=n1 State=SLEEPY", "slurm.conf:1: State=SLEEPY: want one of UNKNOWN, IDLE, DOWN"},
		{"slurm.conf", "NodeName=n1 Gres=gpu:-2", "slurm.conf:1: Gres=gpu:-2: want NAME[:TYPE][:COUNT]"},
		{"slurm.conf", "NodeName=n[1-4 CPUs=1", "slurm.conf:1: NodeName: hostlist=n[1-4: want a ] after each ["},
		{"slurm.conf", "NodeName=n[1-4]\nNodeName=n3", "slurm.conf:2: NodeName=n3: want each node once: n3 has a line already"},
		{"slurm.conf", "NodeName=n1 MemSpecLimit=5 RealMemory=5", "MemSpecLimit=5: want less than RealMemory"},
		{"slurm.conf", "NodeName=n[1-2] NodeAddr=a[1-3]", "NodeAddr=a[1-3]: want as many addresses"},
		{"slurm.conf", "NodeName=n1 CPUs", "slurm.conf:1: CPUs: want key=value"},
		{"slurm.conf", "NodeName=n1 Reason=\"a b", "slurm.conf:1: Reason=\"\\\"a b\": want a closing quote"},
		{"slurm.conf", "NodeName=", "slurm.conf:1: NodeName=\"\": want a value"},
		{"slurm.conf", "MaxArraySize=4000002", "slurm.conf:1: MaxArraySize=4000002: want a whole number from 0 to 4000001"},
		{"slurm.conf", "TopologyPlugin=topology/donut", "TopologyPlugin=topology/donut: want one of topology/tree"},
		{"slurm.conf", "Licenses=a:1,a:2", "Licenses=a:1,a:2: want NAME[:COUNT]"},
		{"slurm.conf", "Licenses=a:-1", "Licenses=a:-1: want NAME[:COUNT]"},
		{"slurm.conf", "PriorityWeightAge=4294967296", "PriorityWeightAge=4294967296: want a whole number from 0 to 4294967295"},
		{"slurm.conf", "PriorityMaxAge=1w", "PriorityMaxAge=1w: want minutes, or one of"},
		{"slurm.conf", "PriorityFavorSmall=maybe", "want YES or NO"},
		{"slurm.conf", "SchedulerParameters=bf_continue,max_switch_wait=-3", "SchedulerParameters=max_switch_wait=-3: want a whole number"},
		{"slurm.conf", "Include other.conf", "slurm.conf:1: Include other.conf: open other.conf: file does not exist"},
		{"slurm.conf", "Include slurm.conf", "slurm.conf:1: Include slurm.conf: the file includes itself"},
		{"slurm.conf", nodes + "PartitionName=p Nodes=n1 MaxTime=soon", "slurm.conf:2: MaxTime=soon: want minutes, or one of M:S"},
		{"slurm.conf", nodes + "PartitionName=p Nodes=n1 State=OPEN", "want one of UP, DOWN, DRAIN, INACTIVE"},
		{"slurm.conf", nodes + "PartitionName=p Nodes=n1 MinNodes=3 MaxNodes=2", "MinNodes=3: want no more than MaxNodes=2"},
		{"slurm.conf", nodes + "PartitionName=p Nodes=n1\nPartitionName=p Nodes=n2", "slurm.conf:3: PartitionName=p: want each partition once"},
		{"slurm.conf", nodes + "PartitionName=p OverSubscribe=FORCE:0", "OverSubscribe=FORCE:0: want EXCLUSIVE, NO, YES[:JOBS]"},
		{"slurm.conf", "NodeSet=x Colour=red", "NodeSet=x: want Nodes= or Feature="},
		{"gres.conf", "NodeName=n1 Name=gpu File=/dev/nvidia[0-3] Count=3", "gres.conf:1: Count=3: want as many as File= has: 4"},
		{"gres.conf", "NodeName=n1 Name=gpu Cores=0-x", "gres.conf:1: Cores=0-x: want numbers of cores"},
		{"gres.conf", "NodeName=n1 Name=gpu Links=1,b", "gres.conf:1: Links=1,b: want numbers"},
		{"gres.conf", "NodeName=n1 Type=gpu", "gres.conf:1: want Name= on the line"},
		{"gres.conf", "AutoDetect=magic", "gres.conf:1: AutoDetect=magic: want one of nvml"},
		{"topology.conf", "SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "topology.conf:2: SwitchName=a: want each switch once"},
		{"topology.conf", "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]", "topology.conf:2: Nodes=n[1-2]: want each name below one parent: n1 is below a too (topology.conf:1)"},
		{"topology.conf", "SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a", "topology.conf:3: Switches=a: want each name below one parent: a is below b too"},
		{"topology.conf", "SwitchName=b Switches=a,z\nSwitchName=a Nodes=n1", "topology.conf:1: Switches=z: want switches that are defined themselves"},
		{"topology.conf", "SwitchName=a Switches=b\nSwitchName=b Switches=a", "topology.conf:1: SwitchName=a: it is above itself: a < b < a"},
		{"topology.conf", "SwitchName=x Switches=x", "it is above itself: x < x"},
		{"topology.conf", "SwitchName=a", "topology.conf:1: SwitchName=a: want either Switches= or Nodes="},
		{"topology.conf", "SwitchName=a Nodes=n1 Switches=b", "want either Switches= or Nodes="},
		{"topology.conf", "BlockName=a Nodes=n1\nBlockName=b Nodes=n1", "topology.conf:2: Nodes=n1: want each name below one parent"},
		{"topology.conf", "BlockSizes=4,6", "BlockSizes=4,6: want rising sizes"},
		{"topology.conf", "BlockSizes=0", "want a whole number from 1"},
	} {
		files := map[string]string{"slurm.conf": nodes, c.file: c.text}
		if c.file == "slurm.conf" {
			files["slurm.conf"] = c.text
		}
		_, err := slurm.LoadFS(dir(files), "slurm.conf")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v\nwant %q", c.text, err, c.want)
		}
	}
}

// TestPassedOver: what nobody knows is passed over with a warning that says where it is, and
// what may be meant.
func TestPassedOver(t *testing.T) {
	const nodes = "NodeName=n[1-4] CPUs=4\n"
	for _, c := range []struct{ file, text, want, remedy string }{
		{"slurm.conf", "SlurmctldDebgu=3\n" + nodes, "slurm.conf:1: warning: SlurmctldDebgu=3: unknown in slurm.conf", "did you mean SlurmctldDebug?"},
		{"slurm.conf", "Frobnicate=3\n" + nodes, "slurm.conf:1: warning: Frobnicate=3: unknown in slurm.conf", "leave it out"},
		{"slurm.conf", "NodeName=n1 RealMem=5", "slurm.conf:1: warning: RealMem=5: unknown in a line of nodes", "did you mean RealMemory?"},
		{"slurm.conf", nodes + "PartitionName=p Nodes=n1 MaxTmie=5", "slurm.conf:2: warning: MaxTmie=5: unknown in a line of a partition", "did you mean MaxTime?"},
		{"slurm.conf", nodes + "DownNodes=n1 Sate=DOWN", "slurm.conf:2: warning: Sate=DOWN: unknown in a line of DownNodes", "did you mean State?"},
		{"slurm.conf", nodes + "NodeSet=a Nodes=n1 Featrue=b", "slurm.conf:2: warning: Featrue=b: unknown in a line of a NodeSet", "did you mean Feature?"},
		{"slurm.conf", "FrontendName=f1 Port=5\n" + nodes, "slurm.conf:1: warning: FrontendName=f1: there are no front ends", "write a NodeName line"},
		{"slurm.conf", nodes + "PartitionName=p Default=YES\nPartitionName=q Default=YES", "slurm.conf:3: error: Default=YES: there can be one: p was it before", "leave it out here or there"},
		{"slurm.conf", "KillWait=30\nKillWait=31\n" + nodes, "slurm.conf:2: warning: KillWait=31: slurm.conf:1 has it too: the latter counts", "leave one of the two out"},
		{"slurm.conf", "KillWait=soon\n" + nodes, "slurm.conf:1: error: KillWait=soon: want a whole number from 0 to 65535, or UNLIMITED", "mend it"},
		{"slurm.conf", "UsePAM=maybe\n" + nodes, "slurm.conf:1: error: UsePAM=maybe: want YES or NO", "mend it"},
		{"slurm.conf", "SchedulerParameters=bf_continue,bf_windwo=5\n" + nodes, "slurm.conf:1: error: SchedulerParameters=bf_windwo: nobody knows bf_windwo", "did you mean bf_window?"},
		{"slurm.conf", "PrologFlags=Alloc,Contian\n" + nodes, "slurm.conf:1: error: PrologFlags=Contian: nobody knows Contian", "did you mean Contain?"},
		{"gres.conf", "NodeName=n1 Name=gpu Files=/dev/x", "gres.conf:1: warning: Files=/dev/x: unknown in gres.conf", "did you mean File?"},
		{"topology.conf", "SwitchNmae=a Nodes=n1", "topology.conf:1: warning: SwitchNmae=a: unknown in topology.conf", "did you mean SwitchName?"},
		{"topology.conf", "SwitchName=a Node=n1 Nodes=n2", "topology.conf:1: warning: Node=n1: unknown in topology.conf", "did you mean Nodes?"},
		{"topology.conf", "BlockName=a Node=n1", "topology.conf:1: warning: Node=n1: unknown in topology.conf", "did you mean Nodes?"},
		{"cgroup.conf", "ConstrainCore=yes", "cgroup.conf:1: warning: ConstrainCore=yes: unknown in cgroup.conf", "did you mean ConstrainCores?"},
		{"cgroup.conf", "ConstrainCores=maybe", "cgroup.conf:1: error: ConstrainCores=maybe: want YES or NO", "mend it"},
		{"cgroup.conf", "AllowedRAMSpace=lots", "cgroup.conf:1: error: AllowedRAMSpace=lots: want a percentage", "mend it"},
		{"cgroup.conf", "ConstrainCores", "cgroup.conf:1: error: ConstrainCores: want key=value", "mend it"},
		{"plugstack.conf", "\nneeded x.so", "plugstack.conf:2: error: want required or optional", "mend it"},
		{"plugstack.conf", "Required x.so", "plugstack.conf:1: error: want required or optional", "mend it"},
		{"plugstack.conf", "required", "plugstack.conf:1: error: want required or optional", "mend it"},
		{"plugstack.conf", "include plugstack.conf", "plugstack.conf:1: error: include=plugstack.conf: files include each other", "leave one"},
	} {
		files := map[string]string{"slurm.conf": nodes, c.file: c.text}
		report, err := slurm.LintFS(dir(files), "slurm.conf")
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if !slices.ContainsFunc(report.Findings, func(f slurm.Finding) bool {
			return strings.HasPrefix(f.String(), c.want) && strings.HasPrefix(f.Remedy, c.remedy)
		}) {
			t.Errorf("%q: %v\nwant %q, %q", c.text, report.Findings, c.want, c.remedy)
		}
		if _, err := slurm.LoadFS(dir(files), "slurm.conf"); err != nil {
			t.Errorf("%q: %v", c.text, err)
		}
	}
}

// TestAllErrors: one error does not hide the next, and none is said twice.
func TestAllErrors(t *testing.T) {
	files := dir(map[string]string{
		"slurm.conf": "MaxArraySize=x\nNodeName=DEFAULT CPUs=y TmpDisk=5\nNodeName=n[1-2 CPUs=1\nNodeName=n[1-4] RealMemory=-1 Weight=z\nInclude more.conf\nnonsense\n" +
			"PartitionName=p Nodes=n[1-4] MaxTime=soon State=OPEN",
		"gres.conf":     "NodeName=n1 Type=gpu\nNodeName=n1 Name=gpu Cores=x",
		"topology.conf": "SwitchName=a\nSwitchName=b Nodes=n[1-4]",
	})
	report, err := slurm.LintFS(files, "slurm.conf")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range report.Findings {
		if f.Refused {
			got = append(got, fmt.Sprintf("%s:%d %s", f.File, f.Line, f.Key))
		}
	}
	want := []string{
		"slurm.conf:1 MaxArraySize", "slurm.conf:2 CPUs", "slurm.conf:3 ", "slurm.conf:4 RealMemory", "slurm.conf:4 Weight", "slurm.conf:5 ", "slurm.conf:6 ",
		"slurm.conf:7 MaxTime", "slurm.conf:7 State", "gres.conf:1 ", "gres.conf:2 Cores", "topology.conf:1 ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("errors are %q\nwant %q", got, want)
	}
	_, err = slurm.LoadFS(files, "slurm.conf")
	if f, ok := errors.AsType[*fault.Error](err); !ok || !strings.Contains(f.Error(), "slurm.conf:1: MaxArraySize=x") || !strings.Contains(f.Cause, "the first of 12 errors; gangway slurm lint") {
		t.Errorf("%v", err)
	}
}

// FuzzLoad: whatever the files have, nothing breaks, and what is read keeps its promises.
func FuzzLoad(f *testing.F) {
	f.Add(guide["slurm.conf"]+guide["nodes.conf"], guide["gres.conf"], guide["topology.conf"])
	f.Add("NodeName=n[1-8] Gres=gpu:4\nPartitionName=p Nodes=ALL", "Name=gpu File=/dev/nvidia[0-3] Links=0,0", "BlockName=a Nodes=n[1-4]\nBlockSizes=4")
	f.Fuzz(func(t *testing.T, conf, gres, topology string) {
		if strings.Contains(strings.ToLower(conf+gres+topology), "include") || strings.Count(conf, "[") > 4 {
			return // files outside; large lists
		}
		c, err := slurm.LoadFS(dir(map[string]string{"slurm.conf": conf, "gres.conf": gres, "topology.conf": topology}), "slurm.conf")
		if err != nil {
			return
		}
		for _, n := range c.Nodes {
			if n.Name == "" || n.CPUs < 1 || n.Memory < 1 || n.Sockets < 1 {
				t.Fatalf("%+v", n)
			}
			for _, g := range n.GRES {
				if g.Count < 0 || g.Links != nil && int64(len(g.Links)) != g.Count || g.Sockets != nil && int64(len(g.Sockets)) != g.Count {
					t.Fatalf("%+v", n)
				}
			}
		}
		for _, p := range c.Partitions {
			if p.MaxTime < 0 || p.MaxTime == job.Forever || p.MaxNodes < 0 {
				t.Fatalf("%+v", p)
			}
		}
	})
}
