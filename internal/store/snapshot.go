package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// A snapshot is a file beside the database: it is a cache, and may be removed. It has a
// line that says what it is, the id of the store, the number of the event, a sum over all
// the rest, and the data.
const snapshotMagic = "gangway snapshot 1\n"

func (s *SQLite) snapshotPath() string { return s.path + "-snapshot" }

// SaveSnapshot implements Store.
func (s *SQLite) SaveSnapshot(seq uint64, data []byte) error {
	head := binary.LittleEndian.AppendUint64([]byte(snapshotMagic+s.id), seq)
	sum := sha256.New()
	sum.Write(head)
	sum.Write(data)
	err := fsx.WriteFile(context.Background(), s.snapshotPath(), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		for _, b := range [][]byte{head, sum.Sum(nil), data} {
			if _, err := f.Write(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// Snapshot implements Store. One that is damaged, or of another store, is none.
func (s *SQLite) Snapshot() (uint64, []byte, error) {
	all, err := os.ReadFile(s.snapshotPath())
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read snapshot: %w", err)
	}
	rest, ok := bytes.CutPrefix(all, []byte(snapshotMagic+s.id))
	if !ok || len(rest) < 8+sha256.Size {
		return 0, nil, nil
	}
	seq, data := binary.LittleEndian.Uint64(rest), rest[8+sha256.Size:]
	sum := sha256.New()
	sum.Write(all[:len(all)-len(rest)+8])
	sum.Write(data)
	if !bytes.Equal(sum.Sum(nil), rest[8:8+sha256.Size]) {
		return 0, nil, nil
	}
	return seq, data, nil
}
