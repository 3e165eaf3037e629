package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/squashfs"
)

// OpenFile opens a squashfs file as an image, in its place: nothing is copied. The
// first time, its tree is walked and proved, and the store keeps an index of it; while
// the file stays as it is, opening it again takes no longer than opening an image of the
// store. In a store that cannot be written the index lasts as long as it is open.
//
// The file is data of strangers that is decompressed and taken apart in this process;
// root should leave that to an ordinary user. A file that is changed in its place while
// it is open reads as errors or as other data, as it would for the kernel.
func (s *Store) OpenFile(ctx context.Context, path string, ro squashfs.ReaderOptions) (*Opened, error) {
	o, err := s.openFile(ctx, path, ro)
	if err != nil {
		return nil, fmt.Errorf("open image %s: %w", path, err)
	}
	return o, nil
}

func (s *Store) openFile(ctx context.Context, path string, ro squashfs.ReaderOptions) (*Opened, error) {
	f, id, err := openLocal(path)
	if err != nil {
		return nil, err
	}
	ro.Size = id.size
	r, err := squashfs.NewReader(f, ro)
	if err != nil {
		return nil, errors.Join(localFault(err, id.path), f.Close())
	}
	o := &Opened{Layers: []*squashfs.Reader{r}, file: f, hot: s.localIndexPath(id.key()) + hotSuffix, config: func() (RunConfig, error) { return fileConfig(r, path) }}
	if o.Index, err = s.localIndex(id); err != nil {
		o.Index, err = s.indexFile(ctx, o, id)
	}
	if err != nil {
		_ = o.Close()
		return nil, localFault(err, id.path)
	}
	return o, nil
}

// fileID says which file is meant, and whether it is still the same. The device is no
// part of it: the same network file system has another number on each node.
type fileID struct {
	path                string // absolute, without symlinks
	size, mtime, change int64  // bytes, nanoseconds since 1970
	inode               uint64
}

func identify(path string, st fs.FileInfo) fileID {
	id := fileID{path: path, size: st.Size(), mtime: st.ModTime().UnixNano()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		id.change, id.inode = sys.Ctim.Nano(), sys.Ino
	}
	return id
}

// key names the file's index.
func (id *fileID) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d %d %d %d", id.path, id.size, id.mtime, id.change, id.inode))
	return hex.EncodeToString(sum[:16])
}

// openLocal opens a regular file.
func openLocal(path string) (*os.File, fileID, error) {
	name, err := filepath.Abs(path)
	if err == nil {
		name, err = filepath.EvalSymlinks(name)
	}
	if err == nil {
		err = isRegular(os.Stat(name)) // first: to open a device may do something
	}
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, fileID{}, unusable(err, path)
	}
	st, err := f.Stat()
	if err = isRegular(st, err); err != nil {
		return nil, fileID{}, errors.Join(err, f.Close())
	}
	return f, identify(name, st), nil
}

func isRegular(st fs.FileInfo, err error) error {
	if err == nil && !st.Mode().IsRegular() {
		err = &fault.Error{
			What: errors.New("it is no regular file"),
			Hint: "name a squashfs file, a directory with a root file system, or an image as HOST/REPOSITORY:TAG",
		}
	}
	return err
}

// unusable says what to do about a file that cannot be opened.
func unusable(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fault.Error{What: err, Hint: "check the path of the file, and that this node has it; images of registries are written HOST/REPOSITORY:TAG"}
	case errors.Is(err, fs.ErrPermission):
		return &fault.Error{What: err, Hint: "make it readable for this user, with all directories above it: chmod a+r " + path}
	}
	return err
}

// localFault says what to do about a file that is no image.
func localFault(err error, path string) error {
	switch {
	case errors.Is(err, squashfs.ErrNotSquashfs):
		return &fault.Error{What: err, Hint: "to use a tar archive or a directory: gangway image import " + path + " NAME"}
	case errors.Is(err, squashfs.ErrUnsupported):
		return &fault.Error{What: err, Hint: "make the file anew: unsquashfs -d DIR " + path + ", and mksquashfs DIR FILE.sqsh -comp zstd"}
	case errors.Is(err, merged.ErrLimit):
		return &fault.Error{What: err, Hint: fmt.Sprintf("if you trust it: gangway image import --max-entries %d %s NAME", 4*defaultEntries, path)}
	}
	return squashFault(err, path)
}

// localIndexes is where the indexes of local files lie.
const localIndexes = "indexes/v1/local/*.gwi"

func (s *Store) localIndexPath(key string) string {
	return s.path("indexes", "v1", "local", key+".gwi")
}

