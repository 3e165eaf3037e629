package top

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// begin is the time of these tests.
var begin = time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)

func at(d time.Duration) job.Time { return job.Time(begin.Add(d).UnixMilli()) }

func node(name, state string, used, cpus int) api.Node {
	n := api.Node{StateText: state, UsedCPUs: used, UsedMemory: 512, Declared: true, Used: []job.Devices{{Name: "gpu", Count: 2}}}
	n.Name, n.CPUs, n.Memory, n.GRES = name, cpus, 2048, []job.GRES{{Name: "gpu", Type: "h100", Count: 8}}
	return n
}

// shown is a model that knows a cluster.
func shown(jobs ...api.Job) *model {
	m := newModel(false)
	m.width, m.height, m.now = 120, 30, begin
	m.hear(happened{[]api.Event{{Synced: true}}})
	m.hear(listed{[]api.Node{node("n1", "mixed", 1, 4), node("n2", "down*", 0, 4)}, jobs, "trial"})
	return m
}

// wantLines fails unless the view has lines that match, in this order.
func wantLines(t *testing.T, m *model, patterns ...string) {
	t.Helper()
	lines := strings.Split(m.view(), "\n")
	for _, p := range patterns {
		re := regexp.MustCompile(p)
		for len(lines) > 0 && !re.MatchString(lines[0]) {
			lines = lines[1:]
		}
		if len(lines) == 0 {
			t.Fatalf("there is no line %q, or not there:\n%s", p, m.view())
		}
	}
}

func TestView(t *testing.T) {
	m := shown(
		api.Job{ID: 7, Name: "soon", State: job.Pending, Reason: "Resources", Expected: at(time.Minute), Nodes: 2},
		api.Job{ID: 3, Name: "run", User: "ann", State: job.Running, Start: at(-time.Minute), Nodes: 2, NodeList: []string{"n1", "n2"}},
		api.Job{ID: 8, Name: "never", State: job.Pending, Reason: "Licenses", Expected: job.Never},
		api.Job{ID: 9, Name: "arr", State: job.Pending, Reason: "Priority", Expected: at(500 * 24 * time.Hour), Array: &job.ArrayFacts{Job: 9}, Waiting: []job.Range{{First: 1, Last: 9, Step: 1}}},
		api.Job{ID: 2, Name: "over", State: job.Failed, Start: at(-time.Hour), End: at(-time.Second)},
	)
	m.hear(happened{[]api.Event{{Step: &api.Step{Key: job.StepKey{Job: 3}, Phase: "running"}}}})
	for i, cpu := range []job.Duration{0, 500, 2500} {
		m.hear(used{job.StepKey{Job: 3}, []job.RankUsage{{Rank: 1, Node: "n2", User: cpu, RSS: 3 << 20}}, begin.Add(time.Duration(i) * time.Second)})
	}
	m.hear(printed{id: 3, lines: []string{"one", "two\x1b[31m"}})
	wantLines(
		t, m, `^cluster trial   2 nodes, 1 not in use   CPUs 1 of 4   GPUs 2 of 8   1 running, 11 waiting +12:00:00$`,
		`^NODE`, `^n1 +mixed +███░{7} 1/4 +███░{7} 512M/2.0G +2 of 8 decl.`, `^n2 +down\*`,
		`^JOB`, `^> 3 +run +ann +running +00:01:00 +2 +n\[1-2\]$`, `^7 +soon .*Resources, starts 12:01:00$`,
		`^9_\* +arr .*9 tasks, Priority, starts when what runs has ended$`, `^8 +never .*Licenses, not as things are$`, `^2 +over +failed +00:59:59`,
		`^job 3 run, running$`, `^0:1 +n2 +2.00 CPUs +3M ▃█$`, `^one$`, `^two \[31m$`, `^up/down`,
	)
	m.key("down")
	wantLines(t, m, `^3 `, `^> 7 `, `^job 7 soon, pending$`)
	for range 10 {
		m.key("down")
	}
	wantLines(t, m, `^> 2 `)
	m.hear(away{errors.New("gone")})
	wantLines(t, m, `^the controller does not answer: gone$`)
	m.hear(away{})
	if len(m.jobs) != 0 || m.key("x") || !m.key("q") {
		t.Error("after the controller was away all is told anew; q ends it")
	}
}

