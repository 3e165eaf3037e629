package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// sched measures the scheduler: how fast it decides, what waits come of it, and Slurm's
// controller beside it.
func (b *bench) sched() error {
	program := filepath.Join(b.dir, "sched.test")
	build := exec.CommandContext(b.ctx, "go", "test", "-c", "-o", program, "./sched")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build the scheduler's tests: %w", err)
	}
	for _, part := range []func(string) error{b.schedCore, b.schedSpread} {
		if err := part(program); err != nil {
			return err
		}
	}
	for _, part := range []func() error{b.schedPolicy, b.schedSlurm} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// coreFigure is one figure of a Go benchmark of package sched. The cluster of all of them
// is 10,000 nodes of 8 GPUs below a tree of three levels.
type coreFigure struct {
	bench, times string // which, and how often within a round
	unit         string // of the figure, as the benchmark reports it
	scale        float64
	what, format string
	target       string
}

func coreFigures() []coreFigure {
	const ns, cpuNS, ms = "ns/op", "cpu-ns/op", 1e-6
	return []coreFigure{
		{"Decisions", "50000x", "decisions/s", 1e-3, "decisions a second, Philly mix, 90 % full", "%.0f k", ">= 200 k"},
		{"Decisions", "", "p99-us", 1, "... submit and decide, p99", "%.1f us", "<= 50 us"},
		{"Gang1250", "20x", ns, ms, "gang of 1,250 nodes, submit and decide", "%.2f ms", "<= 1 ms"},
		{"Replan/unconstrained", "3x", ns, ms, "full conservative replan of 100,000 jobs", "%.0f ms", "<= 250 ms"},
		{"Replan/unconstrained", "", cpuNS, ms, "... processor time", "%.0f ms", ""},
		{"Replan/topology", "1x", ns, ms, "full replan of 100,000 with topology, shapes, limits", "%.0f ms", "<= 2,000 ms"},
		{"Replan/topology", "", cpuNS, ms, "... processor time", "%.0f ms", ""},
		{"Repair", "20x", ns, ms, "repair after a completion, 100,000 pending", "%.2f ms", "<= 5 ms"},
		{"Explain/last", "20x", ns, ms, "explain a pending job, 100,000 pending", "%.1f ms", "<= 50 ms"},
		{"Explain/any", "20x", ns, ms, "... from anywhere in the queue", "%.1f ms", "<= 50 ms"},
		{"Explain/any", "", cpuNS, ms, "... processor time", "%.1f ms", ""},
		{"Explain/few", "20x", ns, ms, "... with 2,000 pending", "%.1f ms", "<= 50 ms"},
		{"Fork", "100x", ns, ms, "what-if fork, 100,000 pending", "%.3f ms", "<= 1 ms"},
		{"Restore", "3x", ns, ms, "restore of 100,000 jobs", "%.0f ms", "<= 1,000 ms"},
		{"Restore", "", cpuNS, ms, "... processor time", "%.0f ms", ""},
		{"Memory", "1x", "MB", 1, "memory with 100,000 jobs", "%.0f MB", "<= 200 MB"},
	}
}

// schedCore runs the Go benchmarks on one processor, and reports medians of the rounds.
func (b *bench) schedCore(program string) error {
	var values map[string][]float64
	for _, f := range coreFigures() {
		if f.times != "" {
			var err error
			if values, err = b.goBench(program, f.bench, f.times); err != nil {
				return err
			}
		}
		list := values[f.unit]
		if len(list) == 0 {
			return fmt.Errorf("benchmark %s has no figure %s", f.bench, f.unit)
		}
		b.add(f.what, fmt.Sprintf(f.format, median(list)*f.scale), "-", "", f.target)
	}
	return nil
}

// goBench runs one Go benchmark on one processor, as often as there are rounds; values are
// by their units.
func (b *bench) goBench(program, name, times string) (map[string][]float64, error) {
	pattern := "^Benchmark" + strings.ReplaceAll(name, "/", "$/^") + "$"
	cmd := exec.CommandContext(b.ctx, program, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", times, "-test.count", strconv.Itoa(b.rounds))
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("benchmark %s: %w\n%s", name, err, text)
	}
	values := map[string][]float64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark %s: %w", name, err)
			}
			values[fields[i+1]] = append(values[fields[i+1]], v)
		}
	}
	return values, nil
}

