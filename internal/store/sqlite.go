package store

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	_ "modernc.org/sqlite" // the engine, registered as "sqlite"
)

// schema is what a new file has. It is numbered by user_version.
const schema = `
CREATE TABLE IF NOT EXISTS meta (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL, id TEXT NOT NULL);
INSERT OR IGNORE INTO meta VALUES (1, 0, lower(hex(randomblob(16))));
CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS blobs (digest TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (
	job INTEGER NOT NULL, attempt INTEGER NOT NULL, array INTEGER NOT NULL, uid INTEGER NOT NULL, user TEXT NOT NULL,
	account TEXT NOT NULL, part TEXT NOT NULL, name TEXT NOT NULL, state INTEGER NOT NULL,
	submit INTEGER NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL, nodes TEXT NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (job, attempt)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS jobs_end ON jobs ("end");
CREATE INDEX IF NOT EXISTS jobs_array ON jobs (array);
CREATE TABLE IF NOT EXISTS steps (
	job INTEGER NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, data BLOB NOT NULL,
	PRIMARY KEY (job, attempt, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS snapshots (seq INTEGER PRIMARY KEY, epoch INTEGER NOT NULL);
PRAGMA user_version = 2;`

// jobStatement adds a row, or replaces one that ended earlier.
const jobStatement = `INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (job, attempt) DO UPDATE SET
	array = excluded.array, uid = excluded.uid, user = excluded.user, account = excluded.account, part = excluded.part, name = excluded.name,
	state = excluded.state, submit = excluded.submit, start = excluded.start, "end" = excluded."end", nodes = excluded.nodes, data = excluded.data
	WHERE excluded."end" > jobs."end"`

// format is the number of the schema. One of format 1 has all events, and snapshots that do
// not count any more.
const format = 2

// bounds of what is made durable together: more waits for the next turn.
const (
	maxTogether      = 4096    // events and rows
	maxTogetherBytes = 8 << 20 // of events, blobs and rows
)

// pending is a batch, or something else, that waits for its turn.
type pending struct {
	batch *Batch
	also  func(ctx context.Context, tx *sql.Tx) error
	last  uint64
	err   error
	done  chan struct{}
}

// SQLite is the store in one file (and those that SQLite has beside it, and a snapshot).
type SQLite struct {
	path  string
	db    *sql.DB
	epoch uint64
	id    string

	queue  chan *pending
	ended  chan struct{} // closed when the writer has ended
	pruned atomic.Uint64 // up to this number events are gone

	mu     sync.RWMutex // that the queue is not closed while something is put into it
	closed bool

	// Of the writer.
	conn *sql.Conn
	stmt statements
	last uint64 // number of the last event
}

type statements struct{ epoch, event, blob, drop, job, step *sql.Stmt }

// Open opens the store in a file, made with mode 0600 if it is not there.
func Open(ctx context.Context, path string) (*SQLite, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	_ = f.Close()
	s := &SQLite{path: path, queue: make(chan *pending, 256), ended: make(chan struct{})}
	// A path may have any character in it.
	dsn := (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath()}).String() +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_txlock=immediate"
	if s.db, err = sql.Open("sqlite", dsn); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), s.db.Close())
	}
	go s.write()
	return s, nil
}

// begin makes the tables and takes the next epoch.
func (s *SQLite) begin(ctx context.Context) error {
	var version int
	if err := s.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > format {
		return fmt.Errorf("it has format %d, of a later version of Gangway; this one knows format %d", version, format)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "UPDATE meta SET epoch = epoch + 1 RETURNING epoch, id").Scan(&s.epoch, &s.id); err != nil {
		return err
	}
	var first uint64
	if err := tx.QueryRowContext(ctx, "SELECT coalesce(min(seq), 1), coalesce(max(seq), 0) FROM events").Scan(&first, &s.last); err != nil {
		return err
	}
	s.pruned.Store(first - 1)
	if err := tx.Commit(); err != nil {
		return err
	}
	if err := s.sweepSnapshots(ctx); err != nil {
		return err
	}
	return s.connect(ctx)
}

