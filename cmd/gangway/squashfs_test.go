package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/cli"
)

// TestWarnings: a file's name must not act upon the terminal, nor a directory of
// many such files fill it.
func TestWarnings(t *testing.T) {
	var out bytes.Buffer
	w := warnings{env: &cli.Env{Program: "gangway", Stderr: &out}}
	for range 3 * maxWarnings {
		w.add("a\x1b[31mb", errors.New("no room"))
	}
	w.end()
	if strings.Contains(out.String(), "\x1b") || !strings.Contains(out.String(), `a\x1b[31mb`) {
		t.Errorf("%q", out.String())
	}
	if n := strings.Count(out.String(), "\n"); n != maxWarnings+1 || !strings.Contains(out.String(), "20 more") {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

func TestParseBlockSize(t *testing.T) {
	for text, want := range map[string]int{"4096": 4096, "128K": 128 << 10, "128k": 128 << 10, "1M": 1 << 20, "1048576": 1 << 20} {
		if got, err := parseBlockSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "K", "-4K", "0", "2M", "99999999999999999999", "128KK", "1.5M"} {
		if got, err := parseBlockSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestExcluded(t *testing.T) {
	if _, err := excluded([]string{"a["}); err == nil {
		t.Error("a bad pattern was taken")
	}
}

// TestCanceled runs the verbs for one who has pressed Ctrl-C: they say so, and
// leave nothing.
func TestCanceled(t *testing.T) {
	dir := t.TempDir()
	image, file := filepath.Join(dir, "image"), filepath.Join(dir, "file")
	run := func(ctx context.Context, args ...string) (code int, out string) {
		var stdout, stderr bytes.Buffer
		env := &cli.Env{Stdout: &stdout, Stderr: &stderr, Getenv: os.Getenv}
		return program().Run(ctx, env, append([]string{"squashfs"}, args...)), stdout.String()
	}
	if code, _ := run(t.Context(), "create", ".", image); code != 0 {
		t.Fatalf("create: exit %d", code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{
		{"create", ".", file},
		{"convert", image, file},
		{"convert", "-c", "gzip", image, file},
		{"ls", image},
		{"cat", image, "main.go"},
		{"check", image},
	} {
		if code, out := run(ctx, args...); code == 0 || out != "" {
			t.Errorf("%v: exit %d, output %q", args, code, out)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v, %v: want the image alone", list, err)
	}
}
