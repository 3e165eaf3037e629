package server

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
)

// smallDisk says where a disk of a few MiB is to be, in a process that may mount one.
const smallDisk = "GANGWAY_TEST_SMALL_DISK"

// TestFullDisk has the controller keep its state on a disk that gets full: what is submitted
// is refused, what runs goes on, and all is well again when there is room.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(smallDisk); dir != "" {
		fullDisk(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), smallDisk+"="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid := os.Geteuid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{21} // CAP_SYS_ADMIN, there
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func fullDisk(t *testing.T, dir string) {
	if err := errors.Join(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), syscall.Mount("small", dir, "tmpfs", 0, "size=16m")); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 2)
	w.runFor(0)
	running, waiting := w.submit(1, nil), w.submit(1, func(q *api.Submit) { q.Spec.Hold = true })
	w.waitState(running, job.Running)
	key := job.StepKey{Job: running, Attempt: 1, Step: job.BatchStep, Try: 1}
	w.until("it runs", func() bool { return w.started()[key] == 1 })
	filler := filepath.Join(dir, "filler")
	fill := func(leave int64) {
		t.Helper()
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		if n := int64(st.Bavail)*st.Bsize - leave; n > 0 {
			if err := os.WriteFile(filler, make([]byte, n), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Kind != "CAN_NOT_SAVE" || !strings.Contains(e.Hint, "make room") || !strings.Contains(e.Cause, "full") {
			t.Errorf("%s on a full disk: %+v", what, err)
		}
	}
	// A job that does not fit does not keep others from being stored.
	fill(3 << 20)
	large := &api.Submit{Program: &job.Program{Args: [][]byte{[]byte("x")}, Environ: [][]byte{[]byte("A=" + strings.Repeat("x", 12<<20))}}}
	refused("submit a large environment", w.call("POST", "/v1/jobs", large, nil))
	small := &api.Submit{Spec: job.Spec{Hold: true}, Program: &job.Program{Args: [][]byte{[]byte("x")}}}
	w.until("small jobs are stored again", func() bool { return w.call("POST", "/v1/jobs", small, nil) == nil })
	// Then nothing fits any more.
	fill(0)
	w.until("nothing is stored any more", func() bool { return w.call("POST", "/v1/jobs", small, nil) != nil })
	refused("create step", w.call("POST", "/v1/jobs/"+running.String()+"/steps", stepRequest(1, 1), nil))
	refused("submit", w.call("POST", "/v1/jobs", small, nil))
	refused("cancel", w.call("DELETE", "/v1/jobs/"+waiting.String(), nil, nil))
	refused("drain", w.call("POST", "/v1/nodes/n1", &api.Change{State: "drain", Reason: "x"}, nil))
	if j := w.job(running); j.State != job.Running {
		t.Errorf("the job that runs is %v", j.State)
	}
	for _, a := range w.agents {
		a.mu.Lock()
		a.finish(key, 0)
		a.mu.Unlock()
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	w.waitState(running, job.Completed)
	w.do("DELETE", "/v1/jobs/"+waiting.String(), nil, nil)
	next := w.submit(1, nil)
	w.waitState(next, job.Running)
	w.restart()
	if j := w.job(running); j.State != job.Completed {
		t.Errorf("after a restart the job that ran is %v", j.State)
	}
}

// TestRefusedHasNoRows: of a job that is refused, because it could not be stored, nothing is
// accounted, though it may have begun and been requeued before.
func TestRefusedHasNoRows(t *testing.T) {
	c := &core{commit: &committer{}}
	c.commit.drop(5)
	o := output{batch: store.Batch{
		Jobs:  []store.JobRow{{Job: 5, Attempt: 1}, {Job: 6, Attempt: 1}},
		Steps: []store.StepRow{{Key: job.StepKey{Job: 5}}, {Key: job.StepKey{Job: 6}}},
	}}
	c.dropRows(&o)
	if len(o.batch.Jobs) != 1 || o.batch.Jobs[0].Job != 6 || len(o.batch.Steps) != 1 || o.batch.Steps[0].Key.Job != 6 {
		t.Errorf("accounted are %v and %v", o.batch.Jobs, o.batch.Steps)
	}
}
