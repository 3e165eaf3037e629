package slurm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Limits of what is read. Slurm's own longest line is shorter.
const (
	maxLine     = 1 << 20
	maxInclude  = 10
	maxIncluded = 10_000 // in all: files may be included several times
	maxLines    = 1 << 20
)

// pair is one key=value of a line. The key keeps its case.
type pair struct{ key, value string }

// line is one logical line: continuations joined, comments gone.
type line struct {
	file      string // base name, for messages
	number    int    // of its first physical line
	pairs     []pair
	inherited int // how many pairs behind the first are of DEFAULT lines
}

// bad is the error for a value of the line.
func (l line) bad(p pair, want string) error {
	return &SyntaxError{File: l.file, Line: l.number, Key: p.key, Value: p.value, Want: want}
}

// errorf is an error about the whole line.
func (l line) errorf(format string, args ...any) error {
	return &lineError{l.file, l.number, fmt.Errorf(format, args...)}
}

// kind is the lower-case key that the line begins with.
func (l line) kind() string { return strings.ToLower(l.pairs[0].key) }

// get is the value of a key of the line, the last one if there are several.
func (l line) get(key string) (value string, ok bool) {
	for _, p := range l.pairs {
		if strings.EqualFold(p.key, key) {
			value, ok = p.value, true
		}
	}
	return value, ok
}

// eachLine calls f for every logical line of a file and of those that it includes. An error
// of f is one of that line, and the others are read all the same; what is returned is an
// error of reading the file. One that is not there is none for optional files.
func (r *reader) eachLine(name string, optional bool, f func(line) error) error {
	return r.eachLineOf(name, optional, nil, f)
}

func (r *reader) eachLineOf(name string, optional bool, from []string, f func(line) error) error {
	file, err := r.files.Open(name)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	from = append(from, name)
	lines := lineScanner{scanner: bufio.NewScanner(file), file: path.Base(name)}
	lines.scanner.Buffer(nil, maxLine)
	for {
		text, err := lines.next()
		if done, err := ended(err); done {
			return err
		}
		l := line{file: lines.file, number: lines.first}
		if include, ok := includes(text); ok {
			if err := r.include(l, include, from, f); err != nil {
				return err
			}
			continue
		}
		if l.pairs, err = splitPairs(text); err != nil {
			r.fail(l, l.errorf("%w", err), !r.lenient)
			continue
		}
		if err := f(l); err != nil {
			r.fail(l, err, !r.lenient)
		}
	}
}

// ended says whether there are no more lines, and why if that is not the file's end.
func ended(err error) (done bool, why error) {
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return err != nil, err
}

// includes says whether a line is an Include, and of what.
func includes(text string) (name string, ok bool) {
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	if i := strings.IndexByte(word, '\t'); i >= 0 {
		word, rest = word[:i], word[i+1:]+" "+rest
	}
	rest = strings.TrimSpace(rest)
	return strings.Trim(rest, `"`), strings.EqualFold(word, "include") && rest != "" && rest[0] != '='
}

func (r *reader) include(l line, name string, from []string, f func(line) error) error {
	name = strings.ReplaceAll(name, "%c", r.cluster.Name)
	if !path.IsAbs(name) {
		name = path.Join(path.Dir(from[0]), name)
	}
	switch {
	case slices.Contains(from, name):
		r.fail(l, l.errorf("Include %s: the file includes itself: %s", name, strings.Join(append(from, name), " > ")), true)
		return nil
	case len(from) >= maxInclude:
		r.fail(l, l.errorf("Include %s: files include each other more than %d deep", name, maxInclude), true)
		return nil
	case r.included >= maxIncluded:
		return l.errorf("Include %s: more than %d files are included", name, maxIncluded)
	}
	r.included++
	err := r.eachLineOf(name, false, from, f)
	if errors.Is(err, fs.ErrNotExist) {
		r.fail(l, l.errorf("Include %s: %w", name, err), true)
		return nil
	}
	return err
}

// lineScanner joins physical lines to logical ones.
type lineScanner struct {
	scanner *bufio.Scanner
	file    string
	first   int // physical line at which the latest logical one begins
	last    int
	single  bool // no line goes on in the next one
}

// next is the next logical line that is not empty; io.EOF after the last.
func (s *lineScanner) next() (string, error) {
	var whole strings.Builder
	for more := false; s.scanner.Scan(); {
		s.last++
		if s.last > maxLines {
			return "", fmt.Errorf("%s: more than %d lines", s.file, maxLines)
		}
		if !more {
			s.first = s.last
		}
		text := stripComment(strings.TrimRight(s.scanner.Text(), "\r\n"))
		if !s.single {
			text, more = stripContinuation(text)
		}
		if whole.Len()+len(text) > maxLine {
			return "", fmt.Errorf("%s:%d: the line is longer than %d bytes", s.file, s.first, maxLine)
		}
		whole.WriteString(text)
		if more {
			continue
		}
		if strings.TrimSpace(whole.String()) != "" {
			return whole.String(), nil
		}
		whole.Reset()
	}
	if err := s.scanner.Err(); err != nil {
		return "", fmt.Errorf("%s:%d: %w", s.file, s.last+1, err)
	}
	if strings.TrimSpace(whole.String()) != "" {
		return whole.String(), nil // the file ends in a continuation
	}
	return "", io.EOF
}

// stripComment takes away what follows a "#" that is not escaped, and the escapes of
// those that are.
func stripComment(text string) string {
	for i := strings.IndexByte(text, '#'); i >= 0; {
		before := text[:i]
		if (len(before)-len(strings.TrimRight(before, `\`)))%2 == 0 {
			return before
		}
		text = before[:len(before)-1] + text[i:]
		next := strings.IndexByte(text[i:], '#')
		if next < 0 {
			break
		}
		i += next
	}
	return text
}

// stripContinuation says whether a line ends in an odd number of backslashes, and takes
// the last one away.
func stripContinuation(text string) (string, bool) {
	if (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1 {
		return text[:len(text)-1], true
	}
	return text, false
}

// splitPairs splits a line into its key=value pairs. There may be spaces around "=", and
// values with spaces stand in double quotes.
func splitPairs(text string) ([]pair, error) {
	var pairs []pair
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		n := 0
		for n < len(text) && isKey(text[n]) {
			n++
		}
		key, rest := text[:n], strings.TrimLeft(text[n:], " \t")
		if key == "" || rest == "" || rest[0] != '=' {
			word, _, _ := strings.Cut(text, " ")
			return nil, &SyntaxError{Value: word, Want: "key=value (values with spaces in double quotes)"}
		}
		rest = strings.TrimLeft(rest[1:], " \t")
		var value string
		if strings.HasPrefix(rest, `"`) {
			end := strings.IndexByte(rest[1:], '"')
			if end < 0 {
				return nil, &SyntaxError{Key: key, Value: rest, Want: "a closing quote on the same line"}
			}
			value, text = rest[1:end+1], rest[end+2:]
			if text != "" && text[0] != ' ' && text[0] != '\t' {
				return nil, &SyntaxError{Key: key, Value: rest, Want: "a space after the closing quote"}
			}
		} else if end := strings.IndexAny(rest, " \t"); end >= 0 {
			value, text = rest[:end], rest[end:]
		} else {
			value, text = rest, ""
		}
		if value == "" {
			return nil, &SyntaxError{Key: key, Value: value, Want: "a value"}
		}
		pairs = append(pairs, pair{key, value})
	}
	return pairs, nil
}

func isKey(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.'
}
