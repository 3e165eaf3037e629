package listing

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Info is a command line of sinfo.
type Info struct {
	NoHeader, Version, Help, Usage bool
	NoConvert                      bool
	Clusters                       []string // -M; nil: not said
	Dated                          bool
	Warnings                       []error
	Iterate                        int  // seconds between reports; 0: one
	Reservations                   bool // -T

	format     Format[Row]
	text       string // the format, with # for what is as wide as needed
	byNode     bool
	reasons    bool // only nodes that are out of service
	exact      bool
	responding bool
	dead       bool
	partitions []string
	nodes      []string
	states     [][]string // any of these, all of which a node is in; nil: all nodes
	sorts      string
}

// Row is a line of sinfo: nodes of a partition that are alike in what is shown of them.
type Row struct {
	Partition *api.Partition
	Order     int // of the partition, in the order of the configuration
	Nodes     []*api.Node
}

var infoFlags = []slurm.Flag{
	{Long: "all", Short: 'a'},
	{Long: "cluster", Argument: slurm.RequiredArgument},
	{Long: "clusters", Short: 'M', Argument: slurm.RequiredArgument},
	{Long: "dead", Short: 'd'},
	{Long: "exact", Short: 'e'},
	{Long: "federation"},
	{Long: "format", Short: 'o', Argument: slurm.RequiredArgument},
	{Long: "Format", Short: 'O', Argument: slurm.RequiredArgument},
	{Long: "help"},
	{Long: "hide"},
	{Long: "iterate", Short: 'i', Argument: slurm.RequiredArgument},
	{Long: "json", Argument: slurm.OptionalArgument},
	{Long: "list-reasons", Short: 'R'},
	{Long: "local"},
	{Long: "long", Short: 'l'},
	{Long: "Node", Short: 'N'},
	{Long: "noconvert"},
	{Long: "nodes", Short: 'n', Argument: slurm.RequiredArgument},
	{Long: "noheader", Short: 'h'},
	{Long: "partition", Short: 'p', Argument: slurm.RequiredArgument},
	{Long: "reservation", Short: 'T'},
	{Long: "responding", Short: 'r'},
	{Long: "sort", Short: 'S', Argument: slurm.RequiredArgument},
	{Long: "states", Short: 't', Argument: slurm.RequiredArgument},
	{Long: "summarize", Short: 's'},
	{Long: "usage"},
	{Long: "verbose", Short: 'v'},
	{Long: "version", Short: 'V'},
	{Long: "yaml", Argument: slurm.OptionalArgument},
}

// infoReader is what is gathered of a command line.
type infoReader struct {
	q                    *Info
	short, long          string
	longer, summary, set bool
}

// ParseInfo reads sinfo's command line, without the program's name, and its environment.
func ParseInfo(args []string, getenv func(string) string) (*Info, error) {
	given, operands, err := slurm.Getopt(infoFlags, args, false)
	if err != nil {
		return nil, err
	}
	if len(operands) > 0 {
		return nil, refuse("Unrecognized option: %s", operands[0])
	}
	r := &infoReader{q: &Info{}}
	for _, e := range []struct{ variable, option string }{
		{"SINFO_FORMAT", "format"}, {"SINFO_PARTITION", "partition"}, {"SINFO_SORT", "sort"}, {"SLURM_CLUSTERS", "clusters"},
	} {
		if value := getenv(e.variable); value != "" && !has(given, infoFlags, e.option) { // -O comes behind it, and wins
			if err := r.option(e.option, value); err != nil {
				return nil, err
			}
		}
	}
	for _, g := range given {
		if err := r.option(infoFlags[g.Flag].Long, g.Value); err != nil {
			return nil, err
		}
	}
	r.choose()
	return r.q, nil
}

