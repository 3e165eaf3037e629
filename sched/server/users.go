package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/account"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
)

// What others may see of a job: its line in the queue, and not what it has written.

// member says in which groups a job of who asks runs: those of the user, as this machine
// knows them now, with the one that the kernel says. Where the cluster is one user's, that
// is decided by nobody: all daemons have his rights already.
func (i identity) member() ([]uint32, *api.Error) {
	if !i.multiuser {
		return nil, nil
	}
	a, err := i.users.ByID(context.Background(), i.uid)
	switch {
	case errors.Is(err, account.ErrUnknown):
		return nil, &api.Error{
			What: fmt.Sprintf("submit job: user %d is not known to the controller's host", i.uid),
			Hint: "have the account made there, or its directory service reached: getent passwd " + number(i.uid), Kind: "USER_ID_MISSING",
		}
	case err != nil:
		return nil, &api.Error{What: "submit job: look for the user: " + err.Error(), Hint: "is the directory service of the controller's host running?", Kind: "USER_ID_MISSING"}
	case a.Has(i.gid):
		return a.Groups, nil
	case i.from != (host.Peer{}):
		return nil, &api.Error{
			What: fmt.Sprintf("submit job: %s %s says that user %s is of group %d", i.from.Role, i.from.Name, a.Name, i.gid), Kind: "ACCESS_DENIED",
			Cause: "the controller's host does not know him as a member of it", Hint: "have both hosts know the same groups: id " + a.Name,
		}
	}
	groups := append(slices.Clone(a.Groups), i.gid)
	slices.Sort(groups)
	return groups, nil
}

// sees says whether who asks may see what a job has written.
func (c *core) sees(who identity, id job.ID, uid uint32) bool {
	if who.admin() || who.uid != uid {
		return who.admin()
	}
	if c.submission(id) == nil { // where it ran is not known any more
		return who.from.Role != host.Node
	}
	return c.reaches(who, id)
}

// forPerson is a job as who asks may see it. What is shown to others is a copy.
func (c *core) forPerson(who identity, j *api.Job) *api.Job {
	if j == nil || j.Failed == nil || c.sees(who, j.ID, j.UID) {
		return j
	}
	v := *j
	v.Failed = tailless(j.Failed)
	return &v
}

// stepForPerson is forPerson of a step, whose job is a user's.
func (c *core) stepForPerson(who identity, v *api.Step, uid uint32) *api.Step {
	if c.sees(who, v.Key.Job, uid) {
		return v
	}
	s := *v
	s.Failed, s.Notes = tailless(v.Failed), nil
	s.Ends = slices.Clone(v.Ends)
	for i := range s.Ends {
		s.Ends[i].Ranks = slices.Clone(s.Ends[i].Ranks)
		for k := range s.Ends[i].Ranks {
			s.Ends[i].Ranks[k].Tail = nil
		}
	}
	return &s
}

// tailless is the end of a rank without its last lines.
func tailless(r *job.RankEnd) *job.RankEnd {
	if r == nil {
		return nil
	}
	end := *r
	end.Tail = nil
	return &end
}

// ownerOf is whose a job is.
func (c *core) ownerOf(id job.ID) uint32 {
	v, ok := c.sched.Job(id)
	if !ok {
		return 0 // administrators see it, and who saw it before
	}
	return v.Spec.UID
}

// pastForPerson makes an entry of the accounting one as who asks may see it.
func (c *core) pastForPerson(who identity, p *api.Past) {
	if c.sees(who, p.Job.ID, p.Job.UID) {
		return
	}
	p.Job = *c.forPerson(who, &p.Job)
	p.Steps = slices.Clone(p.Steps)
	for i := range p.Steps {
		p.Steps[i] = *c.stepForPerson(who, &p.Steps[i], p.Job.UID)
	}
}

// eventForPerson is an event as who watches may see it.
func (c *core) eventForPerson(who identity, e api.Event) api.Event {
	e.Job = c.forPerson(who, e.Job)
	if e.Step != nil {
		e.Step = c.stepForPerson(who, e.Step, c.ownerOf(e.Step.Key.Job))
	}
	return e
}
