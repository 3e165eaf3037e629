package listing

import (
	"fmt"
	"strconv"
	"strings"
)

// Field is something that a format can ask for of a T.
type Field[T any] struct {
	Letter  byte   // of -o; 0: none
	Name    string // of -O, in lower case, without - and _
	Heading string
	Cut     Cut
	Text    func(v *View, x *T) string
}

// Cut says what becomes of texts that are longer than their column. It is Slurm's, field
// for field.
type Cut uint8

// The kinds.
const (
	CutAll     Cut = iota
	CutLong        // of -O, while those of -o are whole
	CutWords       // UNLIMITED and headings, while spans of time are whole
	CutReasons     // texts in parentheses, while nodes and the heading are whole
)

// whole says whether a text is not cut.
func (c Cut) whole(text string, heading, long bool) bool {
	switch c {
	case CutLong:
		return !long
	case CutWords:
		return !heading && text != "" && text[0] >= '0' && text[0] <= '9'
	case CutReasons:
		return heading || !strings.HasPrefix(text, "(")
	}
	return false
}

// column is a field at a place of a format.
type column[T any] struct {
	field  *Field[T] // nil: only the suffix, of what is no field
	width  int       // 0: as wide as its text
	right  bool
	suffix string
}

// Format is what a line of a report has.
type Format[T any] struct {
	prefix  string
	columns []column[T]
	long    bool // of -O
}

// FormatError are parts of a format that are no fields.
type FormatError struct {
	Kind string // job, job step, node
	Part string
}

// Error is Slurm's sentence.
func (e *FormatError) Error() string {
	return fmt.Sprintf("Invalid %s format specification: %s", e.Kind, e.Part)
}

// ParseShort reads a format of -o: "%.18i %.9P". What is not a field is kept as text, and
// one of the errors, which squeue and sinfo print and go on.
func ParseShort[T any](fields []Field[T], kind, text string) (Format[T], []error) {
	f := Format[T]{}
	var errs []error
	var rest string
	f.prefix, rest, _ = strings.Cut(text, "%")
	if len(f.prefix) == len(text) {
		return f, nil
	}
	for rest != "" {
		token, after, _ := strings.Cut(rest, "%")
		rest = after
		if token == "" {
			continue
		}
		if strings.HasPrefix(token, "all") {
			f.columns = append(f.columns, allColumns(fields, kind)...)
			continue
		}
		c, letter := parseToken[T](token)
		if c.field = letterField(fields, letter); c.field == nil {
			errs = append(errs, &FormatError{kind, strings.Trim(string(rune(letter)), "\x00")})
			c = column[T]{suffix: "%" + token}
		}
		f.columns = append(f.columns, c)
	}
	return f, errs
}

// parseToken reads [[.]size]type[suffix].
func parseToken[T any](token string) (c column[T], letter byte) {
	i := 0
	if i < len(token) && token[i] == '.' {
		c.right = true
		i++
	}
	begin := i
	for i < len(token) && token[i] >= '0' && token[i] <= '9' {
		i++
	}
	c.width, _ = strconv.Atoi(token[begin:min(i, begin+4)])
	if i == len(token) {
		return c, 0
	}
	c.suffix = token[i+1:]
	return c, token[i]
}

func letterField[T any](fields []Field[T], letter byte) *Field[T] {
	for i := range fields {
		if fields[i].Letter == letter && letter != 0 {
			return &fields[i]
		}
	}
	return nil
}

// allColumns are those of all letters. sinfo has a blank behind those of capital ones.
func allColumns[T any](fields []Field[T], kind string) []column[T] {
	var all []column[T]
	for i := range fields {
		if fields[i].Letter == 0 {
			continue
		}
		c := column[T]{field: &fields[i], suffix: "|"}
		if kind == nodeKind && fields[i].Letter < 'a' {
			c.suffix = " |"
		}
		all = append(all, c)
	}
	if n := len(all) - 1; n >= 0 {
		all[n].suffix = strings.TrimSuffix(all[n].suffix, "|")
	}
	return all
}

// The kinds of formats, as errors name them.
const (
	jobKind  = "job"
	stepKind = "job step"
	nodeKind = "node"
)

// ParseLong reads a format of -O: "jobid:.18,name". Fields are 20 wide where no width is
// given; a colon without one is as wide as the text.
func ParseLong[T any](fields []Field[T], kind, text string) (Format[T], []error) {
	f := Format[T]{long: true}
	var errs []error
	for token := range strings.SplitSeq(text, ",") {
		if token == "" {
			continue
		}
		name, form, sized := strings.Cut(token, ":")
		name = plain(name)
		c := column[T]{width: 20}
		if name == "all" && kind == nodeKind {
			f.columns = append(f.columns, allColumns(fields, kind)...)
			continue
		}
		if sized {
			c.right = strings.HasPrefix(form, ".")
			form = strings.TrimPrefix(form, ".")
			digits := form[:len(form)-len(strings.TrimLeft(form, "0123456789"))]
			c.suffix = form[len(digits):]
			c.width, _ = strconv.Atoi(digits[:min(len(digits), 4)])
		}
		for i := range fields {
			if fields[i].Name == name && name != "" {
				c.field = &fields[i]
			}
		}
		if c.field == nil {
			if kind == nodeKind {
				kind = jobKind // as Slurm says it
			}
			errs = append(errs, &FormatError{kind, token})
			continue
		}
		f.columns = append(f.columns, c)
	}
	return f, errs
}

// plain is the name of a field without what its spellings differ in.
func plain(name string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
}

// uses says whether a format has any of the fields.
func (f *Format[T]) uses(names ...string) bool {
	for _, c := range f.columns {
		for _, name := range names {
			if c.field != nil && c.field.Name == name {
				return true
			}
		}
	}
	return false
}

// heading appends the line of headings.
func (f *Format[T]) heading(b []byte) []byte {
	return f.line(b, true, func(field *Field[T]) string { return field.Heading })
}

// row appends the line of x.
func (f *Format[T]) row(b []byte, v *View, x *T) []byte {
	return f.line(b, false, func(field *Field[T]) string { return field.Text(v, x) })
}

func (f *Format[T]) line(b []byte, heading bool, text func(*Field[T]) string) []byte {
	b = append(b, f.prefix...)
	for i := range f.columns {
		c := &f.columns[i]
		if c.field != nil {
			t := text(c.field)
			b = pad(b, t, c.width, c.right, c.field.Cut.whole(t, heading, f.long))
		}
		b = append(b, c.suffix...)
	}
	return append(b, '\n')
}

// pad appends text in a width, 0 being its own. Text that is longer is cut, unless whole.
func pad(b []byte, text string, width int, right, whole bool) []byte {
	if text == "(null)" && width > 0 && width < len(text) {
		text = "" // as printf has it
	}
	if len(text) >= width {
		if width > 0 && !whole {
			text = text[:width]
		}
		return append(b, text...)
	}
	if !right {
		b = append(b, text...)
	}
	for range width - len(text) {
		b = append(b, ' ')
	}
	if right {
		b = append(b, text...)
	}
	return b
}
