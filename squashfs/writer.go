package squashfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"runtime"
	"strings"
	"time"
)

// WriterOptions say how an image is written. The zero value is a good choice:
// zstd at its fastest, blocks of 128 KiB, all processors.
type WriterOptions struct {
	Compression Compression // 0 means Zstd
	// Level is the compression level: 1-22 for zstd, of which 1-2, 3-5, 6-9 and
	// 10-22 are the same; 1-9 for gzip (default 9); 1 for the high-compression
	// variant of lz4. 0 is the default, the fastest of zstd and lz4.
	Level     int
	BlockSize int // bytes, a power of two from 4 KiB to 1 MiB; 0 means 128 KiB
	// Workers is how many blocks are compressed at a time; 0 means GOMAXPROCS.
	// It has no influence on the image. Each worker takes a compressor and up to
	// four blocks of memory.
	Workers int
	// MakeTime is the time that the image says it was made at, in whole seconds.
	// The zero Time gives 1970, so that equal input gives equal bytes.
	MakeTime time.Time

	NoFragments     bool // gives each file's tail a block of its own
	AlwaysFragments bool // packs tails of files over one block too
	NoDedup         bool // stores equal contents again
	NoExport        bool // leaves out the table by which NFS and FUSE find inodes by number
	Recompress      bool // compresses anew what AddFrom and AddImage could copy
}

// Entry describes a file, directory or other inode to be added to an image.
type Entry struct {
	// Path is the name within the image, of slash-separated names of 1 to 255
	// bytes, any but '/' and NUL. "." is the root; a leading "/" or "./" is
	// ignored, ".." is refused.
	Path string
	// Mode is the type and the permissions, with ModeSetuid, ModeSetgid, ModeSticky.
	Mode     fs.FileMode
	UID, GID uint32 // at most 65,535 different ones in an image, of both together
	// ModTime is stored in whole seconds from 1970 to 2106; other times become
	// the nearest of these.
	ModTime time.Time
	// Size is the length of a regular file in bytes, or negative where it is not
	// known before its end.
	Size         int64
	Target       string  // of a symlink, 1 to 4,095 bytes
	Major, Minor uint32  // of a device, up to 4,095 and 1,048,575
	Xattrs       []Xattr // names begin with "user.", "trusted." or "security."
}

// Info describes a finished image.
type Info struct {
	Superblock Superblock
	Size       int64 // bytes with padding; a trailer may follow here
}

// Errors of a Writer that callers may want to tell apart, with errors.Is.
var (
	// ErrTooManyIDs says that the image would have over 65,535 different user and
	// group ids. It leaves the Writer usable, as do fs.ErrExist, fs.ErrNotExist and
	// fs.ErrInvalid.
	ErrTooManyIDs = errors.New("more than 65535 different user and group ids")
	// ErrSize says that a file's content is not as long as its Entry says. It ends
	// the image, of which that content is a part by then.
	ErrSize = errors.New("content has another length than announced")
)

// Writer makes an image. Its methods must not be called concurrently. After an
// error of content or output the Writer is of no more use: its methods return
// that error, or fs.ErrClosed after Finish and Close, and the output holds no
// valid image.
type Writer struct {
	opt     WriterOptions
	out     *output
	content *contentWriter
	tree    *tree
	ids     idTable
	xattrs  *xattrWriter
	splices *splicer
	meta    compressor

	replaces string // the path that the image will have, if it will have one
	lastDir  string // the parent of the last entry, and its node
	lastNode uint32
	ended    bool // Finish or Close was called
}

// NewWriter empties w and begins an image there. Add what it shall hold, then call
// Finish; call Close in any case. Until Finish has returned without error, w
// does not begin with a valid superblock.
func NewWriter(w Output, o WriterOptions) (*Writer, error) {
	if err := o.complete(); err != nil {
		return nil, fmt.Errorf("new squashfs writer: %w", err)
	}
	meta, err := newCompressor(o.Compression, o.Level, metaSize)
	if err != nil {
		return nil, fmt.Errorf("new squashfs writer: %w", err)
	}
	out := newOutput(w)
	if err := writeHead(out, &o); err != nil {
		return nil, err
	}
	content, err := newContentWriter(out, &o)
	if err != nil {
		return nil, fmt.Errorf("new squashfs writer: %w", err)
	}
	wr := &Writer{
		opt: o, out: out, content: content, tree: newTree(), meta: meta,
		xattrs: newXattrWriter(meta), splices: &splicer{}, ids: idTable{index: map[uint32]uint16{}},
	}
	// Directories that are only named as parents belong to root.
	wr.ids.addOne(0)
	return wr, nil
}

