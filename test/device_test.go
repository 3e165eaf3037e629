package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// acme is a CDI specification of a vendor's that nobody knows.
const acme = `cdiVersion: "0.6.0"
kind: acme.example/npu
containerEdits:
  env: [ACME=yes]
devices:
- name: zero
  containerEdits:
    deviceNodes:
    - {path: /dev/acme/zero, hostPath: /dev/zero}
    mounts:
    - {hostPath: LIB, containerPath: /opt/acme/lib, options: [ro, nosuid, nodev, rbind, rprivate]}
- name: full
  containerEdits:
    deviceNodes:
    - {path: /dev/acme/full, hostPath: /dev/full, permissions: rw}
`

// TestDevice: a vendor's device comes into the container of an ordinary user by its name.
func TestDevice(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	lib, dir := p.mkdir(t, "lib"), p.mkdir(t, "cdi")
	specification(t, filepath.Join(lib, "libacme.so"), "library\n", p.uid())
	specification(t, filepath.Join(dir, "acme.yaml"), strings.ReplaceAll(acme, "LIB", lib), p.uid())
	in := "--cdi-dir=" + dir
	const look = "ls /dev/acme; echo $ACME; cat /opt/acme/lib/*; head -c 2 /dev/acme/zero | wc -c; if test -c /dev/acme/full; then echo x > /dev/acme/full; fi; true"
	p.run(t, image, in, "--device=acme.example/npu=zero", "--", "sh", "-c", look).
		want(t, 0, "^zero\nyes\nlibrary\n2\n$", "")
	p.run(t, image, in, "--device=acme.example/npu=zero", "--device=acme.example/npu=full", "--container-remap-root", "--container-writable", "--", "sh", "-c", look).
		want(t, 0, "^full\nzero\nyes\nlibrary\n2\n$", "No space left on device")
	p.run(t, image, in, "--", "sh", "-c", "ls /dev/acme /opt; echo $ACME").want(t, 0, "^\n$", "(?s)/dev/acme: No such file.*/opt: No such file")
	for _, c := range []struct {
		name, err string
		code      int
	}{
		{"acme.example/npu=9", `acme\.example/npu=9 is not known\n.*there are: full, zero\n`, 125},
		{"acme.example/fpga=zero", `acme\.example/fpga=zero is not known\n.*acme\.example/npu`, 125},
		{"acme", `"?acme"?.*it has no =`, 2},
		{"nvidia.com/gpu=0", `no NVIDIA driver on this machine`, 125},
	} {
		p.run(t, image, in, "--device="+c.name, "--", "true").want(t, c.code, "", c.err)
	}
}

