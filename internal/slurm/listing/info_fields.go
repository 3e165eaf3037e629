package listing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// nodeFields are sinfo's.
var nodeFields = []Field[Row]{
	{Letter: 'a', Name: "available", Heading: "AVAIL", Text: func(_ *View, r *Row) string { return partitionState(r.Partition) }},
	{Letter: 'b', Name: "featuresact", Heading: "ACTIVE_FEATURES", Text: rowFeatures},
	{Letter: 'c', Name: "cpus", Heading: "CPUS", Text: func(_ *View, r *Row) string { return least(r, cpusOf) }},
	same[Row]('d', "disk", "TMP_DISK", "0"),
	{Letter: 'e', Name: "freemem", Heading: "FREE_MEM", Text: func(_ *View, r *Row) string {
		return fromTo(r, func(n *api.Node) int64 { return n.FreeMemory })
	}},
	{Letter: 'f', Name: "features", Heading: "AVAIL_FEATURES", Text: rowFeatures},
	{Letter: 'g', Name: "groups", Heading: "GROUPS", Text: func(_ *View, r *Row) string { return or(strings.Join(r.Partition.AllowGroups, ","), "all") }},
	{Letter: 'h', Name: "oversubscribe", Heading: "OVERSUBSCRIBE", Text: func(_ *View, r *Row) string { return oversubscribe(r.Partition) }},
	{Letter: 'l', Name: "time", Heading: "TIMELIMIT", Text: func(_ *View, r *Row) string { return maxTime(r.Partition.MaxTime, "infinite") }},
	{Letter: 'm', Name: "memory", Heading: "MEMORY", Text: func(_ *View, r *Row) string {
		return least(r, func(n *api.Node) int64 { return n.Memory })
	}},
	{Letter: 'n', Name: "nodehost", Heading: "HOSTNAMES", Text: nodeNames},
	{Letter: 'o', Name: "nodeaddr", Heading: "NODE_ADDR", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string { return or(n.Addr, n.Name) })
	}},
	{Letter: 'p', Name: "prioritytier", Heading: "PRIO_TIER", Text: func(_ *View, r *Row) string { return number(max(1, r.Partition.Tier)) }},
	same[Row]('r', "root", "ROOT", "no"),
	{Letter: 's', Name: "size", Heading: "JOB_SIZE", Text: func(_ *View, r *Row) string { return jobSize(r.Partition) }},
	{Letter: 't', Name: "statecompact", Heading: "STATE", Text: func(_ *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return shortNodeState(n.StateText) }), "n/a")
	}},
	{Letter: 'u', Name: "user", Heading: "USER", Text: func(_ *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return n.ReasonUser }), "Unknown")
	}},
	{Letter: 'v', Name: "version", Heading: "VERSION", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string { return n.Version })
	}},
	{Letter: 'w', Name: "weight", Heading: "WEIGHT", Text: func(_ *View, r *Row) string {
		return least(r, func(n *api.Node) int64 { return int64(max(1, n.Weight)) })
	}},
	{Letter: 'z', Name: "socketcorethread", Heading: "S:C:T", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string {
			s, c, t := geometry(n)
			return fmt.Sprintf("%d:%d:%d", s, c, t)
		}) + more(r, func(n *api.Node) int64 { s, c, t := geometry(n); return int64(s * c * t) })
	}},
	{Letter: 'A', Name: "nodeai", Heading: "NODES(A/I)", Text: func(_ *View, r *Row) string {
		a, i, _ := nodeCounts(r)
		return fmt.Sprintf("%d/%d", a, i)
	}},
	same[Row]('B', "maxcpuspernode", "MAX_CPUS_PER_NODE", "UNLIMITED"),
	{Letter: 'C', Name: "cpusstate", Heading: "CPUS(A/I/O/T)", Text: cpuCounts},
	{Letter: 'D', Name: "nodes", Heading: "NODES", Text: func(_ *View, r *Row) string { return strconv.Itoa(len(r.Nodes)) }},
	{Letter: 'E', Name: "reason", Heading: "REASON", Text: func(_ *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return n.Reason }), "none")
	}},
	{Letter: 'F', Name: "nodeaiot", Heading: "NODES(A/I/O/T)", Text: func(_ *View, r *Row) string {
		a, i, o := nodeCounts(r)
		return fmt.Sprintf("%d/%d/%d/%d", a, i, o, a+i+o)
	}},
	{Letter: 'G', Name: "gres", Heading: "GRES", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string { return null(nodeGRES(n)) })
	}},
	{Letter: 'H', Name: "timestamp", Heading: "TIMESTAMP", Text: func(v *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return v.when(n.ReasonSince, "Unknown") }), "Unknown")
	}},
	{Letter: 'I', Name: "priorityjobfactor", Heading: "PRIO_JOB_FACTOR", Text: func(_ *View, r *Row) string { return number(max(1, r.Partition.Priority)) }},
	{Letter: 'L', Name: "defaulttime", Heading: "DEFAULTTIME", Text: func(_ *View, r *Row) string { return maxTime(r.Partition.DefaultTime, "n/a") }},
	same[Row]('M', "preemptmode", "PREEMPT_MODE", "OFF"),
	{Letter: 'N', Name: "nodelist", Heading: "NODELIST", Text: nodeNames},
	{Letter: 'O', Name: "cpusload", Heading: "CPU_LOAD", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string { return load(n) })
	}},
	{Letter: 'P', Name: "partition", Heading: "PARTITION", Text: func(_ *View, r *Row) string {
		if r.Partition.Default {
			return r.Partition.Name + "*"
		}
		return r.Partition.Name
	}},
	{Letter: 'R', Name: "partitionname", Heading: "PARTITION", Text: func(_ *View, r *Row) string { return r.Partition.Name }},
	same[Row]('S', "allocnodes", "ALLOCNODES", "all"),
	{Letter: 'T', Name: "statelong", Heading: "STATE", Text: func(_ *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return n.StateText }), "n/a")
	}},
	{Letter: 'U', Name: "userlong", Heading: "USER", Text: func(_ *View, r *Row) string {
		return or(firstOf(r, func(n *api.Node) string { return n.ReasonUser }), "Unknown")
	}},
	{Letter: 'V', Name: "cluster", Heading: "CLUSTER", Text: func(*View, *Row) string { return "N/A" }},
	{Letter: 'X', Name: "sockets", Heading: "SOCKETS", Text: func(_ *View, r *Row) string {
		return least(r, func(n *api.Node) int64 { s, _, _ := geometry(n); return int64(s) })
	}},
	{Letter: 'Y', Name: "cores", Heading: "CORES", Text: func(_ *View, r *Row) string {
		return least(r, func(n *api.Node) int64 { _, c, _ := geometry(n); return int64(c) })
	}},
	{Letter: 'Z', Name: "threads", Heading: "THREADS", Text: func(_ *View, r *Row) string {
		return least(r, func(n *api.Node) int64 { _, _, t := geometry(n); return int64(t) })
	}},

	{Name: "allocmem", Heading: "ALLOCMEM", Text: func(_ *View, r *Row) string {
		return fromTo(r, func(n *api.Node) int64 { return n.UsedMemory })
	}},
	same[Row](0, "comment", "COMMENT", "(null)"),
	same[Row](0, "extra", "EXTRA", "(null)"),
	{Name: "gresused", Heading: "GRES_USED", Text: func(_ *View, r *Row) string {
		return firstOf(r, func(n *api.Node) string { return null(gresUsed(n)) })
	}},
	same[Row](0, "port", "PORT", "0"),
	{Name: "priority", Heading: "PRIO_TIER", Text: func(_ *View, r *Row) string { return number(max(1, r.Partition.Tier)) }},
	{Name: "statecomplete", Heading: "STATECOMPLETE", Text: func(_ *View, r *Row) string {
		return strings.ToLower(firstOf(r, func(n *api.Node) string { return FullState(n) }))
	}},
}

