//go:build !cgo

package main

import (
	"time"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
)

// newAsker returns what cannot call a C library.
func newAsker(flags, *step) asker { return noAsker{} }

type noAsker struct{}

func (noAsker) ask(string, []string) (any, *report.Failure) { return nil, noCgo() }

func (noAsker) watch([]string, time.Duration, func(*report.Event) bool) *report.Failure {
	return noCgo()
}

func noCgo() *report.Failure {
	return &report.Failure{
		Kind: report.Refused, Text: "built without cgo",
		Cause: "NVML is a C library",
		Hint:  "build it with a C compiler: make gangway-nvml",
	}
}