// TestDeviceBadFiles: a specification that is stale, malicious or not the user's to trust is
// not used, and why is said to who asks for its device.
func TestDeviceBadFiles(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	home := filepath.Join(p.dir, "home")
	device := func(edits string) string {
		return "cdiVersion: 0.6.0\nkind: acme.example/npu\ndevices:\n- name: a\n  containerEdits:\n    " + strings.ReplaceAll(edits, "HOME", home) + "\n"
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		code int
		err  string
	}{
		"stale node":      {device("deviceNodes: [{path: /dev/acme0}]"), 0o644, 125, "/dev/acme0"},
		"stale numbers":   {device("deviceNodes: [{path: /dev/acme0, hostPath: /dev/zero, type: c, major: 240, minor: 1}]"), 0o644, 125, "(?s)/dev/zero.*240"},
		"stale library":   {device("mounts: [{hostPath: HOME/gone.so, containerPath: /opt/gone.so}]"), 0o644, 125, "gone.so"},
		"the root":        {device("mounts: [{hostPath: HOME, containerPath: /}]"), 0o644, 125, "acme.yaml"},
		"upwards":         {device("mounts: [{hostPath: HOME, containerPath: /opt/../../../etc}]"), 0o644, 125, "acme.yaml"},
		"a standard node": {device("deviceNodes: [{path: /dev/null, hostPath: /dev/zero}]"), 0o644, 125, "/dev/null"},
		"a bomb":          {"a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n", 0o644, 125, "acme.yaml"},
		"garbage":         {"\x00\x01{", 0o644, 125, "acme.yaml"},
		"others' to edit": {device("env: [A=b]"), 0o666, 125, "can be written by others"},
		"a program in it": {device("hooks: [{hookName: startContainer, path: /bin/touch, args: [touch, HOME/evil]}]"), 0o644, 0, "hook /bin/touch is not run"},
		"others' program": {device("hooks: [{hookName: createRuntime, path: /bin/touch, args: [touch, HOME/evil]}]"), 0o666, 125, "can be written by others"},
		"no such program": {device("hooks: [{hookName: createRuntime, path: HOME/none}]"), 0o644, 125, "/none"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := p.mkdir(t, "cdi-"+strings.ReplaceAll(name, " ", "-"))
			file := filepath.Join(dir, "acme.yaml")
			specification(t, file, c.text, p.uid())
			if err := os.Chmod(file, c.mode); err != nil {
				t.Fatal(err)
			}
			o := p.run(t, image, "--cdi-dir="+dir, "--device=acme.example/npu=a", "--", "true")
			o.want(t, c.code, "", c.err)
			if _, err := os.Stat(filepath.Join(home, "evil")); err == nil {
				t.Error("what the file names has been executed")
			}
			// Who does not ask for it is not troubled.
			p.run(t, image, "--cdi-dir="+dir, "--", "true").want(t, 0, "", "")
		})
	}
	// What the user's own file wants to have run outside runs as the user.
	mine := p.mkdir(t, "cdi-mine")
	specification(t, filepath.Join(mine, "acme.yaml"), device("hooks: [{hookName: createRuntime, path: /bin/touch, args: [touch, HOME/made]}]"), p.uid())
	p.run(t, image, "--cdi-dir="+mine, "--device=acme.example/npu=a", "--", "true").want(t, 0, "", "")
	if st, err := os.Stat(filepath.Join(home, "made")); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != p.uid() {
		t.Errorf("the hook has not run as the user: %v", err)
	}
	if p.cred == nil {
		t.Log("that a file of another user is not used needs root")
		return
	}
	dir := p.mkdir(t, "cdi-other")
	specification(t, filepath.Join(dir, "acme.yaml"), device("env: [A=b]"), p.uid()+1)
	p.run(t, image, "--cdi-dir="+dir, "--device=acme.example/npu=a", "--", "true").
		want(t, 125, "", `belongs to user \d+, who is neither root nor the caller`)
}

// TestDeviceSaid: what devices take the place of is said to who wants to know, and what
// cannot be mounted where it is to be is refused in so many words.
func TestDeviceSaid(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, map[string]any{"Env": []string{"PATH=/bin", "ACME=no", "SAME=yes"}})
	lib, dir := p.mkdir(t, "lib"), p.mkdir(t, "cdi")
	specification(t, filepath.Join(dir, "acme.yaml"), `cdiVersion: "0.6.0"
kind: acme.example/npu
containerEdits:
  env: [ACME=yes, SAME=yes]
devices:
- name: lib
  containerEdits:
    mounts: [{hostPath: `+lib+`, containerPath: /opt/acme, options: [ro, rbind]}]
- name: shm
  containerEdits:
    mounts: [{hostPath: /etc/hostname, containerPath: /dev/shm, options: [ro, rbind]}]
- name: tmp
  containerEdits:
    mounts: [{hostPath: /etc/hostname, containerPath: /tmp, options: [ro, rbind]}]
`, p.uid())
	run := func(device string, options ...string) outcome {
		args := []string{"run", "--cdi-dir=" + dir, "--device=acme.example/npu=" + device, "--container-image=" + image}
		return outcomeOf(t, p.command(append(append(args, options...), "--", "sh", "-c", "echo $ACME")...))
	}
	o := run("lib", "-v", "--container-mounts="+p.mkdir(t, "mine")+":/opt/acme")
	o.want(t, 0, "^yes\n$", `(?s)variable ACME: what devices and hooks ask for has taken its place.*mount /opt/acme: what devices`)
	if strings.Contains(o.err, "SAME") {
		t.Errorf("what stays as it is: %s", o.err)
	}
	if o := run("lib"); strings.Contains(o.err, "taken its place") {
		t.Errorf("without -v: %s", o.err)
	}
	run("shm").want(t, 125, "", `mount /etc/hostname on /dev/shm: that is a directory, on which no file can be mounted\n.*another containerPath`)
	run("tmp").want(t, 125, "", `(?s)/etc/hostname on /tmp.*a file can be mounted on a file only`)
}

