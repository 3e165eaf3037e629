package pytorch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// sum is a training script in small: it meets the others by the environment alone, and
// adds up all ranks.
const sum = `
import os, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
t = torch.tensor([dist.get_rank()])
dist.all_reduce(t)
print("rank", dist.get_rank(), "local", os.environ["LOCAL_RANK"], "of", dist.get_world_size(), "sum", t.item())
dist.destroy_process_group()
`

// TestTorch: PyTorch itself as referee. Two nodes of two ranks on this machine find each
// other by our variables, started one by one, and by torchrun as people write it: with a
// backend and no endpoint, with the static one and no number of the node, with nothing.
func TestTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what starts PyTorch, which takes half a minute")
	}
	python(t)
	t.Run("ranks", func(t *testing.T) { meet(t, 2) })
	for name, args := range map[string]string{
		"c10d": "--nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d", "static": "--nnodes=2 --nproc_per_node=2", "nothing": "--nproc_per_node=2",
	} {
		t.Run(name, func(t *testing.T) {
			meet(t, 1, append([]string{"-m", "torch.distributed.run"}, strings.Fields(args)...)...)
		})
	}
}

// python returns a Python that has PyTorch: the first of PATH may be another than Debian's.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(t.Context(), name, "-c", "import torch").Run() == nil {
			return name
		}
	}
	t.Skip("needs python3-torch")
	return ""
}

// meet starts every task of a step of two nodes and looks at what the ranks say.
func meet(t *testing.T, tasks int, args ...string) {
	script := t.TempDir() + "/sum.py"
	if err := os.WriteFile(script, []byte(sum), 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := held.Addr().(*net.TCPAddr).Port
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	type task struct {
		cmd *exec.Cmd
		out bytes.Buffer
	}
	var all []*task
	for node := range 2 {
		for local := range tasks {
			one := &task{cmd: exec.CommandContext(ctx, python(t), append(slices.Clone(args), script)...)}
			// Without the last two torchrun 1.13 does not start under Python 3.11, whose flags
			// list no 0.
			one.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "OMP_NUM_THREADS=1", "RANK=9", "WORLD_SIZE=9", "PET_REDIRECTS=1", "PET_TEE=1"}
			env := Rank{
				Rank: node*tasks + local, Local: local, World: 2 * tasks, LocalWorld: tasks, Node: node, Nodes: 2,
				MasterAddr: "127.0.0.1", MasterPort: port,
			}.Environ(set())
			if c, ok := ParseTorchrun(args); ok {
				env = c.Environ(Place{Nodes: 2, Node: node, Tasks: 1, MasterAddr: "127.0.0.1", MasterPort: port, ID: "1.0.0"}, set())
			}
			one.cmd.Env = append(one.cmd.Env, env...)
			one.cmd.Stdout, one.cmd.Stderr, one.cmd.WaitDelay = &one.out, &one.out, time.Second
			if err := one.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, one)
		}
	}
	var said strings.Builder
	for _, one := range all {
		if err := one.cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, one.out.String())
		}
		said.Write(one.out.Bytes())
	}
	for local := range 2 {
		if want := fmt.Sprintf(" local %d of 4 sum 6\n", local); strings.Count(said.String(), want) != 2 {
			t.Errorf("%q is missing in:\n%s", want, said.String())
		}
	}
}
