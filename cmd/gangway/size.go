package main

import (
	"strconv"

	"github.com/gangway-hpc/gangway/internal/cli"
)

// sizeFlag is a flag that takes a number of bytes, as cli.ParseSize does. It implements
// pflag.Value.
type sizeFlag struct {
	n   int64
	set bool
}

// Set implements pflag.Value.
func (s *sizeFlag) Set(text string) (err error) {
	s.n, err = cli.ParseSize(text)
	s.set = true
	return err
}

// String implements pflag.Value.
func (s *sizeFlag) String() string {
	if !s.set {
		return ""
	}
	return strconv.FormatInt(s.n, 10)
}

// Type implements pflag.Value.
func (s *sizeFlag) Type() string { return "SIZE" }