// TestDeviceLibraries: a library that cannot be read costs a warning, and no run; those in a
// directory below a mount are found.
func TestDeviceLibraries(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	vendor, dir := p.mkdir(t, "v"), p.mkdir(t, "cdi")
	lib := p.mkdir(t, "v/lib")
	good, secret := filepath.Join(lib, "libgood.so.1"), filepath.Join(lib, "libsecret.so.1")
	for _, file := range []string{good, secret} {
		specification(t, file, string(fakedriver.ELF(fakedriver.Library{Soname: filepath.Base(file)})), p.uid())
	}
	if err := errors.Join(os.Chmod(secret, 0), os.Symlink("nowhere", filepath.Join(lib, "libdangling.so"))); err != nil {
		t.Fatal(err)
	}
	for name, mounts := range map[string]string{
		"above": `{hostPath: ` + vendor + `, containerPath: /opt/v, options: [ro, rbind]}`,
		"there": `{hostPath: ` + lib + `, containerPath: /opt/v/lib, options: [ro, rbind]}`,
		"none":  `{hostPath: tmpfs, type: tmpfs, containerPath: /opt/v/lib}`,
	} {
		specification(t, filepath.Join(dir, "acme.yaml"), `cdiVersion: "0.6.0"
kind: acme.example/npu
devices:
- name: a
  containerEdits:
    mounts: [`+mounts+`]
    hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook, args: [nvidia-cdi-hook, update-ldcache, --folder, /opt/v/lib]}]
`, p.uid())
		said, cached := `not told of all libraries of /opt/v/lib.*no such file or directory \(and 1 more\)`, "^/opt/v/lib/libgood.so.1\n$"
		if name == "none" {
			said, cached = "", "^$"
		}
		p.run(t, image, "--cdi-dir="+dir, "--device=acme.example/npu=a", "--", "sh", "-c", "strings /etc/ld.so.cache 2>/dev/null | grep /opt/v; true").
			want(t, 0, cached, said)
	}
}

// TestDeviceJoined: who joins a container has its devices.
func TestDeviceJoined(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 2})
	image := m.image(t, nil)
	r := m.hold(t, image, "echo up", "--container-name=gpu", "--gpus=device=1")
	outcomeOf(t, m.command("exec", "gpu", "--", "sh", "-c", listGPUs+"; echo $NVIDIA_VISIBLE_DEVICES")).
		want(t, 0, strings.TrimSuffix(m.nodes(1), "$")+"void\n$", "")
	m.run(t, image, "--container-name=gpu", "--gpus=device=1", "--", "sh", "-c", listGPUs).want(t, 0, m.nodes(1), "")
	m.run(t, image, "--container-name=gpu", "--", "sh", "-c", listGPUs).want(t, 0, m.nodes(1), "")
	m.run(t, image, "--container-name=gpu", "--gpus=device=0", "--", "true").
		want(t, 125, "", "run in container gpu: it runs already, and was started without this --gpus\n")
	start := time.Now()
	r.stop(t)
	// Its GPU is free at once.
	m.run(t, image, "--gpus=device=1", "--gpu-wait=5s", "--", "true").want(t, 0, "", "^(gangway: warning: waiting.*\n)?$")
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("after %v", d)
	}
}

// specification writes a file of a user's.
func specification(t *testing.T, name, text string, uid int) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(name, uid, -1); err != nil {
		t.Fatal(err)
	}
}
