package sim

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Report is what runs of one trace on one cluster gave. As JSON it is its fields.
type Report struct {
	Trace   TraceInfo   `json:"trace"`
	Cluster ClusterInfo `json:"cluster"`
	Results []*Result   `json:"results"`
}

// TraceInfo says what was read.
type TraceInfo struct {
	Name    string      `json:"name"`
	Format  Format      `json:"format"`
	Jobs    int         `json:"jobs"`
	Lines   int         `json:"lines"`
	Broken  int         `json:"broken_lines"`
	First   []LineError `json:"first_broken_lines,omitempty"`
	LeftOut []LeftOut   `json:"left_out,omitempty"`
	Days    float64     `json:"days"` // from the first submission to the last
	Load    float64     `json:"load"` // demand in that time to capacity
}

// ClusterInfo says what it was run on.
type ClusterInfo struct {
	Name     string `json:"name"`
	Nodes    int    `json:"nodes"`
	CPUs     int    `json:"cpus"`
	GPUs     int    `json:"gpus"`
	Switches int    `json:"leaf_switches"`
}

// NewReport begins a report; results are appended to it.
func NewReport(t *Trace, c *Cluster) *Report {
	all := c.totals()
	r := &Report{
		Trace:   TraceInfo{Name: t.Name, Format: t.Format, Jobs: len(t.Jobs), Lines: t.Lines, Broken: t.BrokenCount, First: t.Broken, LeftOut: t.LeftOut},
		Cluster: ClusterInfo{Name: c.Name, Nodes: all.nodes, CPUs: all.cpus, GPUs: all.gpus, Switches: c.leaves()},
	}
	capacity, demand := float64(all.cpus), 0.0
	if all.gpus > 0 {
		capacity = float64(all.gpus)
	}
	for i := range t.Jobs {
		j := &t.Jobs[i]
		size := j.CPUs
		if all.gpus > 0 {
			size = j.GPUs
		}
		demand += float64(size) * seconds64(j.Run)
	}
	if len(t.Jobs) == 0 {
		return r
	}
	length := t.Jobs[len(t.Jobs)-1].Submit.Sub(t.Jobs[0].Submit)
	r.Trace.Days = round(float64(length)/float64(job.Day), 5)
	if length > 0 && capacity > 0 {
		r.Trace.Load = round(demand/capacity/seconds64(length), 4)
	}
	return r
}

