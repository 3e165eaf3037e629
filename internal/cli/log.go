package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Logger returns a log for people: warnings and worse go to stderr, a line each, as
//
//	gangway: warning: registry asks to wait: host=registry.example dur=30s
func (e *Env) Logger() *slog.Logger { return slog.New(&peopleLog{program: e.Program, w: e.Stderr}) }

// peopleLog is a slog.Handler. A write is one line, so that lines of several
// goroutines do not mix.
type peopleLog struct {
	program string
	w       io.Writer
	attrs   string
}

// Enabled implements slog.Handler.
func (*peopleLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (l *peopleLog) Handle(_ context.Context, r slog.Record) error {
	word := "warning"
	if r.Level >= slog.LevelError {
		word = "error"
	}
	attrs := l.attrs
	r.Attrs(func(a slog.Attr) bool {
		attrs += attrText(a)
		return true
	})
	if attrs != "" {
		attrs = ":" + attrs
	}
	_, err := fmt.Fprintf(l.w, "%s: %s: %s%s\n", l.program, word, r.Message, attrs)
	return err
}

// WithAttrs implements slog.Handler.
func (l *peopleLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *l
	for _, a := range attrs {
		more.attrs += attrText(a)
	}
	return &more
}

// WithGroup implements slog.Handler. Groups are not shown.
func (l *peopleLog) WithGroup(string) slog.Handler { return l }

// attrText writes an attribute so that a terminal is not harmed by it.
func attrText(a slog.Attr) string {
	value := a.Value.Resolve().String()
	if quoted := fmt.Sprintf("%q", value); strings.ContainsAny(value, " \t") || quoted != `"`+value+`"` {
		value = quoted
	}
	return " " + a.Key + "=" + value
}