func (r *infoReader) option(name, value string) error {
	q := r.q
	switch name {
	case "cluster", "clusters":
		q.Clusters = words(value)
	case "dead":
		q.dead = true
	case "exact":
		q.exact = true
	case "format":
		r.short, r.long, r.set = value, "", true
	case "Format":
		r.short, r.long, r.set = "", value, true
	case "help":
		q.Help = true
	case "usage":
		q.Usage = true
	case "version":
		q.Version = true
	case "list-reasons":
		q.reasons = true
	case "long":
		r.longer = true
	case "Node":
		q.byNode = true
	case "noconvert":
		q.NoConvert = true
	case "noheader":
		q.NoHeader = true
	case "nodes":
		names, err := slurm.Expand(value)
		if err != nil {
			return refuse("%s", err)
		}
		q.nodes = append([]string{}, names...)
	case "partition":
		q.partitions = words(value)
	case "iterate":
		if q.Iterate = seconds1(value); q.Iterate == 0 {
			return refuse("Error: invalid entry for --iterate=%s", value)
		}
	case "reservation":
		q.Reservations = true
	case "responding":
		q.responding = true
	case "sort":
		q.sorts = value
	case "states":
		return r.states(value)
	case "summarize":
		r.summary = true
	case "all", "hide", "local", "verbose", "federation":
	default:
		return unsupported(name)
	}
	return nil
}

// infoStates are the words for states that sinfo takes.
const infoStates = "unknown,down,idle,allocated,?,mixed,future,drain,drained,draining,no_respond,reserved,perfctrs,cloud,completing," +
	"powering_down,powered_down,power_down,powering_up,fail,maint,reboot,reboot^,unknown"

// states reads a list of states; of those between which there is &, a node is in all.
func (r *infoReader) states(value string) error {
	valid := append(strings.Split(infoStates, ","), "planned", "suspect")
	r.q.states = [][]string{}
	for list := range strings.SplitSeq(strings.ToLower(value), ",") {
		var all []string
		for word := range strings.SplitSeq(list, "&") {
			n := slices.IndexFunc(valid, func(name string) bool { return strings.HasPrefix(name, word) })
			if i := slices.Index(valid, word); i >= 0 {
				n = i
			}
			switch {
			case word == "":
			case word == "all":
				r.q.states = nil
				return nil
			case word == "drng":
				all = append(all, "draining")
			case n < 0:
				return &slurm.Refusal{Code: 1, Lines: []string{fmt.Sprintf("error: Bad state string: %q", word), "error: valid states: " + infoStates}}
			default:
				all = append(all, valid[n])
			}
		}
		if all != nil {
			r.q.states = append(r.q.states, all)
		}
	}
	return nil
}

// choose takes the format that the options stand for. # is a field as wide as needed.
func (r *infoReader) choose() {
	q := r.q
	switch {
	case r.set && r.long != "":
		q.format, q.Warnings = ParseLong(nodeFields, nodeKind, r.long)
		return
	case r.set:
		q.text = r.short
	case r.summary:
		q.text = "%#P %.5a %.10l %.16F %N"
	case q.reasons && r.longer:
		q.text = "%20E %12U %19H %6t %N"
	case q.reasons:
		q.text = "%20E %9u %19H %N"
	case q.byNode && r.longer:
		q.text = "%#N %.6D %.#P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
	case q.byNode:
		q.text = "%#N %.6D %.#P %6t"
	case r.longer:
		q.text = "%#P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
	default:
		q.text = "%#P %.5a %.10l %.6D %.6t %N"
	}
	q.Dated = r.longer && !r.set || q.Iterate > 0
	q.format, q.Warnings = ParseShort(nodeFields, nodeKind, strings.ReplaceAll(q.text, "#", "9"))
	if r.set {
		q.text = ""
	}
}

