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

// attemptOf is the attempt that a step is of.
func attemptOf(key job.StepKey) release { return release{key.Job, key.Attempt} }

// releasing is how far a release is.
type releasing struct {
	since time.Time
	going bool // processes are being looked for
}

// releasePatience is how long what was killed may take to be gone.
const releasePatience = 10 * time.Second

// release ends what an attempt still has here. That nothing is left is said by
// driveReleases.
func (a *Agent) release(r release) {
	if a.releases[r] != nil {
		return
	}
	a.releases[r] = &releasing{since: time.Now()}
	for key, h := range a.steps {
		if attemptOf(key) == r && h.phase != ended {
			a.happen(h, killIn{why: "its job is over"})
		}
	}
}

// driveReleases sees to the releases whose steps have all ended. A supervisor that has said
// that it left nothing is believed: it is the same user as this process, whatever its ranks
// start is its child or becomes it, and the kernel told it that it has none. Else
// processes are looked for, which takes a look at every one of the machine.
func (a *Agent) driveReleases(ctx context.Context) {
	for r, state := range a.releases {
		if state.going || a.waits(r, state) {
			continue
		}
		state.going = true
		if a.stray[r] || a.Users != nil { // what a user's process says, no release rests on
			go a.search(ctx, r, a.lingering(r), a.dirty)
			a.dirty = map[uint32]bool{}
			continue
		}
		a.cleaned(cleanedIn{r, ""})
	}
}

// waits says whether a release has to wait for steps. What does not end in time is
// looked for as what is left by others.
func (a *Agent) waits(r release, state *releasing) bool {
	for key, h := range a.steps {
		if attemptOf(key) != r {
			continue
		}
		if h.phase == ended {
			if !h.gone && !h.clean { // it keeps output for clients, and did not end all
				a.stray[r] = true
			}
			continue
		}
		if time.Since(state.since) < releasePatience {
			return true
		}
		a.stray[r] = true
	}
	return false
}

// lingering are the supervisors that keep the output of their step for clients for a while.
func (a *Agent) lingering(r release) map[int]bool {
	spare := map[int]bool{}
	for key, h := range a.steps {
		if attemptOf(key) == r && h.phase == ended && !h.gone {
			spare[h.pid()] = true
		}
	}
	return spare
}

// search ends the processes that an attempt has here but for those to be spared.
func (a *Agent) search(ctx context.Context, r release, spare map[int]bool, users map[uint32]bool) {
	prefix := fmt.Sprintf("%s/%s/%d.%d.", a.Cluster, a.Node.Name, r.job, r.attempt)
	left := kill(prefix, func(pid int, _ string) bool { return spare[pid] }, releasePatience)
	text := ""
	if len(left) > 0 {
		text = fmt.Sprintf("processes that cannot be killed: %d", left)
	}
	if n := a.Orphans.End(releasePatience); n > 0 {
		text = fmt.Sprintf("processes without a marker that cannot be killed: %d", n)
	}
	if err := a.removeLeftovers(ctx, users); err != nil && text == "" {
		text = err.Error()
	}
	if ctx.Err() == nil {
		a.inputs.put(cleanedIn{r, text})
	}
}

// removeLeftovers removes what is of no process any more, of some users (nil: of all). The
// next agent tries it again.
func (a *Agent) removeLeftovers(ctx context.Context, users map[uint32]bool) error {
	var err error
	switch {
	case a.Users != nil:
		err = a.cleanUsers(ctx, users)
	case a.Leftovers != nil:
		err = a.Leftovers()
	}
	if err != nil {
		a.Log.Error("files of containers stay", "err", err)
	}
	return err
}

// cleaned says that nothing is left. A controller that was away asks again.
func (a *Agent) cleaned(in cleanedIn) {
	delete(a.releases, in.release)
	delete(a.stray, in.release)
	a.say(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{
		Job: uint32(in.release.job), Attempt: int32(in.release.attempt), Left: in.left,
	}}})
}
