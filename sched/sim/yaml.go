package sim

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlNode is a node of a YAML document of maps, lists and scalars.
type yamlNode struct {
	line   int
	scalar string
	list   []*yamlNode
	fields map[string]*yamlNode // nil: no map
}

// get is a field of a map; nil is an empty node.
func (n *yamlNode) get(name string) *yamlNode {
	if n == nil {
		return nil
	}
	return n.fields[name]
}

// text is the scalar of a field.
func (n *yamlNode) text(name string) string {
	if f := n.get(name); f != nil {
		return f.scalar
	}
	return ""
}

// items are the elements of a field that is a list of maps, if it is there.
func (n *yamlNode) items(name string) ([]*yamlNode, error) {
	f := n.get(name)
	if f == nil {
		return nil, nil
	}
	if f.list == nil && (f.fields != nil || f.scalar != "") {
		return nil, &LineError{f.line, name + ": want a list"}
	}
	for _, item := range f.list {
		if item.fields == nil {
			return nil, &LineError{item.line, name + ": want fields in each element"}
		}
	}
	return f.list, nil
}

// maxYAMLLines and maxDepth are more than any generator needs.
const (
	maxYAMLLines = 100_000
	maxDepth     = 32
)

// parseYAML parses a whole document.
func (r *reader) parseYAML() (*yamlNode, error) {
	var text strings.Builder
	for {
		line, ok, err := r.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if r.trace.Lines > maxYAMLLines {
			return nil, &LineError{r.trace.Lines, fmt.Sprintf("more than %d lines are no generator", maxYAMLLines)}
		}
		text.WriteString(line)
		text.WriteByte('\n')
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text.String()), &doc); err != nil {
		return nil, yamlError(err)
	}
	if len(doc.Content) == 0 {
		return &yamlNode{}, nil
	}
	return nodeOf(doc.Content[0], 0)
}

// yamlError is an error of the YAML package as one of a line.
func yamlError(err error) error {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if n, scanned := fmt.Sscanf(text, "line %d: ", &line); n == 1 && scanned == nil {
		_, text, _ = strings.Cut(text, ": ")
	}
	return &LineError{line, text}
}

// nodeOf takes over a node and what is below it. Anchors are refused: a few lines of them
// can stand for more than fits anywhere.
func nodeOf(y *yaml.Node, depth int) (*yamlNode, error) {
	n := &yamlNode{line: y.Line}
	if depth > maxDepth {
		return nil, &LineError{y.Line, fmt.Sprintf("more than %d levels", maxDepth)}
	}
	switch y.Kind {
	case yaml.ScalarNode:
		n.scalar = y.Value
	case yaml.SequenceNode:
		for _, item := range y.Content {
			child, err := nodeOf(item, depth+1)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, child)
		}
	case yaml.MappingNode:
		n.fields = map[string]*yamlNode{}
		for i := 0; i+1 < len(y.Content); i += 2 {
			key := y.Content[i]
			child, err := nodeOf(y.Content[i+1], depth+1)
			switch {
			case err != nil:
				return nil, err
			case key.Kind != yaml.ScalarNode:
				return nil, &LineError{key.Line, "want key: value"}
			case n.fields[key.Value] != nil:
				return nil, &LineError{key.Line, fmt.Sprintf("%s is there twice", key.Value)}
			}
			n.fields[key.Value] = child
		}
	default:
		return nil, &LineError{y.Line, "an alias: want the value itself"}
	}
	return n, nil
}
