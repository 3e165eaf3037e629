package control

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// DirOf is the name of a step's run directory: JOB/ATTEMPT/STEP/TRY with "." for "/", so
// that it is one name, sorts by job, and has no sign in it that means something in a URL.
func DirOf(k job.StepKey) string {
	return fmt.Sprintf("%d.%d.%s.%d", k.Job, k.Attempt, k.Step, k.Try)
}

// ParseDir is the contrary of [DirOf].
func ParseDir(name string) (job.StepKey, error) {
	bad := func(err error) (job.StepKey, error) {
		return job.StepKey{}, fmt.Errorf("step directory %q: not JOB.ATTEMPT.STEP.TRY: %w", name, err)
	}
	parts := strings.Split(name, ".")
	if len(parts) != 4 {
		return bad(strconv.ErrSyntax)
	}
	id, err := strconv.ParseUint(parts[0], 10, 32)
	if err != nil {
		return bad(err)
	}
	attempt, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return bad(err)
	}
	step, err := job.ParseStepID(parts[2])
	if err != nil {
		return bad(err)
	}
	try, err := strconv.ParseUint(parts[3], 10, 31)
	if err != nil {
		return bad(err)
	}
	k := job.StepKey{Job: job.ID(id), Attempt: int(attempt), Step: step, Try: int(try)}
	if DirOf(k) != name {
		return bad(strconv.ErrSyntax) // leading zeros
	}
	return k, nil
}
