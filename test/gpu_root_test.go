package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestGPURoot: root's containers have GPUs as those of others, and the kernel keeps all
// other devices from them, also where root has a node made.
func TestGPURoot(t *testing.T) {
	r := newRootRuns(t)
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 2})
	run := func(args ...string) outcome {
		cmd := m.enter(append([]string{r.gangway, "run", "-q", "--container-image=oci:" + r.image}, args...)...)
		cmd.Env = r.command().Env
		o := outcomeOf(t, cmd)
		o.err = aboutProc.ReplaceAllString(o.err, "")
		return o
	}
	run("--gpus=1", "--", "sh", "-c", listGPUs+"; echo x > /dev/nvidiactl; cat /etc/os").want(t, 0, strings.TrimSuffix(m.nodes(0), "$")+"lower\n$", "")
	run("--gpus=device=1", "--mem=256M", "--container-writable", "--", "sh", "-c", "ls "+nvidia.LibDir+" | grep cuda.so.1").want(t, 0, "^libcuda.so.1\n$", "")
	run("--gpus=3", "--", "true").want(t, 125, "", "give 3 GPUs: there are 2")

	// Nodes with the numbers of real ones: without a driver the kernel knows none of them,
	// which it says only to who may open it.
	mine, other := m.tree.GPUs[0].Minor, m.tree.GPUs[1].Minor
	real := []string{filepath.Join(m.tree.Dev, "real0"), filepath.Join(m.tree.Dev, "real1")}
	for i, path := range real {
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(200+i)))); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := os.Open(real[0]); err == nil || !strings.Contains(err.Error(), unix.ENXIO.Error()) {
		_ = f.Close()
		t.Skipf("needs a kernel that has no devices 195:200: %v", err)
	}
	gpu := filepath.Join(m.tree.Dev, "nvidia"+string(rune('0'+mine)))
	if err := os.Rename(real[0], gpu); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(real[1], filepath.Join(m.tree.Dev, "nvidia"+string(rune('0'+other)))); err != nil {
		t.Fatal(err)
	}
	o := run("--gpus=device=0", "--container-mounts="+m.tree.Dev+":/mnt", "--require-cgroup", "--", "sh", "-c",
		"cat /dev/nvidia"+string(rune('0'+mine))+"; cat /mnt/nvidia"+string(rune('0'+other))+"; true")
	if strings.Contains(o.err, "--require-cgroup") {
		t.Skipf("needs control groups that filter devices: %s", o.err)
	}
	o.want(t, 0, "", `(?s)nvidia`+string(rune('0'+mine))+`.*No such device or address.*mnt/nvidia`+string(rune('0'+other))+`.*not permitted`)
}

// TestGPUNoProgram: nothing is executed for a container with GPUs but what is for all.
func TestGPUNoProgram(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Skip("needs strace, which sees what is executed")
	}
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 2})
	image := m.image(t, nil)
	executed := func(options ...string) []string {
		log := filepath.Join(t.TempDir(), "log")
		cmd := m.command(append(append([]string{"run", "-q", "--container-image=" + image}, options...), "--", "true")...)
		at := 0
		for cmd.Args[at] != "setpriv" {
			at++
		}
		traced := exec.Command(cmd.Args[0], append(append(append([]string{}, cmd.Args[1:at]...), "strace", "-f", "-qq", "-e", "trace=execve,execveat", "-o", log), cmd.Args[at:]...)...)
		traced.Env = cmd.Env
		outcomeOf(t, traced)
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`exec\w+\([^"]*"[^"]*"`).FindAllString(string(b), -1)
	}
	executed() // the image is pulled
	without, with := executed(), executed("--gpus=1")
	if len(without) < 2 || strings.Join(with, "\n") != strings.Join(without, "\n") {
		t.Errorf("with GPUs: %s, without: %s", with, without)
	}
	t.Log(with)
}

// TestGPUPlaces: the driver is found in all of the places where drivers are seen.
func TestGPUPlaces(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	for name, layout := range map[string]fakedriver.Layout{"distribution": fakedriver.Distro, "one directory": fakedriver.Local, "GPU operator": fakedriver.Driver} {
		t.Run(name, func(t *testing.T) {
			m := newGPUMachine(t, p, fakedriver.Options{GPUs: 1, Layout: layout, Extras: true})
			var options []string
			if layout == fakedriver.Driver {
				options = []string{"--nvidia-root=" + filepath.Join(m.tree.Root, m.tree.Home)}
			}
			m.run(t, image, append(options, "--gpus=1", "--", "sh", "-c", "ls "+nvidia.LibDir+" | grep cuda.so.1; /usr/bin/nvidia-smi; ls /dev | grep -e nvidia0 -e gdrdrv; ls /dev | grep -c imex")...).
				want(t, 1, "^libcuda.so.1\nfake nvidia-smi "+m.tree.Version+"\ngdrdrv\nnvidia0\n0\n$", "")
		})
	}
}

