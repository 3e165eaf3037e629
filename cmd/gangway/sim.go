package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/sched"
	"github.com/gangway-hpc/gangway/sched/sim"
)

// simFlags are what "sim" takes.
type simFlags struct {
	shape     sim.Shape
	slurmConf string
	nodeList  string
	html      string
	format    string
	limits    string
	backfill  string
	seed      uint64
	jobs      int
	strict    bool
	compare   bool
}

func simVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim TRACE",
		Short: "run a trace of jobs through the scheduler",
		Long: `Run a trace of jobs through Gangway's scheduler by a virtual clock, and say how long
jobs waited, how well the cluster was used, whether promised starts were kept and how
fast decisions were. Nothing is started; no cluster is needed.

A trace is a log in the Standard Workload Format (also compressed by gzip), Philly's or
Alibaba's openb CSV, the generator YAML of Kueue's performance tests, or what
"sacct --parsable2" prints with its header. Lines that cannot be read are counted and
left out, unless --strict is given.

The cluster is made of --nodes, or read from Slurm's files with --slurm-conf, or from
openb's list of nodes with --node-list. Some traces say themselves what it was.

With --compare the same jobs also run through models of other policies: strict first
in, first out, and a main and backfill cycle of 30 seconds and 500 jobs. These are our
imitations, not other people's programs.`,
		Example: `gangway sim --nodes 52 --gpus-per-node 8 philly.csv
gangway sim --slurm-conf /etc/slurm --html report.html jobs.txt
gangway sim --json --compare --limits over --nodes 64 --cpus-per-node 2 log.swf.gz
sacct -aPX -S 2026-01-01 -o JobID,Submit,ElapsedRaw,Timelimit,AllocTRES,State >jobs.txt`,
		SuggestFor: []string{"simulate", "replay"},
	}
	var f simFlags
	flags := cmd.Flags()
	flags.IntVar(&f.shape.Nodes, "nodes", 0, "how many nodes the cluster has")
	flags.IntVar(&f.shape.CPUs, "cpus-per-node", 0, "CPUs of each node; without it 8 for each GPU")
	flags.IntVar(&f.shape.GPUs, "gpus-per-node", 0, "GPUs of each node")
	flags.IntVar(&f.shape.Leaf, "nodes-per-switch", 16, "nodes below each leaf switch")
	flags.StringVar(&f.slurmConf, "slurm-conf", "", "read the cluster from slurm.conf, gres.conf and topology.yaml or topology.conf in this directory (gangway slurm lint says what differs)")
	flags.StringVar(&f.nodeList, "node-list", "", "read the cluster from openb's CSV of nodes")
	flags.StringVar(&f.html, "html", "", "write a report with pictures to this file")
	flags.StringVar(&f.format, "format", "", "the trace's format, if it cannot be told: swf, philly, openb, kueue, sacct")
	flags.StringVar(&f.limits, "limits", string(sim.Exact), "time limits of jobs: exact; over (2 to 10 times too long); given (by the trace)")
	flags.StringVar(&f.backfill, "backfill", "", "conservative, easy or none; without it what slurm.conf says, or conservative")
	flags.Uint64Var(&f.seed, "seed", 1, "of the time limits that are too long")
	flags.IntVar(&f.jobs, "jobs", 0, "only the first so many jobs of the file")
	flags.BoolVar(&f.strict, "strict", false, "refuse a trace with a line that cannot be read")
	flags.BoolVar(&f.compare, "compare", false, "run the models of other policies too")
	completeFlag(cmd, "format", completeWords("swf", "philly", "openb", "kueue", "sacct"))
	completeFlag(cmd, "limits", completeWords("exact", "over", "given"))
	completeFlag(cmd, "backfill", completeWords(backfills()...))
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		given := cmd.Flags().Changed
		if err := f.check(given); err != nil {
			return err
		}
		report, err := f.reported(cmd.Context(), func() (*sim.Report, error) { return f.run(cmd.Context(), env, args[0], given) })
		if err != nil {
			return err
		}
		return out.Print(report)
	}
	return cmd
}

