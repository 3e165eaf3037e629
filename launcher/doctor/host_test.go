package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/doctor"
)

func TestLimits(t *testing.T) {
	r := injured(t, 0, injury{Limits: map[int]uint64{unix.RLIMIT_MEMLOCK: 16 << 10, unix.RLIMIT_NOFILE: 512}})
	want(t, r, "memlock", doctor.Degraded, "16.0 KiB", "NCCL", "memlock unlimited")
	want(t, r, "nofile", doctor.Degraded, "512", "nofile 1048576")

	infiniband := tree(t, map[string]string{"dev/infiniband/uverbs0": ""})
	r = injured(t, 0, injury{Limits: map[int]uint64{unix.RLIMIT_MEMLOCK: 1 << 20}, Doctor: options{Root: infiniband}})
	want(t, r, "memlock", doctor.Degraded, "1.0 MiB", "RDMA")
	r = injured(t, 0, injury{Limits: map[int]uint64{unix.RLIMIT_MEMLOCK: 1 << 20}, Doctor: options{Root: t.TempDir()}})
	want(t, r, "memlock", doctor.OK, "no InfiniBand")
}

func TestSharedMemory(t *testing.T) {
	small := []mount{{Source: "tmpfs", Target: "/dev/shm", Kind: "tmpfs", Data: "size=64m"}}
	want(t, injured(t, mounts, injury{Mounts: small, Doctor: options{Root: t.TempDir()}}), "shm", doctor.Degraded, "64.0 MiB", "remount")
	want(t, injured(t, mounts, injury{Mounts: small, Doctor: options{Root: tree(t, map[string]string{".dockerenv": ""})}}), "shm", doctor.Degraded, "--shm-size")
	other := []mount{{Source: t.TempDir(), Target: "/dev/shm", Flags: unix.MS_BIND}}
	want(t, injured(t, mounts, injury{Mounts: other}), "shm", doctor.Degraded, "no tmpfs")
}

// TestFullStore: a store on a full disk, one without inodes, and one that is read-only.
func TestFullStore(t *testing.T) {
	dir := t.TempDir()
	tmpfs := mount{Source: "tmpfs", Target: dir, Kind: "tmpfs", Data: "size=256k,mode=700"}
	r := injured(t, mounts, injury{Mounts: []mount{tmpfs}, Fill: filepath.Join(dir, "big"), Doctor: options{Store: dir}})
	want(t, r, "store", doctor.Degraded, "no space left on device", "not pulled")
	want(t, r, "space-store", doctor.Degraded, "0 B free", "gangway image gc")
	if !r.Summary.CanRun {
		t.Error("containers are said not to run")
	}

	tmpfs.Data = "size=2g,nr_inodes=100,mode=700"
	r = injured(t, mounts, injury{Mounts: []mount{tmpfs}, Doctor: options{Store: dir}})
	want(t, r, "store", doctor.OK)
	want(t, r, "space-store", doctor.Degraded, "1000 files")

	tmpfs.Data, tmpfs.Flags = "", unix.MS_RDONLY
	r = injured(t, mounts, injury{Mounts: []mount{tmpfs}, Doctor: options{Store: dir}})
	want(t, r, "store", doctor.Degraded, "read-only file system")

	// What has no size is not full.
	want(t, injured(t, mounts, injury{Doctor: options{Store: "/proc/gangway"}}), "space-store", doctor.Unknown, "does not say")

	// A directory for temporary files, and one for running containers, with too little room.
	t.Setenv("TMPDIR", dir)
	small := mount{Source: "tmpfs", Target: dir, Kind: "tmpfs", Data: "size=1m,mode=700"}
	r = injured(t, mounts, injury{Mounts: []mount{small}, Doctor: options{RuntimeDir: dir}})
	want(t, r, "space-tmp", doctor.Degraded, "temporary files in "+dir, "iB free", "less than")
	want(t, r, "space-run", doctor.Degraded, "running containers in "+dir, "iB free", "less than")
	want(t, r, "runtime-dir", doctor.OK)
	t.Setenv("TMPDIR", filepath.Dir(dir))

	// The directory of running containers is needed.
	r = injured(t, mounts, injury{Mounts: []mount{tmpfs}, Doctor: options{RuntimeDir: filepath.Join(dir, "not/yet")}})
	want(t, r, "runtime-dir", doctor.Missing, "read-only file system", "no container")
	if r.Summary.CanRun || r.Blocking().Name != "runtime-dir" {
		t.Errorf("summary %+v", r.Summary)
	}
}

