package listing_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// running are steps that run: a script, and two that srun has made.
func running() []listing.Step {
	of := func(step job.StepID, nodes ...string) listing.Step {
		return listing.Step{
			Step: api.Step{Key: job.StepKey{Job: 12, Attempt: 1, Step: step, Try: 1}, Nodes: nodes, Tasks: 2 * len(nodes), Start: noon},
			Job:  api.Job{ID: 12, State: job.Running},
		}
	}
	other := of(0, "n3")
	other.Key.Job, other.Job.ID = 13, 14
	other.Job.Array = &job.ArrayFacts{Job: 13, Task: 1}
	return []listing.Step{of(1, "n2"), of(0, "n1", "n2"), of(job.BatchStep, "n1"), other}
}

// ranks are what the ranks of a step of two nodes used.
func ranks() []job.RankUsage {
	return []job.RankUsage{
		{Rank: 0, Node: "n1", PIDs: []int{100, 101}, User: 61500, System: 500, RSS: 100 << 20, Virtual: 1 << 30, Pages: 3, Read: 3981, Write: 1 << 20},
		{Rank: 1, Node: "n1", PIDs: []int{110}, User: 1000, RSS: 300 << 20, Virtual: 2 << 30, Read: 3 << 20},
		{Rank: 2, Node: "n2", PIDs: []int{200}, User: 3600_000, RSS: 1586 << 10, Virtual: 2592 << 10, Write: 7},
	}
}

// TestStat: sstat's formats of steps that run are those of a file, which Slurm's own has.
func TestStat(t *testing.T) {
	var w bytes.Buffer
	for _, args := range []string{
		"-j 12", "-a -j 12", "-P -a 12", "-p -n -j 12.0", "-i -a -j 12", "-j 12.batch -o jobid%5,avecpu%-10,ntasks", "-j 13_1 -o JobID,maxrss,Pids%30 -n",
		"-P --noconvert -j 12.0,12.1 -o jobid,maxrss,avevm,mincputask,tresusageintot,tresusageoutmaxnode", "-o jobid -i -j 12.1",
	} {
		q, err := listing.ParseStat(strings.Fields(args))
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		fmt.Fprintln(&w, "$ sstat", args)
		chosen, missing := q.Choose(running())
		v := view()
		v.NoConvert = q.NoConvert
		err = q.Header(&w)
		for _, s := range chosen {
			err = errors.Join(err, q.Print(&w, v, s, ranks()))
		}
		if err != nil || missing != nil {
			t.Errorf("%s: %v, %v", args, err, missing)
		}
	}
	q, err := listing.ParseStat([]string{"-e"})
	if err := errors.Join(err, q.Fields(&w)); err != nil || !q.HelpFormat {
		t.Error(err)
	}
	golden(t, "sstat.txt", w.String())
}

// TestStatWithoutRanks: of a step that has just ended there is nothing to measure.
func TestStatWithoutRanks(t *testing.T) {
	q, err := listing.ParseStat([]string{"-P", "-n", "-j", "12.0", "-o", "jobid,maxrss,averss,mincpunode,tresusageinmax,tresusageoutmax,pids,ntasks"})
	if err != nil {
		t.Fatal(err)
	}
	chosen, _ := q.Choose(running())
	var w bytes.Buffer
	if err := q.Print(&w, view(), chosen[0], nil); err != nil || w.String() != "12.0|||||||4\n12.0|||||||4\n" {
		t.Errorf("%v: %q", err, w.String())
	}
}