// firstOf is the text of the first node; those of a row are alike in it.
func firstOf(r *Row, text func(*api.Node) string) string {
	if len(r.Nodes) == 0 {
		return ""
	}
	return text(r.Nodes[0])
}

// least is the smallest number of the nodes, with a + if some have more.
func least(r *Row, value func(*api.Node) int64) string {
	if len(r.Nodes) == 0 {
		return "0"
	}
	low, _ := spread(r, value)
	return strconv.FormatInt(low, 10) + more(r, value)
}

// more is a + if some nodes have more than others.
func more(r *Row, value func(*api.Node) int64) string {
	if low, high := spread(r, value); low != high {
		return "+"
	}
	return ""
}

// fromTo is the smallest and the largest number of the nodes.
func fromTo(r *Row, value func(*api.Node) int64) string {
	low, high := spread(r, value)
	if low == high {
		return strconv.FormatInt(low, 10)
	}
	return fmt.Sprintf("%d-%d", low, high)
}

func spread(r *Row, value func(*api.Node) int64) (low, high int64) {
	for i, n := range r.Nodes {
		x := value(n)
		if i == 0 {
			low, high = x, x
		}
		low, high = min(low, x), max(high, x)
	}
	return low, high
}

func cpusOf(n *api.Node) int64 {
	if n.CPUs > 0 {
		return int64(n.CPUs)
	}
	s, c, t := geometry(n)
	return int64(s * c * t)
}

