package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const maxDepth = 64 // of nested lists and objects; image-spec has 6

// decodeStrict decodes one document into v. Beyond what encoding/json does it
// refuses doubled keys, of which encoding/json takes the last and others the first,
// and anything behind the end. Unknown keys are fine: formats grow.
func decodeStrict(raw []byte, v any) error {
	switch {
	case len(raw) > MaxDocument:
		return fmt.Errorf("%d bytes are more than %d", len(raw), MaxDocument)
	case len(bytes.TrimSpace(raw)) == 0:
		return errors.New("it is empty")
	case !utf8.Valid(raw):
		return errors.New("it is not UTF-8")
	}
	if err := checkKeys(raw); err != nil {
		return err
	}
	return unmarshal(raw, v)
}

// level is one open list or object.
type level struct {
	keys  map[string]bool // nil in a list
	key   string          // the one whose value comes next; "" before a key
	exact bool            // keys are data, not names of fields
}

func checkKeys(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var open []level
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && len(open) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not valid JSON: %w", err)
		}
		var top *level
		if len(open) > 0 {
			top = &open[len(open)-1]
		}
		if name, ok := token.(string); ok && top != nil && top.keys != nil && top.key == "" {
			if err := top.add(name); err != nil {
				return err
			}
			continue
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			if len(open) == maxDepth {
				return fmt.Errorf("it is nested more than %d deep", maxDepth)
			}
			next := level{}
			if token == json.Delim('{') {
				next.keys = map[string]bool{}
				next.exact = top != nil && isMap(top.key)
			}
			open = append(open, next)
			continue
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			open[len(open)-1].key = ""
		} else if len(bytes.TrimSpace(raw[d.InputOffset():])) > 0 {
			return fmt.Errorf("there is data behind its end at byte %d", d.InputOffset())
		}
	}
}

func (l *level) add(name string) error {
	folded := name
	if !l.exact {
		folded = fold(name)
	}
	if l.keys[folded] {
		return fmt.Errorf("the key %.100q is there twice, so that readers could take either", name)
	}
	l.keys[folded] = true
	l.key = "=" + name // never empty
	return nil
}

// isMap says whether the value of a key has keys that are data, which only the same
// spelling doubles.
func isMap(key string) bool {
	switch strings.ToLower(key) {
	case "=annotations", "=labels", "=volumes", "=exposedports":
		return true
	}
	return false
}

// fold makes equal what encoding/json takes for the same field.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, s)
}
