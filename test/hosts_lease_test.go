package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// gang submits a job of two ranks in containers, on two nodes, that say on the file system that
// all hosts have when they began and when they were last there, and run until there is a file.
func (h *hosts) gang(t *testing.T, name, image string, args ...string) string {
	t.Helper()
	h.mkdir(t, "home/"+name)
	script := "cd " + filepath.Join(h.dir, "home", name) + "\necho $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $SLURM_JOB_NODELIST >> starts\n" +
		"export A=${SLURM_RESTART_COUNT:-0}\n" +
		"srun --container-image=" + image + " --container-mounts=$PWD:/shared sh -c " +
		"'touch /shared/first-$A-$(hostname); while ! test -e /shared/end; do echo x >> /shared/last-$A-$(hostname); sleep 0.05; done'"
	return h.submit(t, script, append([]string{"-N2", "--requeue", "-o", name + "/out-%j"}, args...)...)
}

// when is when a file of a gang was last written; zero: it is not there.
func (h *hosts) when(name, file string) time.Time {
	st, err := os.Stat(filepath.Join(h.dir, "home", name, file))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

// begun waits until an attempt runs on hosts, and returns when the first of its ranks began,
// and the last.
func (h *hosts) begun(t *testing.T, name string, attempt int, within time.Duration, nodes ...string) (first, all time.Time) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, n := range nodes {
		at := time.Time{}
		for ; at.IsZero(); time.Sleep(10 * time.Millisecond) {
			if at = h.when(name, fmt.Sprintf("first-%d-%s", attempt, n)); time.Now().After(deadline) && at.IsZero() {
				t.Fatalf("attempt %d of %s does not run on %s after %s", attempt, name, n, within)
			}
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(all) {
			all = at
		}
	}
	return first, all
}

// wantOver wants ranks of an attempt to have been over before another one began.
func (h *hosts) wantOver(t *testing.T, name string, attempt int, next time.Time, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		last := h.when(name, fmt.Sprintf("last-%d-%s", attempt, n))
		if last.IsZero() || !last.Before(next) {
			t.Errorf("the rank of attempt %d on %s was last there at %s, the next attempt began at %s", attempt, n, last, next)
		}
	}
}

// cutOff: what a host had that is cut off runs on others, soon, after the host has ended it by
// itself; and when it comes back nothing of it is left there.
func (h *hosts) cutOff(t *testing.T, image string) {
	id := h.gang(t, "cut", image)
	h.file(t, "cut/starts", id+` 0 n\[1-2\]\n`)
	h.begun(t, "cut", 0, clusterPatience, "n1", "n2")
	h.root(t, h.hub, "ip link set v2 down") // n2's
	cut := time.Now()
	waitFor(t, func() bool { return strings.HasPrefix(h.do(t, "sinfo", "-h", "-n", "n2", "-o", "%T"), "down") })
	lost := time.Since(cut)
	first, all := h.begun(t, "cut", 1, clusterPatience, "n1", "n3")
	h.wantOver(t, "cut", 0, first, "n1", "n2")
	ran := h.when("cut", "last-0-n2").Sub(cut)
	t.Logf("lost after %s; its rank ran on for %s; the next attempt's first rank after %s, its last after %s", lost, ran, first.Sub(cut), all.Sub(cut))
	if ran < time.Second || ran > 9*time.Second {
		t.Errorf("the rank on the node that is cut off ran on for %s; the lease is 8 s", ran)
	}
	if d := first.Sub(cut); d < 5*time.Second || d > 20*time.Second { // 10 s, on a machine that has nothing else to do
		t.Errorf("it was started on others after %s", d)
	}
	h.file(t, "cut/starts", id+` 1 n\[1,3\]\n`)
	h.root(t, h.hub, "ip link set v2 up")
	h.nodes(t, "n1 mixed\nn2 idle\nn3 mixed\nn4 idle\n")
	h.touch(t, "cut/end")
	h.completes(t, id)
	if !h.when("cut", "first-2-n1").IsZero() {
		t.Error("it was started a third time")
	}
}

func (h *hosts) touch(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "home", name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// controllerAway: while the controller is dead, for longer than any lease, what runs goes on,
// since nodes find that the others have lost it too.
func (h *hosts) controllerAway(t *testing.T, image string, controller *background) *background {
	id := h.gang(t, "alone", image, "-w", "n1,n4")
	h.begun(t, "alone", 0, clusterPatience, "n1", "n4")
	controller.signal(t, syscall.SIGKILL)
	waitFor(t, controller.ended)
	killed := time.Now()
	for _, n := range []string{"n1", "n4"} { // two leases later they are still there
		waitFor(t, func() bool { return h.when("alone", "last-0-"+n).Sub(killed) > 17*time.Second })
	}
	next := h.control()
	h.nodes(t, "n1 mixed\nn2 idle\nn3 idle\nn4 mixed\n")
	h.touch(t, "alone/end")
	h.completes(t, id)
	if got := h.file(t, "alone/starts", ""); got != id+" 0 n[1,4]\n" {
		t.Errorf("it was started\n%s", got)
	}
	return next
}

// stopped: where an agent is stopped, or all of a host's processes are, the next attempt begins
// only when no rank of the one before can run any more.
func (h *hosts) stopped(t *testing.T, image, name string, node int, agent *background, whole bool) {
	host := h.all[node].name
	// Where it begins is said by what is busy, and not by the job, which is to begin elsewhere.
	busy := h.submit(t, "sleep 1000", "-N3", "-x", host, "--exclusive", "-o", "/dev/null")
	h.reaches(t, busy, "RUNNING")
	id := h.gang(t, name, image, "-N1", "--exclusive")
	h.begun(t, name, 0, clusterPatience, host)
	h.do(t, "scancel", busy)
	h.ended(t, busy)
	halt := func(s syscall.Signal) {
		for _, p := range h.processes(t) {
			if whole && strings.HasPrefix(p.marker, host+"/") {
				_ = syscall.Kill(p.pid, s) // it may have ended
			}
		}
		agent.signal(t, s)
	}
	halt(syscall.SIGSTOP)
	defer halt(syscall.SIGCONT)
	where := ""
	waitUntil(t, 3*clusterPatience, func() bool {
		got, _ := filepath.Glob(filepath.Join(h.dir, "home", name, "first-1-*"))
		if len(got) > 0 {
			where = filepath.Base(got[0])
		}
		return where != ""
	})
	first := h.when(name, where)
	h.wantOver(t, name, 0, first, host)
	halt(syscall.SIGCONT)
	waitFor(t, func() bool { return h.do(t, "sinfo", "-h", "-n", host, "-o", "%T") == "idle\n" })
	if on := h.when(name, "last-0-"+host).Sub(first); on > 5*time.Second {
		t.Errorf("ranks that were stopped ran for long when they went on: until %s after the next attempt began", on)
	}
	h.touch(t, name+"/end")
	h.completes(t, id)
}

// waitUntil waits for something for a while.
func waitUntil(t *testing.T, within time.Duration, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", within)
		}
	}
}
