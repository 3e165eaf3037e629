package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Past is a job in the accounting, with its steps: GET /v1/history.
type Past struct {
	Job   Job
	Steps []Step `json:",omitempty"`
}

// Logged is something that happened to a job, as the controller has it on stable storage:
// GET /v1/jobs/ID/events.
type Logged struct {
	Seq  uint64
	At   job.Time
	Kind string // the event's type: Submitted, Started, ...
	Text string // for people
	Data json.RawMessage
}

// PlanRequest asks what would change: POST /v1/plan. The answer is a [Plan].
type PlanRequest struct {
	Submit *job.Spec `json:",omitempty"` // if this was submitted
	Drain  []string  `json:",omitempty"` // if these nodes were drained
	Cancel []job.ID  `json:",omitempty"` // if these jobs were cancelled
}

// Plan is which jobs would start at another time, and what would be free at once.
type Plan struct {
	Page[PlanChange]
	Frees []Freed `json:",omitempty"`
}

// Freed is what a job gives back that runs and is cancelled.
type Freed struct {
	ID     job.ID
	Shares []job.NodeShare
	Until  job.Time // when its time limit would have ended it
}

// PlanChange is a job that would start at another time. The job of a PlanRequest's Submit
// has ID 0, and a Was of 0.
type PlanChange struct {
	ID       job.ID
	Was, Now job.Time // job.Never: not as things are
}

// Precache asks nodes to have images: POST /v1/precache. It is answered by lines of
// [Precached] until all nodes are done.
type Precache struct {
	Images    []string
	Nodes     []string `json:",omitempty"`
	Partition string   `json:",omitempty"`
	Rate      int64    `json:",omitempty"` // bytes/s a node; 0: no limit
}

// Precached is how far a node is with an image.
type Precached struct {
	Node, Image  string
	Digest       string `json:",omitempty"`
	Bytes, Total int64
	Done         bool
	Fault        *job.Fault `json:",omitempty"`
}

// NodeImages are the images that a node has, as REFERENCE@DIGEST: GET /v1/images.
type NodeImages struct {
	Node   string
	Images []string
}

// Explanation says why a job waits: GET /v1/explain/ID. It is package sched's, with the
// same names.
type Explanation struct {
	ID          job.ID
	Reason      string // Slurm's one word
	Text        string // a sentence for people
	Constraints []Constraint
	Nodes       int // how many nodes it needs
	Fit         int // nodes on which it could start now
	Could       int // nodes on which it could ever run
	Ahead       []job.ID
	AheadCount  int
	Expected    job.Time // job.Never: not as things are; 0: not planned
	Basis       string   // what the expected start rests on
	Relaxations []Relaxation
}

// Constraint is one thing that keeps nodes from a job.
type Constraint struct {
	Name  string
	Nodes int // how many nodes it rules out, of those that earlier ones left
	Left  int // how many are left
	Text  string
}

// Relaxation is a change that starts a job earlier.
type Relaxation struct {
	Text    string // "--nodes=3"
	Start   job.Time
	Latest  bool     // it may start before Start: too many jobs wait behind it to try all that would move
	Release bool     // it is released first
	Spec    job.Spec // what it asks for then
}

// History asks the accounting for jobs, those that are over among them.
func (c *Client) History(ctx context.Context, q *Query) (p Page[Past], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/history?"+q.Values().Encode(), nil, &p, false)
	return p, err
}

// JobText asks for one job by what people write: 12, or 12_3 for a task of an array.
func (c *Client) JobText(ctx context.Context, id string) (j Job, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id), nil, &j, false)
	return j, err
}

// Script asks for the batch script of a job.
func (c *Client) Script(ctx context.Context, id string) ([]byte, error) {
	text, _, err := c.text(ctx, "/v1/jobs/"+url.PathEscape(id)+"/script", "")
	return []byte(text), err
}

// JobEvents asks for all that happened to a job.
func (c *Client) JobEvents(ctx context.Context, id string) (p Page[Logged], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/jobs/"+url.PathEscape(id)+"/events", nil, &p, false)
	return p, err
}

// Change asks for something to be done to a job: hold, release, requeue, or, with an empty
// verb, another Spec. The id is as in [Client.JobText].
func (c *Client) Change(ctx context.Context, id, verb string, change *Change) error {
	path := "/v1/jobs/" + url.PathEscape(id)
	if verb != "" {
		path += "/" + verb
	}
	return c.call(ctx, http.MethodPost, path, change, nil, false)
}

// RunningSteps asks for the steps that have not ended.
func (c *Client) RunningSteps(ctx context.Context, q *Query) (p Page[Step], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/steps?"+q.Values().Encode(), nil, &p, false)
	c.locatedAll(p.Items)
	return p, err
}

// Nodes asks for all nodes.
func (c *Client) Nodes(ctx context.Context) (p Page[Node], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/nodes", nil, &p, false)
	return p, err
}

// Partitions asks for all partitions.
func (c *Client) Partitions(ctx context.Context) (p Page[Partition], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/partitions", nil, &p, false)
	return p, err
}

// ChangeNode asks for another state of a node.
func (c *Client) ChangeNode(ctx context.Context, name string, change *Change) error {
	return c.call(ctx, http.MethodPost, "/v1/nodes/"+url.PathEscape(name), change, nil, false)
}

// ChangePartition asks for another state of a partition.
func (c *Client) ChangePartition(ctx context.Context, name string, change *Change) error {
	return c.call(ctx, http.MethodPost, "/v1/partitions/"+url.PathEscape(name), change, nil, false)
}

// Explain asks why a job waits.
func (c *Client) Explain(ctx context.Context, id string) (x Explanation, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/explain/"+url.PathEscape(id), nil, &x, false)
	return x, err
}

// Plan asks what would change.
func (c *Client) Plan(ctx context.Context, r *PlanRequest) (p Plan, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/plan", r, &p, false)
	return p, err
}

// Precache has images brought to nodes, and calls f for how far they are. It returns
// io.EOF when all are done.
func (c *Client) Precache(ctx context.Context, r *Precache, f func(*Precached) bool) error {
	return lines(ctx, c, http.MethodPost, "/v1/precache", r, f)
}

// Images asks which images the nodes have.
func (c *Client) Images(ctx context.Context) (p Page[NodeImages], err error) {
	err = c.call(ctx, http.MethodGet, "/v1/images", nil, &p, false)
	return p, err
}

// Cluster is how the cluster is configured: GET /v1/cluster.
type Cluster struct {
	Name     string
	Version  string // of the controller
	Now      job.Time
	Began    job.Time // when the controller started
	Config   job.Config
	Network  job.Network
	Programs *job.Programs `json:",omitempty"` // that agents run
	Licenses []LicenseUse
}

// LicenseUse is how many of a licence jobs have.
type LicenseUse struct {
	Name        string
	Total, Used int64
}

// Cluster asks how the cluster is configured.
func (c *Client) Cluster(ctx context.Context) (v Cluster, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/cluster", nil, &v, false)
	return v, err
}
