package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// teller says what happens, with the time since the beginning.
type teller struct {
	mu    sync.Mutex
	w     io.Writer
	began time.Time
}

func (t *teller) line(prefix, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.w, "%6.1f s %s%s\n", time.Since(t.began).Seconds(), prefix, text)
}

// title begins a step.
func (t *teller) title(text string) {
	t.mu.Lock()
	fmt.Fprintln(t.w)
	t.mu.Unlock()
	t.line("== ", text)
}

func (t *teller) note(format string, args ...any) { t.line("   ", fmt.Sprintf(format, args...)) }

// typed shows a command as a user types it.
func (t *teller) typed(args []string) {
	for i, a := range args {
		if strings.ContainsAny(a, " $'\"*|;&") {
			args[i] = "'" + a + "'"
		}
	}
	t.line("   $ ", strings.Join(args, " "))
}

// lines shows what a program prints, until it ends. Each line goes to hook, too.
func (t *teller) lines(r io.Reader, hook func(string)) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		t.line("   | ", s.Text())
		if hook != nil {
			hook(s.Text())
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line that was too long
}
