package step

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// TestSuperviseOrder: who is ended by order has Slurm's line in his stderr, before what he says
// himself to it, and once; the end for a failure has none, and no other node than the first.
func TestSuperviseOrder(t *testing.T) {
	const script = `trap "echo told >&2; exit 0" TERM; echo ready >&2; while :; do sleep 0.05; done`
	for _, test := range []struct {
		name, why, want string
		batch           bool
		second          bool // of the step's nodes
	}{
		{name: "limit", why: job.EndTimeLimit, batch: true, want: `slurmstepd: error: \*\*\* JOB 17 ON n1 CANCELLED AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d DUE TO TIME LIMIT \*\*\*\n`},
		{name: "cancel", why: job.EndCancelled, want: `slurmstepd: error: \*\*\* STEP 17\.0 ON n1 CANCELLED AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \*\*\*\n`},
		{name: "requeue", why: job.EndRequeue, batch: true, want: `slurmstepd: error: \*\*\* JOB 17 ON n1 CANCELLED AT \S{19} DUE TO JOB REQUEUE \*\*\*\n`},
		{name: "failure", why: "a rank failed on node n2"},
		{name: "second node", why: job.EndCancelled, second: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := stepSpec(1, "sh", "-c", script)
			file := filepath.Join(t.TempDir(), "err")
			if test.batch {
				spec.Key.Step, spec.Program.Output, spec.Program.Error = job.BatchStep, "none", file
				spec.Program.Cwd = []byte(t.TempDir())
			}
			if test.second {
				spec.Tasks, spec.Nodes[0].Ranks = 2, []int{1}
				spec.Nodes = append([]job.StepNode{{Name: "n0", Addr: "127.0.0.1", Ranks: []int{0}}}, spec.Nodes...)
			}
			s := supervise(t, spec)
			c := s.io(stdio.Hello{Primary: true, Follow: true})
			s.begin()
			if test.batch {
				for b := []byte(nil); !strings.Contains(string(b), "ready"); b, _ = os.ReadFile(file) {
					time.Sleep(time.Millisecond)
				}
			} else {
				for f, err := c.r.Next(); f.Type != stdio.Stderr; f, err = c.r.Next() {
					if err != nil {
						t.Fatal(f, err)
					}
				}
			}
			s.send(control.Request{Kill: &control.Kill{GraceMS: 20000, Why: test.why}})
			s.send(control.Request{Kill: &control.Kill{GraceMS: 10000, Why: test.why}})
			s.ended()
			var got string
			if test.batch {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				got = strings.TrimPrefix(string(b), "ready\n")
			} else {
				streams, _ := c.output()
				for _, name := range []string{"0.2", "1.2"} {
					got += streams[name]
				}
			}
			if !regexp.MustCompile("^" + test.want + "(Terminated\n)?told\n$").MatchString(got) {
				t.Errorf("stderr %q, want %s", got, test.want)
			}
		})
	}
}
