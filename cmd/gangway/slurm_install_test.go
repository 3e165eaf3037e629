package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstallLinks: all links are made, or none: where another's file has one of the names,
// whichever it is.
func TestInstallLinks(t *testing.T) {
	dir, target := filepath.Join(t.TempDir(), "new", "bin"), "/opt/here/gangway"
	count := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	made, err := installLinks(target, dir, false)
	if err != nil || len(made.Links) != len(slurmCommands()) || count() != len(made.Links) {
		t.Fatalf("%+v, %v, %d files", made, err, count())
	}
	// Those of a program that was elsewhere before are ours.
	if _, err := installLinks("/opt/there/gangway", dir, false); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.Readlink(filepath.Join(dir, "sbatch")); got != "/opt/there/gangway" || count() != len(made.Links) {
		t.Errorf("sbatch is a link to %s; %d files", got, count())
	}
	for _, c := range slurmCommands() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(dir, c.name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(other, []byte("another's"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := installLinks(target, dir, false); err == nil || !strings.Contains(err.Error(), c.name) || count() != 1 {
			t.Errorf("with another's %s: %v, %d files", c.name, err, count())
		}
		if _, err := installLinks(target, dir, true); err != nil || count() != len(slurmCommands()) {
			t.Errorf("with another's %s, forced: %v, %d files", c.name, err, count())
		}
		if err := os.Remove(other); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(other, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := installLinks(target, dir, true); err == nil || !strings.Contains(err.Error(), "directory") {
			t.Errorf("with a directory %s: %v", c.name, err)
		}
	}
}

// TestPathHint: what is left to do is said, and only then.
func TestPathHint(t *testing.T) {
	ours, theirs, empty := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{ours, theirs} {
		if err := os.WriteFile(filepath.Join(dir, "sbatch"), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		ours + ":" + theirs:               "",
		empty + ":" + ours + "/:/x":       "",
		theirs + ":" + ours:               theirs + "/sbatch comes first in PATH",
		theirs + ":" + empty:              theirs + "/sbatch comes first in PATH",
		empty:                             ours + " is not in PATH: export PATH=" + ours + ":$PATH",
		"":                                ours + " is not in PATH",
		filepath.Join(ours, "../nowhere"): ours + " is not in PATH",
	} {
		if got := pathHint(path, ours); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("with PATH=%s: %q, want %q", path, got, want)
		}
	}
}