// TestGPUImages: it works with all that an image can be, and without FUSE.
func TestGPUImages(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	files, _ := glibcLayer(t)
	files = append(files, entry{name: "etc/"}, entry{name: "usr/lib/gangway/nvidia/lib64/"})
	image := m.image(t, nil, craft(t, files...))
	const look = "look libcuda.so.1 /dev/nvidiactl"
	want := "libcuda.so.1 " + nvidia.LibDir + "/libcuda.so.1\n/dev/nvidiactl opens\n$"
	squash := filepath.Join(m.dir, "home", "image.sqsh")
	m.run(t, image, "--", "true").want(t, 0, "", "") // it is pulled
	if o := outcomeOf(t, m.command("image", "export", "-o", squash, image)); o.code != 0 {
		t.Fatalf("export: %+v", o)
	}
	m.run(t, squash, "--gpus=1", "--", "sh", "-c", look).want(t, 0, "^"+want, "")
	m.run(t, squash, "--gpus=1", "--container-writable", "--", "sh", "-c", "echo x > /new && "+look).want(t, 0, "^"+want, "")
	for range 2 { // made, and used again
		m.run(t, image, "--gpus=1", "--container-name=kept", "--container-writable", "--", "sh", "-c", "echo x >> /new && "+look+" && cat /new").
			want(t, 0, "^"+strings.TrimSuffix(want, "$")+"(x\n)+$", "")
	}
	m.run(t, image, "--container-name=kept", "--", "sh", "-c", look+"; ls "+nvidia.LibDir+" | wc -l").want(t, 0, "^libcuda.so.1 none\n/dev/nvidiactl does not open\n", "")

	dir := m.mkdir(t, "home/root")
	unpack := exec.Command("unsquashfs", "-q", "-n", "-f", "-d", dir, squash)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("install the package squashfs-tools: %v: %s", err, out)
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprint(m.uid()), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run"} {
		m.mkdir(t, "home/root/"+name)
	}
	before := namesBelow(t, dir)
	m.run(t, dir, "--gpus=1", "--", "sh", "-c", look).want(t, 0, "^"+want, "")
	m.run(t, dir, "--gpus=1", "--container-writable", "--", "sh", "-c", look).want(t, 0, "^"+want, "")
	if after := namesBelow(t, dir); after != before {
		t.Errorf("the directory had %s, it has %s", before, after)
	}

	if err := os.Remove(filepath.Join(m.tree.Dev, "fuse")); err != nil {
		t.Fatal(err)
	}
	for _, options := range [][]string{nil, {"--container-writable"}, {"--container-remap-root"}} {
		m.run(t, image, append(options, "--gpus=1", "--", "sh", "-c", look)...).want(t, 0, "^"+want, "written to disk for this run, because there is no FUSE")
	}
}

// namesBelow lists a directory.
func namesBelow(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestGPUSaid: what was chosen is said to who wants to know, and nothing is done for a
// look only.
func TestGPUSaid(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	lib := string(fakedriver.ELF(fakedriver.Library{Soname: "libcuda.so.1"}))
	image := m.image(t, map[string]any{"Env": []string{"PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"}},
		craft(t, entry{name: nvidia.CompatDir + "/libcuda.so.590.44.01", content: lib}))
	said := func(args ...string) outcome {
		return outcomeOf(t, m.command(append([]string{"run", "--container-image=" + image}, args...)...))
	}
	said("-v", "--gpus=1", "--", "true").want(t, 0, "", `the image's libcuda 590\.44\.01 is used: it is newer than the driver's `+m.tree.Version)
	said("-v", "--", "true").want(t, 0, "", `the image expects GPUs \(NVIDIA_VISIBLE_DEVICES=all\) and this run has none`)
	out := said("--dry-run", "--gpus=1", "--", "true")
	if out.code != 0 || !strings.Contains(out.out, "nvidia0") || !strings.Contains(out.out, nvidia.LibDir) {
		t.Errorf("exit %d: %s%s", out.code, out.out, out.err)
	}
}
