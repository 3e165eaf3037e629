package listing

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Config writes what of "scontrol show config" there is here: what is not there has no line.
func (v *View) Config(w io.Writer, c *api.Cluster) error {
	count := func(n int, none string) string {
		if n == 0 {
			return none
		}
		return strconv.Itoa(n)
	}
	seconds := func(d, usual job.Duration) string { return fmt.Sprintf("%d sec", cmp.Or(d, usual)/job.Second) }
	var licenses []string
	for _, l := range c.Licenses {
		licenses = append(licenses, fmt.Sprintf("%s:%d", l.Name, l.Total))
	}
	topology := "topology/none"
	switch {
	case len(c.Network.Blocks) > 0:
		topology = "topology/block"
	case len(c.Network.Switches) > 0:
		topology = "topology/tree"
	}
	scheduler := "sched/backfill"
	if c.Config.Backfill == job.None {
		scheduler = "sched/builtin"
	}
	p, flags := programsOf(c)
	maxArray, weights := c.Config.MaxArray, &c.Config.Weights
	if maxArray == 0 {
		maxArray = 1001
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Configuration data as of %s\n", v.when(v.Now, ""))
	for _, line := range [][2]string{
		{"AccountingStorageType", "accounting_storage/gangway"},
		{"BOOT_TIME", v.when(c.Began, "")},
		{"ClusterName", c.Name},
		{"Epilog", null(strings.Join(p.Epilog, ","))},
		{"GangwayVersion", c.Version},
		{"HealthCheckInterval", strconv.FormatInt(int64(p.HealthEvery/job.Second), 10) + " sec"},
		{"HealthCheckNodeState", cmp.Or(strings.Join(p.HealthStates, ","), "ANY")},
		{"HealthCheckProgram", null(p.Health)},
		{"JobRequeue", "1"},
		{"KillWait", "30 sec"},
		{"Licenses", null(strings.Join(licenses, ","))},
		{"MaxArraySize", number(maxArray)},
		{"MaxJobCount", count(c.Config.MaxJobs, "UNLIMITED")},
		{"MinJobAge", seconds(c.Config.MinJobAge, 5*job.Minute)},
		{"PreemptType", "preempt/none"},
		{"PriorityMaxAge", slurm.FormatTime(cmp.Or(weights.MaxAge, 7*job.Day))},
		{"PriorityType", "priority/multifactor"},
		{"PriorityWeightAge", number(weights.Age)},
		{"PriorityWeightJobSize", number(weights.Size)},
		{"PriorityWeightPartition", number(weights.Partition)},
		{"Prolog", null(strings.Join(p.Prolog, ","))},
		{"PrologEpilogTimeout", count(int(p.PrologTimeout/job.Second), "65534")},
		{"PrologFlags", null(strings.Join(flags, ","))},
		{"SchedulerType", scheduler},
		{"SelectType", "select/cons_tres"},
		{"SLURM_VERSION", slurm.Version},
		{"SlurmctldHost[0]", "localhost"},
		{"TopologyPlugin", topology},
	} {
		fmt.Fprintf(&b, "%-23s = %s\n", line[0], line[1])
	}
	b.WriteString("\nSlurmctld(primary) at localhost is UP\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// programsOf are the programs that agents run, and their flags.
func programsOf(c *api.Cluster) (p job.Programs, flags []string) {
	if c.Programs != nil {
		p = *c.Programs
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"Alloc", p.Alloc}, {"DeferBatch", p.DeferBatch}, {"Serial", p.Serial}} {
		if flag.set {
			flags = append(flags, flag.name)
		}
	}
	return p, flags
}

// Licenses writes licences as "scontrol show licenses" does.
func Licenses(w io.Writer, all []api.LicenseUse, c *Control) error {
	gap := "\n    "
	if c.OneLine {
		gap = " "
	}
	found := false
	for _, l := range all {
		if len(c.Args) > 0 && c.Args[0] != l.Name {
			continue
		}
		found = true
		if _, err := fmt.Fprintf(w, "LicenseName=%s%sTotal=%d Used=%d Free=%d Reserved=0 Remote=no\n", l.Name, gap, l.Total, l.Used, max(0, l.Total-l.Used)); err != nil {
			return err
		}
	}
	if !found && len(c.Args) == 0 && !c.Quiet {
		_, err := io.WriteString(w, "No licenses configured in Slurm.\n")
		return err
	}
	return nil
}

// Topology writes the switches as "scontrol show topology" does: all, one, or those above a
// node.
func Topology(w io.Writer, net *job.Network, c *Control) error {
	say := func(format string, args ...any) error {
		return &slurm.Refusal{Lines: []string{"error: " + fmt.Sprintf(format, args...)}} // which is no failure for Slurm
	}
	if len(net.Switches) == 0 {
		if len(c.Args) > 0 {
			return say("Topology information contains no switch or node named %s", c.Args[0])
		}
		return say("No topology information available")
	}
	t := &tree{by: map[string]*job.Switch{}}
	for i := range net.Switches {
		t.by[net.Switches[i].Name] = &net.Switches[i]
	}
	type line struct {
		level int
		text  string
	}
	var lines []line
	for i := range net.Switches {
		s := &net.Switches[i]
		nodes, level := t.below(s, 0)
		if len(c.Args) > 0 && s.Name != c.Args[0] && !slices.Contains(nodes, c.Args[0]) {
			continue
		}
		slurm.SortHosts(nodes)
		text := fmt.Sprintf("SwitchName=%s Level=%d LinkSpeed=1 Nodes=%s", s.Name, level, slurm.Fold(nodes))
		if len(s.Switches) > 0 {
			text += " Switches=" + slurm.Fold(s.Switches)
		}
		lines = append(lines, line{level, text})
	}
	if lines == nil {
		return say("Topology information contains no switch or node named %s", c.Args[0])
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.level, b.level) })
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l.text); err != nil {
			return err
		}
	}
	return nil
}

// tree finds what is below switches.
type tree struct{ by map[string]*job.Switch }

// below are the nodes under a switch, and how many levels of switches are.
func (t *tree) below(s *job.Switch, depth int) (nodes []string, level int) {
	nodes = slices.Clone(s.Nodes)
	if depth > len(t.by) {
		return nodes, 0 // it is its own child
	}
	for _, name := range s.Switches {
		if child := t.by[name]; child != nil {
			more, under := t.below(child, depth+1)
			nodes, level = append(nodes, more...), max(level, under+1)
		}
	}
	return nodes, level
}
