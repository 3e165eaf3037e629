package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// getHistory answers from the accounting, and with what has not ended yet.
func (s *Server) getHistory(_ http.ResponseWriter, r *http.Request) (any, error) {
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
	f := store.Filter{
		IDs: q.IDs, Users: q.Users, Accounts: q.Accounts, Partitions: q.Partitions, Names: q.Names, States: states,
		Since: q.Since, Until: q.Until, Limit: cmp.Or(q.Limit, 10000),
		Latest: !q.Attempts,
	}
	if f.AfterJob, f.AfterAttempt, err = pageAfter(q.After); err != nil {
		return nil, err
	}
	// What runs is looked at first: what ends meanwhile is there twice, not missing.
	live, err := ask(s, r, func(c *core) ([]api.Past, error) { return c.live(&q, states), nil })
	if err != nil {
		return nil, err
	}
	page, err := s.past(r.Context(), f, q.Nodes)
	if err != nil {
		return nil, err
	}
	if f.Latest {
		err := s.do(r.Context(), func(c *core) {
			page.Items = latest(page.Items, live, func(id job.ID) bool {
				v, ok := c.sched.Job(id)
				return !ok || v.State.Done()
			})
		})
		if err != nil {
			return nil, err
		}
	}
	if page.Next == "" {
		for _, p := range live {
			if !slices.ContainsFunc(page.Items, func(o api.Past) bool {
				return p.Job.State != job.Pending && o.Job.ID == p.Job.ID && o.Job.Attempt == p.Job.Attempt
			}) {
				page.Items = append(page.Items, p)
			}
		}
		slices.SortStableFunc(page.Items, func(a, b api.Past) int {
			return cmp.Or(cmp.Compare(a.Job.ID, b.Job.ID), cmp.Compare(a.Job.Attempt, b.Job.Attempt))
		})
	}
	page.Now = job.Time(s.opts.Now().UnixMilli())
	return page, s.do(r.Context(), func(c *core) {
		for i := range page.Items {
			c.pastForPerson(who, &page.Items[i])
		}
	})
}

// latest leaves of what the accounting has the jobs that are done, by their latest attempts:
// not one before that which was live when the accounting was not yet read, though that has
// ended meanwhile.
func latest(items, live []api.Past, done func(job.ID) bool) []api.Past {
	attempts := map[job.ID]int{}
	for i := range live {
		attempts[live[i].Job.ID] = live[i].Job.Attempt
	}
	return slices.DeleteFunc(items, func(p api.Past) bool {
		return attempts[p.Job.ID] > p.Job.Attempt || !done(p.Job.ID)
	})
}

func (s *Server) past(ctx context.Context, f store.Filter, nodes []string) (api.Page[api.Past], error) {
	var page api.Page[api.Past]
	rows := 0
	err := s.opts.Store.History(ctx, f, func(p store.Past) error {
		rows++
		if rows == f.Limit {
			page.Next = fmt.Sprintf("%v.%d", p.Job, p.Attempt)
		}
		if len(nodes) > 0 && !slices.ContainsFunc(p.Nodes, func(n string) bool { return slices.Contains(nodes, n) }) {
			return nil
		}
		var past api.Past
		if err := json.Unmarshal(p.Data, &past.Job); err != nil {
			return fmt.Errorf("read accounting of job %v: %w", p.Job, err)
		}
		for _, data := range p.Steps {
			var st api.Step
			if err := json.Unmarshal(data, &st); err != nil {
				return fmt.Errorf("read accounting of a step of job %v: %w", p.Job, err)
			}
			past.Steps = append(past.Steps, st)
		}
		page.Items = append(page.Items, past)
		return nil
	})
	return page, err
}