// reported runs a simulation and writes its report. The file is there before the run, so
// that one that cannot be written is known now and not after minutes.
func (f *simFlags) reported(ctx context.Context, run func() (*sim.Report, error)) (report *sim.Report, err error) {
	if f.html == "" {
		return run()
	}
	if at, err := os.Stat(filepath.Dir(f.html)); err != nil || !at.IsDir() {
		return nil, fmt.Errorf("write report %s: %s is no directory", f.html, filepath.Dir(f.html))
	}
	var failed error
	err = fsx.WriteFile(ctx, f.html, fsx.Options{}, func(w *os.File) error {
		if report, failed = run(); failed != nil {
			return failed
		}
		return report.HTML(w)
	})
	if err != nil && failed == nil {
		err = fmt.Errorf("write report %s: %w", f.html, err)
	}
	return report, err
}

// backfills are the names of job.Conservative, job.EASY and job.None, in their order.
func backfills() []string { return []string{"conservative", "easy", "none"} }

// run reads the trace and the cluster, and runs one through the other.
func (f *simFlags) run(ctx context.Context, env *cli.Env, name string, given func(flag string) bool) (*sim.Report, error) {
	trace, err := sim.Open(name, sim.ReadOptions{Format: sim.Format(f.format), Strict: f.strict, Max: f.jobs})
	if err != nil {
		return nil, traceFault(err, f.strict)
	}
	if (trace.Cluster != nil || trace.Procs > 0) && f.shape.Nodes == 0 {
		for _, name := range []string{"cpus-per-node", "gpus-per-node", "nodes-per-switch"} {
			if given(name) && (trace.Cluster != nil || name != "nodes-per-switch") {
				return nil, fault.Usage(fmt.Errorf("--%s without --nodes: the trace says what it ran on", name), "say --nodes too, or leave it out")
			}
		}
	}
	cluster, err := f.cluster(trace, env.Stderr)
	if err != nil {
		return nil, err
	}
	if f.backfill != "" {
		cluster.Config.Backfill = job.Backfill(slices.Index(backfills(), f.backfill))
	}
	report := sim.NewReport(trace, cluster)
	add := func(p sim.Policy, policy string, model bool) error {
		o := sim.Options{Limits: sim.Limits(f.limits), Seed: f.seed, Progress: progressOf(env, policy)}
		r, err := sim.Run(ctx, p, cluster, trace, o)
		if errors.Is(err, sim.ErrTooSmall) {
			return &fault.Error{What: err, Hint: "take a larger cluster: --nodes, --cpus-per-node, --gpus-per-node; trace and cluster have to count the same, GPUs or CPUs"}
		}
		if err != nil {
			return fmt.Errorf("simulate %s: %w", policy, err)
		}
		if o.Progress != nil {
			fmt.Fprint(env.Stderr, "\r\x1b[K")
		}
		r.Policy, r.Model = policy, model
		report.Results = append(report.Results, r)
		return nil
	}
	name = "gangway (" + backfills()[cluster.Config.Backfill] + ")"
	if err := add(sched.New(), name, false); err != nil || !f.compare {
		return report, err
	}
	for _, m := range []*sim.Model{sim.CycleModel(), sim.FIFOModel()} {
		if err := add(m, m.Name(), true); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// progressOf tells on a terminal how far a run is.
func progressOf(env *cli.Env, policy string) func(ended, all int) {
	if !env.Terminal(env.Stderr) {
		return nil
	}
	return func(ended, all int) { fmt.Fprintf(env.Stderr, "\r\x1b[K%s: %d of %d jobs\r", policy, ended, all) }
}

// check refuses flags that contradict each other.
func (f *simFlags) check(given func(flag string) bool) error {
	sources := 0
	for _, given := range []bool{f.shape.Nodes != 0, f.slurmConf != "", f.nodeList != ""} {
		if given {
			sources++
		}
	}
	s := f.shape
	switch {
	case sources > 1:
		return fault.Usage(errors.New("the cluster is given twice"), "use one of --nodes, --slurm-conf and --node-list")
	case s.Leaf < 1:
		return fault.Usage(errors.New("no nodes below a leaf switch"), "use --nodes-per-switch=1 or more")
	case s.Nodes < 0 || s.CPUs < 0 || s.GPUs < 0 || f.jobs < 0:
		return fault.Usage(errors.New("a number of nodes, CPUs, GPUs or jobs is negative"), "for example --nodes 52 --cpus-per-node 64 --gpus-per-node 8")
	case s.Nodes > 1<<20 || s.CPUs > 1<<16-1 || s.GPUs > 64:
		return fault.Usage(errors.New("the cluster is too large"), "at most 1048576 nodes of 65535 CPUs and 64 GPUs")
	}
	for _, name := range []string{"cpus-per-node", "gpus-per-node", "nodes-per-switch"} {
		if f.slurmConf+f.nodeList != "" && given(name) {
			return fault.Usage(fmt.Errorf("--%s, of nodes that a file describes", name), "leave it out, or say --nodes in place of the file")
		}
	}
	if given("seed") && f.limits != string(sim.Over) {
		return fault.Usage(errors.New("--seed, and nothing that is drawn"), "say --limits over, or leave it out")
	}
	for _, choice := range []struct{ flag, value, valid string }{
		{"limits", f.limits, " exact over given "}, {"backfill", f.backfill, "  " + strings.Join(backfills(), " ") + " "}, {"format", f.format, "  swf philly openb kueue sacct "},
	} {
		if !strings.Contains(choice.valid, " "+choice.value+" ") {
			return fault.Usage(fmt.Errorf("--%s %q is not known", choice.flag, choice.value), "valid are: "+strings.TrimSpace(choice.valid))
		}
	}
	return nil
}

// traceFault says what to do about a trace that cannot be read.
func traceFault(err error, strict bool) error {
	if _, ok := errors.AsType[*sim.LineError](err); ok {
		hint := "mend the line; if it is a line of another format, name that: --format swf, philly, openb, kueue or sacct"
		if strict {
			hint = "mend the line; without --strict such lines are counted and left out"
		}
		return &fault.Error{What: err, Hint: hint}
	}
	if errors.Is(err, sim.ErrDamaged) {
		return &fault.Error{What: err, Hint: "fetch it again; gzip -t says whether it is whole"}
	}
	if errors.Is(err, sim.ErrFormat) {
		return &fault.Error{What: err, Hint: "name its format: --format swf, philly, openb, kueue or sacct"}
	}
	return err
}

// cluster is the machine that the flags describe, or else the trace.
func (f *simFlags) cluster(t *sim.Trace, talk io.Writer) (*sim.Cluster, error) {
	switch {
	case f.slurmConf != "":
		c, err := slurm.Load(f.slurmConf)
		if err != nil {
			return nil, err
		}
		for _, w := range c.Warnings {
			fmt.Fprintf(talk, "gangway: warning: %s\n", w)
		}
		if c.More > 0 {
			fmt.Fprintf(talk, "gangway: warning: %d more settings cannot do what was meant, or are otherwise than in Slurm; see gangway slurm lint %s\n", c.More, f.slurmConf)
		}
		return &sim.Cluster{Name: c.Name, Nodes: c.Nodes, Partitions: c.Partitions, Network: c.Network, Config: c.Config}, nil
	case f.nodeList != "":
		list, err := os.Open(f.nodeList)
		if err != nil {
			return nil, fmt.Errorf("read nodes: %w", err)
		}
		defer list.Close()
		c, err := sim.ReadNodes(list)
		if err != nil {
			return nil, fmt.Errorf("read nodes %s: %w", f.nodeList, err)
		}
		return c, nil
	case f.shape.Nodes > 0:
		if f.shape.CPUs == 0 {
			f.shape.CPUs = max(8*f.shape.GPUs, 1)
		}
		return sim.Uniform(f.shape), nil
	case t.Cluster != nil:
		return t.Cluster, nil
	case t.Procs > 0:
		nodes := max(t.Nodes, 1)
		if t.Nodes == 0 || t.Procs%nodes != 0 {
			nodes = t.Procs // processors by themselves
		}
		return sim.Uniform(sim.Shape{Nodes: nodes, CPUs: t.Procs / nodes, Leaf: f.shape.Leaf}), nil
	}
	return nil, fault.Usage(errors.New("the trace does not say what it ran on"), "say it: --nodes 52 --cpus-per-node 64 --gpus-per-node 8, or --slurm-conf DIR")
}
