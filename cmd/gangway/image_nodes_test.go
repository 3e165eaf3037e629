package main

import (
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestNodeProgressLine: what could not be had is not done.
func TestNodeProgressLine(t *testing.T) {
	p := &nodeProgress{at: map[string]api.Precached{
		"a": {Node: "n1", Done: true}, "b": {Node: "n2", Done: true, Fault: &job.Fault{What: "no such image"}}, "c": {Node: "n3", Bytes: 1000, Total: 2000},
	}}
	if got, want := p.line(), "1 of 3 done, 1 failed, 1.0 kB of 2.0 kB"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	delete(p.at, "b")
	if got, want := p.line(), "1 of 2 done, 1.0 kB of 2.0 kB"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
