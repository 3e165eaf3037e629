package step

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeAll writes empty files, with their directories.
func writeAll(t *testing.T, base string, files ...string) {
	t.Helper()
	for _, file := range files {
		file = filepath.Join(base, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// age makes directories old enough to be leftovers.
func age(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-2*youngest)); err != nil {
			t.Fatal(err)
		}
	}
}

// all returns the paths of a tree.
func all(t *testing.T, base string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestLeftoversOfOthers: of a directory of containers that runs and scratch directories
// share with anything else, only theirs are removed, and nothing is made in the rest.
func TestLeftoversOfOthers(t *testing.T) {
	base := t.TempDir()
	writeAll(t, base, "Documents/thesis.tex", "applications/x", "file", "aaaaaaaaaaaa/mine", "bbbbbbbbbbbb/lock", "bbbbbbbbbbbb/mine",
		"cccccccccccc/root/mine", "dddddddddddd/upper/mine", "eeeeeeeeeeee/state.json/../notes", "UPPERCASE234/lock", "has0and1and8/lock")
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		age(t, filepath.Join(base, e.Name()))
	}
	before := all(t, base)
	// Those of ours.
	run, scratch := filepath.Join(base, "aaaa2222bbbb"), filepath.Join(t.TempDir(), "aaaa2222bbbb")
	writeAll(t, run, lockName, stateName, sockName)
	writeAll(t, scratch, lockName, "tree/x/y", "upper/z", "work/w")
	if err := os.Mkdir(filepath.Join(run, stageName), 0o700); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(filepath.Dir(scratch), "project")
	writeAll(t, other, "tree/x")
	for _, remove := range []bool{false, true} {
		found, err := Leftovers([]string{base}, filepath.Dir(scratch), remove)
		if want := []string{run, scratch}; err != nil || !slices.Equal(found, want) {
			t.Errorf("found %v, %v, want %v", found, err, want)
		}
	}
	if after := all(t, base); !slices.Equal(before, after) {
		t.Errorf("what was there changed:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	if _, err := os.Lstat(scratch); !os.IsNotExist(err) {
		t.Error(err)
	}
	if got := all(t, other); len(got) != 3 {
		t.Errorf("%v", got)
	}
}

// TestRunDirs: containers are where all sessions of a user look, in directories of their
// own.
func TestRunDirs(t *testing.T) {
	getenv := func(vars map[string]string) func(string) string {
		return func(name string) string { return vars[name] }
	}
	if dirs := RunDirs(getenv(map[string]string{"GANGWAY_RUNTIME_DIR": "/x", "XDG_RUNTIME_DIR": "/y"})); !slices.Equal(dirs, []string{"/x/gangway"}) {
		t.Errorf("%v", dirs)
	}
	xdg := t.TempDir()
	if err := os.Chmod(xdg, 0o700); err != nil {
		t.Fatal(err)
	}
	tmp := fmt.Sprint("/tmp/gangway-", os.Geteuid())
	t.Setenv("TMPDIR", xdg)
	if dirs := RunDirs(getenv(map[string]string{"XDG_RUNTIME_DIR": xdg})); len(dirs) < 2 || dirs[0] != xdg+"/gangway" || dirs[1] != tmp {
		t.Errorf("%v", dirs)
	}
	if dirs := RunDirs(getenv(nil)); dirs[0] != tmp {
		t.Errorf("%v", dirs)
	}
}

// TestNamedOfOthers: a directory that is no container is neither made one nor removed.
func TestNamedOfOthers(t *testing.T) {
	base := t.TempDir()
	writeAll(t, base, "project/main.c", "job/"+workName+"/x", "locked/lock", "locked/mine")
	before := all(t, base)
	for _, name := range []string{"project", "job", "locked"} {
		if _, err := createNamed(t.Context(), base, Named{Name: name}, noHold); err == nil || !strings.Contains(err.Error(), "is no container") {
			t.Errorf("create %s: %v", name, err)
		}
		if err := RemoveContainer(base, name); err == nil || !strings.Contains(err.Error(), ErrNoContainer.Error()) {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if after := all(t, base); !slices.Equal(before, after) {
		t.Errorf("what was there changed:\n%s", strings.Join(after, "\n"))
	}
	// An image is held before there is a container of it, and none is made without.
	held := errors.New("not held")
	_, err := createNamed(t.Context(), base, Named{Name: "unheld"}, func() error {
		if _, err := os.Lstat(filepath.Join(base, "unheld", namedFile)); !os.IsNotExist(err) {
			t.Errorf("the container is there before its image is held: %v", err)
		}
		return held
	})
	if _, gone := os.Lstat(filepath.Join(base, "unheld")); !errors.Is(err, held) || !os.IsNotExist(gone) {
		t.Errorf("%v, %v", err, gone)
	}
	// What is left of one that was killed is, however young; what is beside it stays.
	writeAll(t, base, "half/lock", "half/upper/x")
	if err := RemoveContainer(base, "half"); err != nil {
		t.Error(err)
	}
	n, err := createNamed(t.Context(), base, Named{Name: "dev"}, noHold)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	writeAll(t, base, "dev/mine")
	if err := RemoveContainer(base, "dev"); err != nil {
		t.Error(err)
	}
	if got := all(t, filepath.Join(base, "dev")); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// TestFindByNumber: a container whose name is a number is found by that before any process
// is, and a process that no container has to itself leads to none.
func TestFindByNumber(t *testing.T) {
	base, containers := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "containers")
	publish := func(base string, s State) *runDir {
		d, err := newRunDir(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.remove() })
		s.ID = d.id()
		if err := d.publish(&s); err != nil {
			t.Fatal(err)
		}
		return d
	}
	sleep := exec.CommandContext(t.Context(), "sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleep.Wait() }()
	defer func() { _ = sleep.Process.Kill() }()
	number := fmt.Sprint(sleep.Process.Pid)
	publish(base, State{Name: "hostpid", Supervisor: os.Getpid(), Init: 1 << 22, PidNS: pidNamespace(os.Getpid())})
	dirs := []string{base}
	if s, _, err := Find(dirs, "", number); err == nil {
		t.Errorf("a process of the host led to %s", s.Name)
	}
	publish(base, State{Name: "byinit", Supervisor: os.Getpid(), Init: sleep.Process.Pid})
	if s, _, err := Find(dirs, "", number); err != nil || s.Name != "byinit" {
		t.Errorf("%+v, %v", s, err)
	}
	if s, _, err := FindNamed(dirs, "", number); err == nil {
		t.Errorf("the pid of %s was taken as a name", s.Name)
	}
	named := publish(base, State{Name: number})
	if _, dir, err := Find(dirs, "", number); err != nil || dir != named.path {
		t.Errorf("%s, %v", dir, err)
	}
	if _, dir, err := FindNamed(dirs, "", number); err != nil || dir != named.path {
		t.Errorf("%s, %v", dir, err)
	}

	// In a run directory that this session does not know.
	away := publish(filepath.Join(t.TempDir(), "elsewhere"), State{Name: "away"})
	n, err := createNamed(t.Context(), containers, Named{Name: "away"}, noHold)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.starts(t.Context(), away.path, true); err != nil {
		t.Fatal(err)
	}
	if _, dir, err := Find(dirs, containers, "away"); err != nil || dir != away.path {
		t.Errorf("%s, %v", dir, err)
	}
	if again, err := readNamed(n.dir); err != nil || !again.FuseOverlay {
		t.Errorf("%+v, %v", again, err)
	}
}