// schedSpread runs the comparison with a scheduler that tries every set of nodes.
func (b *bench) schedSpread(program string) error {
	cmd := exec.CommandContext(b.ctx, program, "-test.run", "^TestOracle$", "-test.v", "-rapid.checks", strconv.Itoa(1000*b.rounds), "-rapid.nofailfile")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("compare with brute force: %w\n%s", err, text)
	}
	m := regexp.MustCompile(`(\d+) of (\d+) jobs have the best spread`).FindSubmatch(text)
	if m == nil {
		return fmt.Errorf("compare with brute force: no figure in\n%s", text)
	}
	best, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		return err
	}
	all, err := strconv.ParseFloat(string(m[2]), 64)
	if err != nil {
		return err
	}
	b.add("best spread of brute-forced small cases", fmt.Sprintf("%.2f %% of %.0f", 100*best/all, all), "-", "", ">= 99 %")
	return nil
}

// simulated is what of the output of "gangway sim --json" is looked at.
type simulated struct {
	Results []struct {
		Policy  string           `json:"policy"`
		Wait    sim.Distribution `json:"wait_s"`
		Promise sim.Promises     `json:"promises"`
		Decide  sim.Latency      `json:"decide_latency"`
		Rate    float64          `json:"decisions_per_s"`
	} `json:"results"`
}

// schedPolicy compares waits with those of the models at load 0.90: Philly's own trace if
// TRACES names the directory that has it, else one made from its published marginals.
func (b *bench) schedPolicy() error {
	name, nodes, target := "Philly", 52, "< 1"
	file := filepath.Join(os.Getenv("TRACES"), "philly", "philly-sia.csv")
	if os.Getenv("TRACES") == "" {
		// Jobs that come at random hardly wait on more nodes.
		name, nodes, target = "Philly's marginals", 16, ""
		file = filepath.Join(b.dir, "marginals.csv")
		if err := os.WriteFile(file, marginals(10_000, 8*nodes), 0o644); err != nil {
			return err
		}
	}
	for _, limits := range []string{"exact", "over"} {
		cmd := exec.CommandContext(b.ctx, b.gangway, "sim", "--json", "--compare", "--limits", limits,
			"--nodes", strconv.Itoa(nodes), "--cpus-per-node", "64", "--gpus-per-node", "8", file)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("simulate %s: %w", name, err)
		}
		var s simulated
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("simulate %s: %w", name, err)
		}
		ours := s.Results[0]
		for _, m := range s.Results[1:] {
			what := fmt.Sprintf("%s at load 0.90, limits %s: mean wait", name, limits)
			b.add(what, wait(ours.Wait.Mean), fmt.Sprintf("%s (%s)", wait(m.Wait.Mean), m.Policy), part(ours.Wait.Mean, m.Wait.Mean), target)
			b.add("... p95 wait", wait(ours.Wait.P95), wait(m.Wait.P95), part(ours.Wait.P95, m.Wait.P95), target)
		}
		b.add("... promises: given, late, broken", fmt.Sprintf("%d, %d, %d", ours.Promise.Jobs, ours.Promise.Late, ours.Promise.Broken), "-", "", "0 late, 0 broken")
		b.add("... decisions a second; p99 of one", fmt.Sprintf("%.0f k; %.1f us", ours.Rate/1e3, ours.Decide.P99), "-", "", "")
	}
	return nil
}

func wait(seconds float64) string {
	if seconds < 3600 {
		return fmt.Sprintf("%.0f s", seconds)
	}
	return fmt.Sprintf("%.2f h", seconds/3600)
}

// part is a ratio; nothing where there is none.
func part(a, b float64) string {
	if b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}

// marginals are jobs of Philly's sizes and lengths at load 0.90, as its CSV.
func marginals(jobs, gpus int) []byte {
	var text bytes.Buffer
	text.WriteString("timestamp,duration,num_gpus\n")
	for _, j := range sim.PhillyMarginals().Generate(jobs, gpus, 0.9, 1).Jobs {
		at := time.UnixMilli(int64(j.Submit) + 1_500_000_000_000).UTC()
		fmt.Fprintf(&text, "%s,%d,%d\n", at.Format(time.DateTime), j.Run/job.Second, j.GPUs)
	}
	return text.Bytes()
}
