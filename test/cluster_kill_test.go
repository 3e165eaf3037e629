package test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// testClusterKill kills at random, by SIGKILL, the controller, an agent, a step's
// supervisor, a rank, while jobs are submitted and run. Nothing that was acknowledged is
// lost, no id is given twice, nothing is started twice, what is not killed itself does not
// notice, and nothing is left.
func testClusterKill(t *testing.T, bin string) {
	rounds := 30
	if os.Getenv("GANGWAY_TEST_LONG") != "" {
		rounds = 300
	}
	c := newCluster(t, bin, "--cpus-per-node", "4")
	image := allreduce(t, c.person)
	k := &clusterKills{cluster: c, stop: make(chan struct{})}
	script := "echo $SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0} >> starts\n" +
		"srun -K --container-image=" + image + " allreduce 6 100ms" // what is killed ends its gang
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.submitAll(t, script)
	}()
	c.file(t, "starts", ".")
	for n := range rounds {
		victim := []string{"controller", "agent", "supervisor", "rank"}[n%4]
		time.Sleep(time.Duration(rand.Int64N(int64(400 * time.Millisecond))))
		t.Logf("%d: %s: %s", n, victim, k.kill(t, victim))
	}
	close(k.stop)
	<-done
	if len(k.ids) < rounds/2 {
		t.Errorf("only %d jobs were submitted", len(k.ids))
	}
	ids := slices.Clone(k.ids)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != len(k.ids) {
		t.Errorf("an id was given twice: %v", k.ids)
	}
	states := map[string]int{}
	for _, id := range k.ids {
		state := c.ended(t, id)
		name, _, _ := strings.Cut(state, "|")
		states[name]++
		if state != "COMPLETED|0:0" && !k.hit[id] {
			t.Errorf("job %s, of which nothing was killed: %s\n%s\n%s", id, state, c.file(t, "out-"+id, ""), c.do(t, "scontrol", "show", "job", id))
		}
	}
	t.Logf("%d jobs, %d of which something was killed: %v", len(k.ids), len(k.hit), states)
	starts := strings.Fields(c.file(t, "starts", ""))
	slices.Sort(starts)
	for i := 1; i < len(starts); i++ {
		if starts[i] == starts[i-1] {
			t.Errorf("started twice: %s", starts[i])
		}
	}
	waitFor(t, func() bool {
		return !slices.ContainsFunc(c.processes(t), func(p clusterProcess) bool { return p.marker != "" })
	})
	for _, kind := range []string{"steps/*", "run/gangway/*"} { // of steps, of containers
		waitFor(t, func() bool {
			left, err := filepath.Glob(filepath.Join(c.state, "nodes", "*", kind))
			return err == nil && len(left) == 0
		})
	}
}

// clusterKills is what is submitted, and what was killed.
type clusterKills struct {
	*cluster
	stop chan struct{}
	ids  []string
	hit  map[string]bool // jobs of which something was killed
	mu   sync.Mutex
}

// submitAll submits jobs until it is stopped. One that is refused was not accepted: the
// controller may be away.
func (k *clusterKills) submitAll(t *testing.T, script string) {
	for n := 0; ; n++ {
		select {
		case <-k.stop:
			return
		case <-time.After(200 * time.Millisecond):
		}
		cmd := k.command("sbatch", "--parsable", fmt.Sprintf("-N%d", 1+n%4), "--ntasks-per-node=1", "-o", "out-%j")
		cmd.Stdin = strings.NewReader("#!/bin/sh\n" + script + "\n")
		b, err := cmd.Output()
		if id := strings.TrimSpace(string(b)); regexp.MustCompile(`^\d+$`).MatchString(id) {
			k.ids = append(k.ids, id)
		} else if err == nil {
			t.Errorf("sbatch said %q", b)
		}
	}
}

// kill kills one process of a kind, and returns which.
func (k *clusterKills) kill(t *testing.T, kind string) string {
	match := map[string]*regexp.Regexp{
		"controller": regexp.MustCompile(`^\S*gangwayd controller `),
		"agent":      regexp.MustCompile(`^\S*gangwayd agent `),
		"supervisor": regexp.MustCompile(`^\S*gangway step `),
		"rank":       regexp.MustCompile(`^\S*allreduce 6`),
	}[kind]
	for deadline := time.Now().Add(clusterPatience); ; time.Sleep(5 * time.Millisecond) {
		var found []clusterProcess
		for _, p := range k.processes(t) {
			if match.MatchString(p.command) {
				found = append(found, p)
			}
		}
		if len(found) == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("no %s to be killed", kind)
			}
			continue
		}
		p := found[rand.IntN(len(found))]
		if parts := strings.Split(p.marker, "/"); len(parts) > 1 {
			id, _, _ := strings.Cut(parts[1], ".")
			k.mu.Lock()
			if k.hit == nil {
				k.hit = map[string]bool{}
			}
			k.hit[id] = true
			k.mu.Unlock()
		}
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
		return fmt.Sprintf("process %d: %s %s", p.pid, p.command, p.marker)
	}
}
