package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// release names an attempt of a job that is over.
type release struct {
	job     job.ID
	attempt int
}

// releasing is how far a release is.
type releasing struct {
	since time.Time
	going bool // processes are being looked for
}

// releasePatience is how long what was killed may take to be gone.
const releasePatience = 10 * time.Second

// release ends what an attempt still has here, and says so when nothing is left.
func (a *Agent) release(ctx context.Context, r release) {
	if a.releases[r] != nil {
		return
	}
	a.releases[r] = &releasing{since: time.Now()}
	for key, h := range a.steps {
		if r.has(key) && h.phase != ended {
			a.happen(h, killIn{why: "its job is over"})
		}
	}
	a.tickReleases(ctx)
}

func (r release) has(key job.StepKey) bool { return key.Job == r.job && key.Attempt == r.attempt }

// tickReleases looks for processes where all steps have ended.
func (a *Agent) tickReleases(ctx context.Context) {
	for r, state := range a.releases {
		if state.going {
			continue
		}
		waits := false
		spare := map[int]bool{}
		for key, h := range a.steps {
			if !r.has(key) {
				continue
			}
			if h.phase != ended && time.Since(state.since) < releasePatience {
				waits = true
			}
			if h.phase == ended && !h.gone {
				spare[h.pid()] = true // it keeps the output of its step for clients, for a while
			}
		}
		if waits {
			continue
		}
		state.going = true
		prefix := fmt.Sprintf("%s/%s/%d.%d.", a.Cluster, a.Node.Name, r.job, r.attempt)
		go func() {
			left := kill(prefix, func(pid int, _ string) bool { return spare[pid] }, releasePatience)
			text := ""
			if len(left) > 0 {
				text = fmt.Sprintf("processes that cannot be killed: %d", left)
			}
			if ctx.Err() == nil {
				a.inputs.put(cleanedIn{r, text})
			}
		}()
	}
}

// cleaned says that nothing is left. A controller that was away asks again.
func (a *Agent) cleaned(in cleanedIn) {
	delete(a.releases, in.release)
	a.say(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{
		Job: uint32(in.release.job), Attempt: int32(in.release.attempt), Left: in.left,
	}}})
}