// Rows groups nodes by partition, and by what is shown of them.
func (q *Info) Rows(v *View, nodes []api.Node, partitions []api.Partition) []Row {
	byName := make(map[string]*api.Node, len(nodes))
	for i := range nodes {
		if q.keeps(&nodes[i]) {
			byName[nodes[i].Name] = &nodes[i]
		}
	}
	kept := slices.DeleteFunc(slices.Clone(partitions), func(p api.Partition) bool {
		return q.partitions != nil && !slices.Contains(q.partitions, p.Name)
	})
	if !q.byNode && !q.format.uses(ofPartition()...) {
		return q.united(v, kept, byName)
	}
	var rows []Row
	for i := range kept {
		groups := q.groups(v, &kept[i], kept[i].Nodes, byName)
		if len(groups) == 0 && !q.reasons && !q.byNode {
			groups = []Row{{Partition: &kept[i]}}
		}
		for n := range groups {
			groups[n].Order = i
		}
		rows = append(rows, groups...)
	}
	q.order(v, rows)
	return rows
}

// united groups nodes where nothing of partitions is shown: each node once. Without an
// order of its own Slurm has the last group first.
func (q *Info) united(v *View, partitions []api.Partition, byName map[string]*api.Node) []Row {
	var names []string
	seen := map[string]bool{}
	for _, p := range partitions {
		for _, name := range p.Nodes {
			if !seen[name] {
				names = append(names, name)
			}
			seen[name] = true
		}
	}
	var any api.Partition
	if len(partitions) > 0 {
		any = partitions[0]
	}
	rows := q.groups(v, &any, names, byName)
	if q.sorts != "" || q.reasons {
		q.order(v, rows)
	} else {
		slices.Reverse(rows)
	}
	return rows
}

// ofPartition are the fields that say something of a partition.
func ofPartition() []string {
	return []string{
		"available", "oversubscribe", "groups", "time", "defaulttime", "size", "prioritytier", "priority", "priorityjobfactor", "root",
		"preemptmode", "allocnodes", "maxcpuspernode", "partition", "partitionname",
	}
}

// groups puts the nodes of a partition together that are alike.
func (q *Info) groups(v *View, p *api.Partition, names []string, byName map[string]*api.Node) []Row {
	var groups []Row
	at := map[string]int{}
	for _, name := range names {
		n := byName[name]
		if n == nil {
			continue
		}
		key := q.likeness(v, p, n)
		i, ok := at[key]
		if !ok {
			i = len(groups)
			at[key] = i
			groups = append(groups, Row{Partition: p})
		}
		groups[i].Nodes = append(groups[i].Nodes, n)
	}
	return groups
}

// likeness is the same for nodes that share a line.
func (q *Info) likeness(v *View, p *api.Partition, n *api.Node) string {
	if q.byNode {
		return n.Name
	}
	one := Row{Partition: p, Nodes: []*api.Node{n}}
	var key strings.Builder
	for i := range nodeFields {
		f := &nodeFields[i]
		if !q.format.uses(f.Name) {
			continue
		}
		if splits[f.Name] || q.exact && spreads[f.Name] {
			key.WriteString(f.Text(v, &one))
			key.WriteByte(0)
		}
	}
	return key.String()
}

// splits are the fields in which nodes of a line are equal; spreads those that are shown
// as the least of them with a +, unless lines are to be exact.
var (
	splits = map[string]bool{
		"statecompact": true, "statelong": true, "statecomplete": true, "reason": true, "timestamp": true, "user": true, "userlong": true,
		"gres": true, "gresused": true, "features": true, "featuresact": true, "nodehost": true, "nodeaddr": true, "cpusload": true,
		"freemem": true, "allocmem": true, "version": true, "comment": true, "port": true, "extra": true,
	}
	spreads = map[string]bool{
		"cpus": true, "memory": true, "disk": true, "weight": true, "sockets": true, "cores": true, "threads": true, "socketcorethread": true,
	}
)

func (q *Info) keeps(n *api.Node) bool {
	silent := strings.HasSuffix(n.StateText, "*")
	switch {
	case q.nodes != nil && !slices.Contains(q.nodes, n.Name), q.dead && !silent, q.responding && silent:
		return false
	case q.reasons:
		return n.Reason != "" || slices.ContainsFunc([]string{"down", "drain", "fail"}, func(s string) bool { return strings.HasPrefix(n.StateText, s) })
	case q.states == nil:
		return true
	}
	return slices.ContainsFunc(q.states, func(all []string) bool {
		return !slices.ContainsFunc(all, func(s string) bool { return !inState(n, s) })
	})
}

