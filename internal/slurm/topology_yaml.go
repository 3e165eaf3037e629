package slurm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxYAML is how long topology.yaml may be: ten times what 100,000 nodes by their names
// would take.
const maxYAML = 16 << 20

// yaml reads topology.yaml, which Slurm has since 25.05. It says whether there is one.
// Of several topologies the cluster's default is used, for all partitions.
func (t *topologyReader) yaml(name string) (bool, error) {
	file, err := t.files.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxYAML+1))
	if err != nil {
		return false, fmt.Errorf("%s: %w", path.Base(name), err)
	}
	y := yamlReader{file: path.Base(name)}
	if len(data) > maxYAML {
		return false, y.errorf(1, "the file is longer than %d bytes", maxYAML)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return false, y.syntax(err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.SequenceNode {
		return false, y.errorf(max(doc.Line, 1), "want a list of topologies, each beginning with - topology: NAME")
	}
	return true, t.topologies(&y, doc.Content[0].Content)
}

// topologies finds the one to use, and reads it.
func (t *topologyReader) topologies(y *yamlReader, list []*yaml.Node) error {
	var used yamlFields
	names := map[string]bool{}
	chosen := false
	var all []yamlFields
	for _, n := range list {
		f, err := y.fields(n, "topology", "cluster_default", "tree", "block", "flat")
		if err != nil {
			return err
		}
		if err := y.check(f, names); err != nil {
			return err
		}
		isDefault, err := y.flag(f, "cluster_default")
		if err != nil {
			return err
		}
		if all = append(all, f); len(all) == 1 || isDefault && !chosen {
			used, chosen = f, isDefault
		}
	}
	for _, f := range all {
		if f.line != used.line {
			t.warn(line{file: y.file, number: f.line}, pair{"topology", f.at["topology"].Value}, "leave it out", "it is not used: there is one topology for the whole cluster, %s", used.at["topology"].Value)
		}
	}
	switch {
	case used.at["tree"] != nil:
		return t.yamlTree(y, used.at["tree"])
	case used.at["block"] != nil:
		t.conf.topology = "block"
		return t.yamlBlocks(y, used.at["block"])
	}
	return nil
}

func (t *topologyReader) yamlTree(y *yamlReader, n *yaml.Node) error {
	f, err := y.fields(n, "switches")
	if err != nil {
		return err
	}
	lines, err := y.lines(f, "switches", "switch", "children", "nodes")
	if err != nil {
		return err
	}
	for _, l := range lines {
		if err := t.switchLine(l, &t.switches); err != nil {
			return err
		}
	}
	return nil
}

func (t *topologyReader) yamlBlocks(y *yamlReader, n *yaml.Node) error {
	f, err := y.fields(n, "block_sizes", "blocks")
	if err != nil {
		return err
	}
	if sizes := f.at["block_sizes"]; sizes != nil {
		value, err := y.text("block_sizes", sizes)
		if err != nil {
			return err
		}
		if err := blockSizes(line{file: y.file, number: sizes.Line, pairs: []pair{{"block_sizes", value}}}, &t.cluster.Network); err != nil {
			return err
		}
	}
	lines, err := y.lines(f, "blocks", "block", "nodes")
	if err != nil {
		return err
	}
	for _, l := range lines {
		if err := t.blockLine(l, &t.blocks); err != nil {
			return err
		}
	}
	return nil
}

// yamlReader makes lines of what a YAML file has, and errors that name a line.
type yamlReader struct{ file string }

func (y *yamlReader) errorf(number int, format string, args ...any) error {
	return line{file: y.file, number: number}.errorf(format, args...)
}

// syntax is an error of the YAML package, in our form.
func (y *yamlReader) syntax(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	number := 1
	if n, scanned := fmt.Sscanf(text, "line %d: ", &number); n == 1 && scanned == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return y.errorf(number, "%s", text)
}

// yamlFields are the fields of a map.
type yamlFields struct {
	line  int
	first string // the name of the first
	at    map[string]*yaml.Node
}

// fields are those of a map, none of which may be there twice or be another one.
func (y *yamlReader) fields(n *yaml.Node, valid ...string) (yamlFields, error) {
	f := yamlFields{n.Line, "", map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		return f, y.errorf(n.Line, "want fields: %s", strings.Join(valid, ", "))
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Value == "ring" || key.Value == "torus3d":
			return f, y.errorf(key.Line, "%s: this kind of topology is not supported; valid are tree, block, flat", key.Value)
		case !isOneOf(key.Value, strings.Join(valid, " ")):
			return f, y.errorf(key.Line, "%s: unknown; valid are %s", quoted(key.Value), strings.Join(valid, ", "))
		case f.at[key.Value] != nil:
			return f, y.errorf(key.Line, "%s: it is there twice", key.Value)
		}
		if f.first == "" {
			f.first = key.Value
		}
		f.at[key.Value] = n.Content[i+1]
	}
	return f, nil
}

// check refuses a topology without a name of its own, or not of one kind.
func (y *yamlReader) check(f yamlFields, names map[string]bool) error {
	if f.first != "topology" {
		return y.errorf(f.line, "want topology: NAME as the first field")
	}
	name, err := y.text("topology", f.at["topology"])
	if err != nil {
		return err
	}
	if names[name] {
		return y.errorf(f.line, "topology=%s: want each topology once", quoted(name))
	}
	names[name] = true
	kinds := 0
	for _, kind := range []string{"tree", "block"} {
		if f.at[kind] != nil {
			kinds++
		}
	}
	flat, err := y.flag(f, "flat")
	if err != nil {
		return err
	}
	if flat {
		kinds++
	}
	if kinds != 1 {
		return y.errorf(f.line, "topology=%s: want one of tree:, block: and flat: true", quoted(name))
	}
	return nil
}

// flag is a field that is true or false; it is false where it is missing.
func (y *yamlReader) flag(f yamlFields, name string) (bool, error) {
	n := f.at[name]
	if n == nil {
		return false, nil
	}
	var v bool
	if n.Kind != yaml.ScalarNode || n.Decode(&v) != nil {
		return false, y.errorf(n.Line, "%s=%s: want true or false", name, quoted(n.Value))
	}
	return v, nil
}

// text is a value, or the values of a list joined by commas.
func (y *yamlReader) text(name string, n *yaml.Node) (string, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Value != "":
		return n.Value, nil
	case n.Kind == yaml.SequenceNode && len(n.Content) > 0:
		var words []string
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Value == "" {
				return "", y.errorf(item.Line, "%s: want plain values in the list", name)
			}
			words = append(words, item.Value)
		}
		return strings.Join(words, ","), nil
	}
	return "", y.errorf(n.Line, "%s: want a value", name)
}

// lines makes a line of each element of a list: the pair of the first name that is valid,
// which has to be there, and then the others.
func (y *yamlReader) lines(f yamlFields, list string, valid ...string) ([]line, error) {
	n := f.at[list]
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil, y.errorf(f.line, "%s: want a list, each beginning with - %s: NAME", list, valid[0])
	}
	var lines []line
	for _, item := range n.Content {
		fields, err := y.fields(item, valid...)
		if err != nil {
			return nil, err
		}
		if fields.at[valid[0]] == nil {
			return nil, y.errorf(item.Line, "want %s: NAME", valid[0])
		}
		l := line{file: y.file, number: item.Line}
		for _, name := range valid {
			if fields.at[name] == nil {
				continue
			}
			value, err := y.text(name, fields.at[name])
			if err != nil {
				return nil, err
			}
			l.pairs = append(l.pairs, pair{name, value})
		}
		lines = append(lines, l)
	}
	return lines, nil
}
