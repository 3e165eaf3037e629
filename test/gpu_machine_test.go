package test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// gpuMachine is a machine with an NVIDIA driver that is none, at the places where a real
// one is. It is made of namespaces: one of mounts, and one of the network, so that GPUs
// are leased there and nowhere else. A user's programs run in it.
type gpuMachine struct {
	*person
	tree  *fakedriver.Tree
	holds int // the process that has the namespaces
}

// newGPUMachine makes a machine. Its device nodes are those of /dev/null.
func newGPUMachine(t *testing.T, p *person, o fakedriver.Options) *gpuMachine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, who mounts a driver's files at their places in /proc, /sys, /dev and /usr")
	}
	o.Dir, o.Null = publicDir(t), true
	m := &gpuMachine{person: p, tree: fakedriver.New(t, o)}
	if !m.tree.Real {
		t.Skip("needs the right to make device nodes")
	}
	m.standardNodes(t)
	for _, dir := range []string{"sys/fs/cgroup", "usr"} {
		if err := os.MkdirAll(filepath.Join(m.tree.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// What covers a part of /proc makes the kernel refuse new ones, so that containers have
	// this machine's, where the driver is; a real driver is in all. Another /proc, as in
	// somebody's chroot, would have it permit them.
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--net", "--", "sh", "-e", "-c", `cd "$0"
		awk '$3 == "proc" && $2 != "/proc" { print $2 }' /proc/mounts | xargs -r umount -l
		mount --bind proc/driver /proc/driver
		mount --bind proc/devices /proc/devices
		if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
		mount --rbind sys /sys
		mount --rbind /dev/pts dev/pts
		if [ -d /dev/shm ]; then mount --rbind /dev/shm dev/shm; fi
		mount --rbind dev /dev
		mount -t overlay -o lowerdir=usr:/usr overlay /usr
		echo made
		exec cat`, m.tree.Root)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("install the package util-linux: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "made\n" {
		t.Fatalf("the machine is not made: %q", line)
	}
	m.holds = cmd.Process.Pid
	return m
}

// standardNodes are those that every machine has.
func (m *gpuMachine) standardNodes(t *testing.T) {
	t.Helper()
	for name, number := range map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}, "ptmx": {5, 2}, "fuse": {10, 229},
	} {
		path := filepath.Join(m.tree.Dev, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pts", "shm"} {
		if err := os.Mkdir(filepath.Join(m.tree.Dev, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// command is gangway, to be run by the user on the machine.
func (m *gpuMachine) command(args ...string) *exec.Cmd {
	id := strconv.Itoa(m.uid())
	return m.enter(append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--", m.bin}, args...)...)
}

// enter is a program that root runs on the machine.
func (m *gpuMachine) enter(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(m.holds), "--mount", "--net", "--"}, args...)...)
	cmd.Env = m.environ()
	return cmd
}

// run runs gangway run of an image on the machine. The first arguments may be variables of
// the user's, NAME=value.
func (m *gpuMachine) run(t *testing.T, image string, args ...string) outcome {
	t.Helper()
	var env []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		env, args = append(env, args[0]), args[1:]
	}
	cmd := m.command(append([]string{"run", "-q", "--container-image=" + image}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	o := outcomeOf(t, cmd)
	o.err = aboutProc.ReplaceAllString(o.err, "")
	return o
}

// aboutProc is what is said where /proc is covered, as it is here.
var aboutProc = regexp.MustCompile(`gangway: warning: (processes of the host are visible|.*mount proc on /proc).*\n`)

// hold starts a run that has what it has until it is stopped, and returns when its script
// has said "up".
func (m *gpuMachine) hold(t *testing.T, image, script string, options ...string) *running {
	t.Helper()
	args := append([]string{"run", "-q", "--container-image=" + image}, options...)
	r := &running{cmd: m.command(append(args, "--", "sh", "-c", script+"; exec sleep 1000")...), done: make(chan struct{})}
	out := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stdout, r.cmd.Stderr = f, &r.err
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // it is killed
		_ = f.Close()
	}()
	t.Cleanup(func() { r.stop(t) })
	waitFor(t, func() bool {
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		r.out.Reset()
		r.out.Write(b)
		return strings.HasSuffix(string(b), "up\n")
	})
	return r
}

// nodes are those of GPU i and those that every GPU needs, as "ls" shows them.
func (m *gpuMachine) nodes(gpus ...int) string {
	var b strings.Builder
	b.WriteString("^nvidia-uvm\nnvidia-uvm-tools\n")
	for minor := range m.tree.GPUs {
		for _, i := range gpus {
			if m.tree.GPUs[i].Minor == minor {
				fmt.Fprintf(&b, "nvidia%d\n", minor)
			}
		}
	}
	return b.String() + "nvidiactl\n$"
}

// listGPUs is a command that shows what is there of the driver.
const listGPUs = "ls /dev | grep nvidia || echo none"

// lookProgram loads libraries as programs do and says which files they are, and what the
// driver's say; it tries to open what begins with a slash.
const lookProgram = `#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
int main(int n, char **a) {
	for (int i = 1; i < n; i++) {
		if (a[i][0] == '/') { printf("%s %s\n", a[i], open(a[i], O_RDWR) >= 0 ? "opens" : "does not open"); continue; }
		void *h = dlopen(a[i], RTLD_NOW);
		struct link_map *m = 0;
		if (h) dlinfo(h, RTLD_DI_LINKMAP, &m);
		printf("%s %s\n", a[i], m ? m->l_name : "none");
	}
	return 0;
}`

// glibcLayer is what an image of a distribution has so that programs run, and our program
// that loads libraries; root has its files, to have a cache made of them.
func glibcLayer(t *testing.T) (entries []entry, root string) {
	t.Helper()
	for _, name := range []string{"gcc", "ldd", "ldconfig"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s for an image with a C program that loads libraries", name)
		}
	}
	root = t.TempDir()
	look := filepath.Join(root, "bin", "look")
	if err := os.Mkdir(filepath.Dir(look), 0o755); err != nil {
		t.Fatal(err)
	}
	cc := exec.Command("gcc", "-O1", "-x", "c", "-", "-o", look, "-ldl")
	cc.Stdin = strings.NewReader(lookProgram)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	list, err := exec.Command("ldd", look).Output()
	if err != nil {
		t.Fatal(err)
	}
	ldconfig, err := exec.LookPath("ldconfig")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"bin/look": look, "bin/ldconfig": ldconfig}
	for word := range strings.FieldsSeq(string(list)) {
		if strings.HasPrefix(word, "/") {
			files[word[1:]] = word
		}
	}
	for name, from := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry{name: name, content: string(b)})
		to := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return entries, root
}

// cacheOf has ldconfig make the cache of a root.
func cacheOf(t *testing.T, root string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ldconfig", "-r", root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
