package sim_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// reportOf runs both models on a generated trace.
func reportOf(t *testing.T, trace *sim.Trace, c *sim.Cluster) *sim.Report {
	t.Helper()
	report := sim.NewReport(trace, c)
	for _, m := range []*sim.Model{sim.CycleModel(), sim.FIFOModel()} {
		ended := 0
		r, err := sim.Run(t.Context(), m, c, trace, sim.Options{Progress: func(n, _ int) { ended = n }})
		if err != nil {
			t.Fatal(err)
		}
		if ended > len(trace.Jobs) {
			t.Errorf("%d of %d jobs ended", ended, len(trace.Jobs))
		}
		r.Policy, r.Model = m.Name(), true
		report.Results = append(report.Results, r)
	}
	return report
}

// wellFormed reads a page as XML, which it is but for the document type.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v", err)
		}
	}
}

func TestReport(t *testing.T) {
	trace := sim.PhillyMarginals().Generate(3000, 64, 0.9, 1)
	trace.Name = `<b>"a"&c</b>`
	trace.LeftOut = []sim.LeftOut{{Why: "never ran", Jobs: 5}}
	trace.BrokenCount, trace.Broken = 1, []sim.LineError{{Line: 7, Text: "3 fields: want 18"}}
	report := reportOf(t, trace, sim.Uniform(sim.Shape{Nodes: 80, CPUs: 8, GPUs: 1}))
	var page, text strings.Builder
	if err := errors.Join(report.HTML(&page), report.Text(&text)); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, page.String())
	for _, want := range []string{"<svg", "GPUs in use", "Jobs waiting", "model of strict FIFO", "&lt;b&gt;", "The first 64 of 80 nodes", "own imitation", "Skipped: 1 broken line"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if strings.Contains(page.String(), "http") || strings.Contains(page.String(), "<script") || strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
		t.Error("the page needs something else, or has no number where one should be")
	}
	for _, want := range []string{"3000 jobs", "left out: 5 jobs (never ran)", "line 7: 3 fields: want 18", "wait p50 / p95", "decisionHash"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Trace   struct{ Jobs int }
		Results []struct {
			Model  bool
			WaitS  struct{ Mean, P99 float64 } `json:"wait_s"`
			Hash   string                      `json:"decisionHash"`
			Decide struct{ Count int }         `json:"decide_latency"`
		}
	}
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if r := back.Results; back.Trace.Jobs != 3000 || len(r) != 2 || !r[0].Model || r[0].WaitS.P99 <= 0 || len(r[0].Hash) != 16 || r[0].Decide.Count == 0 {
		t.Errorf("%s", b)
	}
}

// TestReportOfLittle: pages of runs in which next to nothing happened.
func TestReportOfLittle(t *testing.T) {
	for name, trace := range map[string]*sim.Trace{
		"one short job":   {Jobs: []sim.Job{{Run: 1, CPUs: 1}}},
		"a refused job":   {Jobs: []sim.Job{{Run: 1, CPUs: 1}, {Run: 1, CPUs: 1000}}},
		"two at one time": {Jobs: []sim.Job{{Run: 1, CPUs: 1}, {Run: 1, CPUs: 1}}},
	} {
		report := reportOf(t, trace, sim.Uniform(sim.Shape{Nodes: 1, CPUs: 2}))
		var page strings.Builder
		if err := report.HTML(&page); err != nil {
			t.Fatal(err)
		}
		wellFormed(t, page.String())
		if strings.Contains(page.String(), "NaN") || strings.Contains(page.String(), "Inf") {
			t.Errorf("%s: the page has a number that is none", name)
		}
		report.Results = nil
		if err := report.HTML(io.Discard); err != nil {
			t.Error(err)
		}
	}
}

// TestTooSmall: where nothing can run there is no result.
func TestTooSmall(t *testing.T) {
	trace := &sim.Trace{Jobs: []sim.Job{{Line: 7, Run: 1, CPUs: 1000}}}
	_, err := sim.Run(t.Context(), sched.New(), sim.Uniform(sim.Shape{Nodes: 1, CPUs: 2}), trace, sim.Options{})
	if !errors.Is(err, sim.ErrTooSmall) || !strings.Contains(err.Error(), "that of line 7: submit job 1: ") {
		t.Errorf("%v", err)
	}
}

// TestManyBars: of a long run the Gantt chart shows a part.
func TestManyBars(t *testing.T) {
	report := reportOf(t, sim.PhillyMarginals().Generate(12_000, 16, 0.8, 3), sim.Uniform(sim.Shape{Nodes: 2, CPUs: 8, GPUs: 8}))
	var page strings.Builder
	if err := report.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(page.String(), "<rect"); n > 11_000 || n < 500 || !strings.Contains(page.String(), "Shown are ") {
		t.Errorf("%d bars in %d bytes", n, page.Len())
	}
}