// live are the jobs that have not ended, as the accounting would have them.
func (c *core) live(q *api.Query, states []job.State) []api.Past {
	var all []api.Past
	add := func(v *api.Job) {
		v.Spec, v.Shares = nil, nil
		if q.Until > 0 && cmp.Or(v.Start, v.Submit) > q.Until {
			return
		}
		p := api.Past{Job: *v}
		if r := c.runs[v.ID]; r != nil {
			for _, st := range r.Done {
				p.Steps = append(p.Steps, *c.stepView(st, false))
			}
			for _, id := range sortedSteps(r.Steps) {
				p.Steps = append(p.Steps, *c.stepView(r.Steps[id], false))
			}
		}
		all = append(all, p)
	}
	wanted := *q
	if len(states) == 0 {
		wanted.States = nil
	}
	for v := range c.sched.Running {
		if c.wanted(&wanted, states, &v) && (len(q.IDs) == 0 || containsJob(q.IDs, v.ID, v.Array)) {
			add(c.viewOf(&v))
		}
	}
	for v := range c.sched.Pending {
		if c.wanted(&wanted, states, &v) && (len(q.IDs) == 0 || containsJob(q.IDs, v.ID, v.Array)) {
			add(c.viewOf(&v))
		}
	}
	return all
}

func (s *Server) getExplain(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (any, error) {
		id, err := c.idOf(r.PathValue("id"))
		if err != nil {
			return nil, err
		}
		x, err := c.sched.Explain(id, c.now)
		if err != nil {
			return nil, refusedJob(err)
		}
		return x, nil
	})
}

// getEvents are the events of a job in the log.
func (s *Server) getEvents(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	id, first := job.ID(0), uint64(0)
	_, err := ask(s, r, func(c *core) (_ struct{}, err error) {
		if id, _, err = c.owned(who, r.PathValue("id")); err == nil {
			first = c.submission(id).Seq
		}
		return struct{}{}, err
	})
	var e *api.Error
	if errors.As(err, &e) && e.Kind == "INVALID_JOB_ID" { // it ended some time ago
		id, err = s.pastJob(r.Context(), who, r.PathValue("id"), err)
	}
	if err != nil {
		return nil, err
	}
	for {
		page, err := s.events(r.Context(), id, first)
		if err == nil || !errors.Is(err, store.ErrPruned) { // else they have gone just now
			return page, err
		}
	}
}

// pastJob is a job, or a task of an array, that only the accounting knows any more, of who asks.
// unknown is the answer where it has none.
func (s *Server) pastJob(ctx context.Context, who identity, text string, unknown error) (job.ID, error) {
	first, task, isTask := strings.Cut(text, "_")
	n, err := strconv.ParseUint(first, 10, 32)
	if err != nil || n == 0 {
		return 0, unknown
	}
	page, err := s.past(ctx, store.Filter{IDs: []job.ID{job.ID(n)}, Latest: true}, nil)
	if err != nil {
		return 0, err
	}
	for i := range page.Items {
		j := &page.Items[i].Job
		switch {
		case isTask && (j.Array == nil || strconv.FormatUint(uint64(j.Array.Task), 10) != task), !isTask && j.ID != job.ID(n):
		case who.from.Role == host.Node:
			return 0, unknown // where it ran is not known any more
		case !who.may(&job.Spec{UID: j.UID}):
			return 0, &api.Error{What: fmt.Sprintf("job %s: it is %s's", text, j.User), Kind: "ACCESS_DENIED"}
		default:
			return j.ID, nil
		}
	}
	return 0, unknown
}

// events are those of a job, whose first one has a number, as far as they are kept.
func (s *Server) events(ctx context.Context, id job.ID, first uint64) (api.Page[api.Logged], error) {
	page := api.Page[api.Logged]{Now: job.Time(s.opts.Now().UnixMilli())}
	after := max(first, 1) - 1
	if pruned := s.opts.Store.Pruned(); pruned > after {
		after = pruned
		page.Items = append(page.Items, api.Logged{Seq: pruned, Kind: "Pruned", Text: "earlier events are not kept"})
	}
	mark := []byte(id.String())
	err := s.opts.Store.Read(ctx, after, func(seq uint64, b []byte) error {
		if !bytes.Contains(b, mark) {
			return nil
		}
		var e struct {
			K string
			V json.RawMessage
		}
		if err := json.Unmarshal(b, &e); err != nil {
			return fmt.Errorf("read event %d: %w", seq, err)
		}
		var of struct {
			At   job.Time
			ID   job.ID
			Key  job.StepKey
			Spec struct {
				Key   job.StepKey
				Array *job.Array
			}
			End json.RawMessage
		}
		if json.Unmarshal(e.V, &of) != nil {
			return nil
		}
		var end struct{ Key job.StepKey }
		_ = json.Unmarshal(of.End, &end)
		n := job.ID(1)
		if of.Spec.Array != nil {
			n = job.ID(of.Spec.Array.Len())
		}
		if id >= of.ID && id < of.ID+n || of.Key.Job == id || of.Spec.Key.Job == id || end.Key.Job == id {
			page.Items = append(page.Items, api.Logged{Seq: seq, At: of.At, Kind: e.K, Data: e.V})
		}
		return nil
	})
	return page, err
}

