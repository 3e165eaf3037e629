package listing

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// tableField is a column of sacct or sstat.
type tableField[T any] struct {
	name  string
	width int // below 0: left-justified
	text  func(v *View, x *T) string
}

// table is what of lines sacct and sstat write, and how.
type table[T any] struct {
	fields             []tableColumn[T]
	noHeader           bool
	parsable, trailing bool // fields between delimiters; trailing: one behind the last, too
	delimiter          string
}

type tableColumn[T any] struct {
	field *tableField[T]
	width int // below 0: left-justified
}

// columns reads a list of NAME[%[-]WIDTH].
func (t *table[T]) columns(fields []tableField[T], format string) error {
	for word := range strings.SplitSeq(format, ",") {
		name, size, sized := strings.Cut(strings.TrimSpace(word), "%")
		if name == "" {
			continue
		}
		f := findField(fields, name)
		if f == nil {
			return refuse("Invalid field requested: %q", name)
		}
		c := tableColumn[T]{f, f.width}
		if n, err := strconv.Atoi(size); sized && err == nil && n != 0 && n > -10000 && n < 10000 {
			c.width = n
		}
		t.fields = append(t.fields, c)
	}
	return nil
}

// findField finds a field by its name, or the first that begins so.
func findField[T any](fields []tableField[T], name string) *tableField[T] {
	for i := range fields {
		if strings.EqualFold(fields[i].name, name) {
			return &fields[i]
		}
	}
	for i := range fields {
		if len(fields[i].name) > len(name) && strings.EqualFold(fields[i].name[:len(name)], name) {
			return &fields[i]
		}
	}
	return nil
}

// uses says whether a column was asked for.
func (t *table[T]) uses(name string) bool {
	for _, c := range t.fields {
		if c.field.name == name {
			return true
		}
	}
	return false
}

func (t *table[T]) header(w io.Writer) error {
	if t.noHeader {
		return nil
	}
	var names, dashes []byte
	for i, c := range t.fields {
		if t.parsable {
			names = t.part(names, c.field.name, i)
			continue
		}
		width, right := max(c.width, -c.width), c.width > 0
		names = append(pad(names, c.field.name, width, right, false), ' ')
		dashes = append(append(dashes, strings.Repeat("-", width)...), ' ')
	}
	lines := append(names, '\n')
	if !t.parsable {
		lines = append(append(lines, dashes...), '\n')
	}
	_, err := w.Write(lines)
	return err
}

// part appends a text and the delimiter, which the last one may have to do without.
func (t *table[T]) part(b []byte, text string, i int) []byte {
	b = append(b, text...)
	if i < len(t.fields)-1 || t.trailing {
		b = append(b, t.delimiter...)
	}
	return b
}

func (t *table[T]) row(w io.Writer, v *View, x *T) error {
	var b []byte
	for i, c := range t.fields {
		text := c.field.text(v, x)
		if t.parsable {
			b = t.part(b, text, i)
			continue
		}
		width, right := max(c.width, -c.width), c.width > 0
		if len(text) > width {
			text = text[:width-1] + "+"
		}
		b = append(pad(b, text, width, right, false), ' ')
	}
	_, err := w.Write(append(b, '\n'))
	return err
}

// fieldNames writes the names of all fields, four a line.
func fieldNames[T any](w io.Writer, fields []tableField[T]) error {
	var b strings.Builder
	for i := range fields {
		fmt.Fprintf(&b, "%-19s", fields[i].name)
		if i%4 == 3 || i == len(fields)-1 {
			b.WriteByte('\n')
		} else {
			b.WriteByte(' ')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
