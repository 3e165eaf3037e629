package rank_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/rank"
)

// step is one of a job on three nodes, on two of them, with four GPUs each.
func step() *job.StepSpec {
	gpus := []job.Devices{{Name: "gpu", Type: "h100", Mask: 0b111100, Count: 4}}
	return &job.StepSpec{
		Key: job.StepKey{Job: 128, Attempt: 1, Step: 2, Try: 1}, Cluster: "prod", UID: 1000, GID: 100, User: "ann",
		Job: job.JobFacts{
			Name: "train", Partition: "gpu", Account: "ml", QOS: "high", Nodes: []string{"gpu-001", "gpu-002", "gpu-003"},
			CPUsPerNode: []int{32, 32, 16}, TasksPerNode: []int{4, 4, 2}, Tasks: 10, NTasksPerNode: 4, CPUsPerTask: 8,
			Memory: job.Memory{MiB: 4096, Per: job.PerCPU}, GPUsPerNode: "h100:4", Start: 1700000000500, End: 1700003600500,
			SubmitDir: []byte("/home/ann"), SubmitHost: "login1", Switches: []string{"spine1.leaf1.gpu-001", "spine1.leaf1.gpu-002", "spine1.leaf2.gpu-003"},
		},
		Tasks: 6, CPUsPerTask: 4, Distribution: "plane=2",
		Nodes: []job.StepNode{
			{Name: "gpu-001", Addr: "10.0.0.1", Ranks: []int{0, 1, 4, 5}, CPUs: 16, Devices: gpus, JobCPUs: 32, JobDevices: gpus},
			{Name: "gpu-002", Addr: "10.0.0.2", Ranks: []int{2, 3}, CPUs: 8, Devices: gpus, JobCPUs: 32, JobDevices: gpus},
		},
		Program: job.Program{
			Args: [][]byte{[]byte("python"), []byte("train.py")}, Umask: 0o27, Limits: map[string]uint64{"NOFILE": 1024, "CORE": 1<<64 - 1},
			Environ: [][]byte{
				[]byte("HOME=/home/ann"), []byte("SLURM_PROCID=99"), []byte("SLURM_STEP_ID=77"), []byte("SLURM_NODEID=9"), []byte("RANK=99"),
				[]byte("SLURM_JOB_ID=1"), []byte("ENVIRONMENT=BATCH"), []byte("NOT TEXT \xff=\xfe"),
			},
		},
	}
}

// environ is that of a task, by names.
func environ(t *testing.T, o rank.Options, local int) map[string]string {
	t.Helper()
	e, err := rank.New(o)
	if err != nil {
		t.Fatal(err)
	}
	all, err := e.Environ(local)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, v := range all {
		name, value, _ := strings.Cut(v, "=")
		if _, ok := m[name]; ok {
			t.Errorf("%s is there twice", name)
		}
		m[name] = value
	}
	return m
}

func check(t *testing.T, got map[string]string, want string) {
	t.Helper()
	for line := range strings.FieldsSeq(want) {
		name, value, set := strings.Cut(line, "=")
		v, ok := got[name]
		if ok != set || v != value {
			t.Errorf("%s is %q (%v), want %q (%v)", name, v, ok, value, set)
		}
	}
}

