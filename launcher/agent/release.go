package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// release names an attempt of a job that is over.
type release struct {
	job     job.ID
	attempt int
}

func (r release) compare(other release) int {
	return cmp.Or(cmp.Compare(r.job, other.job), cmp.Compare(r.attempt, other.attempt))
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
func (a *Agent) release(ctx context.Context, r release, env []byte) {
	if a.releases[r] != nil {
		return
	}
	a.toStay(ctx, r, leaveIn{envOf(env)})
	a.releases[r] = &releasing{since: a.Ground.Now()}
	for h := range a.all {
		if attemptOf(h.key) == r && h.phase != ended {
			a.happen(h, killIn{why: "its job is over"})
		}
	}
}

// driveReleases sees to the releases whose steps have all ended. A supervisor that has said
// that it left nothing is believed: it is the same user as this process, whatever its ranks
// start is its child or becomes it, and the kernel told it that it has none. Else
// processes are looked for, which takes a look at every one of the machine.
func (a *Agent) driveReleases(ctx context.Context) {
	for _, r := range slices.SortedFunc(maps.Keys(a.releases), release.compare) {
		state := a.releases[r]
		if state.going || a.waits(r, state) {
			continue
		}
		state.going = true
		if a.stray[r] || a.Users != nil { // on what a user's process says no release rests
			a.Ground.Search(ctx, r.job, r.attempt, a.lingering(r), func(left string) { a.inputs.put(cleanedIn{r, left}) })
			continue
		}
		a.toStay(ctx, r, emptyIn{"", len(a.programs.Epilog) > 0})
	}
}

// waits says whether a release has to wait for steps. What does not end in time is
// looked for as what is left by others.
func (a *Agent) waits(r release, state *releasing) bool {
	if s := a.programs.stays[r]; s != nil && s.prolog == going {
		return true // it ends by itself, before the epilog begins
	}
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
		if a.Ground.Now().Sub(state.since) < releasePatience {
			return true
		}
		a.stray[r] = true
	}
	return false
}

// lingering are the steps whose supervisor keeps their output for clients for a while.
func (a *Agent) lingering(r release) []job.StepKey {
	var spare []job.StepKey
	for h := range a.all {
		if attemptOf(h.key) == r && h.phase == ended && !h.gone {
			spare = append(spare, h.key)
		}
	}
	return spare
}

// cleaned says that nothing is left, and whether the node is to take nothing new. A controller
// that was away asks again.
func (a *Agent) cleaned(r release, left, drain string) {
	delete(a.releases, r)
	delete(a.stray, r)
	a.say(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{
		Job: uint32(r.job), Attempt: int32(r.attempt), Left: left, Drain: drain,
	}}})
}
