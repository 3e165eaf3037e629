// Package control is what a node's agent and the supervisor of a step say to each other
// over the step's socket: lines of JSON, a [Request] a line one way, an [Event] a line
// the other way. It is also the names of the files in a step's run directory.
//
// First use: c, err := control.Dial(dir) in an agent, control.Listen(dir) in a supervisor,
// then Send and Receive. A Conn has one sender and one receiver at a time.
//
// The package starts no process and decides nothing; a connection whose first line is
// Request.IO or Request.Exec is not this protocol's from its second line on.
package control

import (
	"encoding/json"

	"github.com/gangway-hpc/gangway/internal/job"
)

// The files in a step's run directory.
const (
	SpecFile   = "spec.json" // job.StepSpec; the agent's
	IntentFile = "intent"    // Start as JSON, synced before it is sent; the agent's
	PIDFile    = "pid"       // of the supervisor, and its start time in /proc/PID/stat; the agent's
	EndFile    = "end.json"  // job.StepEnd, synced; the supervisor's
	LogFile    = "log"       // the supervisor's stderr
	SocketFile = "step.sock" // the supervisor's
)

// Marker is the environment variable by which processes of a step are found: it is in the
// supervisor's environment and in that of each rank, see [MarkerOf].
const Marker = "GANGWAY_STEP"

// MarkerOf is the value of the marker: ID/NODE/, where ID is the cluster's, the name of the run
// directory, and /.
func MarkerOf(cluster, node string, k job.StepKey) string {
	return cluster + "/" + node + "/" + DirOf(k) + "/"
}

// Request is a line to the supervisor: one field of it.
type Request struct {
	// Watch asks for events: those of the step's present state, then all that come. It is
	// the first line of the agent's connection, which the supervisor is born with, and may
	// come again on another one.
	Watch  bool   `json:"watch,omitempty"`
	Start  *Start `json:"start,omitempty"`
	Signal int    `json:"signal,omitempty"` // to all ranks and what they started; negative: to them alone
	// SignalID is of Signal: one that is not higher than the last is a repetition, and not sent
	// again. 0: it has none.
	SignalID uint64 `json:"signal_id,omitempty"`
	Kill     *Kill  `json:"kill,omitempty"`
	Renew    int64  `json:"renew,omitempty"` // ms that the lease of a prepared step lasts from now

	// Hold is how long from now, in ms, the ranks may run without their agent. Once it was said
	// it has to be said again in time, by this agent or the next.
	Hold int64 `json:"hold,omitempty"`

	// Usage asks for an Event with what the ranks have used so far.
	Usage bool `json:"usage,omitempty"`

	// IO and Exec are the first lines of other connections, made by clients. Package
	// launcher/stdio has what is in them and what follows.
	IO   json.RawMessage `json:"io,omitempty"`
	Exec json.RawMessage `json:"exec,omitempty"`
}

// Start lets the ranks of a prepared step go. A second one changes nothing.
type Start struct {
	Image      string `json:"image,omitempty"`
	MasterAddr string `json:"master_addr,omitempty"`
	MasterPort int    `json:"master_port,omitempty"`
}

// Kill ends a step: TERM to its ranks, KILL after the grace. What is not started yet ends
// at once.
type Kill struct {
	GraceMS int64  `json:"grace_ms"`
	Why     string `json:"why,omitempty"`
}

// Event is a line of the supervisor: one field of it.
type Event struct {
	Progress *Progress    `json:"progress,omitempty"`
	Prepared *Prepared    `json:"prepared,omitempty"`
	Started  *Started     `json:"started,omitempty"`
	Ended    *job.StepEnd `json:"ended,omitempty"` // end.json is synced by then
	// Left is of Ended: processes of the step that could not be ended, for people. Empty
	// says that the kernel knows of none.
	Left    string `json:"left,omitempty"`
	Refused string `json:"refused,omitempty"`
	// Usage answers Request.Usage: ranks that run, in their order.
	Usage []job.RankUsage `json:"usage,omitempty"`
}

// Progress of a prepare, at least one each 10 s while anything goes on.
type Progress struct {
	Phase string `json:"phase"`
	Bytes int64  `json:"bytes,omitempty"`
	Total int64  `json:"total,omitempty"`
}

// Prepared says that all but the start is done. A prepare that failed is an Ended with a
// Fault, and nothing else.
type Prepared struct {
	Image string   `json:"image,omitempty"` // the digest
	Port  int      `json:"port,omitempty"`  // held for MASTER_PORT
	Notes []string `json:"notes,omitempty"`
}

// Started says that all ranks of the node run. A start that failed is an Ended with a
// Fault, and no Started before it.
type Started struct {
	At job.Time `json:"at"`
}
