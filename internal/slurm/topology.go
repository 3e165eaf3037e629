package slurm

import (
	"errors"
	"math"
	"path"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// tree is what is known while topology.conf is read.
type tree struct {
	at     map[string]line   // where a switch or block is defined, by its name
	parent map[string]string // of a switch or a node, the switch or block that has it
}

// topologyReader gathers switches and blocks.
type topologyReader struct {
	*reader
	switches, blocks tree
}

// topology reads topology.yaml beside slurm.conf, or else topology.conf. In both, what is
// below something may be defined before or after it.
func (r *reader) topology(name string) error {
	t := topologyReader{r, tree{map[string]line{}, map[string]string{}}, tree{map[string]line{}, map[string]string{}}}
	dir := path.Dir(name)
	isYAML, err := t.yaml(path.Join(dir, "topology.yaml"))
	if ofLine(err) {
		r.fail(line{}, err, true)
		return nil
	} else if err != nil {
		return err
	}
	if !isYAML {
		if r.conf.topology == "flat" || r.conf.topology == "none" || r.conf.topology == "default" {
			return nil
		}
		if err := r.eachLine(path.Join(dir, "topology.conf"), true, t.line); err != nil {
			return err
		}
	}
	if err := checkTree(r.cluster.Network.Switches, t.switches); err != nil {
		r.fail(line{}, err, true)
	}
	r.linkNodes()
	return nil
}

// ofLine says of an error that a line is wrong, not the reading of a file.
func ofLine(err error) bool {
	_, whole := errors.AsType[*lineError](err)
	_, value := errors.AsType[*SyntaxError](err)
	return whole || value
}

// line reads one line of topology.conf.
func (t *topologyReader) line(l line) error {
	switch l.kind() {
	case "switchname":
		return t.switchLine(l, &t.switches)
	case "blockname":
		return t.blockLine(l, &t.blocks)
	case "blocksizes":
		return blockSizes(l, &t.cluster.Network)
	}
	t.unknown(l, l.pairs[0], topologyConf)
	return nil
}

// linkNodes tells nodes which switch and which block they are below.
func (r *reader) linkNodes() {
	n := &r.cluster.Network
	leaf, block := map[string]string{}, map[string]string{}
	for _, s := range n.Switches {
		for _, node := range s.Nodes {
			leaf[node] = s.Name
		}
	}
	for _, b := range n.Blocks {
		for _, node := range b.Nodes {
			block[node] = b.Name
		}
	}
	for i := range r.cluster.Nodes {
		node := &r.cluster.Nodes[i]
		if s, ok := leaf[node.Name]; ok {
			node.Switch = s
		}
		if b, ok := block[node.Name]; ok {
			node.Block = b
		} else if r.conf.topology == "block" && len(n.Blocks) > 0 && node.Switch != "" {
			node.Block, node.Switch = node.Switch, "" // of Topology= on the node's line
		}
	}
}

// switchLine reads "SwitchName=s1 Switches=..." or "... Nodes=...".
func (r *reader) switchLine(l line, t *tree) error {
	names, err := hosts(l, l.pairs[0])
	if err != nil {
		return err
	}
	if len(names) != 1 {
		return l.bad(l.pairs[0], "one switch a line")
	}
	s := job.Switch{Name: names[0]}
	if _, twice := t.at[s.Name]; twice {
		return l.bad(l.pairs[0], "each switch once: it has a line already")
	}
	t.at[s.Name] = l
	for _, p := range l.pairs[1:] {
		switch strings.ToLower(p.key) {
		case "switches", "children":
			// Guides also write s1:s2. No name has a colon.
			if strings.Contains(p.value, ":") {
				r.warn(l, p, "write commas: Slurm takes it for one name, and does not start", "the names are taken for separated by commas")
				p.value = strings.ReplaceAll(p.value, ":", ",")
			}
			if s.Switches, err = t.children(l, p, "s", s.Name); err != nil {
				return err
			}
		case "nodes":
			if s.Nodes, err = t.children(l, p, "n", s.Name); err != nil {
				return err
			}
			r.warnUnknown(l, p, s.Nodes)
		default:
			r.follow(l, p, topologyConf)
		}
	}
	if (s.Nodes == nil) == (s.Switches == nil) {
		either := "Switches= or Nodes="
		if l.pairs[0].key == "switch" { // of topology.yaml
			either = "children= or nodes="
		}
		return l.errorf("%s=%s: want either %s", l.pairs[0].key, s.Name, either)
	}
	r.cluster.Network.Switches = append(r.cluster.Network.Switches, s)
	return nil
}

// children are the names below a switch, none of which may have another parent. Switches
// and nodes have names of their own: kind is "s" or "n".
func (t *tree) children(l line, p pair, kind, parent string) ([]string, error) {
	names, err := hosts(l, p)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		key := kind + "/" + name
		if other, ok := t.parent[key]; ok {
			return nil, l.bad(p, "each name below one parent: "+name+" is below "+other+" too ("+l.file+":"+formatInt(int64(t.at[other].number))+")")
		}
		t.parent[key] = parent
	}
	return names, nil
}

