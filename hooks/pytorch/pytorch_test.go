package pytorch

import (
	"slices"
	"strings"
	"testing"
)

// set makes a function that says what a person has set.
func set(environ ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, name+"=") })
	}
}

func TestRank(t *testing.T) {
	r := Rank{Rank: 3, Local: 1, World: 4, LocalWorld: 2, Node: 1, Nodes: 2, MasterAddr: "10.0.0.1", MasterPort: 20000}
	const who = "RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 NODE_RANK=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2"
	for _, test := range []struct {
		has  []string
		want string
	}{
		{nil, who + " MASTER_ADDR=10.0.0.1 MASTER_PORT=20000"},
		{[]string{"RANK=9", "WORLD_SIZE=1"}, who + " MASTER_ADDR=10.0.0.1 MASTER_PORT=20000"},
		{[]string{"MASTER_PORT=29500"}, who + " MASTER_ADDR=10.0.0.1"},
		{[]string{"MASTER_ADDR=head"}, who + " MASTER_PORT=20000"},
	} {
		if got := strings.Join(r.Environ(set(test.has...)), " "); got != test.want {
			t.Errorf("%q: %s", test.has, got)
		}
	}
	r.MasterPort = 0
	if got := strings.Join(r.Environ(set()), " "); got != who {
		t.Errorf("without a port: %s", got)
	}
}

