package server

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
)

// simDisk is what controllers of a simulation have on stable storage, and that it has all
// events that ever were, to compare with.
type simDisk struct {
	s         *sim
	epoch     uint64
	all       [][]byte
	shadow    *core  // follows the log
	over      []*run // that have ended in this batch
	pruned    uint64
	blobs     map[string][]byte
	snapshots []simSnapshot // the latest last
	rows      map[attempt]store.JobRow
	full      bool
	tear      bool // the next snapshot
}

type simSnapshot struct {
	seq  uint64
	data []byte
	torn bool
}

func newSimDisk(s *sim) *simDisk {
	d := &simDisk{s: s, blobs: map[string][]byte{}, rows: map[attempt]store.JobRow{}}
	d.shadow = newCore(&Options{Cluster: s.cluster}, nil, nil, s.meter)
	return d
}

// simStore is one opening of it.
type simStore struct {
	*simDisk
	own uint64
}

// add adds an event to the log, which has to follow from what is there.
func (d *simDisk) add(b []byte) {
	d.all = append(d.all, b)
	e, err := decode(b)
	if err == nil {
		d.checkEvent(e)
		err = d.shadow.replay(e)
	}
	if err != nil {
		d.s.fail("event %d cannot be replayed: %v: %.300s", len(d.all), err, b)
	}
	d.shadow.seq = uint64(len(d.all))
}

func (d *simDisk) open() *simStore {
	d.epoch++
	return &simStore{simDisk: d, own: d.epoch}
}

func (d *simStore) Epoch() uint64 { return d.own }

func (d *simStore) Append(b *store.Batch) (uint64, error) {
	switch {
	case d.own != d.epoch && !d.s.bug.noFence:
		return 0, store.ErrFenced
	case d.full:
		return 0, errors.New("no space left on device")
	}
	if d.s.bug.batch != nil {
		d.s.bug.batch(b)
	}
	defer d.checkOver()
	for _, blob := range b.Blobs {
		d.blobs[blob.Digest] = blob.Data
	}
	for _, e := range b.Events {
		d.add(e)
	}
	for _, digest := range b.Drop {
		if !slices.ContainsFunc(b.Blobs, func(blob store.Blob) bool { return blob.Digest == digest }) {
			delete(d.blobs, digest)
		}
	}
	for _, row := range b.Jobs {
		d.s.checkRow(&row)
		key := attempt{row.Job, row.Attempt}
		if had, ok := d.rows[key]; !ok || row.End > had.End {
			row.Data = nil
			d.rows[key] = row
		}
	}
	return uint64(len(d.all)), nil
}

// checkEvent looks at an event before it is followed.
func (d *simDisk) checkEvent(e any) {
	ending := func(id job.ID, as job.State, again bool) {
		r := d.shadow.runs[id]
		if r == nil {
			return
		}
		d.over = append(d.over, r)
		if f := r.Fate; f != nil && !f.Requeue && (again || f.State != as) {
			d.s.fail("job %v is ending as %v, and is made %v, again: %v", id, f.State, as, again)
		}
	}
	switch e := e.(type) {
	case job.Ended:
		ending(e.ID, e.State, false)
	case job.Killed:
		ending(e.ID, e.State, false)
	case job.Requeued:
		ending(e.ID, job.NodeFailed, true)
	case job.Requeue:
		ending(e.ID, job.Pending, true)
	}
}

// checkOver sees whether nodes of runs that have ended, and on which ranks still run, are known
// not to be clean.
func (d *simDisk) checkOver() {
	for _, r := range d.over {
		for _, n := range d.s.nodes {
			for st := range n.running {
				if attemptOf(st.key) == r.Of && !slices.Contains(d.shadow.dirty[n.name], r.Of) {
					d.s.fail("ranks of step %v run on node %s, which is taken for clean of the run that has ended", st.key, n.name)
				}
			}
		}
	}
	d.over = nil
}

func (d *simStore) Read(_ context.Context, after uint64, yield func(uint64, []byte) error) error {
	if after < d.pruned {
		return store.ErrPruned
	}
	for i := after; i < uint64(len(d.all)); i++ {
		if err := yield(i+1, d.all[i]); err != nil {
			return err
		}
	}
	return nil
}

func (d *simStore) Blob(digest string) ([]byte, error) {
	if b, ok := d.blobs[digest]; ok {
		return b, nil
	}
	return nil, store.ErrNoBlob
}

func (d *simStore) Blobs(_ context.Context, yield func(string) error) error {
	for _, digest := range slices.Sorted(maps.Keys(d.blobs)) {
		if err := yield(digest); err != nil {
			return err
		}
	}
	return nil
}

func (d *simStore) SaveSnapshot(seq uint64, data []byte) error {
	if d.own != d.epoch {
		return store.ErrFenced
	}
	if seq > uint64(len(d.all)) {
		d.s.fail("a snapshot of event %d is saved, and the last on disk is %d", seq, len(d.all))
	}
	if d.s.bug.snapshot != nil {
		data = d.s.bug.snapshot(data)
	}
	d.snapshots = append(d.snapshots, simSnapshot{seq, data, d.tear && len(d.snapshots) > 0 && !d.snapshots[len(d.snapshots)-1].torn})
	d.snapshots = d.snapshots[max(0, len(d.snapshots)-2):]
	d.tear = false
	return nil
}

func (d *simStore) Restore(_ context.Context, use func(uint64, []byte) error) (uint64, error) {
	var errs []error
	for _, snap := range slices.Backward(d.snapshots) {
		err := errors.New("it is damaged")
		if !snap.torn {
			err = use(snap.seq, snap.data)
		}
		if err == nil {
			return snap.seq, errors.Join(errs...)
		}
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}

func (d *simStore) Prune(upTo uint64) error {
	if len(d.snapshots) == 2 {
		d.pruned = max(d.pruned, min(upTo, d.snapshots[0].seq))
	}
	return nil
}

func (d *simStore) Pruned() uint64 { return d.pruned }

func (d *simStore) History(context.Context, store.Filter, func(store.Past) error) error { return nil }

func (d *simStore) Close() error { return nil }

// checkRow compares what is accounted with what happened.
func (s *sim) checkRow(row *store.JobRow) {
	at := attempt{row.Job, row.Attempt}
	var v api.Job
	if err := json.Unmarshal(row.Data, &v); err != nil {
		s.fail("row of job %v: %v", row.Job, err)
	}
	s.user.rowed(row)
	if end := s.script[at]; row.State == job.Completed && (end == nil || end.exit != 0) {
		s.fail("job %v, attempt %d, is accounted as completed, and its script did not end so: %+v", row.Job, row.Attempt, end)
	}
}