func (r *reader) warnUnknown(l line, p pair, names []string) {
	var unknown []string
	for _, name := range names {
		if !r.known(name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		r.cannot(l, p, "add NodeName lines to slurm.conf, or leave them out", "no line of slurm.conf defines %s: expected to come", Fold(unknown))
	}
}

// checkTree proves that every child is there, and that nobody is above itself.
func checkTree(switches []job.Switch, t tree) error {
	for _, s := range switches {
		for _, child := range s.Switches {
			if _, ok := t.at[child]; !ok {
				l := t.at[s.Name]
				return l.bad(pair{l.pairs[len(l.pairs)-1].key, child}, "switches that are defined themselves")
			}
		}
	}
	for _, s := range switches {
		path := []string{s.Name}
		for at, ok := t.parent["s/"+s.Name]; ok; at, ok = t.parent["s/"+at] {
			path = append(path, at)
			if at == s.Name {
				l := t.at[s.Name]
				return l.errorf("%s=%s: it is above itself: %s", l.pairs[0].key, s.Name, strings.Join(path, " < "))
			}
			if len(path) > len(switches) {
				break // a cycle that s is only below; its own switches report it
			}
		}
	}
	return nil
}

// blockLine reads "BlockName=b1 Nodes=...".
func (r *reader) blockLine(l line, t *tree) error {
	b := job.Block{Name: l.pairs[0].value}
	if _, twice := t.at[b.Name]; twice {
		return l.bad(l.pairs[0], "each block once: it has a line already")
	}
	t.at[b.Name] = l
	for _, p := range l.pairs[1:] {
		if !strings.EqualFold(p.key, "nodes") {
			r.unknown(l, p, topologyConf)
			continue
		}
		var err error
		if b.Nodes, err = t.children(l, p, "n", b.Name); err != nil {
			return err
		}
		r.warnUnknown(l, p, b.Nodes)
	}
	r.cluster.Network.Blocks = append(r.cluster.Network.Blocks, b)
	return nil
}

// blockSizes reads "BlockSizes=18,36,72": the first is a block's, the others are that
// times powers of two.
func blockSizes(l line, n *job.Network) error {
	p := l.pairs[0]
	n.BlockSizes = nil
	for word := range strings.SplitSeq(p.value, ",") {
		size, err := count(l, pair{p.key, word}, 1, math.MaxInt32)
		if err != nil {
			return err
		}
		if i := len(n.BlockSizes); i > 0 {
			ratio := size / n.BlockSizes[0]
			if size <= n.BlockSizes[i-1] || size%n.BlockSizes[0] != 0 || ratio&(ratio-1) != 0 {
				return l.bad(p, "rising sizes, each the first times a power of two")
			}
		}
		n.BlockSizes = append(n.BlockSizes, size)
	}
	return nil
}
