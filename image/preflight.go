package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// preflight refuses early what would fail after gigabytes: an image over the limit,
// and one for which the disk has no room.
func (s *Store) preflight(m oci.Manifest, o *PullOptions) error {
	var all, missing int64
	// Record, index, manifest and configuration; locks of three of them; a lease; the
	// directories of a new store.
	files := uint64(24)
	seen := map[oci.Digest]bool{}
	for _, l := range m.Layers {
		if seen[l.Digest] {
			continue
		}
		seen[l.Digest] = true
		all += l.Size
		if _, err := os.Stat(s.LayerPath(l.Digest)); errors.Is(err, fs.ErrNotExist) {
			missing += l.Size
			files += 3 // it, its lock, and what others read of its progress
		}
	}
	if o.MaxSize > 0 && all > o.MaxSize {
		return &fault.Error{
			What: fmt.Errorf("its layers have %s, more than the limit of %s", FormatBytes(all), FormatBytes(o.MaxSize)),
			Hint: fmt.Sprintf("raise the limit: --max-size %d", all),
		}
	}
	free, inodes, err := s.room()
	if err != nil {
		return err
	}
	// A layer's squashfs file is about as large as its gzip blob: 1.02 times for a
	// system of programs and libraries.
	need := missing + missing/20
	switch {
	case missing > 0 && free < need:
		return &fault.Error{
			What:  fmt.Errorf("it needs about %s of disk, %s are free", FormatBytes(need), FormatBytes(free)),
			Cause: "the store is " + s.dir,
			Hint:  "free some: gangway image gc --keep-bytes 10G; or choose another store: --store DIR",
		}
	case inodes < files:
		return &fault.Error{
			What:  fmt.Errorf("it needs %d inodes, %d are free", files, inodes),
			Cause: "the store is " + s.dir,
			Hint:  "remove files from that file system, or choose another store: --store DIR",
		}
	}
	return nil
}

// room returns the bytes and inodes that the store's file system has for this user.
func (s *Store) room() (bytes int64, inodes uint64, err error) {
	dir := s.dir
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if err != nil {
		return 0, 0, s.fault(fmt.Errorf("ask for free space of %s: %w", dir, err))
	}
	inodes = st.Ffree
	if st.Files == 0 {
		inodes = 1 << 62 // as btrfs says that it has no such limit
	}
	return int64(st.Bavail) * st.Bsize, inodes, nil
}

// FormatBytes writes a number of bytes for people, with one decimal and decimal
// units: 1.2 GB.
func FormatBytes(n int64) string {
	units := []string{"kB", "MB", "GB", "TB", "PB", "EB"}
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n) / 1000
	for f >= 999.95 && len(units) > 1 {
		f /= 1000
		units = units[1:]
	}
	return fmt.Sprintf("%.1f %s", f, units[0])
}
