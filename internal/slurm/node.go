package slurm

import (
	"math"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// nodeShape is what a node line says, before it is known of which nodes.
type nodeShape struct {
	node    job.Node
	boards  int
	given   map[string]bool // keys in lower case
	addr    string
	reserve int64 // MemSpecLimit
}

// withDefaults puts the pairs of earlier DEFAULT lines before those of a line, and says
// whether the line is one of these itself.
func withDefaults(l line, defaults *[]pair) (line, bool) {
	if strings.EqualFold(l.pairs[0].value, "DEFAULT") {
		*defaults = append(*defaults, l.pairs[1:]...)
		return l, true
	}
	l.pairs = append([]pair{l.pairs[0]}, slices.Concat(*defaults, l.pairs[1:])...)
	l.inherited = len(*defaults)
	return l, false
}

// eachPair calls f for the pairs of a line behind the first. What is wrong with those of
// DEFAULT lines was said there.
func (r *reader) eachPair(l line, f func(p pair) error) {
	for i, p := range l.pairs[1:] {
		r.quiet = i < l.inherited
		if err := f(p); err != nil {
			r.fail(l, err, true)
		}
	}
	r.quiet = false
}

// nodeLine reads a line that begins with NodeName.
func (r *reader) nodeLine(l line) error {
	own := l
	l, isDefault := withDefaults(l, &r.conf.nodeDefaults)
	s := nodeShape{node: job.Node{Weight: 1, Memory: 1, State: job.NodeUnknown}, boards: 1, given: map[string]bool{}}
	r.eachPair(l, func(p pair) error { return r.nodeKey(l, p, &s) })
	if isDefault {
		return nil
	}
	names, err := hosts(l, l.pairs[0])
	if err != nil {
		return err
	}
	r.fillCPUs(own, &s)
	if s.reserve >= s.node.Memory && s.reserve > 0 {
		return l.bad(pair{"MemSpecLimit", formatInt(s.reserve)}, "less than RealMemory")
	}
	s.node.Memory -= s.reserve
	var addrs []string
	if s.addr != "" {
		if addrs, err = Expand(s.addr); err != nil || len(addrs) != len(names) && len(addrs) != 1 {
			return l.bad(pair{"NodeAddr", s.addr}, "as many addresses as NodeName has nodes")
		}
	}
	first := len(r.cluster.Nodes)
	defer func() {
		if n := len(r.cluster.Nodes) - first; n > 0 {
			r.conf.nodesAt = append(r.conf.nodesAt, nodesAt{own, first, n, s.given["realmemory"]})
		}
	}()
	for i, name := range names {
		n := s.node
		n.Name = name
		n.GRES, n.Features = slices.Clone(n.GRES), slices.Clone(n.Features)
		if len(addrs) == len(names) {
			n.Addr = addrs[i]
		}
		if _, twice := r.named[name]; twice {
			return l.bad(l.pairs[0], "each node once: "+name+" has a line already")
		}
		if len(r.cluster.Nodes) >= maxHosts {
			return l.bad(l.pairs[0], "fewer nodes")
		}
		r.named[name] = len(r.cluster.Nodes)
		r.cluster.Nodes = append(r.cluster.Nodes, n)
	}
	return nil
}

// nodeKey reads one key of a node line.
func (r *reader) nodeKey(l line, p pair, s *nodeShape) error {
	n := &s.node
	key := strings.ToLower(p.key)
	s.given[key] = true
	var err error
	switch key {
	case "cpus", "procs":
		s.given["cpus"] = true
		n.CPUs, err = count(l, p, 1, math.MaxUint16)
	case "boards":
		s.boards, err = count(l, p, 1, math.MaxUint16)
	case "sockets":
		n.Sockets, err = count(l, p, 1, math.MaxUint16)
	case "socketsperboard":
		s.given["sockets"] = true
		n.Sockets, err = count(l, p, 1, math.MaxUint16)
	case "corespersocket":
		n.CoresPerSocket, err = count(l, p, 1, math.MaxUint16)
	case "threadspercore":
		n.ThreadsPerCore, err = count(l, p, 1, math.MaxUint16)
	case "realmemory":
		n.Memory, err = number(l, p, 1, math.MaxInt64>>20)
	case "memspeclimit":
		s.reserve, err = number(l, p, 0, math.MaxInt64>>20)
	case "weight":
		n.Weight, err = count(l, p, 0, math.MaxInt32)
	case "features", "feature":
		n.Features = strings.FieldsFunc(p.value, func(c rune) bool { return c == ',' || c == '&' })
	case "gres":
		if n.GRES, err = ParseGRES(p.value); err != nil {
			return l.bad(p, wantGRES)
		}
	case "state":
		if n.State, err = nodeState(l, p); strings.Contains(strings.ToUpper(p.value), "CLOUD") {
			r.add(l, Finding{Severity: SeverityWarning, Key: p.key, Value: p.value, Text: "nodes are not started when jobs need them", Remedy: "have them there: each has to join by itself"})
		}
	case "reason":
		n.Reason = p.value
	case "nodeaddr":
		s.addr = p.value
	case "topology":
		err = r.dynamicTopology(l, p, n)
	default:
		r.follow(l, p, nodeLine)
	}
	return err
}

func isOneOf(key, list string) bool {
	return slices.ContainsFunc(strings.Fields(list), func(k string) bool { return strings.EqualFold(k, key) })
}

// fillCPUs fills in what a line leaves out of CPUs, sockets, cores and threads, as Slurm
// does.
func (r *reader) fillCPUs(l line, s *nodeShape) {
	n := &s.node
	if s.given["socketsperboard"] {
		n.Sockets *= s.boards
	}
	n.CoresPerSocket, n.ThreadsPerCore = max(n.CoresPerSocket, 1), max(n.ThreadsPerCore, 1)
	if n.Sockets == 0 {
		n.Sockets = max(n.CPUs/(n.CoresPerSocket*n.ThreadsPerCore), 1)
	} else if n.CPUs > 0 && n.CPUs != n.Sockets && !s.given["corespersocket"] && !s.given["threadspercore"] {
		r.warn(l, pair{}, "write CoresPerSocket and ThreadsPerCore, as slurmd -C prints them", "CPUs=%d and Sockets=%d: taken for as many sockets as CPUs", n.CPUs, n.Sockets)
		n.Sockets = n.CPUs
	}
	threads := n.Sockets * n.CoresPerSocket * n.ThreadsPerCore
	switch n.CPUs {
	case 0:
		n.CPUs = threads
	case n.Sockets, n.Sockets * n.CoresPerSocket, threads:
	default:
		r.warn(l, pair{}, "write what slurmd -C prints on the node", "CPUs=%d is not Sockets*CoresPerSocket*ThreadsPerCore: taken for %d", n.CPUs, threads)
		n.CPUs = threads
	}
}

// nodeState reads State= of a node line. UNKNOWN is the default: a node that has not
// reported.
func nodeState(l line, p pair) (job.NodeState, error) {
	var state job.NodeState
	for word := range strings.SplitSeq(strings.ToUpper(p.value), "+") {
		switch word {
		case "UNKNOWN", "CLOUD", "EXTERNAL":
			state |= job.NodeUnknown
		case "IDLE":
		case "DOWN":
			state |= job.NodeDown
		case "DRAIN":
			state |= job.NodeDrain
		case "FAIL", "FAILING":
			state |= job.NodeFail
		case "FUTURE":
			state |= job.NodeFuture
		default:
			return 0, l.bad(p, "one of UNKNOWN, IDLE, DOWN, DRAIN, FAIL, FUTURE, CLOUD")
		}
	}
	return state, nil
}

// dynamicTopology reads Topology= of a node line: "default:leaf1" or "b1", the last part
// being the leaf switch or the block. Of several topologies the first one is used.
func (r *reader) dynamicTopology(l line, p pair, n *job.Node) error {
	first, others, several := strings.Cut(p.value, ",")
	for word := range strings.SplitSeq(p.value, ",") {
		if word == "" || strings.HasSuffix(word, ":") {
			return l.bad(p, "TOPOLOGY:SWITCH or TOPOLOGY:BLOCK")
		}
	}
	if several {
		r.warn(l, pair{p.key, others}, "leave it out", "it is not used: there is one topology for the whole cluster, that of %s", first)
	}
	n.Switch = first[strings.LastIndexByte(first, ':')+1:]
	return nil
}

// downNodesLine reads "DownNodes=n[1-3] State=DOWN Reason=..."
func (r *reader) downNodesLine(l line) error {
	names, err := hosts(l, l.pairs[0])
	if err != nil {
		return err
	}
	for _, p := range l.pairs {
		if _, ok := r.rule(downLine, p.key); !ok {
			r.unknown(l, p, downLine)
		}
	}
	state := job.NodeDown
	reason, _ := l.get("Reason")
	if value, ok := l.get("State"); ok {
		if state, err = nodeState(l, pair{"State", value}); err != nil {
			return err
		}
	}
	for _, name := range names {
		i, ok := r.named[name]
		if !ok {
			r.warn(l, pair{"DownNodes", name}, "add a NodeName line above, or leave it out", "no line before this one defines the node: it is not down")
			continue
		}
		r.cluster.Nodes[i].State, r.cluster.Nodes[i].Reason = state, reason
	}
	return nil
}

// nodeSetLine reads "NodeSet=name Nodes=..." or "... Feature=...".
func (r *reader) nodeSetLine(l line) error {
	name := l.pairs[0].value
	for _, p := range l.pairs {
		if _, ok := r.rule(setLine, p.key); !ok {
			r.unknown(l, p, setLine)
		}
	}
	if list, ok := l.get("Nodes"); ok {
		names, err := hosts(l, pair{"Nodes", list})
		if err != nil {
			return err
		}
		r.conf.nodeSets[name] = append(r.conf.nodeSets[name], names...)
		return nil
	}
	if feature, ok := l.get("Feature"); ok {
		r.conf.featureSets[name] = feature
		return nil
	}
	return l.errorf("NodeSet=%s: want Nodes= or Feature= on the line", quoted(name))
}
