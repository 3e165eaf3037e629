package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Opened is an image whose files are open: they may be removed from the store, and
// can still be read.
type Opened struct {
	Index  *merged.Index
	Layers []*squashfs.Reader // as the index counts them

	hot    string
	file   *os.File                  // that the one layer reads, where it is no layer of a store
	config func() (RunConfig, error) // nil where there is none
}

// Close closes the files.
func (o *Opened) Close() error {
	var errs []error
	for _, l := range o.Layers {
		errs = append(errs, l.Close())
	}
	if o.file != nil {
		errs = append(errs, o.file.Close())
	}
	if o.Index != nil {
		errs = append(errs, o.Index.Close())
	}
	return errors.Join(errs...)
}

// HotPath names the file for what containers of the image read when they start (package
// image/rootfs), which may not be there; empty where the store has no index of the image.
func (o *Opened) HotPath() string { return o.hot }

// Config returns how the image says that it is run. It is data of strangers: bounded,
// and without NULs, but not proved in any other way.
func (o *Opened) Config() (RunConfig, error) {
	if o.config == nil {
		return RunConfig{}, nil
	}
	return o.config()
}

// OpenImage opens the files of an image. Options are those of each layer.
func (s *Store) OpenImage(i *Image, ro squashfs.ReaderOptions) (*Opened, error) {
	o := &Opened{hot: s.IndexPath(i.Manifest) + hotSuffix, config: func() (RunConfig, error) { return s.config(i.Reference, i.Config) }}
	var err error
	if o.Index, err = merged.Open(s.IndexPath(i.Manifest)); err != nil {
		return nil, incomplete(i, err)
	}
	for _, l := range o.Index.Layers() {
		r, err := squashfs.Open(s.layerFile(l), ro)
		if err != nil {
			_ = o.Close()
			return nil, incomplete(i, err)
		}
		o.Layers = append(o.Layers, r)
	}
	s.touch(i)
	return o, nil
}

// layerFile returns the file of a layer of an index.
func (s *Store) layerFile(l merged.LayerInfo) string {
	if l.Path != "" {
		return l.Path
	}
	return s.LayerPath(l.Digest)
}

func incomplete(i *Image, err error) error {
	return &fault.Error{
		What: fmt.Errorf("open image %s: %w", i.Reference, err),
		Hint: "fetch what is missing or damaged: gangway image pull " + i.Reference,
	}
}

// WriterOptions returns the options with which most of the image can be copied as it is:
// the compression and block size of its largest layer, where a Writer has them.
func (o *Opened) WriterOptions() squashfs.WriterOptions {
	var w squashfs.WriterOptions
	var size int64
	for n, l := range o.Index.Layers() {
		sb := o.Layers[n].Superblock()
		if l.Size > size && slices.Contains([]squashfs.Compression{squashfs.Zstd, squashfs.Gzip, squashfs.LZ4}, sb.Compression) {
			size = l.Size
			w.Compression, w.BlockSize = sb.Compression, int(sb.BlockSize)
		}
	}
	return w
}

// Export adds all files of an image to w, with their compressed blocks as they are.
// Attributes that squashfs has no room for are left out; warn is told of them.
func (o *Opened) Export(ctx context.Context, w *squashfs.Writer, warn func(path string, err error)) error {
	e := exporter{o: o, w: w, warn: warn, names: map[uint32]string{}}
	return e.dir(ctx, merged.Root, ".")
}

type exporter struct {
	o     *Opened
	w     *squashfs.Writer
	warn  func(string, error)
	names map[uint32]string // of inodes with several names, the first
}

func (e *exporter) dir(ctx context.Context, number uint32, name string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := e.add(number, name); err != nil {
		return err
	}
	for d, err := range e.o.Index.ReadDir(number, 0) {
		if err != nil {
			return err
		}
		child := path.Join(name, string(d.Name))
		if d.Type == syscall.S_IFDIR {
			err = e.dir(ctx, d.Inode, child)
		} else {
			err = e.add(d.Inode, child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds one name.
func (e *exporter) add(number uint32, name string) error {
	i, err := e.o.Index.Inode(number)
	if err != nil {
		return err
	}
	if first, ok := e.names[number]; ok {
		return e.w.Link(name, first)
	}
	entry, err := e.entry(&i, name)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if i.Mode&syscall.S_IFMT != syscall.S_IFDIR && i.Links > 1 {
		e.names[number] = name
	}
	if i.Mode&syscall.S_IFMT != syscall.S_IFREG || i.Size == 0 {
		return e.w.Add(entry, nil)
	}
	d, err := e.o.Index.Data(number)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if d.Layer < 0 || d.Layer >= len(e.o.Layers) {
		return fmt.Errorf("%q: %w: layer %d", name, merged.ErrCorrupt, d.Layer)
	}
	return e.w.AddLayout(entry, e.o.Layers[d.Layer], i.Size, d.Layout)
}

// entry is an inode as the writer takes it.
func (e *exporter) entry(i *merged.Inode, name string) (squashfs.Entry, error) {
	entry := squashfs.Entry{
		Path: name, Mode: fileMode(i.Mode), UID: i.UID, GID: i.GID,
		ModTime: time.Unix(i.Sec, int64(i.Nsec)), Size: i.Size, Major: i.Major, Minor: i.Minor,
	}
	var err error
	if entry.Mode&fs.ModeSymlink != 0 {
		if entry.Target, err = e.o.Index.ReadLink(i.Number); err != nil {
			return entry, err
		}
	}
	if !i.HasXattrs() {
		return entry, nil
	}
	all, err := e.o.Index.Xattrs(i.Number)
	for _, x := range all {
		prefix, _, _ := strings.Cut(x.Name, ".")
		if slices.Contains([]string{"user", "trusted", "security"}, prefix) {
			entry.Xattrs = append(entry.Xattrs, x)
		} else if e.warn != nil {
			e.warn(name, fmt.Errorf("xattr %s: squashfs has no room for it", x.Name))
		}
	}
	return entry, err
}

// fileMode is st_mode as package fs has it.
func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{
		syscall.S_ISUID: fs.ModeSetuid, syscall.S_ISGID: fs.ModeSetgid, syscall.S_ISVTX: fs.ModeSticky,
	} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m | map[uint32]fs.FileMode{
		syscall.S_IFDIR: fs.ModeDir, syscall.S_IFLNK: fs.ModeSymlink, syscall.S_IFIFO: fs.ModeNamedPipe,
		syscall.S_IFBLK: fs.ModeDevice, syscall.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice,
	}[mode&syscall.S_IFMT]
}
