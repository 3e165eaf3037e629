package step

import (
	"fmt"
	"os"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// mostFiles bounds the limit of open files where it is not known what it was: programs
// that close all descriptors up to it, or allocate a table of them, take very long
// with those that some systems have.
const mostFiles = 1 << 20

// limitFiles gives the command the limit of open files that this process was started
// with. The Go runtime has raised the soft limit to the hard one since, and does not say
// what it was; whoever started this process has it still, as a rule.
func limitFiles(s *specs.Spec) error {
	var own, parent unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	soft := min(own.Cur, mostFiles)
	if unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, &parent) == nil && parent.Max == own.Max {
		soft = parent.Cur
	}
	s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: soft, Hard: own.Max})
	return nil
}