func TestStoreOfOthers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	want(t, examineHere(t, doctor.Options{Store: dir}), "store", doctor.Degraded, "0777", `chmod go-w '`, `'\''`)
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	want(t, examineHere(t, doctor.Options{Store: dir}), "store", doctor.Degraded, "permission denied", "sudo chown")
	want(t, examineHere(t, doctor.Options{Store: "/tmp"}), "store", doctor.Degraded, "belongs to user 0")
	want(t, examineHere(t, doctor.Options{Store: "/gangway/store"}), "store", doctor.Degraded, "permission denied", "sudo install -d")
	if entries, err := os.ReadDir("/tmp"); err != nil || strings.Contains(strings.Join(names(entries), " "), ".gangway-tmp-") {
		t.Errorf("left behind: %v %v", names(entries), err)
	}
}

func names(entries []os.DirEntry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// examineHere examines this process.
func examineHere(t *testing.T, o doctor.Options) doctor.Report {
	t.Helper()
	return doctor.Examine(t.Context(), o)
}

// TestHooks: what others look for is part of the report.
func TestHooks(t *testing.T) {
	var asked []bool
	o := doctor.Options{
		WritableRung: func(context.Context) (string, string, error) { return "kernel overlay over FUSE", "", nil },
		Leftovers: func(_ context.Context, remove bool) ([]string, error) {
			asked = append(asked, remove)
			return []string{"/run/x/1", "/run/x/2"}, nil
		},
	}
	r := examineHere(t, o)
	want(t, r, "writable-layer", doctor.OK, "kernel overlay over FUSE")
	want(t, r, "leftovers", doctor.OK, "removed /run/x/1, /run/x/2")
	o.Keep = true
	o.WritableRung = func(context.Context) (string, string, error) {
		return "", "", errors.New("no rung: append: input/output error")
	}
	r = examineHere(t, o)
	want(t, r, "leftovers", doctor.Degraded, "/run/x/1")
	want(t, r, "writable-layer", doctor.Degraded, "append: input/output error", "fuse-overlayfs")
	if len(asked) != 2 || !asked[0] || asked[1] {
		t.Errorf("asked to remove: %v", asked)
	}
	o.WritableRung = func(context.Context) (string, string, error) { return "tree", "append: input/output error", nil }
	want(t, examineHere(t, o), "writable-layer", doctor.Degraded, "tree", "append: input/output error", "fuse-overlayfs")
	o.Container = func(context.Context) error {
		return &fault.Error{What: errors.New("step 3, mount x: no"), Cause: "a lock", Hint: "open it"}
	}
	r = examineHere(t, o)
	want(t, r, "container", doctor.Missing, "step 3, mount x: no", "a lock", "open it", "no container can be started")
	if r.Summary.CanRun || r.Blocking().Name != "container" {
		t.Errorf("summary %+v", r.Summary)
	}
	o.Container = func(context.Context) error { return nil }
	want(t, examineHere(t, o), "container", doctor.OK, "works")
	o.Leftovers = func(context.Context, bool) ([]string, error) { return []string{"/run/x/1"}, os.ErrPermission }
	want(t, examineHere(t, o), "leftovers", doctor.Degraded, "permission denied", "/run/x/1")
	o.Leftovers = func(context.Context, bool) ([]string, error) { return nil, nil }
	want(t, examineHere(t, o), "leftovers", doctor.OK, "nothing")

	// A hook that hangs does not hang the doctor.
	hang := make(chan struct{})
	defer close(hang)
	o.Leftovers = func(context.Context, bool) ([]string, error) { <-hang; return nil, nil }
	o.Timeout = 200 * time.Millisecond
	want(t, examineHere(t, o), "leftovers", doctor.Unknown, "no answer in")
}

// TestText: what is well takes a line, what is not says what to do, and nothing that
// others wrote reaches the terminal as it is.
func TestText(t *testing.T) {
	r := doctor.Report{Findings: []doctor.Finding{
		{Name: "proc", Result: doctor.OK, Tried: "mount proc", Got: "works"},
		{Name: "registry x\x1b[2J", Result: doctor.Degraded, Tried: "GET", Got: "bad\nthing", Cause: "why", Consequence: "slow", Remedy: `echo "a"`},
	}, Summary: doctor.Summary{CanRun: true, OK: 1, Degraded: 1}}
	var b strings.Builder
	if err := r.WriteText(&b, doctor.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	const text = `ok        proc             works
degraded  registry x\x1b[2J  bad thing
          cause: why
          consequence: slow
          remedy: echo "a"

containers can run here, 1 degraded, 1 ok
`
	if got := b.String(); got != text && got != strings.Replace(text, "proc             works", "proc            works", 1) {
		t.Errorf("got\n%s", got)
	}
	b.Reset()
	if err := r.WriteText(&b, doctor.TextOptions{Verbose: true, Color: true}); err != nil || !strings.Contains(b.String(), "tried: mount proc") || !strings.Contains(b.String(), "\x1b[33mdegraded\x1b[0m") {
		t.Errorf("%v\n%s", err, b.String())
	}
}
