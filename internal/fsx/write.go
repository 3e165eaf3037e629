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
)

// TempPrefix begins the name of every unfinished file. WriteFile removes its own
// on every error; a process that is killed leaves one behind, and a file with
// this prefix whose writer is gone may be removed.
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
	f, err := createTemp(dir, o.Mode)
	if err != nil {
		return err
	}
	renamed := false
	defer func() {
		if !renamed { // also when fill panics
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	// Some file systems (NFS, FUSE) report a full disk only here.
	if err := f.Close(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	renamed = true
	return syncDir(dir)
}

// createTemp opens a new file in dir. Unlike os.CreateTemp it lets the kernel
// apply umask and default ACLs to mode.
func createTemp(dir string, mode fs.FileMode) (*os.File, error) {
	if mode == 0 {
		mode = 0o644
	}
	name := filepath.Join(dir, TempPrefix+rand.Text())
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
