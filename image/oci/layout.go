package oci

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// OpenLayout opens an image in an OCI image layout, a directory. tag is a name that
// index.json gives; where it and digest are empty, the only image is meant.
func OpenLayout(dir, tag string, digest Digest) (*Local, error) {
	root, err := os.OpenRoot(dir)
	if st, errStat := os.Stat(dir); err != nil && errStat == nil && !st.IsDir() {
		return nil, &fault.Error{
			What: fmt.Errorf("open OCI layout %s: it is not a directory", dir),
			Hint: "a layout in a tar file is named oci-archive:" + dir,
		}
	}
	if err != nil {
		return nil, notThere(fmt.Errorf("open OCI layout: %w", err), "oci:DIR[:TAG]")
	}
	return openLayout(rootFiles{root}, "OCI layout "+dir, tag, digest)
}

// rootFiles are the files of a directory. No symbolic link leads out of it.
type rootFiles struct{ *os.Root }

func (r rootFiles) open(name string) (io.ReadCloser, int64, error) {
	// Opening a FIFO would wait for a writer.
	f, err := r.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size(), nil
}

// notThere says what to do about a path with nothing behind it.
func notThere(err error, form string) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return &fault.Error{What: err, Hint: "check the path, and that this machine has it; it is written " + form}
}
