package sim

import (
	"fmt"
	"strings"
)

// yamlNode is a node of the small part of YAML that generator files use: maps and lists by
// indentation, and plain or quoted scalars.
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

// items are the elements of a field that is a list.
func (n *yamlNode) items(name string) []*yamlNode {
	if f := n.get(name); f != nil {
		return f.list
	}
	return nil
}

// yamlLine is a line without its comment.
type yamlLine struct {
	number, indent int
	text           string
}

// maxDepth is how deep maps and lists may be in each other.
const maxDepth = 32

// yamlParser goes through the lines once.
type yamlParser struct {
	lines []yamlLine
	next  int
}

// parseYAML parses a whole document.
func (r *reader) parseYAML() (*yamlNode, error) {
	var p yamlParser
	for {
		text, ok, err := r.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		text = strings.TrimRight(stripYAMLComment(text), " ")
		body := strings.TrimLeft(text, " ")
		if body == "" || body == "---" {
			continue
		}
		if strings.HasPrefix(body, "\t") {
			return nil, &LineError{r.trace.Lines, "a tab: want spaces"}
		}
		p.lines = append(p.lines, yamlLine{r.trace.Lines, len(text) - len(body), body})
		if len(p.lines) > maxYAMLLines {
			return nil, &LineError{r.trace.Lines, "the file is too long for a generator"}
		}
	}
	if len(p.lines) == 0 {
		return &yamlNode{}, nil
	}
	root, err := p.block(p.lines[0].indent, 0)
	if err == nil && p.next < len(p.lines) {
		err = &LineError{p.lines[p.next].number, "not indented as what it belongs to"}
	}
	return root, err
}

const maxYAMLLines = 100_000

// stripYAMLComment takes away a "#" at the begin or after a space, outside of quotes.
func stripYAMLComment(text string) string {
	quote := byte(0)
	for i := range len(text) {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t'):
			return text[:i]
		}
	}
	return text
}

// block parses the map or list whose lines are indented by indent.
func (p *yamlParser) block(indent, depth int) (*yamlNode, error) {
	first := p.lines[p.next]
	n := &yamlNode{line: first.number}
	if depth > maxDepth {
		return nil, &LineError{first.number, fmt.Sprintf("more than %d levels", maxDepth)}
	}
	isList := isItem(first.text)
	for p.next < len(p.lines) {
		l := &p.lines[p.next]
		if l.indent != indent || isItem(l.text) != isList {
			break
		}
		if isList {
			// What follows the dash is a block of its own, indented by where it stands.
			rest := strings.TrimLeft(l.text[1:], " ")
			if rest == "" {
				return nil, &LineError{l.number, "an empty item of a list"}
			}
			l.indent += len(l.text) - len(rest)
			l.text = rest
			item, err := p.item(l.indent, depth+1)
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, item)
			continue
		}
		if err := p.field(n, indent, depth); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func isItem(text string) bool { return text == "-" || strings.HasPrefix(text, "- ") }

// item parses what stands after a dash.
func (p *yamlParser) item(indent, depth int) (*yamlNode, error) {
	l := p.lines[p.next]
	if _, _, isField := cutField(l.text); isField || isItem(l.text) {
		return p.block(indent, depth)
	}
	p.next++
	return &yamlNode{line: l.number, scalar: unquote(l.text)}, nil
}

// field parses "key: value", or "key:" and the block below.
func (p *yamlParser) field(n *yamlNode, indent, depth int) error {
	l := p.lines[p.next]
	key, value, ok := cutField(l.text)
	if !ok {
		return &LineError{l.number, fmt.Sprintf("%q: want key: value", l.text)}
	}
	if n.fields == nil {
		n.fields = map[string]*yamlNode{}
	}
	if n.fields[key] != nil {
		return &LineError{l.number, fmt.Sprintf("%s is there twice", key)}
	}
	p.next++
	child := &yamlNode{line: l.number, scalar: unquote(value)}
	if value == "" && p.next < len(p.lines) {
		below := p.lines[p.next]
		if below.indent > indent || below.indent == indent && isItem(below.text) {
			var err error
			if child, err = p.block(below.indent, depth+1); err != nil {
				return err
			}
		}
	} else if strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[") || strings.HasPrefix(value, "|") || strings.HasPrefix(value, ">") || strings.HasPrefix(value, "&") || strings.HasPrefix(value, "*") {
		return &LineError{l.number, fmt.Sprintf("%q: want a plain value, or lines below", value)}
	}
	n.fields[key] = child
	return nil
}

// cutField cuts "key: value" and "key:".
func cutField(text string) (key, value string, ok bool) {
	if strings.HasPrefix(text, `"`) {
		end := strings.IndexByte(text[1:], '"')
		if end < 0 || !strings.HasPrefix(text[end+2:], ":") {
			return "", "", false
		}
		return text[1 : end+1], strings.TrimSpace(text[end+3:]), true
	}
	if key, ok := strings.CutSuffix(text, ":"); ok {
		return key, "", true
	}
	key, value, ok = strings.Cut(text, ": ")
	return key, strings.TrimSpace(value), ok
}

func unquote(text string) string {
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return text
}
