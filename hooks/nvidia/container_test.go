package nvidia_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestContainer applies edits and files to this machine's own root, in a mount
// namespace, and has a C program find the libraries and the device there: by the
// real loader, through the merged cache, with nothing of it on the machine itself.
func TestContainer(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc for a program that calls dlopen")
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to mount over a copy of the machine's root")
	}
	program := filepath.Join(t.TempDir(), "load")
	cmd := exec.Command(gcc, "-x", "c", "-", "-o", program, "-ldl")
	cmd.Stdin = strings.NewReader(`#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
int main(int n, char **a) { for (int i = 1; i < n; i++) {
if (a[i][0] == '/') { printf("%s %d\n", a[i], open(a[i], O_RDWR) >= 0); continue; }
void *h = dlopen(a[i], RTLD_NOW); struct link_map *m = 0; if (h) dlinfo(h, RTLD_DI_LINKMAP, &m);
printf("%s %s\n", a[i], m ? m->l_name : "none"); } return 0; }`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tree := fakedriver.New(t, fakedriver.Options{GPUs: 2, Null: true})
	d := discover(t, tree)
	host, err := os.OpenRoot("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	newer := compatImage("590.44.01", "")
	for _, c := range []struct {
		image nvidia.Loaded
		want  []string
	}{
		{nvidia.Load(host.FS(), d.Needs(nvidia.Default)), []string{
			"libcuda.so.1 " + nvidia.LibDir + "/libcuda.so.1", "libcuda.so " + nvidia.LibDir, "libcuda.so." + d.Version + " " + nvidia.LibDir,
		}},
		// The image's libcuda is not in this root: the loader looks there and nowhere else.
		{nvidia.Load(newer, d.Needs(nvidia.Default)), []string{"libcuda.so.1 none", "libcuda.so none", "libcuda.so." + d.Version + " none"}},
	} {
		var script strings.Builder
		dir := t.TempDir()
		fmt.Fprintf(&script, "set -e\nmount -t tmpfs none %[1]s\nmkdir %[1]s/upper %[1]s/work %[1]s/root\n"+
			"mount -t overlay none -o lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work %[1]s/root\n", dir)
		place := func(from, to string) {
			to = dir + "/root" + to
			kind := ":"
			if st, err := os.Stat(from); err == nil && st.IsDir() {
				kind = "mkdir"
			}
			fmt.Fprintf(&script, "mkdir -p $(dirname %[2]s); [ -e %[2]s ] || if [ %[3]s = mkdir ]; then mkdir %[2]s; else : >%[2]s; fi\nmount --bind %[1]s %[2]s\n", from, to, kind)
		}
		e := edits(t, d, "", "0")
		for _, m := range e.Mounts {
			place(m.HostPath, m.ContainerPath)
		}
		for _, n := range e.DeviceNodes {
			place(n.HostPath, n.Path)
		}
		for i, f := range c.image.Files {
			name := filepath.Join(t.TempDir(), fmt.Sprint(i))
			if err := os.WriteFile(name, f.Content, 0o644); err != nil {
				t.Fatal(err)
			}
			place(name, f.Path)
		}
		place(program, "/load")
		fmt.Fprintf(&script, "exec chroot %s/root /load libcuda.so.1 libcuda.so libnvidia-ml.so.1 libcuda.so.%s libm.so.6 libGLX_nvidia.so.0 /dev/nvidia1 /dev/nvidia0 /dev/nvidiactl\n",
			dir, d.Version)
		cmd := exec.Command("unshare", "-m", "sh", "-c", script.String())
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s\n%s", err, out, script.String())
		}
		for _, want := range append(c.want, "libnvidia-ml.so.1 "+nvidia.LibDir+"/libnvidia-ml.so.1", "libGLX_nvidia.so.0 none",
			"/dev/nvidia1 1", "/dev/nvidia0 0", "/dev/nvidiactl 1") {
			if !strings.Contains(string(out), want) {
				t.Errorf("the program does not say %q:\n%s", want, out)
			}
		}
		if strings.Contains(string(out), "libm.so.6 none") {
			t.Errorf("the image's own libraries are lost:\n%s", out)
		}
	}
}

// FuzzProc: whatever the driver's files in /proc say, the discovery ends, without
// panic, and no path leaves the host's directories.
func FuzzProc(f *testing.F) {
	tree := fakedriver.New(f, fakedriver.Options{GPUs: 1, MIG: 1})
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(tree.Proc, "driver/nvidia", name))
		if err != nil {
			f.Fatal(err)
		}
		return string(text)
	}
	gpu := "gpus/" + tree.GPUs[0].Bus + "/information"
	f.Add(read("version"), read(gpu), read("capabilities/gpu0/mig/gi1/access"))
	f.Add("NVRM version: ../../../etc 1.2\n", "GPU UUID: ../../x\nDevice Minor: 0\n", "DeviceFileMinor: -1\n")
	f.Fuzz(func(t *testing.T, version, information, access string) {
		tree.Write(t, "proc/driver/nvidia/version", version)
		tree.Write(t, "proc/driver/nvidia/"+gpu, information)
		tree.Write(t, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", access)
		d, err := nvidia.Discover(t.Context(), nvidia.Options{Root: tree.Root})
		if err != nil {
			return
		}
		for _, n := range d.Spec(nvidia.All, "").ContainerEdits.DeviceNodes {
			if !strings.HasPrefix(n.HostPath, tree.Dev+"/") || strings.Contains(n.HostPath, "..") {
				t.Fatalf("a node %q", n.HostPath)
			}
		}
	})
}
