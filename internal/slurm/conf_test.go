package slurm_test

import (
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// dir is a configuration directory; files are "name: text".
func dir(files map[string]string) fstest.MapFS {
	fs := fstest.MapFS{}
	for name, text := range files {
		fs[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fs
}

func load(t *testing.T, files map[string]string) *slurm.Cluster {
	t.Helper()
	c, err := slurm.LoadFS(dir(files), "slurm.conf")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// guide is what published guides show, with their traps: partitions with more nodes than
// are defined, colons between switches, brackets in Cores.
var guide = map[string]string{
	"slurm.conf": `
# The cluster
ClusterName=Training
SlurmctldHost=head(10.0.0.1)
GresTypes=gpu
include nodes.conf
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightJobSize=1000 PriorityWeightFairshare=50000
PriorityMaxAge=14-0
SchedulerParameters=bf_continue,max_switch_wait=600,bf_window=2880,max_batch_requeue=3
TopologyPlugin=topology/tree
Licenses=matlab:50,foo
MaxArraySize=10001
PartitionName=DEFAULT MaxTime=72:00:00
PartitionName=train Nodes=gpu-node-[001-008] Default=YES State=UP PriorityJobFactor=2 MaxCPUsPerUser=8
PartitionName=debug Nodes=ALL MaxTime=02:00:00 DefaultTime=30 PriorityTier=10 OverSubscribe=EXCLUSIVE MaxNodes=2 AllowAccounts=a,b DenyQos=low
PartitionName=long Nodes=h100s MaxTime=UNLIMITED State=DOWN DefMemPerCPU=4096
NodeSet=h100s Feature=h100
PlugStackConfig=plugstack.conf
`,
	"nodes.conf": `NodeName=DEFAULT RealMemory=2048000 \
   CPUs=128	# a tab, and a comment
NODENAME=gpu-node-[001-004] Gres=gpu:h100:8 State=UNKNOWN Feature=h100,ib \
   Weight=10
NodeName=cpu[1-2] Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 CPUs=128 RealMemory=512000 Reason="a b"
DownNodes=cpu2 State=DOWN Reason="broken \#1"
`,
	"gres.conf": `AutoDetect=off
NodeName=gpu-node-001 Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=[0-63]
NodeName=gpu-node-001 Name=gpu Type=h100 File=/dev/nvidia[4-7] Cores=64-127
NodeName=gpu-node-[002-008] Name=gpu Type=h100 File=/dev/nvidia[0-7]
`,
	"topology.conf": `# the parent before its children
SwitchName=spine1 Switches=leaf1:leaf2
SwitchName=leaf1 Nodes=gpu-node-[001-002],cpu[1-2] LinkSpeed=100
SwitchName=leaf2 Nodes=gpu-node-[003-008]
`,
}

func TestLoadGuide(t *testing.T) {
	c := load(t, guide)
	if c.Name != "training" || len(c.Nodes) != 6 || len(c.Partitions) != 3 {
		t.Fatalf("%s, %d nodes, %d partitions", c.Name, len(c.Nodes), len(c.Partitions))
	}
	gpu := c.Nodes[1]
	want := job.Node{
		Name: "gpu-node-002", Sockets: 128, CoresPerSocket: 1, ThreadsPerCore: 1, CPUs: 128, Memory: 2048000, Weight: 10,
		GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}, Features: []string{"h100", "ib"}, State: job.NodeUnknown, Switch: "leaf1",
	}
	if !reflect.DeepEqual(gpu, want) {
		t.Errorf("%+v\nwant %+v", gpu, want)
	}
	if cpu := c.Nodes[5]; cpu.State != job.NodeDown || cpu.Reason != "broken #1" || cpu.Memory != 512000 || cpu.CPUs != 128 {
		t.Errorf("%+v", cpu)
	}
	train, debug, long := c.Partitions[0], c.Partitions[1], c.Partitions[2]
	if !train.Default || train.MaxTime != 72*job.Hour || train.Priority != 2 || train.Tier != 1 || len(train.Nodes) != 8 {
		t.Errorf("%+v", train)
	}
	if debug.MaxTime != 2*job.Hour || debug.DefaultTime != 30*job.Minute || !debug.Exclusive || len(debug.Nodes) != 6 || debug.Tier != 10 ||
		!slices.Equal(debug.AllowAccount, []string{"a", "b"}) || !slices.Equal(debug.DenyQOS, []string{"low"}) {
		t.Errorf("%+v", debug)
	}
	if long.MaxTime != 0 || long.State != job.PartitionDown || len(long.Nodes) != 4 || long.MemoryPerCPU != 4096 {
		t.Errorf("%+v", long)
	}
	config := job.Config{
		Weights:  job.Weights{Age: 1000, Size: 1000, MaxAge: 14 * job.Day},
		Licenses: []job.License{{Name: "matlab", Count: 50}, {Name: "foo", Count: 1}},
		MaxArray: 10001, MaxRequeue: 3,
	}
	if !reflect.DeepEqual(c.Config, config) || c.SwitchWait != 600*job.Second {
		t.Errorf("%+v, wait %d\nwant %+v", c.Config, c.SwitchWait, config)
	}
	switches := []job.Switch{
		{Name: "spine1", Switches: []string{"leaf1", "leaf2"}},
		{Name: "leaf1", Nodes: []string{"gpu-node-001", "gpu-node-002", "cpu1", "cpu2"}},
		{Name: "leaf2", Nodes: []string{"gpu-node-003", "gpu-node-004", "gpu-node-005", "gpu-node-006", "gpu-node-007", "gpu-node-008"}},
	}
	if !reflect.DeepEqual(c.Network.Switches, switches) {
		t.Errorf("%+v", c.Network)
	}
	var warnings []string
	for _, w := range c.Warnings {
		warnings = append(warnings, w.String())
	}
	text := strings.Join(warnings, "\n")
	for _, want := range []string{
		"slurm.conf:16: Nodes=gpu-node-[001-008]: no line defines gpu-node-[005-008]: expected to come", "topology.conf:2: Switches=leaf1:leaf2",
		"topology.conf:4: Nodes=gpu-node-[003-008]: no line",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no warning %q in:\n%s", want, text)
		}
	}
	ignored := slices.ContainsFunc(c.Ignored, func(s slurm.Setting) bool { return s.Key == "PriorityWeightFairshare" && s.Line == 9 })
	if !ignored || len(c.Events(5)) != 1+6+1+3 {
		t.Errorf("ignored: %+v; %d events", c.Ignored, len(c.Events(5)))
	}
}

// TestGRESDevices: gres.conf gives types, sockets and links, and slurm.conf the count.
func TestGRESDevices(t *testing.T) {
	c := load(t, map[string]string{
		"slurm.conf": `NodeName=a,b Sockets=2 CoresPerSocket=8 Gres=gpu:4
NodeName=c,d CPUs=8 Gres=gpu:4
NodeName=e CPUs=8`,
		"gres.conf": `NodeName=a Name=gpu Type=h100 File=/dev/nvidia[0-1] Cores=0-7
NodeName=a Name=gpu Type=h100 File=/dev/nvidia[2-3] Cores=8-15
NodeName=b Name=gpu Type=x File=/dev/nvidia0 Links=-1,4,2,2
NodeName=b Name=gpu Type=x File=/dev/nvidia1 Links=4,-1,2,2
NodeName=b Name=gpu Type=x File=/dev/nvidia2 Links=2,2,-1,4 Cores=4-11
NodeName=b Name=gpu Type=x File=/dev/nvidia3 Links=2,2,4,-1
NodeName=c Name=gpu Type=big File=/dev/nvidia[0-1]
NodeName=c Name=gpu Type=small Count=2
Name=gpu NodeName=d Type=x Count=3
NodeName=e,f Name=gpu File=/dev/nvidia0`,
	})
	want := [][]job.GRES{
		{{Name: "gpu", Type: "h100", Count: 4, Sockets: []int{0, 0, 1, 1}}},
		{{Name: "gpu", Type: "x", Count: 4, Links: [][]int{{-1, 4, 2, 2}, {4, -1, 2, 2}, {2, 2, -1, 4}, {2, 2, 4, -1}}}},
		{{Name: "gpu", Type: "big", Count: 2}, {Name: "gpu", Type: "small", Count: 2}},
		{{Name: "gpu", Count: 4}},
		nil,
	}
	for i, n := range c.Nodes {
		if !reflect.DeepEqual(n.GRES, want[i]) {
			t.Errorf("node %s has %+v, want %+v", n.Name, n.GRES, want[i])
		}
	}
	if len(c.Warnings) != 3 {
		t.Errorf("%v", c.Warnings)
	}
}

// TestGRESShortage: fewer devices in gres.conf than slurm.conf says are a warning, one for
// all nodes that have the same; as many, more, or other ways to count them are not.
func TestGRESShortage(t *testing.T) {
	c := load(t, map[string]string{
		"slurm.conf": `NodeName=n[1-8] CPUs=8 Gres=gpu:h100:8,tmp:4G
NodeName=m[1-2] CPUs=8 Gres=gpu:a100:2,gpu:v100:2
NodeName=k CPUs=8 Gres=gpu:4
NodeName=alone CPUs=8 Gres=gpu:4`,
		"gres.conf": `NodeName=n[1-3] Name=gpu Type=h100 File=/dev/nvidia[0-3]
NodeName=n[4-7] Name=gpu File=/dev/nvidia[0-7]
NodeName=n8 Name=gpu Type=a100 File=/dev/nvidia[0-7]
NodeName=n[1-8] Name=tmp Count=4G
NodeName=m[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-1]
NodeName=m[1-2] Name=gpu Type=v100 File=/dev/nvidia2
NodeName=k Name=gpu Type=a File=/dev/nvidia[0-1]
NodeName=k Name=gpu Type=b File=/dev/nvidia[2-7]`,
	})
	var got []string
	for _, w := range c.Warnings {
		text, _, _ := strings.Cut(w.String(), ", which counts; Slurm drains such nodes")
		got = append(got, text)
	}
	want := []string{
		"gres.conf:1: 4 gpu:h100 on n[1-3] here, and 8 in slurm.conf",
		"gres.conf:3: 0 gpu:h100 on n8 here, and 8 in slurm.conf",
		"gres.conf:6: 1 gpu:v100 on m[1-2] here, and 2 in slurm.conf",
	}
	if !slices.Equal(got, want) {
		t.Errorf("warnings are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestNodeCPUs: what a line leaves out is filled in as Slurm does.
func TestNodeCPUs(t *testing.T) {
	c := load(t, map[string]string{"slurm.conf": `
NodeName=a CPUs=128
NodeName=b Sockets=2 CoresPerSocket=4 ThreadsPerCore=2
NodeName=c CPUs=8 CoresPerSocket=2
NodeName=d Boards=2 SocketsPerBoard=2 CoresPerSocket=4
NodeName=e CPUs=8 Sockets=2 CoresPerSocket=4 ThreadsPerCore=2
NodeName=f CPUs=7 Sockets=2 CoresPerSocket=4
NodeName=g CPUs=6 Sockets=2
NodeName=h MemSpecLimit=1000 RealMemory=5000`})
	want := [][4]int{{128, 1, 1, 128}, {2, 4, 2, 16}, {4, 2, 1, 8}, {4, 4, 1, 16}, {2, 4, 2, 8}, {2, 4, 1, 8}, {6, 1, 1, 6}, {1, 1, 1, 1}}
	for i, n := range c.Nodes {
		if got := [4]int{n.Sockets, n.CoresPerSocket, n.ThreadsPerCore, n.CPUs}; got != want[i] {
			t.Errorf("%s: %v, want %v", n.Name, got, want[i])
		}
	}
	if len(c.Warnings) != 2 || c.Nodes[7].Memory != 4000 {
		t.Errorf("%v, %d MiB", c.Warnings, c.Nodes[7].Memory)
	}
}

// TestMemoryNotHandedOut: without consumable memory no job takes all of it by default.
func TestMemoryNotHandedOut(t *testing.T) {
	c := load(t, map[string]string{"slurm.conf": "SelectTypeParameters=CR_Core\nNodeName=a CPUs=4 RealMemory=1000\nPartitionName=p Nodes=a"})
	if p := c.Partitions[0]; p.MemoryPerCPU != 250 {
		t.Errorf("%+v", p)
	}
}

// TestBlocks: topology/block, by lines and by Topology= of nodes.
func TestBlocks(t *testing.T) {
	c := load(t, map[string]string{
		"slurm.conf":    "TopologyPlugin=topology/block\nNodeName=n[1-8] CPUs=1\nNodeName=m1 CPUs=1 Topology=default:b2",
		"topology.conf": "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8",
	})
	if n := c.Network; len(n.Blocks) != 2 || !slices.Equal(n.BlockSizes, []int{4, 8}) || c.Nodes[4].Block != "b2" || c.Nodes[8].Block != "b2" || c.Nodes[8].Switch != "" {
		t.Errorf("%+v, %+v", n, c.Nodes[8])
	}
	flat := load(t, map[string]string{"slurm.conf": "TopologyPlugin=topology/flat\nNodeName=n1", "topology.conf": "nonsense"})
	if len(flat.Network.Switches) > 0 {
		t.Errorf("%+v", flat.Network)
	}
}

// TestNeglected: what Slurm schedules by and we do not is said by name and line; what is
// written but switched off, or is not about scheduling, is not.
func TestNeglected(t *testing.T) {
	for text, want := range map[string]string{
		"NodeName=a\nPartitionName=p Nodes=a Topology=nvl":          "slurm.conf:2: Topology=nvl: it is not supported yet",
		"NodeName=a\nPartitionName=p Nodes=a MaxCPUsPerNode=8":      "slurm.conf:2: MaxCPUsPerNode=8: it is not supported yet",
		"NodeName=a\nPartitionName=p Nodes=a OverSubscribe=FORCE:4": "slurm.conf:2: OverSubscribe=FORCE:4: jobs that share CPUs are not supported yet",
		"JobRequeue=0":                         "slurm.conf:1: JobRequeue=0: it is not supported yet",
		"CompleteWait=30":                      "slurm.conf:1: CompleteWait=30: it is not supported yet",
		"MaxMemPerNode=1000":                   "slurm.conf:1: MaxMemPerNode=1000: it is not supported yet",
		"PriorityWeightFairshare=1000":         "slurm.conf:1: PriorityWeightFairshare=1000: it is not supported yet",
		"SchedulerType=sched/hold":             "slurm.conf:1: SchedulerType=sched/hold: it is not supported yet",
		"SchedulerParameters=default_gbytes":   "slurm.conf:1: SchedulerParameters=default_gbytes: it is not supported yet",
		"SelectTypeParameters=CR_Socket":       "slurm.conf:1: SelectTypeParameters=CR_Socket: it is not supported yet",
		"NodeName=a TmpDisk=5":                 "slurm.conf:1: TmpDisk=5: it is not supported yet",
		"NodeName=a Topology=default:s1,nvl:b": "slurm.conf:1: Topology=nvl:b: it is not used",
		"JobRequeue=1\nCompleteWait=0\nPreemptType=preempt/none\nMCSPlugin=mcs/none\nSlurmctldDebug=info\nEnforcePartLimits=ALL\nSchedulerParameters=bf_interval=60": "",
	} {
		c := load(t, map[string]string{"slurm.conf": text})
		if want == "" && len(c.Warnings) > 0 || want != "" && (len(c.Warnings) != 1 || !strings.HasPrefix(c.Warnings[0].String(), want)) {
			t.Errorf("%q: %v, want %s", text, c.Warnings, want)
		}
	}
	if n := load(t, map[string]string{"slurm.conf": "NodeName=a Topology=default:s1,nvl:b"}).Nodes[0]; n.Switch != "s1" {
		t.Errorf("%+v", n)
	}
}

// TestNumbers: they are written as Slurm's parser takes them.
func TestNumbers(t *testing.T) {
	c := load(t, map[string]string{"slurm.conf": "MaxJobCount=UNLIMITED\nDefMemPerNode=UNLIMITED\nMaxArraySize=0x10\nNodeName=n CPUs=4 RealMemory=2k Weight=0\nPartitionName=p Nodes=n\nPartitionName=q Nodes=n DefMemPerCPU=010"})
	if n := c.Nodes[0]; c.Config.MaxJobs != 0 || c.Config.MaxArray != 16 || n.Memory != 2048 || n.Weight != 0 || c.Partitions[0].MemoryPerNode != 0 || c.Partitions[1].MemoryPerCPU != 8 {
		t.Errorf("%+v", c)
	}
}

// TestRoot: RootOnly and DisableRootJobs say whether root may use a partition, or nobody else.
func TestRoot(t *testing.T) {
	const conf = "DisableRootJobs=YES\nNodeName=n\nPartitionName=DEFAULT Nodes=n\nPartitionName=none DenyUsers=eve\nPartitionName=all DisableRootJobs=NO\nPartitionName=only RootOnly=YES DisableRootJobs=NO\n"
	for i, want := range []struct{ allow, deny []string }{{nil, []string{"eve", "root"}}, {nil, nil}, {[]string{"root"}, nil}} {
		if p := load(t, map[string]string{"slurm.conf": conf}).Partitions[i]; !slices.Equal(p.AllowUsers, want.allow) || !slices.Equal(p.DenyUsers, want.deny) {
			t.Errorf("%s: allowed are %q, and refused %q; want %q, %q", p.Name, p.AllowUsers, p.DenyUsers, want.allow, want.deny)
		}
	}
	for _, text := range []string{"DisableRootJobs=maybe", "NodeName=n\nPartitionName=p Nodes=n DisableRootJobs=maybe", "NodeName=n\nPartitionName=p Nodes=n RootOnly=maybe"} {
		if _, err := slurm.LoadFS(dir(map[string]string{"slurm.conf": text}), "slurm.conf"); err == nil || !strings.Contains(err.Error(), "=maybe: want YES or NO") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLoadDirectory(t *testing.T) {
	at := t.TempDir()
	for name, text := range guide {
		if err := os.WriteFile(at+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{at, at + "/slurm.conf"} {
		if c, err := slurm.Load(name); err != nil || len(c.Nodes) != 6 {
			t.Errorf("%v", err)
		}
	}
	_, err := slurm.Load(at + "/nothing")
	if f, ok := errors.AsType[*fault.Error](err); !ok || !strings.HasPrefix(f.Hint, "name the directory") {
		t.Errorf("loaded from nowhere: %v", err)
	}
	if err := os.WriteFile(at+"/slurm.conf", []byte("Include "+at+"/nodes.conf\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := slurm.Load(at); err != nil || len(c.Nodes) != 6 {
		t.Errorf("an Include by an absolute name: %v", err)
	}
}