func (o *WriterOptions) complete() error {
	if o.Compression == 0 {
		o.Compression = Zstd
	}
	if o.BlockSize == 0 {
		o.BlockSize = defaultBlockSize
	}
	if o.BlockSize < minBlockSize || o.BlockSize > maxBlockSize || o.BlockSize&(o.BlockSize-1) != 0 {
		return fmt.Errorf("%w: block size %d: want a power of two from 4096 to 1048576", fs.ErrInvalid, o.BlockSize)
	}
	top, ok := map[Compression]int{Zstd: 22, Gzip: 9, LZ4: 1, Uncompressed: 0}[o.Compression]
	if !ok {
		return fmt.Errorf("%w: compression %s: want zstd, gzip, lz4 or none", fs.ErrInvalid, o.Compression)
	}
	if o.Level < 0 || o.Level > top {
		return fmt.Errorf("%w: level %d of %s: want 0 to %d", fs.ErrInvalid, o.Level, o.Compression, top)
	}
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return nil
}

// writeHead leaves the superblock's place empty, so that an unfinished image is
// none, and writes the compressor's options (format.adoc section 3.1).
func writeHead(out *output, o *WriterOptions) error {
	// Nor is what the output held before.
	if err := out.w.Truncate(0); err != nil {
		return fmt.Errorf("empty the output: %w", err)
	}
	if err := out.write(make([]byte, superblockSize)); err != nil {
		return err
	}
	opts := compressorOptions(o.Compression, o.Level)
	if opts == nil {
		return nil
	}
	return out.write(append(le.AppendUint16(nil, uint16(len(opts))|metaRaw), opts...))
}

// Add adds an entry. content is read to its end before Add returns; it is nil
// for all but regular files, and may be for empty ones. Parents that were not
// added are made, as directories of root with mode 0755; adding a directory that
// is there already replaces its attributes. Any other name can be added once.
func (w *Writer) Add(e Entry, content io.Reader) error {
	if err := w.add(e, content); err != nil {
		return fmt.Errorf("add %q: %w", e.Path, err)
	}
	return nil
}

func (w *Writer) add(e Entry, r io.Reader) error {
	if r != nil && !e.Mode.IsRegular() {
		return fmt.Errorf("%w: content for what is no regular file", fs.ErrInvalid)
	}
	n, p, err := w.admit(&e)
	if err != nil {
		return err
	}
	if n.typ == TypeFile {
		if err := w.addContent(&n, e.Size, r); err != nil {
			return err
		}
	}
	w.put(p, n)
	return nil
}

// admit checks an entry and makes a node of it, and finds its place. An entry
// that it refuses leaves no trace in the image.
func (w *Writer) admit(e *Entry) (node, place, error) {
	if err := w.usable(); err != nil {
		return node{}, place{}, err
	}
	n, err := checkEntry(e)
	if err != nil {
		return node{}, place{}, err
	}
	p, err := w.place(e.Path, n.typ)
	if err != nil {
		return node{}, place{}, err
	}
	if n.uid, n.gid, err = w.ids.add(e.UID, e.GID); err != nil {
		return node{}, place{}, err
	}
	n.xattr = w.xattrs.add(e.Xattrs)
	switch n.typ {
	case TypeSymlink:
		n.size, n.data = uint64(len(e.Target)), w.tree.bytes.add(e.Target)
	case TypeBlockDevice, TypeCharDevice:
		n.data = encodeDev(e.Major, e.Minor)
	}
	return n, p, nil
}

// checkEntry checks what can be told from an entry alone.
func checkEntry(e *Entry) (node, error) {
	typ, ok := typeOf(e.Mode)
	if !ok {
		return node{}, fmt.Errorf("%w: mode %v has no squashfs type", fs.ErrInvalid, e.Mode)
	}
	n := node{typ: typ, perm: permOf(e.Mode), mtime: clampTime(e.ModTime), links: 1, data: noContent}
	switch typ {
	case TypeDir:
		n.data = noEntry
	case TypeSymlink:
		if len(e.Target) == 0 || len(e.Target) > maxTarget || strings.IndexByte(e.Target, 0) >= 0 {
			return node{}, fmt.Errorf("%w: target of %d bytes; want 1 to %d without NUL", fs.ErrInvalid, len(e.Target), maxTarget)
		}
	case TypeBlockDevice, TypeCharDevice:
		if e.Major > 0xFFF || e.Minor > 0xFFFFF {
			return node{}, fmt.Errorf("%w: device %d:%d; the format has room for 4095:1048575", fs.ErrInvalid, e.Major, e.Minor)
		}
	}
	return n, checkXattrs(e.Xattrs)
}