// inState says whether a node is in a state, by its word.
func inState(n *api.Node, state string) bool {
	is := strings.TrimRight(n.StateText, "*")
	switch state {
	case "drain":
		return strings.HasPrefix(is, "drain")
	case "no_respond":
		return strings.HasSuffix(n.StateText, "*")
	case "idle": // drained is a flag of idle nodes
		return is == "idle" || is == "planned" || is == "drained" && n.State&job.NodeDown == 0
	}
	return state == longState(is)
}

// order sorts rows: partitions as they are configured, states falling; or as -S says.
func (q *Info) order(v *View, rows []Row) {
	sorts := q.sorts
	switch {
	case sorts != "":
	case q.byNode:
		sorts = "N"
	case q.reasons:
		sorts = "-H"
	default:
		sorts = "#P,-t"
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		falling := false
		for _, c := range []byte(sorts) {
			switch c {
			case '-':
				falling = true
				continue
			case '+', '#', ',':
				continue
			}
			n := compareRows(v, c, strings.Contains(sorts, "#"), &a, &b)
			if falling {
				n = -n
			}
			if n != 0 {
				return n
			}
			falling = false
		}
		return 0
	})
}

func compareRows(v *View, letter byte, configured bool, a, b *Row) int {
	switch letter {
	case 'P', 'R':
		if configured {
			return cmp.Compare(a.Order, b.Order)
		}
	case 't', 'T':
		return cmp.Compare(stateRank(a), stateRank(b))
	case 'D':
		return cmp.Compare(len(a.Nodes), len(b.Nodes))
	case 'N', 'n':
		if len(a.Nodes) > 0 && len(b.Nodes) > 0 {
			return compareHosts(a.Nodes[0].Name, b.Nodes[0].Name)
		}
	case 'H':
		if len(a.Nodes) > 0 && len(b.Nodes) > 0 {
			return cmp.Compare(a.Nodes[0].ReasonSince, b.Nodes[0].ReasonSince)
		}
	}
	f := letterField(nodeFields, letter)
	if f == nil {
		return 0
	}
	x, y := f.Text(v, a), f.Text(v, b)
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y))
}

// compareHosts puts n2 before n10.
func compareHosts(a, b string) int {
	pair := []string{a, b}
	slurm.SortHosts(pair)
	switch {
	case a == b:
		return 0
	case pair[0] == a:
		return -1
	}
	return 1
}

// stateRank is the order of states in sinfo, which is that of Slurm's numbers.
func stateRank(r *Row) int {
	if len(r.Nodes) == 0 {
		return -1
	}
	state := r.Nodes[0].StateText
	n := slices.Index([]string{"unknown", "down", "idle", "allocated", "error", "mixed", "future"}, longState(strings.TrimRight(state, "*")))
	if strings.HasPrefix(state, "drain") || strings.HasPrefix(state, "fail") {
		return 16
	}
	return n
}

// Print writes rows.
func (q *Info) Print(w io.Writer, v *View, rows []Row) error {
	f := q.format
	if strings.Contains(q.text, "#") {
		q.widen(v, &f, rows)
	}
	return printRows(w, v, &f, q.Dated, q.NoHeader, pointers(rows))
}

// widen makes the columns that were # as wide as the widest of their texts.
func (q *Info) widen(v *View, f *Format[Row], rows []Row) {
	f.columns = slices.Clone(f.columns)
	for i := range f.columns {
		c := &f.columns[i]
		if c.field == nil || !strings.Contains(q.text, "#"+string(rune(c.field.Letter))) {
			continue
		}
		c.width = max(9, len(c.field.Heading))
		for n := range rows {
			c.width = max(c.width, len(c.field.Text(v, &rows[n])))
		}
	}
}
