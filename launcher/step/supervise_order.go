package step

import (
	"fmt"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// orderTime is how long the line about an order may take: nobody's end waits for a pipe that
// is not read.
const orderTime = time.Second

// sayEnd writes into the stderr of a script, or of the first rank of a step, that it is ended by
// order, before it is: people, and what reads their logs, look for Slurm's line. An end for
// another reason has no line, it is reported as the failure that it is.
func (s *supervisor) sayEnd(why string) {
	due, ordered := strings.CutPrefix(why, job.EndCancelled)
	if !ordered || s.node != 0 {
		return
	}
	key := s.spec.Key
	entity := "STEP " + key.Job.String() + "." + key.Step.String()
	if s.isBatch() {
		entity = "JOB " + key.Job.String()
	}
	line := fmt.Sprintf("slurmstepd: error: *** %s ON %s %s AT %s%s ***\n",
		entity, s.Node, job.EndCancelled, time.Now().Format("2006-01-02T15:04:05"), due)
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.ranks[0].files.put(line)
	}()
	select {
	case <-written:
	case <-time.After(orderTime):
		s.Log.Warn("the output does not take the line about the end of the step", "step", key, "why", why)
	}
}
