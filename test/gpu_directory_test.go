package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// directoryImage is an image that is a directory of a user's.
func (p *person) directoryImage(t *testing.T) string {
	t.Helper()
	dir := p.mkdir(t, "image")
	for name, content := range busybox(t) {
		file := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(file), 0o755)
		if to, link := strings.CutPrefix(content, "-> "); link {
			err = errors.Join(err, os.Symlink(to, file))
		} else {
			err = errors.Join(err, os.WriteFile(file, []byte(content), 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run", "etc", "usr"} {
		p.mkdir(t, "image/"+name)
	}
	if out, err := exec.Command("chmod", "-R", "a+rX", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("chown", "-hR", strconv.Itoa(p.uid()), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// TestGPUDirectory: what a directory has in the place of the loader's cache is not waited
// for, and nothing outside of it is taken for it.
func TestGPUDirectory(t *testing.T) {
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	dir := m.directoryImage(t)
	cache := filepath.Join(dir, "etc/ld.so.cache")
	run := func(errs string) {
		t.Helper()
		o := m.run(t, dir, "--gpus=1", "--", "sh", "-c", "echo ran")
		o.want(t, 0, "^ran\n$", errs)
	}
	run("")
	if err := unix.Mkfifo(cache, 0o644); err != nil {
		t.Fatal(err)
	}
	run(`/etc/ld\.so\.cache cannot be read and is replaced: .*invalid`)
	if err := errors.Join(os.Remove(cache), os.Symlink("/etc/shadow", cache)); err != nil {
		t.Fatal(err)
	}
	run("")
}

// TestGPURootDirectory: where root's image is a directory, a process without rights looks
// into it, where that is needed.
func TestGPURootDirectory(t *testing.T) {
	r := newRootRuns(t)
	m := newGPUMachine(t, newPerson(t), fakedriver.Options{GPUs: 1})
	dir := m.directoryImage(t)
	traced := func(options ...string) (o outcome, trace string) {
		args := append(append([]string{r.gangway, "run", "-q", "--container-image=" + dir}, options...), "--", "sh", "-c", "echo ran")
		log := filepath.Join(t.TempDir(), "log")
		if _, err := exec.LookPath("strace"); err == nil {
			args = append([]string{"strace", "-f", "-qq", "-e", "trace=execve,execveat", "-o", log}, args...)
		}
		cmd := m.enter(args...)
		cmd.Env = r.command().Env
		o = outcomeOf(t, cmd)
		o.err = aboutProc.ReplaceAllString(o.err, "")
		b, _ := os.ReadFile(log) // without strace there is none
		return o, string(b)
	}
	cache := filepath.Join(dir, "etc/ld.so.cache")
	content := (&ldcache.Cache{Entries: []ldcache.Entry{{Name: "libown.so", Path: "/usr/lib/libown.so", Flags: ldcache.HostFlags()}}}).Bytes()
	if err := os.WriteFile(cache, content, 0o644); err != nil {
		t.Fatal(err)
	}
	o, trace := traced("--gpus=1")
	o.want(t, 0, "^ran\n$", "")
	if trace != "" && !strings.Contains(trace, "step-serve") {
		t.Errorf("who looked into it? %s", trace)
	}
	if err := os.Chmod(cache, 0o600); err != nil {
		t.Fatal(err)
	}
	o, _ = traced("--gpus=1")
	o.want(t, 0, "^ran\n$", `/etc/ld\.so\.cache cannot be read and is replaced: .*permission denied`)
	if err := errors.Join(os.Remove(cache), unix.Mkfifo(cache, 0o644)); err != nil {
		t.Fatal(err)
	}
	o, _ = traced("--gpus=1")
	o.want(t, 0, "^ran\n$", "cannot be read and is replaced")
	if o, _ = traced("--gpus=1", "--dry-run"); o.code != 0 || !strings.Contains(o.out, "nvidia0") {
		t.Errorf("a plan: %+v", o)
	}
	// Nobody has to look into it.
	o, trace = traced()
	o.want(t, 0, "^ran\n$", "")
	if strings.Contains(trace, "step-serve") {
		t.Errorf("a further process: %s", trace)
	}
}
