// Package fsx writes files that are never seen half done, and locks files among
// processes.
//
// [WriteFile] makes the content of a file appear under its name at once or not at
// all, whatever happens: an error, a full disk, kill -9, a crash of the machine.
// [Acquire] takes a lock that the kernel drops when its holder dies.
//
// Everything here may be used by any number of goroutines and processes. The
// package does not merge writers: of two that write one name at once, one wins,
// whole.
//
// On NFS: rename is atomic on the server, but another client may see the old
// file until its attribute cache expires (acregmax, 60 s by default), and a rename
// repeated after a lost answer may report an error though it was done. flock is
// turned into a byte-range lock there; it needs a lock service and fails with
// ENOLCK without one, and with the mount option local_lock=flock it does not
// exclude other machines. Keep locks and shared state on a local disk.
package fsx

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// TempPrefix begins the name of every unfinished file that has one. WriteFile
// removes its own on every error; a process that is killed may leave one behind,
// which Sweep removes.
const TempPrefix = ".gangway-tmp-"

// Options says how WriteFile makes a file. The zero value is good for results
// that people read.
type Options struct {
	Mode fs.FileMode // permissions before the umask; 0 means 0644
}

// ErrNotRegular is returned for a name that is taken by something other than a
// regular file. Renaming over /dev/null would be done by the kernel without a word.
var ErrNotRegular = errors.New("exists and is not a regular file")

// WriteFile calls fill with a new, empty file in name's directory and, when fill
// has returned nil, gives it that name: write, fsync, rename, fsync of the
// directory. A regular file of that name is replaced; its permissions and links
// are not kept. A symbolic link, a device or a directory is refused with
// ErrNotRegular.
//
// Where the file system can (O_TMPFILE, Linux 3.11), the file has no name until it
// is complete, so that not even kill -9 leaves anything.
//
// If fill, any step or ctx fails before the rename, the name is untouched and the
// temporary file is gone. If only the last step fails, the new content is in place
// and an error is returned, because a crash may still undo the rename.
//
// fill may write anywhere in the file and must not close it. ctx is looked at
// before fill and before the rename; to stop in between is up to fill.
func WriteFile(ctx context.Context, name string, o Options, fill func(*os.File) error) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if st, err := os.Lstat(name); err == nil && !st.Mode().IsRegular() {
		return fmt.Errorf("write %s: %w", name, ErrNotRegular)
	}
	dir := filepath.Dir(name)
	t, err := createTemp(dir, o.Mode)
	if err != nil {
		return err
	}
	defer t.discard() // also when fill panics
	if err := fill(t.f); err != nil {
		return err
	}
	if err := t.f.Sync(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := t.publish(name); err != nil {
		return err
	}
	return SyncDir(dir)
}

// temp is a file that has no name yet, or one that only Sweep looks for.
type temp struct {
	f    *os.File
	name string // empty where it has none
}

// createTemp opens a new file in dir. Unlike os.CreateTemp it lets the kernel
// apply umask and default ACLs to mode.
func createTemp(dir string, mode fs.FileMode) (*temp, error) {
	if mode == 0 {
		mode = 0o644
	}
	if f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, mode); err == nil {
		if _, err := os.Stat(procName(f)); err == nil {
			return &temp{f: f}, nil
		}
		_ = f.Close() // without /proc nothing could name it
	}
	name := tempName(dir)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	// It tells Sweep that somebody writes here. Where nothing can be locked, the
	// file's age must do.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	return &temp{f: f, name: name}, nil
}

func tempName(dir string) string { return filepath.Join(dir, TempPrefix+rand.Text()) }

func procName(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// publish gives the file its name.
func (t *temp) publish(name string) error {
	if t.name == "" {
		err := t.link(name)
		if err == nil {
			return t.f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// A name that is taken can only be taken over by another name.
		next := tempName(filepath.Dir(name))
		if err := t.link(next); err != nil {
			return err
		}
		t.name = next
	}
	// Some file systems (NFS, FUSE) report a full disk only here.
	if err := t.f.Close(); err != nil {
		return err
	}
	if err := os.Rename(t.name, name); err != nil {
		return err
	}
	t.name = ""
	return nil
}

func (t *temp) link(name string) error {
	err := unix.Linkat(unix.AT_FDCWD, procName(t.f), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &os.LinkError{Op: "link", Old: "unnamed file", New: name, Err: err}
	}
	return nil
}

func (t *temp) discard() {
	_ = t.f.Close()
	if t.name != "" {
		_ = os.Remove(t.name)
	}
}

// sweepAge keeps Sweep from a file that is made but not locked yet.
const sweepAge = time.Minute

// Sweep removes from dir the unfinished files of writers that are gone. It is no
// error if dir does not exist.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir) // and no glob, for which '[' in dir is a pattern
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), TempPrefix) {
			continue
		}
		if err := sweep(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("sweep %s: %w", dir, err)
		}
	}
	return nil
}

func sweep(name string) error {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || time.Since(st.ModTime()) < sweepAge {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	return os.Remove(name)
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
