package step

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// TestRunDir: what a run publishes is found by name, id and pid; what a run that died
// left behind is found and removed, what lives is not.
func TestRunDir(t *testing.T) {
	base := filepath.Join(t.TempDir(), strings.Repeat("long", 40)) // longer than a socket's name may be
	d, _ := newListener(t, base)
	inside := exec.CommandContext(t.Context(), "sleep", "60") // in a pid namespace that is not ours
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inside.Wait() }()
	defer func() { _ = inside.Process.Kill() }()
	s := State{ID: d.id(), Name: "dev", Image: "debian", Supervisor: os.Getpid(), Init: 1 << 22, PidNS: pidNamespace(inside.Process.Pid)}
	if err := d.publish(&s); err != nil {
		t.Fatal(err)
	}
	dead, err := newRunDir(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.publish(&State{ID: dead.id(), Name: "dead"}); err != nil {
		t.Fatal(err)
	}
	if err := dead.lock.Release(); err != nil { // as the kernel does when its process dies
		t.Fatal(err)
	}
	dirs := []string{base}
	for _, name := range []string{"dev", d.id(), fmt.Sprint(os.Getpid()), fmt.Sprint(1 << 22), fmt.Sprint(inside.Process.Pid)} {
		got, dir, err := Find(dirs, "", name)
		if err != nil || got.ID != s.ID || dir != d.path {
			t.Errorf("find %s: %+v, %s, %v", name, got, dir, err)
		}
	}
	for _, name := range []string{"dead", "nobody", "0", "-1", ""} {
		if got, _, err := Find(dirs, "", name); err == nil {
			t.Errorf("find %q: %+v", name, got)
		}
	}
	for _, remove := range []bool{false, true} {
		left, err := Leftovers(dirs, "", remove)
		if err != nil || len(left) != 1 || left[0] != dead.path {
			t.Errorf("leftovers %v, %v", left, err)
		}
	}
	if _, err := os.Lstat(dead.path); !os.IsNotExist(err) {
		t.Errorf("the leftover is still there: %v", err)
	}
	c, err := dial(d.path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := d.remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(base); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestRunDirOfOthers: a directory that others may write to is refused, so that nobody
// can put a socket of his own there.
func TestRunDirOfOthers(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := newRunDir(t.Context(), base); err == nil || !strings.Contains(err.Error(), "others may write there") {
		t.Error(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := newRunDir(t.Context(), link); err == nil {
		t.Error("a symlink was followed")
	}
}

func noHold() error { return nil }

// TestNamed: a container is kept, locked by who uses it, and removed with directories
// that its user may not read.
func TestNamed(t *testing.T) {
	base := t.TempDir()
	n, err := createNamed(t.Context(), base, Named{Name: "dev", Image: "debian", Remap: true}, noHold)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openNamed(base, "dev"); !errors.Is(err, fsx.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	if err := RemoveContainer(base, "dev"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Error(err)
	}
	deep := filepath.Join(n.Upper(), "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "f"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(deep), 0); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := openNamed(base, "dev")
	if err != nil || again.Image != "debian" || !again.Remap {
		t.Fatalf("%+v, %v", again, err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := Containers(base); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := RemoveContainer(base, "dev"); err != nil {
		t.Error(err)
	}
	if all, err := Containers(base); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	for _, bad := range []string{"", ".", "..", "a/b", "../x", "-x", ".x", "a b", "a\n", strings.Repeat("x", 129)} {
		if RemoveContainer(base, bad) == nil || checkName(bad) == nil {
			t.Errorf("%q is taken as a name", bad)
		}
	}
}

// TestNamedAtOnce: of many that make a container at the same time, among what a killed
// one left and others that remove it, only one has it, whole.
func TestNamedAtOnce(t *testing.T) {
	base := t.TempDir()
	for round := range 20 {
		left := filepath.Join(base, "dev", upperName, "left")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, "dev", lockName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var made atomic.Int32
		for range 8 {
			wg.Go(func() {
				n, err := createNamed(t.Context(), base, Named{Name: "dev", Image: "debian"}, noHold)
				if errors.Is(err, fs.ErrExist) || errors.Is(err, fsx.ErrLocked) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				made.Add(1)
				if err := os.WriteFile(filepath.Join(n.Upper(), "data"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		entries, err := os.ReadDir(filepath.Join(base, "dev", upperName))
		if made.Load() != 1 || err != nil || len(entries) != 1 || entries[0].Name() != "data" {
			t.Fatalf("round %d: made %d times, %v, %v", round, made.Load(), entries, err)
		}
		if err := RemoveContainer(base, "dev"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSweepContainers: halves of containers are found and removed; whole ones, those in
// use, young ones and what is something else stay.
func TestSweepContainers(t *testing.T) {
	base := t.TempDir()
	whole, err := createNamed(t.Context(), base, Named{Name: "whole"}, noHold)
	if err != nil {
		t.Fatal(err)
	}
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	for name, files := range map[string][]string{
		"half": {lockName, upperName + "/x"}, "used": {lockName, workName + "/x"}, "young": {lockName}, "other": {lockName, "mine"}, "unlocked": {upperName + "/x"},
	} {
		for _, file := range files {
			file = filepath.Join(base, name, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	used, err := fsx.TryAcquire(filepath.Join(base, "used", lockName), fsx.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer used.Release()
	for _, name := range []string{"whole", "half", "used", "other", "unlocked"} {
		if err := os.Chtimes(filepath.Join(base, name), time.Time{}, time.Now().Add(-2*youngest)); err != nil {
			t.Fatal(err)
		}
	}
	for _, remove := range []bool{false, true} {
		found, err := SweepContainers(base, remove)
		if err != nil || len(found) != 1 || found[0] != filepath.Join(base, "half") {
			t.Errorf("%v, %v", found, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(base, "half")); !os.IsNotExist(err) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(base); err != nil || len(entries) != 5 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestDirRoot: names in a directory lead where they will lead when it is the root.
func TestDirRoot(t *testing.T) {
	dir := t.TempDir()
	script := `mkdir -p usr/bin etc a/b; echo x > etc/file; ln -s usr/bin bin; ln -s /etc/file abs; ln -s ../../../etc up; ln -s loop loop; ln -s /etc a/b/c; ln -s missing dangling`
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d, err := openDirRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for path, want := range map[string]string{
		"/": "/", "": "/", "/..": "/", "/../etc/./": "/etc", "/bin": "/usr/bin", "/bin/..": "/usr",
		"/abs": "/etc/file", "/up/file": "/etc/file", "/a/b/c/file": "/etc/file",
	} {
		if at, st, err := d.resolve(path); err != nil || at != want || st == nil {
			t.Errorf("%s leads to %s, %v, want %s", path, at, err, want)
		}
	}
	for path, want := range map[string]string{"/bin/new/x": "/usr/bin/new/x", "/dangling": "/missing", "/nowhere": "/nowhere"} {
		if at, st, err := d.resolve(path); err != nil || at != want || st != nil {
			t.Errorf("%s leads to %s, %v, want %s, missing", path, at, err, want)
		}
	}
	for _, path := range []string{"/loop", "/etc/file/x"} {
		if at, _, err := d.resolve(path); err == nil {
			t.Errorf("%s leads to %s", path, at)
		}
	}
	if b, err := d.ReadFile("/abs", 2); err != nil || string(b) != "x\n" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := d.ReadFile("/abs", 1); err == nil {
		t.Error("the limit does not count")
	}
}