// maxPrecache is how many images nodes are asked for at once.
const maxPrecache = 100

// precaching is a request that nodes have images.
type precaching struct {
	left   map[string]bool // nodes and images that are not done
	events chan api.Precached
}

func (s *Server) postPrecache(w http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := s.admin(r); err != nil {
		return nil, err
	}
	var q api.Precache
	if err := body(r, &q); err != nil {
		return nil, err
	}
	if len(q.Images) == 0 {
		return nil, &api.Error{What: "precache: no image is named", Code: fault.CodeUsage}
	}
	if len(q.Images) > maxPrecache || q.Rate < 0 {
		return nil, &api.Error{What: fmt.Sprintf("precache %d images, at %d bytes/s: the most is %d images, and no rate is below 0", len(q.Images), q.Rate, maxPrecache), Code: fault.CodeUsage}
	}
	id := rand.Text()
	defer s.put(func(c *core) { delete(c.precaches, id) })
	p, err := ask(s, r, func(c *core) (*precaching, error) { return c.precache(id, &q) })
	if err != nil {
		return nil, err
	}
	out := newWriter(w)
	for {
		select {
		case e, ok := <-p.events:
			if !ok {
				_ = out.flush()
				return nil, errDone
			}
			if out.put(e) != nil || out.flush() != nil {
				return nil, errDone
			}
		case <-r.Context().Done():
			return nil, errDone
		case <-s.stopped:
			return nil, errDone
		}
	}
}

// precache asks nodes to have images.
func (c *core) precache(id string, q *api.Precache) (*precaching, error) {
	names := slices.Clone(q.Nodes)
	if q.Partition != "" {
		p := c.partition(q.Partition)
		if p == nil {
			return nil, &api.Error{What: fmt.Sprintf("partition %s: Invalid partition name specified", q.Partition), Kind: "INVALID_PARTITION_NAME"}
		}
		names = append(names, p.Nodes...)
	}
	if len(names) == 0 {
		for i := range c.known {
			names = append(names, c.known[i].Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	p := &precaching{left: map[string]bool{}, events: make(chan api.Precached, 1024+len(names)*len(q.Images))}
	for _, name := range names {
		n := c.nodes[name]
		if n == nil {
			return nil, noNode(name)
		}
		for _, image := range q.Images {
			if n.session == nil {
				p.events <- api.Precached{Node: name, Image: image, Done: true, Fault: &job.Fault{What: "node " + name + " does not answer", Node: true}}
				continue
			}
			p.left[name+"\x00"+image] = true
		}
		c.send(name, &wire.ControllerMessage{Message: &wire.ControllerMessage_Precache{Precache: &wire.Precache{Id: id, Images: q.Images, Rate: q.Rate}}})
	}
	if len(p.left) == 0 {
		close(p.events)
		return p, nil
	}
	c.precaches[id] = p
	return p, nil
}

// precached takes how far a node is with an image.
func (c *core) precached(node string, m *wire.Precached) {
	p := c.precaches[m.Id]
	if p == nil || !p.left[node+"\x00"+m.Image] {
		return // nobody waits for it, or it was said already
	}
	e := api.Precached{Node: node, Image: m.Image, Digest: m.Digest, Bytes: m.Bytes, Total: m.Total, Done: m.Done}
	if len(m.Fault) > 0 {
		e.Fault = new(job.Fault)
		if json.Unmarshal(m.Fault, e.Fault) != nil {
			e.Fault.What = strings.ToValidUTF8(string(m.Fault), "?")
		}
	}
	if m.Done {
		delete(p.left, node+"\x00"+m.Image)
		p.events <- e // there is room for one of each
	} else if len(p.events) < 1024 {
		p.events <- e
	}
	if len(p.left) == 0 {
		close(p.events)
		delete(c.precaches, m.Id)
	}
}
