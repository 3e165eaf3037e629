package doctor

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// TextOptions say how a report is written for people.
type TextOptions struct {
	Verbose bool // what was tried, also of what is well
	Color   bool
}

// WriteText writes a line for each finding, and what follows from it and what mends it
// below those that are not ok.
func (r *Report) WriteText(w io.Writer, o TextOptions) error {
	var b strings.Builder
	width := 0
	for _, f := range r.Findings {
		width = max(width, utf8.RuneCountInString(f.Name))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s  %-*s  %s\n", paint(f.Result, o.Color), width, clean(f.Name), clean(f.Got))
		more := func(label, text string) {
			if text != "" {
				fmt.Fprintf(&b, "          %s: %s\n", label, clean(text))
			}
		}
		if o.Verbose {
			more("tried", f.Tried)
		}
		if f.Result != OK {
			more("cause", f.Cause)
			more("consequence", f.Consequence)
			more("remedy", f.Remedy)
		}
	}
	b.WriteString("\n" + r.Summary.text() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Summary) text() string {
	text := "containers can run here"
	if !s.CanRun {
		text = "containers cannot run here"
	}
	for _, c := range []struct {
		n    int
		what string
	}{{s.Missing, "missing"}, {s.Degraded, "degraded"}, {s.Unknown, "unknown"}, {s.OK, "ok"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, c.what)
		}
	}
	return text
}

// paint pads and colours a result.
func paint(r Result, color bool) string {
	text := fmt.Sprintf("%-8s", r)
	if !color {
		return text
	}
	code := map[Result]string{OK: "32", Degraded: "33", Missing: "1;31", Unknown: "36"}[r]
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// clean keeps what others wrote, as a server's name or a file's, from the terminal.
func clean(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if strings.IndexFunc(s, func(r rune) bool { return !strconv.IsGraphic(r) || r == utf8.RuneError }) < 0 {
		return s
	}
	q := strconv.QuoteToGraphic(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
