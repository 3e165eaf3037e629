package api

import (
	"context"
	"net/http"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Diag is what the controller has done since it started, or since its counts were set to 0:
// GET /v1/diag, and POST /v1/diag/reset by an administrator. Spans are in microseconds.
type Diag struct {
	Now, Since job.Time

	Requests   int // that are being answered
	Sessions   int // of agents
	ToAgents   int // messages that agents have to get
	Unstored   int // batches of events that are not on stable storage yet
	ClockCalls int // microseconds for 1000 readings of the clock

	Submitted, Started, Completed, Cancelled, Failed uint64 // jobs
	Pending, Running                                 int    // now

	Cycles  Cycles // in which something was decided
	Turns   Cycles // of all, in which the controller took what had come
	Commits Cycles // of batches to stable storage

	Calls []Called // by kind, the most frequent ones first
	Users []Called
}

// Cycles are how often something was done, and how long it took.
type Cycles struct {
	Count          uint64
	Last, Max, Sum int64
	Depth          uint64 `json:",omitempty"` // decisions in all of them
	At             job.Time
}

// Called is how often the controller was asked for something, or by somebody.
type Called struct {
	Name  string // METHOD PATH, or a user's name
	UID   uint32 `json:",omitempty"`
	Count uint64
	Sum   int64
}

// Diag asks what the controller has done.
func (c *Client) Diag(ctx context.Context) (d Diag, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/diag", nil, &d, false)
	return d, err
}

// ResetDiag sets the counts to 0.
func (c *Client) ResetDiag(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/diag/reset", nil, nil, false)
}