// Text writes the report as tables for people.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "trace    %s (%s): %d jobs over %s, load %.2f\n", r.Trace.Name, r.Trace.Format, r.Trace.Jobs, span(r.Trace.Days*86400), r.Trace.Load)
	for _, l := range r.Trace.LeftOut {
		fmt.Fprintf(&b, "         left out: %d jobs (%s)\n", l.Jobs, l.Why)
	}
	if r.Trace.Broken > 0 {
		fmt.Fprintf(&b, "         skipped: %s, the first: %s\n", brokenLines(r.Trace.Broken), r.Trace.First[0].Error())
	}
	fmt.Fprintf(&b, "cluster  %s: %d nodes, %d CPUs, %d GPUs, %d leaf switches\n\n", r.Cluster.Name, r.Cluster.Nodes, r.Cluster.CPUs, r.Cluster.GPUs, r.Cluster.Switches)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range r.rows() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range r.Results {
		for _, y := range x.WhyNot {
			fmt.Fprintf(&b, "refused by %s: job of line %d: %s\n", x.Policy, y.Line, y.Why)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func brokenLines(n int) string {
	if n == 1 {
		return "1 broken line"
	}
	return fmt.Sprintf("%d broken lines", n)
}

// rows are the results side by side: the head, and a row for each figure.
func (r *Report) rows() [][]string {
	rows := [][]string{{"policy"}}
	for _, x := range r.Results {
		rows[0] = append(rows[0], x.Policy)
	}
	add := func(name string, value func(*Result) string) {
		row := []string{name}
		for _, x := range r.Results {
			row = append(row, value(x))
		}
		rows = append(rows, row)
	}
	add("time limits", func(x *Result) string { return string(x.Limits) })
	add("completed", func(x *Result) string { return strconv.Itoa(x.Complete) })
	add("timed out, failed", func(x *Result) string { return fmt.Sprintf("%d, %d", x.Timeouts, x.Failed) })
	add("refused, never able", func(x *Result) string { return fmt.Sprintf("%d, %d", x.Refused, x.Stuck) })
	add("wait mean", func(x *Result) string { return span(x.Wait.Mean) })
	add("wait p50 / p95", func(x *Result) string { return span(x.Wait.P50) + " / " + span(x.Wait.P95) })
	add("wait p99 / max", func(x *Result) string { return span(x.Wait.P99) + " / " + span(x.Wait.Max) })
	add("bounded slowdown mean / p95", func(x *Result) string { return fmt.Sprintf("%.2f / %.2f", x.Slowdown.Mean, x.Slowdown.P95) })
	add("utilisation", func(x *Result) string { return fmt.Sprintf("%.1f %%", 100*x.Utilisation) })
	add("  while jobs come", func(x *Result) string { return fmt.Sprintf("%.1f %%", 100*x.UtilisationLoaded) })
	add("GPU hours delivered", func(x *Result) string { return amount(x.GPUHours) })
	add("makespan", func(x *Result) string { return span(x.Makespan) })
	add("leaf spread optimal", func(x *Result) string {
		if x.Spread.Jobs == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f %% of %d, ratio %.3f", 100*x.Spread.Optimal, x.Spread.Jobs, x.Spread.Ratio)
	})
	add("promise error p50 / p95", func(x *Result) string {
		if x.Promise.Jobs == 0 {
			return "-"
		}
		return span(x.Promise.Error.P50) + " / " + span(x.Promise.Error.P95)
	})
	add("promises, late", func(x *Result) string {
		if x.Promise.Jobs == 0 {
			return "-"
		}
		return fmt.Sprintf("%d, %d", x.Promise.Jobs, x.Promise.Late)
	})
	add("promises broken", func(x *Result) string { return x.Promise.brokenText() })
	add("decision p50 / p99", func(x *Result) string { return fmt.Sprintf("%.1f / %.1f us", x.Decide.P50, x.Decide.P99) })
	add("decisions a second", func(x *Result) string { return fmt.Sprintf("%.0f", x.DecisionsSec) })
	add("run in", func(x *Result) string { return fmt.Sprintf("%.2f s", x.WallSeconds) })
	add("decisionHash", func(x *Result) string { return x.DecisionHash })
	return rows
}

// brokenText says of how many jobs promises were broken, how often, and why.
func (p *Promises) brokenText() string {
	switch {
	case p.Jobs == 0:
		return "-"
	case p.Breaches == 0 && p.Unsaid == 0:
		return "none"
	}
	var text strings.Builder
	text.WriteString(fmt.Sprintf("of %d jobs, %d times", p.Broken, p.Breaches))
	for _, r := range p.Reasons {
		text.WriteString(fmt.Sprintf("; %d: %s", r.Times, r.Why))
	}
	if p.Unsaid > 0 {
		text.WriteString(fmt.Sprintf("; %d WITHOUT A REASON", p.Unsaid))
	}
	return text.String()
}

// amount is a number with as many digits as say something.
func amount(v float64) string {
	if v < 10 {
		return strconv.FormatFloat(round(v, 2), 'f', -1, 64)
	}
	return fmt.Sprintf("%.0f", v)
}

// span is seconds for people, in two units.
func span(seconds float64) string {
	s := int64(seconds + 0.5)
	switch {
	case seconds < 10 && seconds != float64(int64(seconds)):
		return fmt.Sprintf("%.1f s", seconds)
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s/3600%24)
}
