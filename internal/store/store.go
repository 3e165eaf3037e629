// Package store keeps what the controller must not forget: the log of events, snapshots of
// what follows from it, blobs (scripts, environments) by their digest, and the accounting
// of jobs and steps.
//
// First use: s, err := store.Open(ctx, path), then [Store.Read] for what is there, and
// [Store.Append] for what happens. All methods may be called by any number of goroutines;
// batches that are appended at the same time are made durable together.
//
// The package knows nothing of what events mean: they are bytes here. It opens no network,
// and does not decide what to do when the disk is full: Append says so, and can be called
// again with the same batch.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Store is a durable log with what belongs to it. Another engine has to pass what the tests
// of this package (conformance, crashes) ask of this one.
type Store interface {
	// Epoch is the number of this opening: above that of every earlier one. A store that
	// was opened again since then refuses this one's batches with ErrFenced.
	Epoch() uint64
	// Append adds a batch, all of it or nothing, and returns the number of its last event
	// once it is on stable storage. Events are numbered from 1 without gaps. After an
	// error nothing of the batch is there, and it may be tried again.
	Append(b *Batch) (last uint64, err error)
	// Read yields the events after one, in their order; ErrPruned if the first of them is
	// not there any more.
	Read(ctx context.Context, after uint64, yield func(seq uint64, event []byte) error) error
	// Blob returns what was stored under a digest; ErrNoBlob if nothing was.
	Blob(digest string) ([]byte, error)
	// Blobs yields the digests of all blobs.
	Blobs(ctx context.Context, yield func(digest string) error) error
	// SaveSnapshot keeps a snapshot of the state after event seq, which has to be on stable
	// storage. The one before is kept too.
	SaveSnapshot(seq uint64, data []byte) error
	// Restore calls use with the latest snapshot, and if that is damaged or use has an error,
	// with the one before, and returns the number of the one that was used; 0 if none was.
	// The error is what was wrong with later ones.
	Restore(ctx context.Context, use func(seq uint64, data []byte) error) (seq uint64, err error)
	// Prune removes events up to a number, but none that come after the older one of two
	// snapshots. Pruned is up to where they are gone.
	Prune(upTo uint64) error
	Pruned() uint64
	// History yields what the accounting has, by rising job and attempt.
	History(ctx context.Context, f Filter, yield func(Past) error) error
	Close() error
}

// Errors of every engine.
var (
	// ErrFenced is that the store was opened by another one since.
	ErrFenced = errors.New("the store was opened by a later controller")
	ErrNoBlob = errors.New("there is no such blob")
	// ErrPruned is that events are not there any more.
	ErrPruned = errors.New("the events were removed")
)

// Batch is what is made durable at once.
type Batch struct {
	Events [][]byte
	Drop   []string // digests of blobs that are not needed any more
	Blobs  []Blob   // are there before the events are, also if they are in Drop
	Jobs   []JobRow
	Steps  []StepRow
}

// Blob is bytes under their digest: that of [Digest], which is not computed again.
type Blob struct {
	Digest string
	Data   []byte
}

// JobRow is one attempt of a job that has ended, or would have been the next when it was
// cancelled. Of two rows of the same job and attempt the one counts that ended later: a job that
// was cancelled while it waited, and requeued then, runs as that attempt. Else a second one
// changes nothing.
type JobRow struct {
	Job        job.ID
	Array      job.ID // of a task: its array; else the job's own
	Attempt    int
	UID        uint32
	User       string
	Account    string
	Partition  string
	Name       string
	State      job.State
	Submit     job.Time
	Start, End job.Time
	Nodes      []string
	Data       []byte
}

// StepRow is a step that has ended. A row is written once: a second one of the same step changes
// nothing.
type StepRow struct {
	Key  job.StepKey
	Data []byte
}

// Filter chooses jobs. Empty lists choose all.
type Filter struct {
	IDs                                []job.ID // jobs or arrays
	Users, Accounts, Partitions, Names []string
	States                             []job.State
	Since, Until                       job.Time // alive between these; 0: no bound
	Limit                              int      // 0: no limit
	Latest                             bool     // only the latest attempt of each job
	AfterJob                           job.ID   // only what comes after this job's attempt
	AfterAttempt                       int
}

// Past is one attempt of a job with its steps.
type Past struct {
	Job     job.ID
	Attempt int
	Nodes   []string
	Data    []byte
	Steps   [][]byte
}

// Digest is the name of a blob: sha256: and 64 hex digits.
func Digest(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// IsFenced says whether an error is ErrFenced: the store will never take anything again.
func IsFenced(err error) bool { return errors.Is(err, ErrFenced) }