// connect opens the writer's connection anew.
func (s *SQLite) connect(ctx context.Context) error {
	if s.conn != nil {
		// One that had an error is not given back, but closed.
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
		_ = s.conn.Close()
		s.conn = nil
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	for _, p := range []struct {
		into **sql.Stmt
		text string
	}{
		{&s.stmt.epoch, "SELECT epoch FROM meta"},
		{&s.stmt.event, "INSERT INTO events VALUES (?, ?)"},
		{&s.stmt.blob, "INSERT OR IGNORE INTO blobs VALUES (?, ?)"},
		{&s.stmt.drop, "DELETE FROM blobs WHERE digest = ?"},
		{&s.stmt.job, jobStatement},
		{&s.stmt.step, "INSERT OR IGNORE INTO steps VALUES (?, ?, ?, ?)"},
	} {
		if *p.into, err = conn.PrepareContext(ctx, p.text); err != nil {
			return errors.Join(err, conn.Close())
		}
	}
	s.conn = conn
	return nil
}

// Epoch implements Store.
func (s *SQLite) Epoch() uint64 { return s.epoch }

// Append implements Store.
func (s *SQLite) Append(b *Batch) (uint64, error) {
	p := &pending{batch: b}
	if err := s.put(p); err != nil {
		return 0, fmt.Errorf("append to store %s: %w", s.path, err)
	}
	return p.last, nil
}

// transaction has the writer do something in its turn, which is durable when this returns.
func (s *SQLite) transaction(f func(ctx context.Context, tx *sql.Tx) error) error {
	return s.put(&pending{batch: &Batch{}, also: f})
}

// put has the writer do something, and waits until that is durable.
func (s *SQLite) put(p *pending) error {
	p.done = make(chan struct{})
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return os.ErrClosed
	}
	s.queue <- p
	s.mu.RUnlock()
	<-p.done
	return p.err
}

// write is the writer: it takes what is queued, up to the bounds, and makes it durable in
// one transaction.
func (s *SQLite) write() {
	defer close(s.ended)
	for p := range s.queue {
		group := []*pending{p}
		rows, size := p.batch.weight()
	gather:
		for rows < maxTogether && size < maxTogetherBytes {
			select {
			case p, ok := <-s.queue:
				if !ok {
					break gather
				}
				group = append(group, p)
				r, n := p.batch.weight()
				rows, size = rows+r, size+n
			default:
				break gather
			}
		}
		err := s.commit(group)
		if err != nil && len(group) > 1 {
			// One that cannot be is not to spoil the others.
			for _, p := range group {
				p.err = s.commit([]*pending{p})
			}
		} else if err != nil {
			group[0].err = err
		}
		for _, p := range group {
			close(p.done)
		}
	}
}

// weight is the number of rows of a batch and their size.
func (b *Batch) weight() (rows, size int) {
	for i := range b.Events {
		size += len(b.Events[i])
	}
	for i := range b.Blobs {
		size += len(b.Blobs[i].Data)
	}
	for i := range b.Jobs {
		size += len(b.Jobs[i].Data) + 256
	}
	for i := range b.Steps {
		size += len(b.Steps[i].Data)
	}
	return len(b.Events) + len(b.Drop) + len(b.Blobs) + len(b.Jobs) + len(b.Steps), size
}

// commit makes batches durable in one transaction. After an error nothing of them is
// there, and the connection is a new one.
func (s *SQLite) commit(group []*pending) error {
	ctx := context.Background() // a transaction is not given up half way
	if s.conn == nil {
		if err := s.connect(ctx); err != nil {
			return err
		}
	}
	last, err := s.transact(ctx, group)
	if err == nil {
		s.last = last
		return nil
	}
	if errors.Is(err, ErrFenced) {
		return err
	}
	if s.connect(ctx) != nil {
		return err // the next commit tries to connect again
	}
	return err
}