// TestModel: what is asked for may be older than what was pushed, tasks that wait are shown once,
// and what has ended goes after a while.
func TestModel(t *testing.T) {
	array := job.ArrayFacts{Job: 4}
	group := api.Job{ID: 4, State: job.Pending, Array: &array, Waiting: []job.Range{{First: 1, Last: 3, Step: 1}}}
	m := shown(api.Job{ID: 4, State: job.Running, Array: &array, Attempt: 1}, group)
	m.hear(happened{[]api.Event{
		{Job: &api.Job{ID: 4, State: job.Completed, Array: &array, Attempt: 1, End: at(0)}},
		{Job: &api.Job{ID: 5, State: job.Pending, Array: &job.ArrayFacts{Job: 4, Task: 1}}},
	}})
	m.hear(listed{nil, []api.Job{{ID: 4, State: job.Running, Array: &array, Attempt: 1}, group}, "trial"})
	wantLines(t, m, `^> 4_\* .*3 tasks`, `^4_0 +completed`)
	if len(m.jobs) != 2 {
		t.Errorf("%d jobs", len(m.jobs))
	}
	m.hear(listed{nil, []api.Job{{ID: 4, State: job.Running, Array: &array, Attempt: 2}}, "trial"})
	wantLines(t, m, `^> 4_0 +running`)
	m.hear(happened{[]api.Event{{Job: &api.Job{ID: 4, State: job.Completed, Array: &array, Attempt: 2, End: at(0)}}}})
	m.hear(clock{begin.Add(shownAfter + time.Second)})
	wantLines(t, m, `^no jobs$`)
}

// TestFits: whatever is known and however large the terminal is, lines are no longer than it is
// wide, they are as many as it has, and nothing of others is a control character.
func TestFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var jobs []api.Job
		for i := range rapid.IntRange(0, 30).Draw(t, "jobs") {
			jobs = append(jobs, api.Job{
				ID: job.ID(i + 1), Name: rapid.String().Draw(t, "name"), User: rapid.String().Draw(t, "user"), State: job.State(rapid.IntRange(0, 12).Draw(t, "state")),
				Reason: rapid.String().Draw(t, "reason"), Why: rapid.String().Draw(t, "why"), Start: at(0), NodeList: []string{"n1"},
			})
		}
		m := shown(jobs...)
		for i := range rapid.IntRange(0, 20).Draw(t, "nodes") {
			m.nodes = append(m.nodes, node(fmt.Sprint("m", i), rapid.String().Draw(t, "state"), 0, 1))
		}
		m.width, m.height = rapid.IntRange(0, 200).Draw(t, "width"), rapid.IntRange(0, 60).Draw(t, "height")
		for range rapid.IntRange(0, 5).Draw(t, "keys") {
			m.key(rapid.SampledFrom([]string{"down", "up", "pgdown", "end", "home"}).Draw(t, "key"))
		}
		if j := m.chosen(); j != nil {
			m.hear(printed{id: j.ID, lines: rapid.SliceOf(rapid.String()).Draw(t, "output")})
			m.hear(happened{[]api.Event{{Step: &api.Step{Key: job.StepKey{Job: j.ID}, Phase: "preparing", Progress: rapid.String().Draw(t, "progress")}}}})
		}
		lines := strings.Split(m.view(), "\n")
		if m.height >= 4 && m.width >= 20 && len(lines) != m.height {
			t.Fatalf("%d lines on %d:\n%s", len(lines), m.height, m.view())
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > m.width {
				t.Fatalf("%d characters on %d: %q", n, m.width, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
				t.Fatalf("control characters: %q", line)
			}
		}
	})
}
