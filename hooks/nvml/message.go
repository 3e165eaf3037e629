package nvml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// The helper reads Requests and writes Responses, one JSON document a line; for "watch"
// it writes Beats. What one side does not know it ignores.

// Request is one question.
type Request struct {
	ID        uint64   `json:"id"`
	Call      string   `json:"call"`                 // one of Calls
	GPUs      []string `json:"gpus,omitempty"`       // UUIDs, also of MIG instances; none are all GPUs
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // after which the helper gives up and ends
}

// Calls are the questions that the helper knows.
var Calls = []string{"inventory", "topology", "health", "sample", "processes"}

// Response is the answer to the Request of the same ID: a result or a failure.
type Response struct {
	ID     uint64          `json:"id"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Failure        `json:"error,omitempty"`
}

// Failure is why there is no result.
type Failure struct {
	Kind  Kind   `json:"kind"`
	Text  string `json:"text"`
	Cause string `json:"cause,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// Kind is a class of failures that calls for a remedy of its own.
type Kind string

// The kinds of failures.
const (
	NoDriver   Kind = "no-driver"   // no library, or no driver in the kernel
	Mismatch   Kind = "mismatch"    // library and driver are of different versions
	Permission Kind = "permission"  // the device nodes are not for this user
	Hung       Kind = "hung"        // no answer in time
	UnknownGPU Kind = "unknown-gpu" // no GPU has this UUID
	Refused    Kind = "refused"     // any other error of NVML
	Misuse     Kind = "misuse"      // the request makes no sense
)

// Beat is one line of "watch": an event, or a sign of life.
type Beat struct {
	Event *Event   `json:"event,omitempty"`
	Error *Failure `json:"error,omitempty"` // the last line
}

// What can go wrong, for errors.Is.
var (
	// ErrAbsent says that there is no gangway-nvml, or that it cannot be started.
	ErrAbsent = errors.New("gangway-nvml is not installed")
	// ErrNoDriver says that there is no NVIDIA driver, or no library of it.
	ErrNoDriver = errors.New("no NVIDIA driver")
	// ErrMismatch says that the library is of another version than the driver in the kernel.
	ErrMismatch = errors.New("driver/library version mismatch")
	// ErrPermission says that the device nodes of the driver are not for this user.
	ErrPermission = errors.New("no permission")
	// ErrHung says that no answer came in time.
	ErrHung = errors.New("no answer")
	// ErrCrashed says that gangway-nvml ended where it should have answered.
	ErrCrashed = errors.New("gangway-nvml ended")
	// ErrWrong says that the answer makes no sense.
	ErrWrong = errors.New("the answer makes no sense")
	// ErrUnknownGPU says that no GPU has the UUID that was asked for.
	ErrUnknownGPU = errors.New("unknown GPU")
	// ErrRefused says that NVML answered with an error.
	ErrRefused = errors.New("NVML refused")
	// ErrClosed says that the Client was closed.
	ErrClosed = errors.New("the client is closed")
)

// sentinel is the error that a failure is to errors.Is.
func (f *Failure) sentinel() error {
	switch f.Kind {
	case NoDriver:
		return ErrNoDriver
	case Mismatch:
		return ErrMismatch
	case Permission:
		return ErrPermission
	case Hung:
		return ErrHung
	case UnknownGPU:
		return ErrUnknownGPU
	}
	return ErrRefused
}

// Limits of what the helper may say.
const (
	maxLine = 4 << 20
	maxGPUs = 1024
)

// decodeResponse takes the line apart that answers the request id, and puts its result
// where into points. It returns the failure that the line tells of.
func decodeResponse(line []byte, id uint64, into any) (*Failure, error) {
	var r Response
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrong, err)
	}
	if r.ID != id {
		return nil, fmt.Errorf("%w: it is to question %d, not %d", ErrWrong, r.ID, id)
	}
	if r.Error != nil {
		return r.Error, nil
	}
	if len(r.Result) == 0 || bytes.Equal(r.Result, []byte("null")) {
		return nil, fmt.Errorf("%w: it is empty", ErrWrong)
	}
	if err := json.Unmarshal(r.Result, into); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrong, err)
	}
	if n := count(into); n > maxGPUs {
		return nil, fmt.Errorf("%w: %d GPUs", ErrWrong, n)
	}
	return nil, nil
}

// count is the number of GPUs in a report.
func count(report any) int {
	switch r := report.(type) {
	case *Inventory:
		return len(r.GPUs)
	case *Topology:
		return max(len(r.GPUs), len(r.Paths))
	case *Health:
		return len(r.GPUs)
	case *Sample:
		return len(r.GPUs)
	}
	return 0
}

// decodeBeat takes one line of "watch" apart.
func decodeBeat(line []byte) (Beat, error) {
	var b Beat
	if err := json.Unmarshal(line, &b); err != nil {
		return Beat{}, fmt.Errorf("%w: %w", ErrWrong, err)
	}
	return b, nil
}
