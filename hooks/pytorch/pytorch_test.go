package pytorch

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func layout(t *testing.T, s Step) *Layout {
	t.Helper()
	l, err := s.Layout()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// environ is all that a rank finds, in the order in which it is set.
func environ(t *testing.T, l *Layout, node, local int) string {
	t.Helper()
	e, err := l.Edits(node)
	if err != nil {
		t.Fatal(err)
	}
	rank, err := l.Rank(node, local)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(append(e.Env, rank...), " ")
}

// TestDirect: two nodes with unequal numbers of tasks, one GPU each.
func TestDirect(t *testing.T) {
	s := Step{
		Nodes: []string{"gpu01", "gpu02"}, Tasks: []int{2, 1}, MasterPort: 29501, CPUs: 8,
		GPUs: [][]string{{"0", "1"}, {"0"}}, GPUsPerTask: 1, Environ: []string{"RANK=7", "WORLD_SIZE=9", "HOME=/root"},
	}
	l := layout(t, s)
	const common = "MASTER_ADDR=gpu01 MASTER_PORT=29501 OMP_NUM_THREADS=8 "
	for _, test := range []struct {
		node, local int
		want        string
	}{
		{0, 1, "RANK=1 LOCAL_RANK=1 WORLD_SIZE=3 LOCAL_WORLD_SIZE=2 NODE_RANK=0 GROUP_RANK=0 GROUP_WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=1"},
		{1, 0, "RANK=2 LOCAL_RANK=0 WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 NODE_RANK=1 GROUP_RANK=1 GROUP_WORLD_SIZE=2 CUDA_VISIBLE_DEVICES=0"},
	} {
		if got := environ(t, l, test.node, test.local); got != common+test.want {
			t.Errorf("node %d: %s", test.node, got)
		}
	}
	if len(l.Notes()) != 0 {
		t.Errorf("%q", l.Notes())
	}
	// All GPUs, as torch scripts expect them that call torch.cuda.set_device(LOCAL_RANK).
	s.GPUsPerTask = 0
	if got := environ(t, layout(t, s), 0, 1); !strings.HasSuffix(got, "CUDA_VISIBLE_DEVICES=0,1") {
		t.Error(got)
	}
	// No GPU at all is not "all GPUs", which an unset variable is.
	s.GPUs = [][]string{nil, nil}
	if got := environ(t, layout(t, s), 0, 1); !strings.HasSuffix(got, "CUDA_VISIBLE_DEVICES=") {
		t.Error(got)
	}
}

// TestThreads: one for each rank as torchrun has it, unless something better is known.
func TestThreads(t *testing.T) {
	for _, test := range []struct {
		s    Step
		want string
	}{
		{Step{Tasks: []int{1}}, ""},
		{Step{Tasks: []int{4}}, "OMP_NUM_THREADS=1"},
		{Step{Tasks: []int{4}, CPUs: 6}, "OMP_NUM_THREADS=6"},
		{Step{Tasks: []int{1}, Torchrun: 8, CPUs: 100}, "OMP_NUM_THREADS=12"},
		{Step{Tasks: []int{1}, Torchrun: 8, CPUs: 4}, "OMP_NUM_THREADS=1"},
		{Step{Tasks: []int{1}, CPUs: 4, Environ: []string{"OMP_NUM_THREADS=3"}}, "OMP_NUM_THREADS=3"},
		{Step{Tasks: []int{4}, CPUs: 4, Image: []string{"OMP_NUM_THREADS=2"}}, ""},
	} {
		test.s.Nodes = []string{"n"}
		e, err := layout(t, test.s).Edits(0)
		i := slices.IndexFunc(e.Env, func(s string) bool { return strings.HasPrefix(s, "OMP_") })
		if err != nil || i < 0 && test.want != "" || i >= 0 && e.Env[i] != test.want {
			t.Errorf("%+v: %q, %v", test.s, e.Env, err)
		}
	}
}

// TestTorchrun: plain "torchrun script.py" finds its options, and no rank's variables.
func TestTorchrun(t *testing.T) {
	s := Step{Nodes: []string{"a", "b"}, Tasks: []int{1, 1}, Torchrun: 8, MasterAddr: "fe80::1", MasterPort: 40000, ID: "4711.0.1", Environ: []string{"RANK=3"}}
	got := environ(t, layout(t, s), 1, 0)
	want := "MASTER_ADDR=fe80::1 MASTER_PORT=40000 OMP_NUM_THREADS=1 PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_RDZV_BACKEND=static PET_MASTER_ADDR=fe80::1 PET_MASTER_PORT=40000 PET_RDZV_ENDPOINT=[fe80::1]:40000 PET_RDZV_ID=4711.0.1"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestKept: what a batch script exports wins, together with a note.
func TestKept(t *testing.T) {
	s := Step{Nodes: []string{"a"}, Tasks: []int{1}, MasterPort: 40000, Environ: []string{"MASTER_ADDR=b", "MASTER_PORT=12", "TORCH_FR_BUFFER_SIZE=0"}, Trace: "/scratch/t"}
	l := layout(t, s)
	got := environ(t, l, 0, 0)
	if !strings.HasPrefix(got, "MASTER_ADDR=b MASTER_PORT=12 ") || len(l.Notes()) != 2 || strings.Contains(got, "FR_BUFFER") {
		t.Error(got, l.Notes())
	}
	e, _ := l.Edits(0)
	if len(e.Mounts) != 1 || e.Mounts[0].HostPath != "/scratch/t" || !slices.Contains(e.Env, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE="+e.Mounts[0].ContainerPath+"/nccl_trace_rank_") {
		t.Errorf("%+v %q", e.Mounts, e.Env)
	}
}

// TestRefused: a description that does not fit together is named.
func TestRefused(t *testing.T) {
	one := Step{Nodes: []string{"gpu01"}, Tasks: []int{2}}
	for want, edit := range map[string]func(*Step){
		"no nodes":                 func(s *Step) { s.Nodes, s.Tasks = nil, nil },
		"1 nodes have tasks, of 2": func(s *Step) { s.Nodes = []string{"a", "b"} },
		"node 0 has 0 tasks":       func(s *Step) { s.Tasks = []int{0} },
		"more than":                func(s *Step) { s.Tasks = []int{1 << 40} },
		"2 nodes have GPUs":        func(s *Step) { s.GPUs = [][]string{{"0"}, {"0"}} },
		"node gpu01 has 3 GPUs":    func(s *Step) { s.GPUs, s.GPUsPerTask = [][]string{{"0", "1", "2"}}, 2 },
		"block or cyclic":          func(s *Step) { s.Distribution = "plane" },
		"port 65536":               func(s *Step) { s.MasterPort = 65536 },
		"--ntasks-per-node=1":      func(s *Step) { s.Torchrun = 2 },
		"control character":        func(s *Step) { s.MasterAddr = "a\nLD_PRELOAD=x" },
		"negative":                 func(s *Step) { s.CPUs = -1 },
		`"MIG-\x00" has a control`: func(s *Step) { s.GPUs = [][]string{{"MIG-\x00"}} },
	} {
		s := one
		edit(&s)
		if _, err := s.Layout(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	l := layout(t, one)
	for _, at := range [][2]int{{-1, 0}, {1, 0}, {0, 2}, {0, -1}} {
		if _, err := l.Rank(at[0], at[1]); err == nil {
			t.Errorf("%v has a rank", at)
		}
	}
	if _, err := l.Edits(1); err == nil {
		t.Error("node 1 has edits")
	}
}

// TestDeal: compared with dealing by hand; every rank is given once.
func TestDeal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tasks := rapid.SliceOfN(rapid.IntRange(1, 5), 1, 8).Draw(t, "tasks")
		s := Step{Tasks: tasks, Distribution: rapid.SampledFrom([]Distribution{"", Block, Cyclic}).Draw(t, "distribution")}
		for i := range tasks {
			s.Nodes = append(s.Nodes, fmt.Sprint("n", i))
		}
		l, err := s.Layout()
		if err != nil {
			t.Fatal(err)
		}
		want := map[[2]int]int{}
		given := make([]int, len(tasks))
		node := 0
		for rank := range l.World() {
			for given[node] == tasks[node] {
				node = (node + 1) % len(tasks)
			}
			want[[2]int{node, given[node]}] = rank
			given[node]++
			if s.Distribution == Cyclic {
				node = (node + 1) % len(tasks)
			}
		}
		for at, rank := range want {
			got, err := l.RankOf(at[0], at[1])
			if err != nil || got != rank {
				t.Fatalf("task %v of %v is rank %d, want %d", at, tasks, got, rank)
			}
		}
		sum := 0
		for _, n := range tasks {
			sum += n
		}
		if l.World() != sum || len(want) != sum {
			t.Fatalf("%d ranks, %d places", l.World(), len(want))
		}
	})
}

// FuzzLayout: no description makes it panic or lets a variable be smuggled in.
func FuzzLayout(f *testing.F) {
	f.Add(2, 3, 29500, 4, 1, 0, "gpu01", "job.0", "MASTER_ADDR=x")
	f.Add(-1, 1<<40, 70000, -4, 9, 8, "a\nb", "", "=")
	f.Fuzz(func(t *testing.T, nodes, tasks, port, cpus, perTask, torchrun int, addr, id, env string) {
		s := Step{MasterAddr: addr, MasterPort: port, CPUs: cpus, GPUsPerTask: perTask, Torchrun: torchrun, ID: id, Distribution: Cyclic}
		for range min(max(nodes, 0), 4) {
			s.Nodes, s.Tasks, s.GPUs = append(s.Nodes, addr), append(s.Tasks, min(tasks, 100)), append(s.GPUs, []string{"0", id})
		}
		if !strings.ContainsAny(env, "\x00\n") {
			s.Environ = []string{env}
		}
		l, err := s.Layout()
		if err != nil {
			return
		}
		for i := range s.Nodes {
			e, err := l.Edits(i)
			rank, err2 := l.Rank(i, 0)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			for _, v := range append(e.Env, rank...) {
				if name, _, ok := strings.Cut(v, "="); !ok || name == "" || strings.ContainsAny(v, "\x00\n") {
					t.Errorf("%q", v)
				}
			}
		}
	})
}