// TestStepEnvironment is what Slurm's documents say of tasks of srun, and what PyTorch's say.
// A name without "=" is not set.
func TestStepEnvironment(t *testing.T) {
	o := rank.Options{Spec: step(), Node: 1, MasterAddr: "10.0.0.1", MasterPort: 20001, GPUs: []string{"0", "1", "2", "3"}, Cluster: "unix:/run/c.sock", Marker: "GANGWAY_STEP=x", Cwd: "/work", Group: "staff", Binding: rank.Binding{CPUs: [][]int{{0}, {1, 2}}}}
	got := environ(t, o, 1)
	check(t, got, `
		HOME=/home/ann SLURM_JOB_ID=128 SLURM_JOBID=128 SLURM_JOB_NAME=train SLURM_JOB_USER=ann SLURM_JOB_UID=1000 SLURM_JOB_GID=100
		SLURM_JOB_ACCOUNT=ml SLURM_JOB_PARTITION=gpu SLURM_JOB_QOS=high SLURM_CLUSTER_NAME=prod
		SLURM_JOB_NODELIST=gpu-[001-003] SLURM_JOB_NUM_NODES=3 SLURM_JOB_CPUS_PER_NODE=32(x2),16
		SLURM_SUBMIT_DIR=/home/ann SLURM_SUBMIT_HOST=login1 SLURM_NTASKS_PER_NODE=4 SLURM_CPUS_PER_TASK=4 SLURM_MEM_PER_CPU=4096
		SLURM_JOB_START_TIME=1700000000 SLURM_JOB_END_TIME=1700003600 SLURM_RESTART_COUNT SLURM_ARRAY_JOB_ID
		SLURM_NODELIST=gpu-[001-002] SLURM_NNODES=2 SLURM_NTASKS=6 SLURM_NPROCS=6 SLURM_TASKS_PER_NODE=4,2
		SLURM_STEP_ID=2 SLURM_STEPID=2 SLURM_STEP_NODELIST=gpu-[001-002] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_TASKS_PER_NODE=4,2
		SLURM_DISTRIBUTION=plane SLURM_DIST_PLANESIZE=2 SLURM_NODEID=1 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_GTIDS=2,3 SLURMD_NODENAME=gpu-002
		SLURM_CPUS_ON_NODE=8 SLURM_GPUS_ON_NODE=4 SLURM_STEP_GPUS=2,3,4,5 SLURM_JOB_GPUS SLURM_GPUS_PER_NODE=h100:4 CUDA_VISIBLE_DEVICES=0,1,2,3
		ROCR_VISIBLE_DEVICES=0,1,2,3 GPU_DEVICE_ORDINAL=0,1,2,3 ZE_AFFINITY_MASK=0,1,2,3 SLURM_JOB_GROUP=staff TMPDIR=/tmp SLURM_MPI_TYPE=none SRUN_DEBUG=3
		SLURM_CPU_BIND=quiet,mask_cpu:0x1,0x6 SLURM_CPU_BIND_TYPE=mask_cpu: SLURM_CPU_BIND_LIST=0x1,0x6 SLURM_CPU_BIND_VERBOSE=quiet
		SLURM_TOPOLOGY_ADDR=spine1.leaf1.gpu-002 SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node SLURM_UMASK=0027
		SLURM_RLIMIT_NOFILE=1024 SLURM_RLIMIT_CORE=-1 SLURM_RLIMIT_AS SLURM_LAUNCH_NODE_IPADDR=10.0.0.1
		RANK=3 LOCAL_RANK=1 WORLD_SIZE=6 LOCAL_WORLD_SIZE=2 NODE_RANK=1 MASTER_ADDR=10.0.0.1 MASTER_PORT=20001
		GANGWAY_CLUSTER=unix:/run/c.sock GANGWAY_STEP=x PWD=/work ENVIRONMENT=BATCH PET_NNODES`)
	if got["NOT TEXT \xff"] != "\xfe" {
		t.Error("what is not text is lost")
	}
}

// TestBatchEnvironment: a script has what is of the job, and nothing that its steps would
// take for their own.
func TestBatchEnvironment(t *testing.T) {
	s := step()
	s.Key.Step, s.Key.Attempt = job.BatchStep, 2
	s.Nodes, s.Tasks = s.Nodes[:1], 1
	s.Nodes[0].Ranks = []int{0}
	s.Job.Restarts = 1
	s.Job.Array = &job.ArrayFacts{Job: 120, Task: 8, Count: 10, Min: 0, Max: 9, Step: 1}
	got := environ(t, rank.Options{Spec: s, MasterAddr: "10.0.0.1", MasterPort: 20001, GPUs: []string{"2", "3", "4", "5"}}, 0)
	check(t, got, `
		SLURM_NODELIST=gpu-[001-003] SLURM_NNODES=3 SLURM_NTASKS=10 SLURM_NPROCS=10 SLURM_TASKS_PER_NODE=4(x2),2 SLURM_CPUS_ON_NODE=32
		SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_JOB_GPUS=2,3,4,5 SLURM_STEP_GPUS SLURM_STEP_ID SLURM_STEP_NODELIST
		SLURM_RESTART_COUNT=1 SLURM_ARRAY_JOB_ID=120 SLURM_ARRAY_TASK_ID=8 SLURM_ARRAY_TASK_COUNT=10 SLURM_ARRAY_TASK_MIN=0
		SLURM_ARRAY_TASK_MAX=9 SLURM_ARRAY_TASK_STEP=1 SLURM_CPUS_PER_TASK=8 ENVIRONMENT=BATCH HOSTNAME=gpu-001 CUDA_VISIBLE_DEVICES=2,3,4,5
		RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK GANGWAY_CLUSTER`)
	s.Nodes[0].Name, s.Job.Switches = "gpu-009", nil
	s.Program.Environ = append(s.Program.Environ, []byte("TMPDIR=/scratch"), []byte("SLURM_CPU_BIND=quiet,none"))
	check(t, environ(t, rank.Options{Spec: s, GPUs: []string{"MIG-1"}}, 0), `
		SLURM_TOPOLOGY_ADDR=gpu-009 SLURM_TOPOLOGY_ADDR_PATTERN=node TMPDIR=/scratch SLURM_CPU_BIND SLURM_CPU_BIND_TYPE SLURM_MPI_TYPE
		CUDA_VISIBLE_DEVICES=MIG-1 ROCR_VISIBLE_DEVICES`)
	check(t, environ(t, rank.Options{Spec: step()}, 0), "TMPDIR PWD") // in a container
	s.Job.Tasks = 0                                                   // --ntasks-per-node alone says how many there are
	check(t, environ(t, rank.Options{Spec: s}, 0), "SLURM_NTASKS=10 SLURM_NPROCS=10 SLURM_NTASKS_PER_NODE=4 CUDA_VISIBLE_DEVICES")
	s.Job.NTasksPerNode = 0
	check(t, environ(t, rank.Options{Spec: s}, 0), "SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE")
}