func (s *SQLite) transact(ctx context.Context, group []*pending) (last uint64, err error) {
	tx, err := s.conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			_ = tx.Rollback()
		}
	}()
	var epoch uint64
	if err := tx.StmtContext(ctx, s.stmt.epoch).QueryRowContext(ctx).Scan(&epoch); err != nil {
		return 0, err
	}
	if epoch != s.epoch {
		return 0, fmt.Errorf("%w (epoch %d, this one has %d)", ErrFenced, epoch, s.epoch)
	}
	in := statements{
		event: tx.StmtContext(ctx, s.stmt.event), blob: tx.StmtContext(ctx, s.stmt.blob), drop: tx.StmtContext(ctx, s.stmt.drop),
		job: tx.StmtContext(ctx, s.stmt.job), step: tx.StmtContext(ctx, s.stmt.step),
	}
	last = s.last
	for _, p := range group {
		if last, err = in.write(ctx, p.batch, last); err != nil {
			return 0, err
		}
		if p.also != nil {
			if err := p.also(ctx, tx); err != nil {
				return 0, err
			}
		}
		p.last = last
	}
	return last, tx.Commit()
}

// write writes a batch, whose first event comes after the last one.
func (s *statements) write(ctx context.Context, b *Batch, last uint64) (uint64, error) {
	for _, digest := range b.Drop {
		if _, err := s.drop.ExecContext(ctx, digest); err != nil {
			return 0, err
		}
	}
	for _, x := range b.Blobs {
		if _, err := s.blob.ExecContext(ctx, x.Digest, x.Data); err != nil {
			return 0, err
		}
	}
	for _, data := range b.Events {
		last++
		if _, err := s.event.ExecContext(ctx, last, data); err != nil {
			return 0, err
		}
	}
	for i := range b.Jobs {
		r := &b.Jobs[i]
		if _, err := s.job.ExecContext(ctx, r.Job, r.Attempt, r.Array, r.UID, r.User, r.Account, r.Partition, r.Name,
			r.State, r.Submit, r.Start, r.End, strings.Join(r.Nodes, ","), r.Data); err != nil {
			return 0, err
		}
	}
	for i := range b.Steps {
		k := b.Steps[i].Key
		if _, err := s.step.ExecContext(ctx, k.Job, k.Attempt, k.Step, b.Steps[i].Data); err != nil {
			return 0, err
		}
	}
	return last, nil
}

// Read implements Store.
func (s *SQLite) Read(ctx context.Context, after uint64, yield func(seq uint64, event []byte) error) error {
	rows, err := s.db.QueryContext(ctx, "SELECT seq, data FROM events WHERE seq > ? ORDER BY seq", after)
	if err != nil {
		return fmt.Errorf("read store %s: %w", s.path, err)
	}
	defer func() { _ = rows.Close() }()
	for want := after + 1; rows.Next(); want++ {
		var seq uint64
		var data []byte
		if err := rows.Scan(&seq, &data); err != nil {
			return fmt.Errorf("read store %s: %w", s.path, err)
		}
		if seq != want && want == after+1 {
			return fmt.Errorf("read store %s after event %d: %w", s.path, after, ErrPruned)
		}
		if seq != want {
			return fmt.Errorf("read store %s: event %d is missing", s.path, want)
		}
		if err := yield(seq, data); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read store %s: %w", s.path, err)
	}
	return nil
}

// Blob implements Store.
func (s *SQLite) Blob(digest string) ([]byte, error) {
	var data []byte
	err := s.db.QueryRow("SELECT data FROM blobs WHERE digest = ?", digest).Scan(&data)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoBlob
	}
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", digest, err)
	}
	return bytes.Clone(data), nil
}

// Close implements Store: what was appended is durable, what is being appended will be.
func (s *SQLite) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.queue)
	s.mu.Unlock()
	<-s.ended
	if s.conn != nil {
		_ = s.conn.Close()
	}
	return s.db.Close()
}
