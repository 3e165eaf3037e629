package server

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// getJobs answers a query for jobs as they are.
func (s *Server) getJobs(w http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	q, err := api.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage}
	}
	states, err := statesOf(q.States)
	if err != nil {
		return nil, err
	}
	page, err := ask(s, r, func(c *core) (api.Page[*api.Job], error) { return c.jobs(who, &q, states) })
	if err != nil || q.Whole || r.Header.Get("Accept") != api.Packed {
		return page, err
	}
	text := api.AppendPacked(make([]byte, 0, 160*(1+len(page.Items))), page.Items, page.Next, page.Now)
	w.Header().Set("Content-Type", api.Packed)
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
	return nil, errDone
}

// recently is how long ended jobs are shown by those who ask for them.
const recently = 5 * job.Minute

func (c *core) jobs(who identity, q *api.Query, states []job.State) (api.Page[*api.Job], error) {
	page := api.Page[*api.Job]{Now: c.now}
	limit := cmp.Or(q.Limit, 10000)
	after := job.ID(0)
	if q.After != "" {
		n, err := strconv.ParseUint(q.After, 10, 32)
		if err != nil {
			return page, &api.Error{What: fmt.Sprintf("after=%s is no page's", q.After), Code: fault.CodeUsage}
		}
		after = job.ID(n)
	}
	views, err := c.chosen(q, states, after)
	if err != nil {
		return page, err
	}
	defer c.recycle(views)
	shown := map[job.ID]*api.Job{} // by array: its tasks that wait
	for i := range views {
		v := &views[i]
		if i > 0 && v.ID == views[i-1].ID {
			continue
		}
		if v.Array != 0 && v.State == job.Pending && !q.Tasks {
			if first := shown[v.Array]; first != nil && first.Held == (v.Priority == 0) {
				first.Waiting = addTask(first.Waiting, v.Task)
				continue
			}
		}
		if len(page.Items) == limit {
			page.Next = strconv.FormatUint(uint64(page.Items[len(page.Items)-1].ID), 10)
			break
		}
		j := c.forPerson(who, c.viewOf(v))
		if q.Whole {
			c.whole(j)
		} else {
			j.Spec, j.Shares = nil, nil
		}
		if v.Array != 0 && v.State == job.Pending && !q.Tasks {
			j.Waiting = addTask(nil, v.Task)
			shown[v.Array] = j
		}
		page.Items = append(page.Items, j)
	}
	return page, nil
}

// chosen are the jobs that a query chooses behind one, by their ids, some of them twice.
// They are in c.views, to be given back to recycle.
func (c *core) chosen(q *api.Query, states []job.State, after job.ID) ([]sched.JobView, error) {
	views := c.views[:0]
	keep := func(v sched.JobView) bool {
		if v.ID > after && c.wanted(q, states, &v) {
			views = append(views, v)
		}
		return true
	}
	add := func(id job.ID) {
		if v, ok := c.sched.Job(id); ok {
			keep(v)
		}
	}
	for _, id := range q.IDs {
		ids := c.tasksOf(id)
		if _, ok := c.sched.Job(id); !ok && len(q.IDs) == 1 {
			return nil, &api.Error{What: fmt.Sprintf("job %v: Invalid job id specified", id), Kind: "INVALID_JOB_ID"}
		}
		for _, id := range ids {
			add(id)
		}
	}
	if len(q.IDs) == 0 {
		c.sched.Running(keep)
		c.sched.Pending(keep)
		if q.Recent || len(states) > 0 {
			for _, id := range c.ended(c.now.Add(-recently)) {
				add(id)
			}
		}
	}
	slices.SortFunc(views, func(a, b sched.JobView) int { return cmp.Compare(a.ID, b.ID) })
	return views, nil
}

// recycle keeps the room of views for the next query: they are many, and often asked for.
// That of more than a page is given back.
func (c *core) recycle(views []sched.JobView) {
	if c.views = nil; cap(views) <= 1<<14 {
		clear(views)
		c.views = views[:0]
	}
}

// addTask adds the next task to ranges, and makes ranges with a step of what has one.
func addTask(list []job.Range, task uint32) []job.Range {
	if n := len(list); n > 0 {
		last := &list[n-1]
		if last.First == last.Last {
			last.Step, last.Last = task-last.First, task
			return list
		}
		if task == last.Last+last.Step {
			last.Last = task
			return list
		}
		if last.Last == last.First+last.Step && last.Step > 1 { // two are no range
			second := last.Last
			last.Last, last.Step = last.First, 1
			return append(list, job.Range{First: second, Last: task, Step: task - second})
		}
	}
	return append(list, job.Range{First: task, Last: task, Step: 1})
}

// wanted says whether a query chooses a job.
func (c *core) wanted(q *api.Query, states []job.State, v *sched.JobView) bool {
	p, state := v.Spec, v.State
	if r := c.runs[v.ID]; r != nil && r.Fate != nil {
		state = job.Completing
	}
	in := func(list []string, names ...string) bool {
		return len(list) == 0 || slices.ContainsFunc(names, func(n string) bool { return slices.Contains(list, n) })
	}
	parts := p.Partitions
	if v.Allocation.Partition != "" {
		parts = []string{v.Allocation.Partition}
	} else if len(parts) == 0 {
		parts = []string{c.defaultPartition()}
	}
	switch {
	case c.nobodys(v.ID):
		return false
	case !in(q.Users, p.User, strconv.FormatUint(uint64(p.UID), 10)), !in(q.Accounts, p.Account), !in(q.Names, p.Name), !in(q.Partitions, parts...):
		return false
	case len(q.Nodes) > 0 && !slices.ContainsFunc(v.Allocation.Nodes, func(n job.NodeShare) bool { return slices.Contains(q.Nodes, n.Node) }):
		return false
	case len(states) > 0:
		return slices.Contains(states, state)
	case state.Done():
		return len(q.IDs) > 0 || q.Recent && v.End >= c.now.Add(-recently)
	}
	return true
}

// statesOf reads the names of states, long or short.
func statesOf(names []string) ([]job.State, error) {
	short := map[string]job.State{
		"PD": job.Pending, "R": job.Running, "CG": job.Completing, "CD": job.Completed, "CA": job.CancelledState, "F": job.Failed,
		"TO": job.Timeout, "NF": job.NodeFailed, "OOM": job.OutOfMemory, "DL": job.DeadlineMissed, "PR": job.Preempted,
	}
	var all []job.State
	for _, name := range names {
		up := strings.ToUpper(name)
		if up == "ALL" {
			for st := job.Pending; st <= job.Preempted; st++ {
				all = append(all, st)
			}
			continue
		}
		st, ok := short[up]
		for _, one := range short {
			if one.String() == up {
				st, ok = one, true
			}
		}
		if !ok {
			return nil, &api.Error{What: "Invalid job state specified: " + name, Code: fault.CodeUsage, Kind: "INVALID_JOB_STATE"}
		}
		all = append(all, st)
	}
	return all, nil
}