// TestStepWithoutGPUs: a step with --gres=none is not told of the GPUs of its job, whose
// script was. In a job without GPUs what the caller has set is his.
func TestStepWithoutGPUs(t *testing.T) {
	inherited := [][]byte{
		[]byte("CUDA_VISIBLE_DEVICES=0,1"), []byte("ROCR_VISIBLE_DEVICES=0,1"), []byte("GPU_DEVICE_ORDINAL=0,1"), []byte("ZE_AFFINITY_MASK=0,1"),
		[]byte("SLURM_STEP_GPUS=2,3"), []byte("SLURM_GPUS_ON_NODE=2"), []byte("SLURM_JOB_GPUS=2,3"),
	}
	const told = "CUDA_VISIBLE_DEVICES=0,1 ROCR_VISIBLE_DEVICES=0,1 GPU_DEVICE_ORDINAL=0,1 ZE_AFFINITY_MASK=0,1 SLURM_STEP_GPUS SLURM_GPUS_ON_NODE SLURM_JOB_GPUS=2,3"
	s := step()
	s.Program.Environ = inherited
	s.Nodes[0].Devices = nil
	check(t, environ(t, rank.Options{Spec: s}, 0), "CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK SLURM_STEP_GPUS SLURM_GPUS_ON_NODE SLURM_JOB_GPUS=2,3")
	s.Nodes[0].JobDevices = nil
	check(t, environ(t, rank.Options{Spec: s}, 0), told)
}

// TestMemory: in the unit in which it was asked for.
func TestMemory(t *testing.T) {
	for per, want := range map[job.Unit]string{job.PerNode: "SLURM_MEM_PER_NODE=512", job.PerCPU: "SLURM_MEM_PER_CPU=512", job.PerGPU: "SLURM_MEM_PER_GPU=512"} {
		s := step()
		s.Job.Memory = job.Memory{MiB: 512, Per: per}
		check(t, environ(t, rank.Options{Spec: s}, 0), want)
	}
}

