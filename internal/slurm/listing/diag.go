package listing

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Diag is a command line of sdiag.
type Diag struct {
	Version, Help, Usage bool
	Reset                bool
	Clusters             []string // -M; nil: not said

	by byte // i, t, T; 0: by how often
}

var diagFlags = []slurm.Flag{
	{Long: "all", Short: 'a'},
	{Long: "cluster", Short: 'M', Argument: slurm.RequiredArgument},
	{Long: "clusters", Argument: slurm.RequiredArgument},
	{Long: "help", Short: 'h'},
	{Long: "json", Argument: slurm.OptionalArgument},
	{Long: "reset", Short: 'r'},
	{Long: "sort-by-id", Short: 'i'},
	{Long: "sort-by-time", Short: 't'},
	{Long: "sort-by-time2", Short: 'T'},
	{Long: "usage"},
	{Long: "version", Short: 'V'},
	{Long: "yaml", Argument: slurm.OptionalArgument},
}

// ParseDiag reads sdiag's command line, without the program's name. Operands mean nothing, as
// for Slurm's.
func ParseDiag(args []string) (*Diag, error) {
	given, _, err := slurm.Getopt(diagFlags, args, false)
	if err != nil {
		return nil, err
	}
	q := &Diag{}
	for _, g := range given {
		switch name := diagFlags[g.Flag].Long; name {
		case "all": // is the default
		case "cluster", "clusters":
			q.Clusters = words(g.Value)
		case "help":
			q.Help = true
		case "usage":
			q.Usage = true
		case "version":
			q.Version = true
		case "reset":
			q.Reset = true
		case "sort-by-id":
			q.by = 'i'
		case "sort-by-time":
			q.by = 't'
		case "sort-by-time2":
			q.by = 'T'
		default:
			return nil, unsupported(name)
		}
	}
	return q, nil
}

// Print writes the counts as sdiag does. What it has of backfilling is one thing here with the
// rest of scheduling: each cycle plans all jobs that wait.
func (q *Diag) Print(w io.Writer, v *View, d *api.Diag) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	stars := strings.Repeat("*", 55)
	line("%s", stars)
	line("sdiag output at %s", v.stamp(d.Now))
	line("Data since      %s", v.stamp(d.Since))
	line("%s", stars)
	line("Server thread count:  %d", d.Requests)
	line("Agent queue size:     %d", d.ToAgents)
	line("Agent count:          %d", d.Sessions)
	line("Agent thread count:   %d", d.Sessions)
	line("DBD Agent queue size: %d", d.Unstored)
	line("")
	line("Jobs submitted: %d", d.Submitted)
	line("Jobs started:   %d", d.Started)
	line("Jobs completed: %d", d.Completed)
	line("Jobs canceled:  %d", d.Cancelled)
	line("Jobs failed:    %d", d.Failed)
	line("")
	line("Job states ts:  %s", v.stamp(d.Now))
	line("Jobs pending:   %d", d.Pending)
	line("Jobs running:   %d", d.Running)
	line("")
	line("Main schedule statistics (microseconds):")
	cycles(line, &d.Cycles)
	if d.Cycles.Count > 0 {
		line("\tMean depth cycle:  %d", d.Cycles.Depth/d.Cycles.Count)
	}
	if minutes := d.Now.Sub(d.Since) / job.Minute; minutes > 0 {
		line("\tCycles per minute: %d", d.Cycles.Count/uint64(minutes))
	}
	line("\tLast queue length: %d", d.Pending)
	line("")
	line("Controller statistics (microseconds):")
	cycles(line, &d.Turns)
	line("")
	line("Storage statistics (microseconds):")
	cycles(line, &d.Commits)
	line("")
	line("Latency for 1000 calls to gettimeofday(): %d microseconds", d.ClockCalls)
	line("")
	line("Remote Procedure Call statistics by message type")
	for _, c := range q.calls(d.Calls) {
		line("\t%-40s(%5d) count:%-6d ave_time:%-6d total_time:%d", c.Name, c.UID, c.Count, c.Sum/int64(max(1, c.Count)), c.Sum)
	}
	line("")
	line("Remote Procedure Call statistics by user")
	users := slices.Clone(d.Users)
	q.sort(users)
	for _, c := range users {
		line("\t%-16s(%8d) count:%-6d ave_time:%-6d total_time:%d", c.Name, c.UID, c.Count, c.Sum/int64(max(1, c.Count)), c.Sum)
	}
	line("")
	line("Pending RPC statistics")
	line("\tNo pending RPCs")
	_, err := io.WriteString(w, b.String())
	return err
}

func cycles(line func(string, ...any), c *api.Cycles) {
	line("\tLast cycle:   %d", c.Last)
	line("\tMax cycle:    %d", c.Max)
	line("\tTotal cycles: %d", c.Count)
	if c.Count > 0 {
		line("\tMean cycle:   %d", c.Sum/int64(c.Count))
	}
}

// stamp is a moment as sdiag has it.
func (v *View) stamp(t job.Time) string {
	at := time.UnixMilli(int64(t)).In(v.Zone)
	return fmt.Sprintf("%s (%d)", at.Format("Mon Jan _2 15:04:05 2006"), at.Unix())
}

// rpcs are Slurm's messages that ask for what our requests do, with their numbers.
var rpcs = map[string]struct {
	name string
	id   uint32
}{
	"GET /v1":                    {"REQUEST_PING", 1008},
	"GET /v1/licenses":           {"REQUEST_LICENSE_INFO", 1021},
	"GET /v1/jobs":               {"REQUEST_JOB_INFO", 2003},
	"GET /v1/steps":              {"REQUEST_JOB_STEP_INFO", 2005},
	"GET /v1/nodes":              {"REQUEST_NODE_INFO", 2007},
	"GET /v1/partitions":         {"REQUEST_PARTITION_INFO", 2009},
	"GET /v1/jobs/{id}":          {"REQUEST_JOB_INFO_SINGLE", 2021},
	"GET /v1/diag":               {"REQUEST_STATS_INFO", 2035},
	"GET /v1/jobs/{id}/script":   {"REQUEST_BATCH_SCRIPT", 2051},
	"POST /v1/jobs/{id}":         {"REQUEST_UPDATE_JOB", 3001},
	"POST /v1/nodes/{name}":      {"REQUEST_UPDATE_NODE", 3002},
	"POST /v1/partitions/{name}": {"REQUEST_UPDATE_PARTITION", 3005},
	"POST /v1/jobs":              {"REQUEST_SUBMIT_BATCH_JOB", 4003},
	"POST /v1/jobs/{id}/steps":   {"REQUEST_JOB_STEP_CREATE", 5001},
	"DELETE /v1/jobs/{id}":       {"REQUEST_KILL_JOB", 5032},
}

// calls names kinds of requests as Slurm does where it has such, and sorts them.
func (q *Diag) calls(list []api.Called) []api.Called {
	all := slices.Clone(list)
	for i := range all {
		if m, ok := rpcs[all[i].Name]; ok {
			all[i].Name, all[i].UID = m.name, m.id
		}
	}
	q.sort(all)
	return all
}

func (q *Diag) sort(all []api.Called) {
	mean := func(c *api.Called) int64 { return c.Sum / int64(max(1, c.Count)) }
	slices.SortStableFunc(all, func(a, b api.Called) int {
		switch q.by {
		case 'i':
			return cmp.Compare(a.UID, b.UID)
		case 't':
			return cmp.Compare(b.Sum, a.Sum)
		case 'T':
			return cmp.Compare(mean(&b), mean(&a))
		}
		return cmp.Compare(b.Count, a.Count)
	})
}
