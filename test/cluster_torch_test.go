package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// testClusterTorch runs real torch.distributed, by torchrun as people write it: one on each
// of four nodes, with rendezvous by c10d without an endpoint and static without a node
// rank; ones that are told to be alone; and two jobs at once.
func testClusterTorch(t *testing.T, bin string) {
	if out, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status}", "python3-torch").Output(); err != nil || string(out) != "installed" {
		t.Skip("needs Debian's python3-torch, whose files the containers are given")
	}
	c := newCluster(t, bin, "--cpus-per-node", "4")
	image := c.debianRoot(t)
	mounts := "/usr:/usr:ro,/etc/alternatives:/etc/alternatives:ro,/etc/ld.so.cache:/etc/ld.so.cache:ro," + c.mendedTorch(t)
	program := filepath.Join(c.dir, "home", "sum.py")
	text := `import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(x)
print("rank %d of %d: sum %d" % (dist.get_rank(), dist.get_world_size(), x.item()), flush=True)
dist.destroy_process_group()
`
	if err := os.WriteFile(program, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	const torchrun = "python3 -m torch.distributed.run"
	for _, r := range []struct {
		name, options, command string
		world, groups          int
	}{
		{"without torchrun", "-N2 --ntasks-per-node=2", "python3 /sum.py", 4, 1},
		{"c10d", "-N4", torchrun + " --nnodes=4 --nproc_per_node=1 --rdzv_backend=c10d /sum.py", 4, 1},
		{"static", "-N4", torchrun + " --nnodes=4 --nproc_per_node=1 /sum.py", 4, 1},
		{"alone", "-N2", torchrun + " --nnodes=1 --nproc_per_node=2 /sum.py", 2, 2},
	} {
		t.Run(r.name, func(t *testing.T) {
			args := append(strings.Fields(r.options), "--container-image="+image, "--container-mounts="+mounts+","+program+":/sum.py:ro")
			o := endsWithin(t, torchPatience, c.command("srun", append(args, strings.Fields(r.command)...)...))
			if want := repeated(sums(r.world), r.groups); o.code != 0 || sortedSums(o.out) != want {
				t.Errorf("exit %d, want the lines\n%s\n%s%s", o.code, want, o.out, o.err)
			}
		})
	}
	t.Run("two at once", func(t *testing.T) {
		step := "srun -N2 --exact -n2 -c1 --container-image=" + image + " --container-mounts=" + mounts + "," + program + ":/sum.py:ro " +
			torchrun + " --nnodes=2 --nproc_per_node=1 --rdzv_backend=c10d /sum.py"
		id := c.submit(t, step+" > one & "+step+" > two; wait", "-N2", "--ntasks-per-node=2", "-o", "both")
		if got := c.ended(t, id); got != "COMPLETED|0:0" {
			t.Errorf("%s\n%s", got, c.file(t, "both", ""))
		}
		for _, name := range []string{"one", "two"} {
			if got := sortedSums(c.file(t, name, "")); got != sums(2) {
				t.Errorf("%s:\n%s", name, got)
			}
		}
	})
}

// debianRoot is a root file system whose programs and libraries are this machine's, once
// /usr is mounted there: with PyTorch, an image of its own would be of 1.2 GB.
func (c *cluster) debianRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(c.dir, "debian")
	for _, name := range []string{"usr", "etc", "tmp", "proc", "dev", "sys", "run"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// mendedTorch is the mount of torchrun's api.py as it is right for Python 3.11, where going
// through an enumeration leaves out the members that are none or several of the others: as
// it is in Debian 12, torchrun knows no way to treat its workers' output.
func (c *cluster) mendedTorch(t *testing.T) string {
	t.Helper()
	const name = "/usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/api.py"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte("for s in Std:"), []byte("for s in (Std.NONE, Std.OUT, Std.ERR, Std.ALL):"), 1)
	mended := filepath.Join(c.dir, "api.py")
	if err := os.WriteFile(mended, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return mended + ":" + name + ":ro"
}

// torchPatience is how long two dozen processes may take to import PyTorch and more.
const torchPatience = 3 * time.Minute

// sortedSums are the sums among other output, sorted. Workers of one torchrun write the
// ends of their lines by themselves.
func sortedSums(text string) string {
	lines := regexp.MustCompile(`rank \d+ of \d+: sum \d+`).FindAllString(text, -1)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// repeated is each line n times.
func repeated(text string, n int) string {
	var all []string
	for line := range strings.SplitSeq(text, "\n") {
		for range n {
			all = append(all, line)
		}
	}
	return strings.Join(all, "\n")
}
