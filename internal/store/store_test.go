package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// engine opens a store in a directory: each is asked the same.
type engine func(t testing.TB, dir string) Store

func sqlite(t testing.TB, dir string) Store {
	t.Helper()
	s, err := Open(context.Background(), filepath.Join(dir, "db with ?#% in it"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSQLite(t *testing.T) { conformance(t, sqlite) }

// conformance is what every engine has to do.
func conformance(t *testing.T, open engine) {
	for name, f := range map[string]func(*testing.T, engine){
		"log": conformLog, "fence": conformFence, "blobs": conformBlobs, "accounting": conformAccounting,
		"snapshot": conformSnapshot, "prune": conformPrune, "together": conformTogether, "closed": conformClosed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, open)
		})
	}
}

func events(texts ...string) *Batch {
	b := &Batch{}
	for _, text := range texts {
		b.Events = append(b.Events, []byte(text))
	}
	return b
}

func mustAppend(t testing.TB, s Store, b *Batch) uint64 {
	t.Helper()
	last, err := s.Append(b)
	if err != nil {
		t.Fatal(err)
	}
	return last
}

func readAll(t testing.TB, s Store, after uint64) (all []string) {
	t.Helper()
	want := after
	if err := s.Read(t.Context(), after, func(seq uint64, e []byte) error {
		if want++; seq != want {
			t.Errorf("event %d comes after event %d", seq, want-1)
		}
		all = append(all, string(e))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func conformLog(t *testing.T, open engine) {
	dir := t.TempDir()
	s := open(t, dir)
	if got := readAll(t, s, 0); len(got) != 0 {
		t.Errorf("a new store has %q", got)
	}
	if last := mustAppend(t, s, events("a", "b")); last != 2 {
		t.Errorf("last is %d, want 2", last)
	}
	big := string(bytes.Repeat([]byte("x\x00"), 1<<20))
	if last := mustAppend(t, s, events(big)); last != 3 {
		t.Errorf("last is %d, want 3", last)
	}
	if got := readAll(t, s, 1); !slices.Equal(got, []string{"b", big}) {
		t.Errorf("after 1 there are %d events", len(got))
	}
	stop := errors.New("stop")
	if err := s.Read(t.Context(), 0, func(uint64, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("reading ends with %v", err)
	}
	epoch := s.Epoch()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if s.Epoch() <= epoch {
		t.Errorf("epoch %d after %d", s.Epoch(), epoch)
	}
	if last := mustAppend(t, s, events("d")); last != 4 {
		t.Errorf("last is %d, want 4", last)
	}
	if got := readAll(t, s, 0); !slices.Equal(got, []string{"a", "b", big, "d"}) {
		t.Errorf("there are %d events", len(got))
	}
}

func conformFence(t *testing.T, open engine) {
	dir := t.TempDir()
	old := open(t, dir)
	mustAppend(t, old, events("a"))
	young := open(t, dir)
	if _, err := old.Append(events("b")); !IsFenced(err) {
		t.Errorf("the older one appends: %v", err)
	}
	mustAppend(t, young, events("c"))
	if _, err := old.Append(events("d")); !IsFenced(err) {
		t.Errorf("the older one appends: %v", err)
	}
	if got := readAll(t, young, 0); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("there are %q", got)
	}
}

func conformBlobs(t *testing.T, open engine) {
	s := open(t, t.TempDir())
	one := Blob{Digest([]byte("one")), []byte("one")}
	for range 2 {
		mustAppend(t, s, &Batch{Blobs: []Blob{one}, Events: [][]byte{[]byte("e")}})
	}
	if b, err := s.Blob(one.Digest); err != nil || string(b) != "one" {
		t.Errorf("blob is %q, %v", b, err)
	}
	if _, err := s.Blob(Digest([]byte("two"))); !errors.Is(err, ErrNoBlob) {
		t.Errorf("what is not there: %v", err)
	}
	two := Blob{Digest([]byte("two")), []byte("two")}
	mustAppend(t, s, &Batch{Blobs: []Blob{two}})
	mustAppend(t, s, &Batch{Drop: []string{one.Digest, two.Digest, "sha256:0"}, Blobs: []Blob{two}})
	var all []string
	if err := s.Blobs(t.Context(), func(digest string) error { all = append(all, digest); return nil }); err != nil || !slices.Equal(all, []string{two.Digest}) {
		t.Errorf("blobs are %q, %v", all, err)
	}
}

func conformAccounting(t *testing.T, open engine) {
	s := open(t, t.TempDir())
	row := func(id job.ID, user, name string, state job.State, start, end job.Time, nodes ...string) JobRow {
		return JobRow{
			Job: id, Array: id, Attempt: 1, User: user, Account: "acc", Partition: "main", Name: name, State: state,
			Submit: start - 1, Start: start, End: end, Nodes: nodes, Data: []byte(name),
		}
	}
	rows := []JobRow{
		row(1, "ann", "a", job.Completed, 100, 200, "n1"), row(2, "ann", "b", job.Failed, 150, 300, "n1", "n2"), row(3, "bob", "c", job.Completed, 400, 500),
	}
	rows[2].Array = 2
	key := job.StepKey{Job: 2, Attempt: 1, Step: job.BatchStep, Try: 1}
	mustAppend(t, s, &Batch{Jobs: rows, Steps: []StepRow{{key, []byte("batch")}, {job.StepKey{Job: 2, Attempt: 1, Step: 0, Try: 1}, []byte("s0")}}})
	earlier := rows[2]
	earlier.Attempt, earlier.Data = 0, []byte("c0")
	mustAppend(t, s, &Batch{Jobs: []JobRow{earlier}})
	again := row(1, "eve", "z", job.Failed, 1, 2)
	mustAppend(t, s, &Batch{Jobs: []JobRow{again}, Steps: []StepRow{{key, []byte("other")}}}) // changes nothing
	waited := row(4, "eve", "d", job.CancelledState, 600, 700)
	mustAppend(t, s, &Batch{Jobs: []JobRow{waited}})
	waited.Name, waited.Data, waited.State, waited.End = "e", []byte("e"), job.Completed, 800
	mustAppend(t, s, &Batch{Jobs: []JobRow{waited}}) // is what it became
	if err := s.History(t.Context(), Filter{IDs: []job.ID{4}, Names: []string{"e"}, States: []job.State{job.Completed}, Since: 750}, func(p Past) error {
		if string(p.Data) != "e" {
			t.Errorf("the later row is %q", p.Data)
		}
		waited.Attempt = -1
		return nil
	}); err != nil || waited.Attempt != -1 {
		t.Errorf("the later row is not there: %v", err)
	}
	for name, c := range map[string]struct {
		f    Filter
		want string
	}{
		"all": {Filter{Until: 599}, "a b c0 c"}, "latest": {Filter{Latest: true, Until: 599}, "a b c"}, "user": {Filter{Latest: true, Users: []string{"ann"}}, "a b"}, "id": {Filter{Latest: true, IDs: []job.ID{1}}, "a"},
		"array": {Filter{Latest: true, IDs: []job.ID{2}}, "b c"}, "state": {Filter{Latest: true, States: []job.State{job.Completed}}, "a c e"},
		"since": {Filter{Latest: true, Since: 250}, "b c e"}, "until": {Filter{Latest: true, Until: 160}, "a b"}, "both": {Filter{Latest: true, Since: 250, Until: 160}, "b"},
		"name": {Filter{Latest: true, Names: []string{"c", "a"}}, "a c"}, "limit": {Filter{Latest: true, Limit: 2}, "a b"}, "after": {Filter{Latest: true, AfterJob: 1, AfterAttempt: 1}, "b c e"},
		"none": {Filter{Latest: true, Partitions: []string{"other"}}, ""}, "quoted": {Filter{Latest: true, Users: []string{"' OR 1 --"}}, ""},
	} {
		got := ""
		if err := s.History(t.Context(), c.f, func(p Past) error {
			if got != "" {
				got += " "
			}
			got += string(p.Data)
			if p.Job == 2 && fmt.Sprintf("%s %v", p.Steps, p.Nodes) != "[batch s0] [n1 n2]" {
				t.Errorf("%s: job 2 has steps %s and nodes %v", name, p.Steps, p.Nodes)
			}
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// latest is the snapshot that a restart would use.
func latest(t testing.TB, s Store) (seq uint64, data string, err error) {
	t.Helper()
	seq, err = s.Restore(t.Context(), func(_ uint64, b []byte) error {
		data = string(b)
		return nil
	})
	return seq, data, err
}

func conformSnapshot(t *testing.T, open engine) {
	dir := t.TempDir()
	s := open(t, dir)
	if seq, data, err := latest(t, s); seq != 0 || data != "" || err != nil {
		t.Errorf("a new store has a snapshot: %d, %q, %v", seq, data, err)
	}
	mustAppend(t, s, events("a", "b", "c"))
	if err := s.SaveSnapshot(4, []byte("of what is not stored")); err == nil {
		t.Error("a snapshot is taken of an event that is not there")
	}
	for i, text := range []string{"first", "second", "third"} {
		if err := s.SaveSnapshot(uint64(i+1), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
	s = open(t, dir)
	if seq, data, err := latest(t, s); seq != 3 || data != "third" || err != nil {
		t.Errorf("snapshot is %d, %q, %v", seq, data, err)
	}
	// One that cannot be used gives way to the one before.
	useless, seen := errors.New("useless"), ""
	seq, err := s.Restore(t.Context(), func(seq uint64, data []byte) error {
		if seen += string(data) + " "; seq == 3 {
			return useless
		}
		return nil
	})
	if seq != 2 || seen != "third second " || !errors.Is(err, useless) {
		t.Errorf("snapshot %d is used after %q, %v", seq, seen, err)
	}
	young := open(t, dir)
	if err := s.SaveSnapshot(3, []byte("of an older controller")); !IsFenced(err) {
		t.Errorf("the older one saves a snapshot: %v", err)
	}
	if err := s.Prune(3); !IsFenced(err) {
		t.Errorf("the older one removes events: %v", err)
	}
	if seq, data, err := latest(t, young); seq != 3 || data != "third" || err != nil {
		t.Errorf("snapshot is %d, %q, %v", seq, data, err)
	}
}

// conformPrune: events go up to the older snapshot at most, and their numbers are not given
// again.
func conformPrune(t *testing.T, open engine) {
	dir := t.TempDir()
	s := open(t, dir)
	for range 3 {
		var b Batch
		for range prunedAtOnce {
			b.Events = append(b.Events, []byte("e"))
		}
		mustAppend(t, s, &b)
	}
	last := uint64(3 * prunedAtOnce)
	for _, c := range []struct{ snapshot, upTo, want uint64 }{
		{1, last, 0}, {last - 10, last, 1}, {last - 5, 7, 7}, {last, last, last - 5}, {last, last, last - 5},
	} {
		if err := errors.Join(s.SaveSnapshot(c.snapshot, nil), s.Prune(c.upTo)); err != nil {
			t.Fatal(err)
		}
		if got := s.Pruned(); got != c.want {
			t.Errorf("after snapshot %d, events up to %d are gone, want %d", c.snapshot, got, c.want)
		}
		if got := len(readAll(t, s, c.want)); uint64(got) != last-c.want {
			t.Errorf("after snapshot %d there are %d events, want %d", c.snapshot, got, last-c.want)
		}
	}
	if err := s.Read(t.Context(), 0, func(uint64, []byte) error { return nil }); !errors.Is(err, ErrPruned) {
		t.Errorf("what is gone is read: %v", err)
	}
	if err := errors.Join(s.SaveSnapshot(last-1, nil), s.SaveSnapshot(last, nil), s.Prune(last)); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	s = open(t, dir)
	if got := mustAppend(t, s, events("next")); got != last+1 {
		t.Errorf("the next event is %d, want %d", got, last+1)
	}
	if got := readAll(t, s, last); !slices.Equal(got, []string{"next"}) {
		t.Errorf("after the restart there is %q", got)
	}
}

// TestSnapshotDamaged: what is not whole, or of another store, gives way to the one before.
func TestSnapshotDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := sqlite(t, dir).(*SQLite)
	mustAppend(t, s, events("a", "b"))
	if err := errors.Join(s.SaveSnapshot(1, []byte("old")), s.SaveSnapshot(2, []byte("data"))); err != nil {
		t.Fatal(err)
	}
	path := s.snapshotPath(2, s.epoch)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(whole) {
		for _, b := range [][]byte{whole[:i], append(append(slices.Clone(whole[:i]), whole[i]^1), whole[i+1:]...)} {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if seq, data, err := latest(t, s); seq != 1 || data != "old" || err == nil {
				t.Fatalf("damaged at byte %d: %d, %q, %v", i, seq, data, err)
			}
		}
	}
	other := sqlite(t, t.TempDir()).(*SQLite)
	mustAppend(t, other, events("a", "b"))
	if err := other.SaveSnapshot(2, []byte("data")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other.snapshotPath(2, other.epoch), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if seq, _, err := latest(t, other); seq != 0 || err == nil {
		t.Errorf("the snapshot of another store is taken: %d, %v", seq, err)
	}
}

// conformTogether: batches of many goroutines are each whole, and each has its numbers.
func conformTogether(t *testing.T, open engine) {
	s := open(t, t.TempDir())
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[uint64]string{}
	for i := range 50 {
		wg.Go(func() {
			for k := range 10 {
				name := fmt.Sprintf("%d.%d", i, k)
				last, err := s.Append(events(name, name, name))
				mu.Lock()
				if err != nil || ends[last] != "" {
					t.Errorf("%s has number %d, as %q: %v", name, last, ends[last], err)
				}
				ends[last] = name
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := readAll(t, s, 0)
	if len(all) != 1500 {
		t.Fatalf("there are %d events", len(all))
	}
	for last, name := range ends {
		for k := range uint64(3) {
			if all[last-1-k] != name {
				t.Errorf("event %d is of %s, and was acknowledged as of %s", last-k, all[last-1-k], name)
			}
		}
	}
}

func conformClosed(t *testing.T, open engine) {
	s := open(t, t.TempDir())
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Append(events("a")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("append to what is closed: %v", err)
	}
}

// TestOpenRefuses: what is no store is left alone.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	text := bytes.Repeat([]byte("this is no database\n"), 100)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), path); err == nil {
		_ = s.Close()
		t.Error("a text is opened as a store")
	}
	if b, _ := os.ReadFile(path); !bytes.Equal(b, text) {
		t.Error("it was changed")
	}
	if _, err := Open(t.Context(), filepath.Join(t.TempDir(), "no", "db")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without its directory: %v", err)
	}
	late := sqlite(t, t.TempDir()).(*SQLite)
	if _, err := late.db.Exec("PRAGMA user_version = 3"); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), late.path); err == nil {
		_ = s.Close()
		t.Error("a store of a later version is opened")
	}
}
