package api

import (
	"context"
	"net/http"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Reconfigure asks the controller to read the cluster's configuration again: POST
// /v1/cluster/reconfigure. It is answered with what that changes, once that is durable.
type Reconfigure struct {
	DryRun bool // change nothing, only say what would be changed
}

// Reconfigured is in what the cluster differs from its configuration.
type Reconfigured struct {
	Changes  []ConfigChange
	Warnings []string     `json:",omitempty"` // of reading the configuration
	Starts   []PlanChange `json:",omitempty"` // of a dry run: jobs that would start at another time
}

// ConfigChange is one thing that is changed, or will be.
type ConfigChange struct {
	Kind   string        // see KindNode and so on
	Name   string        `json:",omitempty"`
	What   string        // see WhatAdded and so on
	Fate   string        // see FateNow and so on
	Fields []FieldChange `json:",omitempty"`
	Jobs   []job.ID      `json:",omitempty"` // that are there, and have to end first
}

// FieldChange is a value that is another one now.
type FieldChange struct{ Name, Was, Now string }

// The words of a [ConfigChange].
const (
	KindNode      = "node"
	KindPartition = "partition"
	KindNetwork   = "network"
	KindSettings  = "settings"

	WhatAdded   = "added"
	WhatRemoved = "removed"
	WhatChanged = "changed"
	WhatStays   = "stays" // it was to be removed or changed, and drains no longer

	FateNow     = "now"
	FateDrains  = "drains"  // it takes nothing new, and is changed when its jobs have ended
	FateRestart = "restart" // it counts when the daemons were started again
)

// Reconfigure has the cluster's configuration read again.
func (c *Client) Reconfigure(ctx context.Context, q *Reconfigure) (r Reconfigured, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/cluster/reconfigure", q, &r, false)
	return r, err
}
