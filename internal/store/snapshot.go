package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// A snapshot is a file beside the database, which counts once the table snapshots has it.
// It has a line that says what it is, the id of the store, the number of the event, a sum
// over all the rest, and the data. Two are kept, so that one that is damaged loses nothing:
// events go only once both have them.
const (
	snapshotMagic = "gangway snapshot 1\n"
	keptSnapshots = 2
)

// prunedAtOnce is how many events go in one transaction: appends wait that long.
const prunedAtOnce = 2000

func (s *SQLite) snapshotPath(seq, epoch uint64) string {
	return fmt.Sprintf("%s-snapshot-%d-%d", s.path, seq, epoch)
}

// SaveSnapshot implements Store.
func (s *SQLite) SaveSnapshot(seq uint64, data []byte) error {
	if err := s.saveSnapshot(seq, data); err != nil {
		return fmt.Errorf("save snapshot of event %d: %w", seq, err)
	}
	return nil
}

func (s *SQLite) saveSnapshot(seq uint64, data []byte) error {
	head := binary.LittleEndian.AppendUint64([]byte(snapshotMagic+s.id), seq)
	sum := sha256.New()
	sum.Write(head)
	sum.Write(data)
	path := s.snapshotPath(seq, s.epoch)
	err := fsx.WriteFile(context.Background(), path, fsx.Options{Mode: 0o600}, func(f *os.File) error {
		for _, b := range [][]byte{head, sum.Sum(nil), data} {
			if _, err := f.Write(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = s.transaction(func(ctx context.Context, tx *sql.Tx) error {
		var last uint64
		if err := tx.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM events").Scan(&last); err != nil {
			return err
		}
		if seq > last {
			return fmt.Errorf("the last event is %d", last)
		}
		if _, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO snapshots VALUES (?, ?)", seq, s.epoch); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM snapshots WHERE seq NOT IN (SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?)", keptSnapshots)
		return err
	})
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return s.sweepSnapshots(context.Background())
}

// sweepSnapshots removes the files that do not count, or not any more. Those of a later
// opening are left alone.
func (s *SQLite) sweepSnapshots(ctx context.Context) error {
	rows, err := s.snapshotRows(ctx)
	if err != nil {
		return err
	}
	counts := map[string]bool{}
	for _, r := range rows {
		counts[s.snapshotPath(r.seq, r.epoch)] = true
	}
	dir := filepath.Dir(s.path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		rest, ok := strings.CutPrefix(path, s.path+"-snapshot")
		var seq, epoch uint64
		if _, err := fmt.Sscanf(rest, "-%d-%d", &seq, &epoch); err != nil && rest != "" {
			ok = false // no snapshot's name; without numbers it is one of an earlier format
		}
		if ok && epoch <= s.epoch && !counts[path] {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// snapshotRow is a snapshot that counts.
type snapshotRow struct{ seq, epoch uint64 }

// snapshotRows are those that count, the latest first.
func (s *SQLite) snapshotRows(ctx context.Context) ([]snapshotRow, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT seq, epoch FROM snapshots ORDER BY seq DESC")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []snapshotRow
	for rows.Next() {
		var r snapshotRow
		if err := rows.Scan(&r.seq, &r.epoch); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// Restore implements Store.
func (s *SQLite) Restore(ctx context.Context, use func(seq uint64, data []byte) error) (uint64, error) {
	rows, err := s.snapshotRows(ctx)
	if err != nil {
		return 0, fmt.Errorf("read snapshots: %w", err)
	}
	var errs []error
	for _, r := range rows {
		data, err := s.readSnapshot(r)
		if err == nil {
			err = use(r.seq, data)
		}
		if err == nil {
			return r.seq, errors.Join(errs...)
		}
		errs = append(errs, fmt.Errorf("read snapshot of event %d: %w", r.seq, err))
	}
	return 0, errors.Join(errs...)
}

// errDamaged is that a snapshot is not what was written.
var errDamaged = errors.New("it is damaged, or of another store")

func (s *SQLite) readSnapshot(r snapshotRow) ([]byte, error) {
	all, err := os.ReadFile(s.snapshotPath(r.seq, r.epoch))
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(all, []byte(snapshotMagic+s.id))
	if !ok || len(rest) < 8+sha256.Size || binary.LittleEndian.Uint64(rest) != r.seq {
		return nil, errDamaged
	}
	data := rest[8+sha256.Size:]
	sum := sha256.New()
	sum.Write(all[:len(all)-len(rest)+8])
	sum.Write(data)
	if !bytes.Equal(sum.Sum(nil), rest[8:8+sha256.Size]) {
		return nil, errDamaged
	}
	return data, nil
}

// Pruned implements Store.
func (s *SQLite) Pruned() uint64 { return s.pruned.Load() }

// Prune implements Store.
func (s *SQLite) Prune(upTo uint64) error {
	rows, err := s.snapshotRows(context.Background())
	if err != nil {
		return fmt.Errorf("prune store %s: %w", s.path, err)
	}
	if len(rows) < keptSnapshots {
		return nil
	}
	upTo = min(upTo, rows[len(rows)-1].seq)
	for from := s.pruned.Load(); from < upTo; from = s.pruned.Load() {
		to := min(from+prunedAtOnce, upTo)
		err := s.transaction(func(ctx context.Context, tx *sql.Tx) error {
			// The last one stays: it says which number is the next.
			_, err := tx.ExecContext(ctx, "DELETE FROM events WHERE seq <= ? AND seq < (SELECT max(seq) FROM events)", to)
			return err
		})
		if err != nil {
			return fmt.Errorf("prune store %s: %w", s.path, err)
		}
		s.pruned.Store(to)
	}
	return nil
}

// Blobs implements Store.
func (s *SQLite) Blobs(ctx context.Context, yield func(digest string) error) error {
	rows, err := s.db.QueryContext(ctx, "SELECT digest FROM blobs")
	if err != nil {
		return fmt.Errorf("list blobs: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var digest string
		if err := rows.Scan(&digest); err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		if err := yield(digest); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list blobs: %w", err)
	}
	return nil
}
