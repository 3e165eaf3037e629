package main

import (
	"bytes"
	"errors"
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