// TestBadStat: what sstat cannot read, and what there is not, in Slurm's words.
func TestBadStat(t *testing.T) {
	for args, want := range map[string]string{
		"":                          "error: You didn't give me any jobs to stat.",
		"-a":                        "error: You didn't give me any jobs to stat.",
		"-j abc":                    "fatal: Bad job/step specified: abc",
		"foo":                       "fatal: Bad job/step specified: foo",
		"-j 12 foo":                 "fatal: Bad job/step specified: foo",
		"-j 12.x":                   "fatal: Bad step specified: 12",
		"-j 12 -o nosuch":           `error: Invalid field requested: "nosuch"`,
		"-j 12 -o jobid,all":        `error: Invalid field requested: "all"`,
		"-j 12 -o jobid --format=x": `error: Invalid field requested: "x"`,
	} {
		_, err := listing.ParseStat(strings.Fields(args))
		var refusal *slurm.Refusal
		if !errors.As(err, &refusal) || refusal.Lines[0] != want || refusal.Code != 1 {
			t.Errorf("sstat %s: %v, want %s", args, err, want)
		}
	}
	q, err := listing.ParseStat([]string{"-j", "99,12.7,12"})
	if err != nil {
		t.Fatal(err)
	}
	chosen, missing := q.Choose(running())
	if len(chosen) != 1 || chosen[0].Key.Step != 0 || !slices.Equal(q.Jobs(), []job.ID{99, 12}) {
		t.Errorf("%+v, %v", chosen, q.Jobs())
	}
	if got := fmt.Sprint(missing); got != "[error: couldn't get steps for job 99 error: StepId=12.7 not found running.]" {
		t.Errorf("missing: %s", got)
	}
}

// TestPIDs: "scontrol listpids" names the processes of a node, and which of them are ranks.
func TestPIDs(t *testing.T) {
	for _, c := range []struct{ args, here, want string }{
		{"", "n1", "100 12 0 0 0\n101 12 0 - -\n110 12 0 1 1\n100 12 batch 0 0\n101 12 batch - -\n110 12 batch 1 1\n"},
		{"12.0", "", "100 12 0 0 0\n101 12 0 - -\n110 12 0 1 1\n200 12 0 0 2\n"},
		{"12 n2", "n1", "200 12 0 0 2\n200 12 1 0 2\n"},
		{"13", "n1", "JobId=13 does not exist on node n1."},
		{"12.9", "", "StepId=12.9 does not exist on node (null)."},
	} {
		p, err := listing.ParsePIDs(strings.Fields(c.args))
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		var w bytes.Buffer
		found := p.Choose(running(), c.here)
		for _, s := range found {
			err = errors.Join(err, p.Print(&w, s, ranks()))
		}
		got := w.String()
		if found == nil {
			got = p.None()
		}
		var lines strings.Builder
		for line := range strings.Lines(got) {
			lines.WriteString(strings.Join(strings.Fields(line), " "))
			if strings.HasSuffix(line, "\n") {
				lines.WriteByte('\n')
			}
		}
		if err != nil || lines.String() != c.want {
			t.Errorf("listpids %s: %v\n%s", c.args, err, lines.String())
		}
	}
	for _, bad := range []string{"abc", "12 n1 n2"} {
		if _, err := listing.ParsePIDs(strings.Fields(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// TestDiag: sdiag's report is that of a file, its calls by the names and numbers of Slurm's
// messages where there are such.
func TestDiag(t *testing.T) {
	d := &api.Diag{
		Now: noon, Since: noon - job.Time(10*job.Minute), Requests: 1, Sessions: 4, ToAgents: 2, ClockCalls: 26,
		Submitted: 10, Started: 9, Completed: 5, Cancelled: 2, Failed: 1, Pending: 3, Running: 1,
		Cycles: api.Cycles{Count: 20, Last: 932, Max: 2000, Sum: 10000, Depth: 40}, Turns: api.Cycles{Count: 30, Last: 1, Max: 3, Sum: 60},
		Calls: []api.Called{{Name: "GET /v1/jobs", Count: 19, Sum: 1143}, {Name: "GET /v1/watch", Count: 2}, {Name: "POST /v1/jobs", Count: 1, Sum: 5000}},
		Users: []api.Called{{Name: "root", Count: 20, Sum: 6000}, {Name: "alice", UID: 1000, Count: 2, Sum: 143}},
	}
	var w bytes.Buffer
	for _, args := range []string{"", "-i", "-t", "-T -a foo"} {
		q, err := listing.ParseDiag(strings.Fields(args))
		if err == nil {
			fmt.Fprintln(&w, "$ sdiag", args)
			err = q.Print(&w, view(), d)
		}
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
	golden(t, "sdiag.txt", w.String())
	if q, err := listing.ParseDiag([]string{"-r"}); err != nil || !q.Reset {
		t.Errorf("%+v, %v", q, err)
	}
	if _, err := listing.ParseDiag([]string{"--json"}); err == nil || !strings.Contains(err.Error(), "option --json is not supported") {
		t.Errorf("%v", err)
	}
}