// TestParseTorchrun: as people write it.
func TestParseTorchrun(t *testing.T) {
	for _, test := range []struct {
		args string
		want Torchrun
	}{
		{"torchrun --nnodes=4 --nproc_per_node=8 --rdzv_backend=c10d train.py --nnodes=9", Torchrun{Nnodes: "4", NprocPerNode: "8", Backend: "c10d"}},
		{"/opt/bin/torchrun --nnodes 4 --nproc-per-node 8 --master_addr head --master-port 29500 train.py", Torchrun{Nnodes: "4", NprocPerNode: "8", MasterAddr: "head", MasterPort: "29500"}},
		{"python3 -m torch.distributed.run --standalone --nproc_per_node gpu train.py", Torchrun{Standalone: true, NprocPerNode: "gpu"}},
		{"python -u -m torch.distributed.launch --nproc=2 x.py", Torchrun{NprocPerNode: "2"}},
		{"torchrun -m --nnodes=1:4 package.module", Torchrun{Nnodes: "1:4"}},
		{"torchrun --rdzv-endpoint=head:29500 --rdzv_id 7 --node_rank=2 x.py", Torchrun{Endpoint: "head:29500", ID: "7", NodeRank: "2"}},
		{"torchrun", Torchrun{}},
		{"torchrun --max_restarts 3 --tee 3 --nnodes 2 x.py", Torchrun{Nnodes: "2"}},
		{"torchrun -- --nnodes=2", Torchrun{}},
	} {
		got, ok := ParseTorchrun(strings.Fields(test.args))
		if !ok || got != test.want {
			t.Errorf("%s: %+v, %v", test.args, got, ok)
		}
	}
	got, ok := ParseTorchrun([]string{"bash", "-c", `cd /src && torchrun --nnodes="$SLURM_NNODES" --nproc_per_node=8 train.py`})
	if !ok || got.Nnodes != "$SLURM_NNODES" || got.NprocPerNode != "8" {
		t.Errorf("in a shell: %+v, %v", got, ok)
	}
	for _, text := range []string{
		"cd /src; python prepare.py && torchrun --nnodes=2 x.py", "python prepare.py; exec torchrun --nnodes=2 x.py", "numactl -N 0 torchrun --nnodes=2 x.py",
		"if true; then torchrun --nnodes=2 x.py; fi",
	} {
		if got, ok := ParseTorchrun([]string{"bash", "-c", text}); !ok || got.Nnodes != "2" {
			t.Errorf("%s: %+v, %v", text, got, ok)
		}
	}
	for _, args := range []string{"nsys profile -o out torchrun --nnodes 2 x.py", "env A=1 torchrun --nnodes=2 x.py", "nsys profile --stats=true torchrun --nnodes=2 x.py"} {
		if got, ok := ParseTorchrun(strings.Fields(args)); !ok || got.Nnodes != "2" {
			t.Errorf("%s: %+v, %v", args, got, ok)
		}
	}
	for _, args := range []string{
		"python train.py", "sh -c true", "mytorchrun x", "python -m torch.distributed",
		"python train.py --launcher torchrun", "python launch.py torchrun --nnodes=2", "train --launcher torchrun --nnodes=2", "python -m mine torchrun",
	} {
		if got, ok := ParseTorchrun(strings.Fields(args)); ok {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// TestTorchrun: what is set for commands as people write them, on the second of four nodes.
func TestTorchrun(t *testing.T) {
	p := Place{Nodes: 4, Node: 1, Tasks: 1, MasterAddr: "10.0.0.1", MasterPort: 20000, ID: "7.0.1"}
	const who = "PET_NNODES=4 PET_NODE_RANK=1 PET_RDZV_ID=7.0.1"
	const end = " PET_RDZV_ENDPOINT=10.0.0.1:20000"
	const alone = "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=localhost:0 PET_RDZV_ID=7.0.1.1.0"
	for _, test := range []struct {
		args, has, want string
	}{
		{"--nnodes=4 --rdzv_backend=c10d x.py", "", who + end + " PET_RDZV_CONF=is_host=false"},
		{"--nnodes=4 --nproc_per_node=8 x.py", "", who + end},
		{"x.py", "", who + end},
		{"--nnodes=4 --rdzv_backend=c10d --rdzv_endpoint=head:29500 x.py", "", who},
		{"--nnodes=4 --master_addr=head --master_port=29500 x.py", "", who},
		{"--nnodes=4 --rdzv_backend=static --master_addr=head x.py", "", who},
		{"--nnodes=4 --master_port=29500 x.py", "", who + " PET_RDZV_ENDPOINT=10.0.0.1:29500"},
		{"--nnodes=4 --rdzv_backend=c10d --master_addr=head x.py", "", who + end + " PET_RDZV_CONF=is_host=false"}, // which takes no part of it
		{"--nnodes=1 --nproc_per_node=8 x.py", "", alone},
		{"--standalone x.py", "", ""},
		{"--nnodes=1 --master_port=29501 x.py", "", ""},
		{"--nnodes=1:1 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 x.py", "", ""},
		{"--nnodes=1:4 --rdzv_backend=c10d x.py", "PET_RDZV_CONF=timeout=9", who + end},
		{"x.py", "PET_RDZV_ID=mine", "PET_NNODES=4 PET_NODE_RANK=1" + end},
		{"x.py", "PET_RDZV_ENDPOINT=head:1", who},
	} {
		c, _ := ParseTorchrun(append([]string{"torchrun"}, strings.Fields(test.args)...))
		if got := strings.Join(c.Environ(p, set(test.has)), " "); got != test.want {
			t.Errorf("torchrun %s (%s): %q, want %q", test.args, test.has, got, test.want)
		}
	}
	c, _ := ParseTorchrun([]string{"torchrun", "x.py"})
	ids := map[string]bool{}
	for _, p := range []Place{{Nodes: 1, Tasks: 1, MasterPort: 1}, {Nodes: 4, Tasks: 2, MasterPort: 1, Local: 1}, {Nodes: 4, Node: 1, Tasks: 2, MasterPort: 1}} {
		got := c.Environ(p, set())
		if len(got) != 3 || got[1] != "PET_RDZV_ENDPOINT=localhost:0" || ids[got[2]] {
			t.Errorf("%+v: %s", p, got)
		}
		ids[got[2]] = true
	}
	p.MasterAddr = "fe80::1"
	if got := c.Environ(p, set()); !slices.Contains(got, "PET_RDZV_ENDPOINT=[fe80::1]:20000") {
		t.Errorf("%q", got)
	}
}

// TestOnePerNode: eight torchruns of eight workers each on eight GPUs.
func TestOnePerNode(t *testing.T) {
	for _, test := range []struct {
		nproc       string
		tasks, gpus int
		want        bool
	}{
		{"8", 8, 8, true},
		{"gpu", 8, 8, true},
		{"auto", 2, 4, true},
		{"8", 1, 8, false},
		{"1", 8, 8, false},
		{"", 8, 8, false},
		{"2", 4, 8, false},
		{"8", 8, 0, false},
		{"4", 2, 8, false},
	} {
		if got := (Torchrun{NprocPerNode: test.nproc}).OnePerNode(test.tasks, test.gpus); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestTraces(t *testing.T) {
	e := Traces("/scratch/t", set("TORCH_FR_BUFFER_SIZE=0"))
	if len(e.Mounts) != 1 || e.Mounts[0].HostPath != "/scratch/t" || slices.Contains(e.Env, "TORCH_FR_BUFFER_SIZE=2000") ||
		!slices.Contains(e.Env, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE="+e.Mounts[0].ContainerPath+"/nccl_trace_rank_") {
		t.Errorf("%+v", e)
	}
}

func FuzzParseTorchrun(f *testing.F) {
	f.Add("torchrun --nnodes 4 x.py")
	f.Add("sh -c torchrun\t--nproc_per_node")
	f.Fuzz(func(t *testing.T, text string) {
		c, ok := ParseTorchrun(strings.Split(text, " "))
		if ok && !strings.Contains(text, "tor") {
			t.Errorf("%q: %+v", text, c)
		}
		_ = c.Environ(Place{Nodes: 2, Tasks: 1}, set())
	})
}