// localIndex opens the index that the store has of a file.
func (s *Store) localIndex(id fileID) (*merged.Index, error) {
	name := s.localIndexPath(id.key())
	x, err := merged.Open(name)
	if err == nil && !id.is(x) {
		err = errors.Join(fmt.Errorf("index %s: %w: it is of another file", name, ErrDamaged), x.Close())
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("index of a local image is of no use, it is made again", "image", id.path, "err", err)
		}
		return nil, err
	}
	now := s.now()
	_ = os.Chtimes(name, now, now) // only says when it was used last
	return x, nil
}

// is says whether an index is of this file.
func (id *fileID) is(x *merged.Index) bool {
	l := x.Layers()
	return len(l) == 1 && l[0].Path == id.path && l[0].Size == id.size && l[0].ModTime == id.mtime && l[0].Inode == id.inode
}

// indexFile makes the index of a file, and keeps it in the store if it can. Of many that
// want it one works.
func (s *Store) indexFile(ctx context.Context, o *Opened, id fileID) (*merged.Index, error) {
	lock, err := s.lock(ctx, s.path("locks", "index-local-"+id.key()), fsx.Exclusive)
	unkept := unwritable(err)
	if err != nil && !unkept {
		return nil, err
	}
	if !unkept {
		defer func() { _ = lock.Release() }()
		if x, err := s.localIndex(id); err == nil {
			return x, nil // another made it while we waited
		}
	}
	begin := time.Now()
	b, err := s.walkFile(ctx, o.Layers[0], id)
	if err != nil {
		return nil, err
	}
	if st, err := o.file.Stat(); err != nil || identify(id.path, st) != id {
		return nil, errors.Join(err, &fault.Error{
			What: errors.New("it changed while it was read"),
			Hint: "try again when it is written whole; write images under another name, and rename them",
		})
	}
	if !unkept {
		x, err := s.keepIndex(ctx, b, id)
		if !unwritable(err) {
			s.log.Debug("indexed local image", "image", id.path, "took", time.Since(begin))
			return x, err
		}
	}
	s.log.Info("the store cannot be written: the index of a local image is not kept", "image", id.path, "took", time.Since(begin))
	return indexInMemory(b)
}

// keepIndex writes an index into the store, and opens it before anybody removes it.
func (s *Store) keepIndex(ctx context.Context, b *merged.Builder, id fileID) (*merged.Index, error) {
	gc, err := s.lock(ctx, s.gcLock(), fsx.Shared)
	if err != nil {
		return nil, err
	}
	defer func() { _ = gc.Release() }()
	name := s.localIndexPath(id.key())
	err = s.write(ctx, name, func(f *os.File) error {
		_, err := b.WriteTo(f)
		return err
	})
	if err != nil {
		return nil, err
	}
	return merged.Open(name)
}

// unwritable says whether an error is that of a store to which nothing can be written.
func unwritable(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOLCK, syscall.ENOTSUP,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// indexInMemory is an index without a file, if possible outside of the Go heap.
func indexInMemory(b *merged.Builder) (*merged.Index, error) {
	fd, err := unix.MemfdCreate("gangway-index", unix.MFD_CLOEXEC)
	if err == nil {
		f := os.NewFile(uintptr(fd), "index in memory")
		defer f.Close()
		if _, err = b.WriteTo(f); err == nil {
			if x, err := merged.Open(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
				return x, nil
			}
		}
	}
	var heap bytes.Buffer
	if _, err := b.WriteTo(&heap); err != nil {
		return nil, err
	}
	return merged.New(heap.Bytes())
}

// walkFile applies the tree of a squashfs file.
func (s *Store) walkFile(ctx context.Context, r *squashfs.Reader, id fileID) (*merged.Builder, error) {
	// Only what Check has proved has an end. Data is decoded when it is read.
	if err := squashfs.Check(ctx, r, squashfs.CheckOptions{SkipData: true, MaxProblems: 1}); err != nil {
		return nil, err
	}
	b := merged.NewBuilder(merged.Options{Limits: mergedLimits(layer.Limits{})})
	sb := r.Superblock()
	info := merged.LayerInfo{
		Path: id.path, Size: id.size, ModTime: id.mtime, Inode: id.inode,
		BlockSize: sb.BlockSize, Compression: sb.Compression,
	}
	w := &squashEntries{r: r, seen: map[uint32]string{}, skip: func(name, why string) {
		s.log.Info("left out of a local image", "image", id.path, "file", name, "why", why)
	}}
	return b, b.ApplyTree(ctx, info, w.all, w.layout)
}