func (w *Writer) usable() error {
	if w.ended {
		return fs.ErrClosed
	}
	return w.content.failed()
}

func (w *Writer) addContent(n *node, size int64, r io.Reader) error {
	if r == nil {
		r = strings.NewReader("")
	}
	var got int64
	var err error
	if size >= 0 {
		// One byte more tells a file that is too long from one that fits, and
		// keeps one without end from filling the disk.
		r = io.LimitReader(r, min(size, math.MaxInt64-1)+1)
	}
	if n.data, got, err = w.content.add(r); err != nil {
		return err
	}
	n.size = uint64(got)
	if size >= 0 && got != size {
		err := fmt.Errorf("%w: %d bytes were announced, there are %s", ErrSize, size, atLeast(got, size))
		w.content.fail(err)
		return err
	}
	return nil
}

func atLeast(got, announced int64) string {
	if got > announced {
		return "more (give a Size of -1 where the length is not known)"
	}
	return fmt.Sprint(got)
}

// Link adds path as another name, a hard link, of the inode that target names.
// target must have been added and must not be a directory.
func (w *Writer) Link(path, target string) error {
	if err := w.link(path, target); err != nil {
		return fmt.Errorf("link %q to %q: %w", path, target, err)
	}
	return nil
}

func (w *Writer) link(path, target string) error {
	if err := w.usable(); err != nil {
		return err
	}
	n, err := w.resolve(target)
	if err != nil {
		return err
	}
	if w.tree.nodes.at(n).typ == TypeDir {
		return fmt.Errorf("%w: the target is a directory", fs.ErrInvalid)
	}
	p, err := w.place(path, TypeFile)
	if err != nil {
		return err
	}
	w.tree.insert(w.makeParent(p.parent), p.name, n)
	w.tree.nodes.at(n).links++
	return nil
}

// place is where an entry goes: a free name in a directory, which may have to be
// made, or a directory that is there.
type place struct {
	parent   string
	name     string
	existing uint32
	exists   bool
}

func (w *Writer) place(path string, typ Type) (place, error) {
	dir, name, err := splitPath(path)
	if err != nil {
		return place{}, err
	}
	if name == "" {
		if typ != TypeDir {
			return place{}, fmt.Errorf("%w: the root must be a directory", fs.ErrInvalid)
		}
		return place{existing: rootNode, exists: true}, nil
	}
	p := place{parent: dir, name: name}
	parent, there, err := w.findParent(dir)
	if err != nil || !there {
		return p, err
	}
	if n, ok := w.tree.find(parent, name); ok {
		if typ != TypeDir || w.tree.nodes.at(n).typ != TypeDir {
			return place{}, fs.ErrExist
		}
		p.existing, p.exists = n, true
	}
	return p, nil
}

func (w *Writer) put(p place, n node) {
	if p.exists {
		old := w.tree.nodes.at(p.existing)
		n.data, n.links = old.data, old.links
		*old = n
		return
	}
	w.tree.insert(w.makeParent(p.parent), p.name, w.tree.nodes.add(n))
}

// maxDepth bounds how deep directories lie. Linux takes paths of 4,096 bytes, in
// which 2,048 names have room.
const maxDepth = 2048

// splitPath returns the parent, without slashes at its ends, and the last name,
// which is empty for the root.
func splitPath(path string) (dir, name string, err error) {
	if path == "" {
		return "", "", fmt.Errorf("%w: empty path; the root is \".\"", fs.ErrInvalid)
	}
	clean := cleanPath(path)
	if clean == "" {
		return "", "", nil
	}
	if strings.Count(clean, "/") >= maxDepth {
		return "", "", fmt.Errorf("%w: over %d directories deep", fs.ErrInvalid, maxDepth)
	}
	if i := strings.LastIndexByte(clean, '/'); i >= 0 {
		dir, name = clean[:i], clean[i+1:]
	} else {
		name = clean
	}
	return dir, name, checkName(name)
}