// geometry is sockets, cores a socket and threads a core; where only CPUs are known, each
// is a socket, as for Slurm.
func geometry(n *api.Node) (sockets, cores, threads int) {
	cores, threads = max(1, n.CoresPerSocket), max(1, n.ThreadsPerCore)
	if n.Sockets > 0 {
		return n.Sockets, cores, threads
	}
	return max(1, n.CPUs/(cores*threads)), cores, threads
}

func partitionState(p *api.Partition) string {
	return [...]string{"up", "down", "drain", "inact"}[min(int(p.State), 3)]
}

func oversubscribe(p *api.Partition) string {
	switch {
	case p.Exclusive:
		return "EXCLUSIVE"
	case p.Oversubscribe > 1:
		return fmt.Sprintf("FORCE:%d", p.Oversubscribe)
	}
	return "NO"
}

func maxTime(d job.Duration, none string) string {
	if d == 0 || d == job.Forever {
		return none
	}
	return span(d)
}

func jobSize(p *api.Partition) string {
	low := max(1, p.MinNodes)
	switch {
	case p.MaxNodes == 0:
		return fmt.Sprintf("%d-infinite", low)
	case p.MaxNodes == low:
		return strconv.Itoa(low)
	}
	return fmt.Sprintf("%d-%d", low, p.MaxNodes)
}

func rowFeatures(_ *View, r *Row) string {
	return firstOf(r, func(n *api.Node) string { return null(strings.Join(n.Features, ",")) })
}

func nodeNames(_ *View, r *Row) string {
	names := make([]string, len(r.Nodes))
	for i, n := range r.Nodes {
		names[i] = n.Name
	}
	slurm.SortHosts(names)
	return slurm.Fold(names)
}

// nodeCounts counts nodes that run jobs, are idle, and are neither.
func nodeCounts(r *Row) (allocated, idle, other int) {
	for _, n := range r.Nodes {
		switch strings.TrimRight(n.StateText, "*") {
		case "allocated", "mixed", "completing":
			allocated++
		case "idle", "planned":
			idle++
		default:
			other++
		}
	}
	return allocated, idle, other
}

func cpuCounts(_ *View, r *Row) string {
	var allocated, idle, other int64
	for _, n := range r.Nodes {
		total, used := cpusOf(n), int64(n.UsedCPUs)
		allocated += used
		switch strings.TrimRight(n.StateText, "*") {
		case "allocated", "mixed", "completing", "idle", "planned":
			idle += max(0, total-used)
		default:
			other += max(0, total-used)
		}
	}
	return fmt.Sprintf("%d/%d/%d/%d", allocated, idle, other, allocated+idle+other)
}

