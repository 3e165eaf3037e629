package step

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// textLog is a log that several goroutines write to and read.
type textLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *textLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *textLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// awaitText fails unless there is a text in time.
func (l *textLog) awaitText(t *testing.T, text string) {
	t.Helper()
	for range 1000 {
		if strings.Contains(l.String(), text) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%q is missing in:\n%s", text, l)
}

// slowEnd returns options of a run with three hooks of stop that take for ever, and what it
// logs.
func slowEnd(t *testing.T, limit time.Duration) (Options, *textLog) {
	t.Helper()
	o, log := options(t, "/exit"), &textLog{}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "stop"), 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := os.WriteFile(fmt.Sprintf("%s/stop/%d", dir, n), []byte("#!/bin/sh\nsleep 1000\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	o.Hooks, o.Log = Hooks{Dirs: []string{dir}, Timeout: limit}, slog.New(slog.NewTextHandler(log, nil))
	return o, log
}

// TestHooksOfEnd: hooks that see the end have one timeout together; who waits is told for
// what, and the one that was not run.
func TestHooksOfEnd(t *testing.T) {
	o, log := slowEnd(t, 1500*time.Millisecond)
	begin := time.Now()
	if err := Run(t.Context(), o); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, want := range []string{"a second interrupt ends it", "stop/2", "have 1.5s together", "run hooks " + o.Hooks.Dirs[0] + "/stop/1, "} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, log)
		}
	}
}

// TestHooksOfEndInterrupted: the first interrupt of a run leaves the hooks that see the end
// alone, and says so; the second ends them, and the rest of the end comes as ever.
func TestHooksOfEndInterrupted(t *testing.T) {
	o, log := slowEnd(t, time.Minute)
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- Run(t.Context(), o) }()
	log.awaitText(t, "a second interrupt ends it")
	for _, text := range []string{"the next interrupt ends them", "interrupted again"} {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		log.awaitText(t, text)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	if left, err := filepath.Glob(filepath.Join(o.Dirs[0], "*")); err != nil || len(left) > 0 {
		t.Errorf("left over: %s, %v", left, err)
	}
}