// cleanPath drops empty names and ".", but keeps ".." for checkName to refuse.
func cleanPath(path string) string {
	// Most paths are clean: then nothing is copied.
	if framed := "/" + path + "/"; !strings.Contains(framed, "//") && !strings.Contains(framed, "/./") {
		return path
	}
	names := strings.Split(path, "/")
	kept := names[:0]
	for _, n := range names {
		if n != "" && n != "." {
			kept = append(kept, n)
		}
	}
	return strings.Join(kept, "/")
}

func checkName(name string) error {
	if name == "" || len(name) > maxName || name == "." || name == ".." || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("%w: name %q; want 1 to %d bytes without NUL, and not \"..\"", fs.ErrInvalid, shorten(name), maxName)
	}
	return nil
}

func shorten(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// findParent returns the node of the directory dir, if it is there. It is an
// error if it cannot be made either.
func (w *Writer) findParent(dir string) (at uint32, there bool, err error) {
	if dir == "" {
		return rootNode, true, nil
	}
	if dir == w.lastDir {
		return w.lastNode, true, nil
	}
	at, there = rootNode, true
	for name := range strings.SplitSeq(dir, "/") {
		if err := checkName(name); err != nil {
			return 0, false, err
		}
		if !there {
			continue
		}
		if at, there = w.tree.find(at, name); !there {
			continue
		}
		if typ := w.tree.nodes.at(at).typ; typ != TypeDir {
			return 0, false, fmt.Errorf("%w: its parent %q is a %s, not a directory", fs.ErrInvalid, shorten(name), typ)
		}
	}
	if there {
		w.lastDir, w.lastNode = strings.Clone(dir), at
	}
	return at, there, nil
}

// makeParent returns the node of the directory dir, for which findParent gave no
// error, and makes what is missing of it.
func (w *Writer) makeParent(dir string) uint32 {
	if dir == "" {
		return rootNode
	}
	if dir == w.lastDir {
		return w.lastNode
	}
	at := uint32(rootNode)
	for name := range strings.SplitSeq(dir, "/") {
		next, ok := w.tree.find(at, name)
		if !ok {
			next = w.tree.nodes.add(node{
				typ: TypeDir, perm: 0o755, data: noEntry, xattr: none32, links: 1,
			})
			w.tree.insert(at, name, next)
		}
		at = next
	}
	w.lastDir, w.lastNode = strings.Clone(dir), at
	return at
}

// resolve finds the node that path names; it follows no symlinks.
func (w *Writer) resolve(path string) (uint32, error) {
	dir, name, err := splitPath(path)
	if err != nil {
		return 0, err
	}
	at := uint32(rootNode)
	if name == "" {
		return at, nil
	}
	if dir != "" {
		name = dir + "/" + name
	}
	for part := range strings.SplitSeq(name, "/") {
		next, ok := w.tree.find(at, part)
		if !ok {
			return 0, fmt.Errorf("target: %w", fs.ErrNotExist)
		}
		at = next
	}
	return at, nil
}

// clampTime turns a time into the format's unsigned seconds.
func clampTime(t time.Time) uint32 {
	return uint32(max(0, min(t.Unix(), math.MaxUint32)))
}

// idTable numbers user and group ids in the order in which they come.
type idTable struct {
	index map[uint32]uint16
	list  []uint32
}

// add returns the indices of a user's and a group's id, or changes nothing.
func (t *idTable) add(uid, gid uint32) (u, g uint16, err error) {
	before := len(t.list)
	u = t.addOne(uid)
	g = t.addOne(gid)
	if len(t.list) > maxIDs {
		for _, id := range t.list[before:] {
			delete(t.index, id)
		}
		t.list = t.list[:before]
		return 0, 0, fmt.Errorf("%w: no room for %d and %d", ErrTooManyIDs, uid, gid)
	}
	return u, g, nil
}

func (t *idTable) addOne(id uint32) uint16 {
	if i, ok := t.index[id]; ok {
		return i
	}
	i := uint16(len(t.list))
	t.index[id], t.list = i, append(t.list, id)
	return i
}

// Finish writes the tables and, last, the superblock, and returns what was
// written. The image is complete then, but not yet synced to disk.
func (w *Writer) Finish(ctx context.Context) (Info, error) {
	info, err := w.finish(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("finish squashfs image: %w", err)
	}
	return info, nil
}

// Close ends the Writer's goroutines. Without Finish before, what was written is
// not an image. Close may be called more than once.
func (w *Writer) Close() error {
	if w.ended {
		return nil
	}
	w.ended = true
	w.content.fail(fs.ErrClosed)
	_ = w.content.finish()
	return nil
}