// TestGPUs: which of the node's a rank sees, by --gpus-per-task and --gpu-bind.
func TestGPUs(t *testing.T) {
	for _, test := range []struct {
		perTask int
		bind    string
		want    string // of the four ranks of the first node
	}{
		{0, "", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"},
		{1, "", "0 1 2 3"},
		{0, "per_task:1", "0 1 2 3"},
		{1, "none", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"},
		{0, "single:1", "0 1 2 3"},
		{0, "verbose,single:2", "0 0 1 1"},
		{0, "map_gpu:3,2,1,0", "3 2 1 0"},
		{0, "map_gpu:1*2,0", "1 1 0 1"},
		{0, "map:2", "2 2 2 2"},
		{0, "mask_gpu:0x3,0xc", "0,1 2,3 0,1 2,3"},
		{0, "mask_gpu:0x1,3,c*2", "0 0,1 2,3 2,3"},
		{0, "mask:10", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"}, // none of them
		{2, "", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"},        // more than there are: all
		{0, "closest", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"},
		{0, "map_gpu:9", "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3"},
	} {
		s := step()
		s.GPUsPerTask, s.GPUBind = test.perTask, test.bind
		var got []string
		for local := range 4 {
			got = append(got, environ(t, rank.Options{Spec: s, GPUs: []string{"0", "1", "2", "3"}}, local)["CUDA_VISIBLE_DEVICES"])
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%d %q: %q, want %s", test.perTask, test.bind, got, test.want)
		}
	}
	near, bound := [][]int{{0, 1}, {0, 1}, {2, 3}, {2, 3}}, rank.Binding{CPUs: [][]int{{0}, {1, 2}, {3}, {7}}}
	for _, test := range []struct {
		bind string
		near [][]int
		b    rank.Binding
		want string
		note string
	}{
		{"closest", near, bound, "0,1 0,1,2,3 2,3 0,1,2,3", ""},
		{"verbose,closest", near, bound, "0,1 0,1,2,3 2,3 0,1,2,3", ""},
		{"closest", nil, bound, "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3", "the machine does not say"},
		{"closest", near, rank.Binding{}, "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3", "tasks are not bound"},
		{"none", near, bound, "0,1,2,3 0,1,2,3 0,1,2,3 0,1,2,3", ""},
	} {
		s := step()
		s.GPUsPerTask, s.GPUBind = 0, test.bind
		var got []string
		for local := range 4 {
			got = append(got, environ(t, rank.Options{Spec: s, GPUs: []string{"0", "1", "2", "3"}, Near: test.near, Binding: test.b}, local)["CUDA_VISIBLE_DEVICES"])
		}
		note := rank.NotBound(test.bind, 4, test.b, test.near)
		if strings.Join(got, " ") != test.want || (note == "") != (test.note == "") || !strings.Contains(note, test.note) {
			t.Errorf("%q: %q, want %s; %q", test.bind, got, test.want, note)
		}
	}
	if note := rank.NotBound("closest", 0, rank.Binding{}, nil); note != "" {
		t.Errorf("without GPUs: %s", note)
	}
	if got := rank.Indices([]job.Devices{{Name: "gpu", Type: "a", Mask: 1 << 63}, {Name: "nic", Mask: 2}, {Name: "gpu", Type: "b", Mask: 1}}, "gpu"); !slices.Equal(got, []int{0, 63}) {
		t.Errorf("%v", got)
	}
}

// TestTorchrunEnvironment: PET_* for one torchrun a node, unless it is switched off; ids of
// two steps, and of two tries, differ.
func TestTorchrunEnvironment(t *testing.T) {
	s := step()
	s.Nodes[0].Ranks, s.Nodes[1].Ranks, s.Tasks = []int{0}, []int{1}, 2
	s.Program.Args = [][]byte{[]byte("torchrun"), []byte("--nnodes=2"), []byte("--rdzv_backend=c10d"), []byte("x.py")}
	o := rank.Options{Spec: s, Node: 1, MasterAddr: "10.0.0.1", MasterPort: 20001}
	check(t, environ(t, o, 0), "PET_NNODES=2 PET_NODE_RANK=1 PET_RDZV_ENDPOINT=10.0.0.1:20001 PET_RDZV_ID=prod.128.1.2.1 RANK")
	again := *s
	again.Key.Try = 2
	check(t, environ(t, rank.Options{Spec: &again, Node: 1}, 0), "PET_RDZV_ID=prod.128.1.2.2 PET_RDZV_ENDPOINT")
	off := *s
	off.Program.Environ = [][]byte{[]byte("GANGWAY_TORCHRUN=off")}
	check(t, environ(t, rank.Options{Spec: &off, Node: 1}, 0), "PET_NNODES PET_RDZV_ID RANK=1")
	many := job.Program{Args: [][]byte{[]byte("torchrun"), []byte("--nproc_per_node=8"), []byte("x.py")}}
	note, one := rank.OneTorchrun(&many, 8, 8)
	if !one || !strings.Contains(note, "instead of 8") {
		t.Errorf("%v %q", one, note)
	}
	many.Environ = off.Program.Environ
	if _, one := rank.OneTorchrun(&many, 8, 8); one {
		t.Error("it is switched off")
	}
}

// TestBadEnvironment: what is not there is an error.
func TestBadEnvironment(t *testing.T) {
	for _, node := range []int{-1, 2} {
		if _, err := rank.New(rank.Options{Spec: step(), Node: node}); err == nil {
			t.Errorf("node %d", node)
		}
	}
	e, err := rank.New(rank.Options{Spec: step()})
	if err != nil {
		t.Fatal(err)
	}
	for _, local := range []int{-1, 4} {
		if _, err := e.Environ(local); err == nil {
			t.Errorf("task %d", local)
		}
	}
}
