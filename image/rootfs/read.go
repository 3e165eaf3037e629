package rootfs

import (
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/squashfs"
)

// ReadFile returns the content of a regular file, symlinks followed as by Resolve. A
// file of more than limit bytes is an error that wraps EFBIG.
func (t *Tree) ReadFile(path string, limit int64) ([]byte, error) {
	w, err := t.walk("read", path, nil)
	if err != nil {
		return nil, err
	}
	b, err := t.readAll(w.node(), limit)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, nil
}

func (t *Tree) readAll(n uint32, limit int64) ([]byte, error) {
	i, err := t.stat(n)
	switch {
	case err != nil:
		return nil, err
	case kindOf(i.Mode) == Dir:
		return nil, syscall.EISDIR
	case kindOf(i.Mode) != File:
		return nil, syscall.EINVAL
	case i.Size > limit:
		return nil, fmt.Errorf("%w: %d bytes, more than %d", syscall.EFBIG, i.Size, limit)
	}
	b := make([]byte, i.Size)
	if _, err := t.readAt(n, b, 0); err != nil {
		return nil, err
	}
	return b, nil
}

// readAt reads a regular file; fewer bytes than asked for mean its end.
func (t *Tree) readAt(n uint32, p []byte, off int64) (int, error) {
	if a := t.addition(n); a != nil {
		if off >= int64(len(a.content)) {
			return 0, nil
		}
		return copy(p, a.content[off:]), nil
	}
	if t.hot != nil {
		if b, ok := t.hot.span(n, off, len(p)); ok {
			return copy(p, b), nil
		}
	}
	f, err := t.files.get(t, n)
	if f == nil || err != nil {
		return 0, err
	}
	m, err := f.ReadAt(p, off)
	t.trace.note(n, off, m)
	if err == io.EOF {
		err = nil
	}
	return m, err
}

// open opens a file of the image, which must not be empty.
func (t *Tree) open(n uint32) (*squashfs.File, error) {
	d, err := t.ix.Data(n)
	if err != nil || d.Layer < 0 {
		return nil, err
	}
	if d.Layer >= len(t.layers) {
		return nil, fmt.Errorf("%w: layer %d of %d", merged.ErrCorrupt, d.Layer, len(t.layers))
	}
	i, err := t.ix.Inode(n)
	if err != nil {
		return nil, err
	}
	f, err := t.layers[d.Layer].OpenLayout(i.Size, d.Layout)
	if err != nil {
		return nil, fmt.Errorf("layer %d: %w", d.Layer, err)
	}
	return f, nil
}

// fileCache keeps the files that were read last: they know where their blocks lie, and
// how they are being read. The kernel does not say when a file is opened or closed, see
// fileSystem.Open.
type fileCache struct {
	mu    sync.Mutex // guards the rest
	tick  uint64
	nodes [openFiles]uint32 // 0 where nothing is
	used  [openFiles]uint64 // the tick of the last use
	files [openFiles]*squashfs.File
}

// openFiles is how many. One holds where 2048 of its blocks lie, 16 KiB at most.
const openFiles = 64

// get returns an open file; nil for one that is empty.
func (c *fileCache) get(t *Tree, n uint32) (*squashfs.File, error) {
	if f := c.find(n); f != nil {
		return f, nil
	}
	f, err := t.open(n)
	if f == nil || err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := 0
	for i := range c.nodes {
		if c.nodes[i] == n { // another was faster
			return c.files[i], nil
		}
		if c.used[i] < c.used[oldest] {
			oldest = i
		}
	}
	c.tick++
	c.nodes[oldest], c.used[oldest], c.files[oldest] = n, c.tick, f
	return f, nil
}

func (c *fileCache) find(n uint32) *squashfs.File {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.nodes {
		if c.nodes[i] == n {
			c.tick++
			c.used[i] = c.tick
			return c.files[i]
		}
	}
	return nil
}
