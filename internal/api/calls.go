package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Ping asks who is there.
func (c *Client) Ping(ctx context.Context) (p Ping, err error) {
	err = c.call(ctx, http.MethodGet, "/v1", nil, &p, false)
	return p, err
}

// Submit asks for a job. It is durable when the answer comes.
func (c *Client) Submit(ctx context.Context, s *Submit) (a Submitted, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/jobs", s, &a, false)
	return a, err
}

// Jobs asks for the jobs that q chooses; History for those that are over, too.
func (c *Client) Jobs(ctx context.Context, q *Query) (p Page[Job], err error) {
	text, kind, err := c.text(ctx, "/v1/jobs?"+q.Values().Encode(), Packed)
	if err != nil {
		return p, err
	}
	if kind == Packed {
		return ParsePacked(text)
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return p, fmt.Errorf("read answer of %s: %w", c.address, err)
	}
	return p, nil
}

// Job asks for one job.
func (c *Client) Job(ctx context.Context, id job.ID) (j Job, err error) {
	err = c.call(ctx, http.MethodGet, jobPath(id), nil, &j, false)
	return j, err
}

// JobNamed is Job for one as it is written: 12, 12_3.
func (c *Client) JobNamed(ctx context.Context, name string) (j Job, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(name), nil, &j, false)
	return j, err
}

// Cancel ends a job, or a whole array, or one that waits.
func (c *Client) Cancel(ctx context.Context, id job.ID) error {
	return c.call(ctx, http.MethodDelete, jobPath(id), nil, nil, false)
}

// End says that the owner of an allocation is done with it; exit is what it came to.
func (c *Client) End(ctx context.Context, id job.ID, exit int) error {
	return c.call(ctx, http.MethodPost, jobPath(id)+"/end", &Change{Exit: exit}, nil, false)
}

// EndStep ends a step: TERM and, after a while, KILL.
func (c *Client) EndStep(ctx context.Context, id job.ID, step job.StepID) error {
	return c.call(ctx, http.MethodDelete, jobPath(id)+"/steps/"+step.String(), nil, nil, false)
}

// EndStepOvertime is EndStep for a step whose own time is up, which its output says.
func (c *Client) EndStepOvertime(ctx context.Context, id job.ID, step job.StepID) error {
	return c.call(ctx, http.MethodDelete, jobPath(id)+"/steps/"+step.String()+"?overtime=1", nil, nil, false)
}

// EndStepNamed is EndStep for a job or task of an array as they are written: 12, 12_3.
func (c *Client) EndStepNamed(ctx context.Context, name string, step job.StepID) error {
	return c.call(ctx, http.MethodDelete, "/v1/jobs/"+url.PathEscape(name)+"/steps/"+step.String(), nil, nil, false)
}

// CancelNamed is Cancel for a job or tasks of an array as they are written: 12, 12_3.
func (c *Client) CancelNamed(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, "/v1/jobs/"+url.PathEscape(name), nil, nil, false)
}

// SignalNamed is Signal for a job or tasks of an array as they are written: 12, 12_3.
func (c *Client) SignalNamed(ctx context.Context, name string, change *Change) error {
	return c.call(ctx, http.MethodPost, "/v1/jobs/"+url.PathEscape(name)+"/signal", change, nil, false)
}

// Signal sends a signal to a job, or a step of it.
func (c *Client) Signal(ctx context.Context, id job.ID, change *Change) error {
	return c.call(ctx, http.MethodPost, jobPath(id)+"/signal", change, nil, false)
}

// Step makes a step in a running job. It waits until the step has its place.
func (c *Client) Step(ctx context.Context, id job.ID, r *StepRequest) (s Step, err error) {
	for deadline := time.Now().Add(c.patience); ; {
		err = c.call(ctx, http.MethodPost, jobPath(id)+"/steps", r, &s, true)
		c.located(&s)
		// The controller may have gone with the request. Asked once more it answers the same.
		away, ok := errors.AsType[*Unreachable](err)
		if !ok || away.Timeout || r.Once == "" || time.Now().After(deadline) || ctx.Err() != nil {
			return s, err
		}
	}
}

// Steps asks for the steps of a job.
func (c *Client) Steps(ctx context.Context, id job.ID) (p Page[Step], err error) {
	err = c.call(ctx, http.MethodGet, jobPath(id)+"/steps", nil, &p, false)
	c.locatedAll(p.Items)
	return p, err
}

// StepOf asks for one step, with how its ranks ended.
func (c *Client) StepOf(ctx context.Context, id job.ID, step job.StepID) (s Step, err error) {
	err = c.call(ctx, http.MethodGet, jobPath(id)+"/steps/"+step.String(), nil, &s, false)
	c.located(&s)
	return s, err
}

// Hold keeps an allocation: the job ends soon after nobody does. It returns when ctx ends,
// the job has ended (io.EOF), or the controller has gone.
func (c *Client) Hold(ctx context.Context, id job.ID) error {
	return lines(ctx, c, http.MethodGet, jobPath(id)+"/hold", nil, func(*struct{}) bool { return true })
}

// Watch calls f for what happens to the jobs that q chooses, and their steps; first for
// how they are. It returns nil when f says false, io.EOF when the controller ends it.
func (c *Client) Watch(ctx context.Context, q *Query, f func(*Event) bool) error {
	return lines(ctx, c, http.MethodGet, "/v1/watch?"+q.Values().Encode(), nil, func(e *Event) bool {
		if e.Step != nil {
			c.located(e.Step)
		}
		return f(e)
	})
}

func jobPath(id job.ID) string { return "/v1/jobs/" + id.String() }

// Values is q as parameters of a URL; [ParseQuery] is the contrary.
func (q *Query) Values() url.Values {
	v := url.Values{}
	list := func(name string, words []string) {
		if len(words) > 0 {
			v.Set(name, strings.Join(words, ","))
		}
	}
	number := func(name string, n int64) {
		if n != 0 {
			v.Set(name, strconv.FormatInt(n, 10))
		}
	}
	flag := func(name string, on bool) {
		if on {
			v.Set(name, "1")
		}
	}
	ids := make([]string, len(q.IDs))
	for i, id := range q.IDs {
		ids[i] = id.String()
	}
	list("ids", ids)
	list("users", q.Users)
	list("partitions", q.Partitions)
	list("accounts", q.Accounts)
	list("states", q.States)
	list("names", q.Names)
	list("nodes", q.Nodes)
	number("since", int64(q.Since))
	number("until", int64(q.Until))
	number("limit", int64(q.Limit))
	flag("tasks", q.Tasks)
	flag("recent", q.Recent)
	flag("whole", q.Whole)
	flag("duplicates", q.Attempts)
	if q.After != "" {
		v.Set("after", q.After)
	}
	return v
}