func nodeGRES(n *api.Node) string {
	var all []string
	for _, g := range n.GRES {
		all = append(all, gresText(g.Name, g.Type, g.Count))
	}
	return strings.Join(all, ",")
}

func gresText(name, kind string, count int64) string {
	if kind != "" {
		name += ":" + kind
	}
	return name + ":" + strconv.FormatInt(count, 10)
}

// gresUsed is what jobs have of a node's resources: gpu:h100:2(IDX:0-1).
func gresUsed(n *api.Node) string {
	var all []string
	for _, g := range n.GRES {
		var mask uint64
		count := int64(0)
		for _, d := range n.Used {
			if d.Name == g.Name && d.Type == g.Type {
				mask |= d.Mask
				count += d.Count
			}
		}
		text := gresText(g.Name, g.Type, count)
		switch {
		case mask != 0:
			text += "(IDX:" + Indices(mask) + ")"
		case count == 0:
			text += "(IDX:N/A)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}

// Indices are the numbers of a set of devices: 0-3,6.
func Indices(mask uint64) string {
	var ranges []job.Range
	for i := range uint32(64) {
		if mask&(1<<i) != 0 {
			ranges = append(ranges, job.Range{First: i, Last: i, Step: 1})
		}
	}
	return taskList(ranges)
}

func load(n *api.Node) string {
	if n.Seen == 0 {
		return "N/A"
	}
	return strconv.FormatFloat(n.Load, 'f', 2, 64)
}

// longState is the state's word without what it may be short for.
func longState(text string) string {
	switch text {
	case "alloc":
		return "allocated"
	case "mix":
		return "mixed"
	case "drng":
		return "draining"
	}
	return text
}

// shortNodeState is sinfo's compact form of a state, "*" and the like kept.
func shortNodeState(text string) string {
	word := strings.TrimRight(text, "*~#!%$@^-+")
	short, ok := map[string]string{
		"allocated": "alloc", "mixed": "mix", "completing": "comp", "drained": "drain", "draining": "drng", "unknown": "unk",
		"planned": "plnd", "failing": "failg", "future": "futr", "reserved": "resv",
	}[word]
	if !ok {
		short = word
	}
	return short + text[len(word):]
}

// FullState is a node's state as scontrol has it: IDLE+DRAIN.
func FullState(n *api.Node) string {
	var flags []string
	for _, f := range []struct {
		state job.NodeState
		word  string
	}{
		{job.NodeDrain, "DRAIN"}, {job.NodeMaint, "MAINTENANCE"}, {job.NodeFail, "FAIL"}, {job.NodeSuspect, "NOT_RESPONDING"},
	} {
		if n.State&f.state != 0 {
			flags = append(flags, f.word)
		}
	}
	base := "IDLE"
	switch {
	case n.State&job.NodeFuture != 0:
		base = "FUTURE"
	case n.State&job.NodeDown != 0:
		base = "DOWN"
	case n.State&job.NodeUnknown != 0:
		base = "UNKNOWN"
	case n.UsedCPUs > 0 && int64(n.UsedCPUs) >= cpusOf(n):
		base = "ALLOCATED"
	case n.UsedCPUs > 0 || len(n.Jobs) > 0:
		base = "MIXED"
	}
	if strings.HasSuffix(n.StateText, "*") && !slices.Contains(flags, "NOT_RESPONDING") {
		flags = append(flags, "NOT_RESPONDING")
	}
	return strings.Join(append([]string{base}, flags...), "+")
}

// SortNodes puts nodes in the order in which people count them.
func SortNodes(nodes []api.Node) {
	slices.SortStableFunc(nodes, func(a, b api.Node) int { return cmp.Or(compareHosts(a.Name, b.Name), cmp.Compare(a.Name, b.Name)) })
}
