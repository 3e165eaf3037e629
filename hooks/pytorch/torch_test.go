package pytorch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
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
print("rank", dist.get_rank(), "local", os.environ["LOCAL_RANK"], "of", dist.get_world_size(), "sum", t.item(), "threads", os.environ.get("OMP_NUM_THREADS"))
dist.destroy_process_group()
`

// TestTorch: PyTorch itself as referee. Two nodes of two ranks on this machine find each
// other by our variables, started one by one and by torchrun without any option.
func TestTorch(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	python(t)
	s := Step{Nodes: []string{"localhost", "localhost"}, Tasks: []int{2, 2}, MasterAddr: "127.0.0.1", CPUs: 1, ID: "1.0.0", Environ: []string{"RANK=9", "WORLD_SIZE=9"}}
	t.Run("ranks", func(t *testing.T) { meet(t, s) })
	s.Tasks, s.Torchrun, s.CPUs = []int{1, 1}, 2, 2
	// Without these torchrun 1.13 does not start under Python 3.11, whose flags list no 0.
	s.Environ = append(s.Environ, "PET_REDIRECTS=1", "PET_TEE=1")
	t.Run("torchrun", func(t *testing.T) { meet(t, s, "-m", "torch.distributed.run") })
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

// meet starts every task of a step and looks at what the ranks say.
func meet(t *testing.T, s Step, args ...string) {
	script := t.TempDir() + "/sum.py"
	if err := os.WriteFile(script, []byte(sum), 0o644); err != nil {
		t.Fatal(err)
	}
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.MasterPort = held.Addr().(*net.TCPAddr).Port
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	l := layout(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	type task struct {
		cmd *exec.Cmd
		out bytes.Buffer
	}
	var tasks []*task
	for node, n := range s.Tasks {
		for local := range n {
			one := &task{cmd: exec.CommandContext(ctx, python(t), append(slices.Clone(args), script)...)}
			one.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, s.Environ...)
			one.cmd.Env = append(one.cmd.Env, strings.Fields(environ(t, l, node, local))...)
			one.cmd.Stdout, one.cmd.Stderr, one.cmd.WaitDelay = &one.out, &one.out, time.Second
			if err := one.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			tasks = append(tasks, one)
		}
	}
	var all strings.Builder
	for _, one := range tasks {
		if err := one.cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, one.out.String())
		}
		all.Write(one.out.Bytes())
	}
	for rank := range 4 {
		if want := fmt.Sprintf("rank %d local %s of 4 sum 6 threads 1\n", rank, strconv.Itoa(rank%2)); !strings.Contains(all.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, all.String())
		}
	}
}
