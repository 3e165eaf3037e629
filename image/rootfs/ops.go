package rootfs

import (
	"errors"
	"io/fs"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/hanwen/go-fuse/v2/fuse"
)

const (
	// forever is how long the kernel may believe what it was told, in seconds.
	forever = 1 << 30
	// blockSize is what stat(2) calls the best size to read by. Layers have it, too.
	blockSize = 128 << 10
)

// fileSystem answers requests. Node numbers are those of the tree; what the kernel
// forgets needs no note. Whatever is not here is answered by ENOSYS: the kernel does
// not ask again, and does without.
type fileSystem struct {
	fuse.RawFileSystem
	t        *Tree
	uid, gid uint32
	log      failures
	lastFile atomic.Uint64 // a regular file that the kernel knows, see Server.Close
}

func newFileSystem(t *Tree, o *ServeOptions, log *slog.Logger) *fileSystem {
	return &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		t:             t, uid: o.UID, gid: o.GID, log: failures{log: log},
	}
}

func (*fileSystem) String() string { return "gangway" }

// status is an error as the kernel has it. What is no errno is damage.
func status(err error) fuse.Status {
	if err == fs.ErrNotExist {
		return fuse.ENOENT
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return fuse.Status(errno)
	}
	return fuse.EIO
}

func (f *fileSystem) fail(n uint32, err error) fuse.Status {
	s := status(err)
	if s == fuse.EIO {
		f.log.add(n, err)
	}
	return s
}

// Lookup implements fuse.RawFileSystem. Names that do not exist are answered, too, so
// that the kernel remembers them.
func (f *fileSystem) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) (s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), h.NodeId, &s)
	n, err := f.t.lookup(uint32(h.NodeId), name)
	if err == fs.ErrNotExist {
		out.EntryValid = forever
		return fuse.OK
	}
	if err == nil {
		err = f.entry(n, out)
	}
	if err != nil {
		return f.fail(uint32(h.NodeId), err)
	}
	return fuse.OK
}

// entry says all about a node.
func (f *fileSystem) entry(n uint32, out *fuse.EntryOut) error {
	i, err := f.t.stat(n)
	if err != nil {
		return err
	}
	out.NodeId = uint64(n)
	out.EntryValid, out.AttrValid = forever, forever
	f.attr(&i, &out.Attr)
	if kindOf(i.Mode) == File {
		f.lastFile.Store(uint64(n))
	}
	return nil
}

func (f *fileSystem) attr(i *merged.Inode, a *fuse.Attr) {
	a.Ino = uint64(i.Number)
	a.Size = uint64(i.Size)
	a.Blocks = (a.Size + 511) / 512
	a.Mtime, a.Mtimensec = uint64(i.Sec), i.Nsec
	a.Atime, a.Atimensec, a.Ctime, a.Ctimensec = a.Mtime, a.Mtimensec, a.Mtime, a.Mtimensec
	a.Mode, a.Nlink = i.Mode, i.Links
	a.Uid, a.Gid = f.uid, f.gid
	a.Rdev = i.Minor&0xff | i.Major<<8 | i.Minor&^0xff<<12 // new_encode_dev of Linux
	a.Blksize = blockSize
}

// GetAttr implements fuse.RawFileSystem.
func (f *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) (s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), in.NodeId, &s)
	i, err := f.t.stat(uint32(in.NodeId))
	if err != nil {
		return f.fail(uint32(in.NodeId), err)
	}
	out.AttrValid = forever
	f.attr(&i, &out.Attr)
	return fuse.OK
}

// Readlink implements fuse.RawFileSystem.
func (f *fileSystem) Readlink(_ <-chan struct{}, h *fuse.InHeader) (_ []byte, s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), h.NodeId, &s)
	target, err := f.t.readLink(uint32(h.NodeId))
	if err != nil {
		return nil, f.fail(uint32(h.NodeId), err)
	}
	return []byte(target), fuse.OK
}

// Open implements fuse.RawFileSystem. The kernel then opens files by itself and keeps
// their pages from one opening to the next.
func (*fileSystem) Open(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.ENOSYS }

// OpenDir implements fuse.RawFileSystem, like Open: the kernel keeps listings, too.
func (*fileSystem) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status {
	return fuse.ENOSYS
}

// Flush implements fuse.RawFileSystem.
func (*fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Read implements fuse.RawFileSystem.
func (f *fileSystem) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (_ fuse.ReadResult, s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), in.NodeId, &s)
	if h := f.t.hot; h != nil {
		if b, ok := h.span(uint32(in.NodeId), int64(in.Offset), len(buf)); ok {
			return fuse.ReadResultData(b), fuse.OK // without a copy of our own
		}
	}
	n, err := f.t.readAt(uint32(in.NodeId), buf, int64(in.Offset))
	if err != nil {
		f.log.add(uint32(in.NodeId), err)
		return nil, fuse.EIO
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// ReadDir implements fuse.RawFileSystem.
func (f *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDir(in, func(e fuse.DirEntry, _ bool) (bool, error) { return out.AddDirEntry(e), nil })
}

// ReadDirPlus implements fuse.RawFileSystem.
func (f *fileSystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDir(in, func(e fuse.DirEntry, dots bool) (bool, error) {
		entry := out.AddDirLookupEntry(e)
		if entry == nil || dots {
			return entry != nil, nil // the kernel knows where "." and ".." lead
		}
		return true, f.entry(uint32(e.Ino), entry)
	})
}

// readDir gives a directory's entries to add until it says false. Positions are those of
// Tree.list and 2, as "." and ".." come first.
func (f *fileSystem) readDir(in *fuse.ReadIn, add func(e fuse.DirEntry, dots bool) (bool, error)) (s fuse.Status) {
	defer f.caught(debug.SetPanicOnFault(true), in.NodeId, &s)
	const dots = 2
	dir := uint32(in.NodeId)
	i, err := f.t.stat(dir)
	if err != nil {
		return f.fail(dir, err)
	}
	for at, e := range [dots]fuse.DirEntry{{Name: ".", Ino: uint64(dir)}, {Name: "..", Ino: uint64(i.Parent)}} {
		if in.Offset > uint64(at) {
			continue
		}
		e.Mode, e.Off = syscall.S_IFDIR, uint64(at)+1
		if ok, _ := add(e, true); !ok {
			return fuse.OK
		}
	}
	var failed error
	err = f.t.list(dir, max(in.Offset, dots)-dots, func(c *child) bool {
		var ok bool
		ok, failed = add(fuse.DirEntry{Name: c.name, Ino: uint64(c.node), Mode: c.typ, Off: c.next + dots}, false)
		return ok && failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return f.fail(dir, err)
	}
	return fuse.OK
}

// StatFs implements fuse.RawFileSystem: a full file system of the layers' size.
func (f *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	const unit = 4096
	for _, l := range f.t.ix.Layers() {
		out.Blocks += uint64(l.Size+unit-1) / unit
	}
	out.Bsize, out.Frsize = unit, unit
	out.Files = uint64(f.t.ix.NumInodes()) + uint64(len(f.t.added))
	out.NameLen = maxName
	return fuse.OK
}

// failures logs which files could not be read, each once and not too many: a program
// that reads on does not fill the log.
type failures struct {
	log *slog.Logger

	mu   sync.Mutex
	seen map[uint32]bool
}

const maxFailures = 32

func (l *failures) add(n uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen[n] || len(l.seen) >= maxFailures {
		return
	}
	if l.seen == nil {
		l.seen = map[uint32]bool{}
	}
	l.seen[n] = true
	l.log.Error("image cannot be read", "inode", n, "err", err)
}
