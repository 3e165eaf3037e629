package image_test

import (
	"bytes"
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
)

// operation is something that was done to a file system.
type operation struct {
	kind operationKind
	dir  string            // of name; of opSyncDir, opMkdir itself
	name string            // the entry that is set or removed
	old  string            // of opRename, what is removed
	file fusefs.StableAttr // which file, whatever its name
	data []byte            // of opWrite
	at   int64             // of opWrite; the length of opTruncate
}

type operationKind int

const (
	opLink operationKind = iota // also of a new file
	opUnlink
	opRename // within a directory
	opMkdir
	opWrite
	opTruncate
	opSync
	opSyncDir
)

// journal is all that was done, in order.
type journal struct {
	mu  sync.Mutex
	ops []operation
}

func (j *journal) add(o operation) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ops = append(j.ops, o)
}

// watched is a file or directory of a file system that passes all on to another
// directory and notes it.
type watched struct {
	*fusefs.LoopbackNode
	j *journal
}

// WrapChild implements fs.NodeWrapChilder.
func (n *watched) WrapChild(_ context.Context, ops fusefs.InodeEmbedder) fusefs.InodeEmbedder {
	return &watched{ops.(*fusefs.LoopbackNode), n.j}
}

func (n *watched) here() string { return n.Path(n.Root()) }

// Create implements fs.NodeCreater.
func (n *watched) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	i, h, f, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno == 0 {
		n.j.add(operation{kind: opLink, dir: n.here(), name: name, file: i.StableAttr()})
	}
	return i, throughUs(h), f, errno
}

// Open implements fs.NodeOpener.
func (n *watched) Open(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.Open(ctx, flags)
	return throughUs(h), f, errno
}

// watchedFile is an open file whose writes the kernel does not do by itself.
type watchedFile struct{ *fusefs.LoopbackFile }

func throughUs(h fusefs.FileHandle) fusefs.FileHandle {
	if f, ok := h.(*fusefs.LoopbackFile); ok {
		return watchedFile{f}
	}
	return h
}

// PassthroughFd implements fs.FilePassthroughFder.
func (watchedFile) PassthroughFd() (int, bool) { return 0, false }

// watchedDir is an open directory.
type watchedDir struct {
	fusefs.FileReaddirenter
	fusefs.FileReleasedirer
	n *watched
}

// Fsyncdir implements fs.FileFsyncdirer.
func (d *watchedDir) Fsyncdir(context.Context, uint32) syscall.Errno {
	d.n.j.add(operation{kind: opSyncDir, dir: d.n.here()})
	return 0
}

// OpendirHandle implements fs.NodeOpendirHandler.
func (n *watched) OpendirHandle(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, f, errno
	}
	return &watchedDir{h.(fusefs.FileReaddirenter), h.(fusefs.FileReleasedirer), n}, f, 0
}

// Tmpfile implements fs.NodeTmpfiler: files get their temporary names here.
func (*watched) Tmpfile(context.Context, uint32, uint32, *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	return nil, nil, 0, syscall.ENOSYS
}

// Mkdir implements fs.NodeMkdirer.
func (n *watched) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	i, errno := n.LoopbackNode.Mkdir(ctx, name, mode, out)
	if errno == 0 {
		n.j.add(operation{kind: opMkdir, dir: filepath.Join(n.here(), name)})
	}
	return i, errno
}

// Unlink implements fs.NodeUnlinker.
func (n *watched) Unlink(ctx context.Context, name string) syscall.Errno {
	errno := n.LoopbackNode.Unlink(ctx, name)
	if errno == 0 {
		n.j.add(operation{kind: opUnlink, dir: n.here(), name: name})
	}
	return errno
}

// Rename implements fs.NodeRenamer.
func (n *watched) Rename(ctx context.Context, name string, to fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if to.EmbeddedInode() != n.EmbeddedInode() {
		return syscall.EXDEV // the store has no need for it
	}
	file := n.GetChild(name).StableAttr()
	errno := n.LoopbackNode.Rename(ctx, name, to, newName, flags)
	if errno == 0 {
		n.j.add(operation{kind: opRename, dir: n.here(), old: name, name: newName, file: file})
	}
	return errno
}

// Write implements fs.NodeWriter.
func (n *watched) Write(ctx context.Context, h fusefs.FileHandle, data []byte, at int64) (uint32, syscall.Errno) {
	n.j.add(operation{kind: opWrite, file: n.StableAttr(), data: bytes.Clone(data), at: at})
	return h.(fusefs.FileWriter).Write(ctx, data, at)
}

// Setattr implements fs.NodeSetattrer.
func (n *watched) Setattr(ctx context.Context, h fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		n.j.add(operation{kind: opTruncate, file: n.StableAttr(), at: int64(size)})
	}
	return n.LoopbackNode.Setattr(ctx, h, in, out)
}

// Allocate implements fs.NodeAllocater.
func (*watched) Allocate(context.Context, fusefs.FileHandle, uint64, uint64, uint32) syscall.Errno {
	return syscall.EOPNOTSUPP
}

// CopyFileRange implements fs.NodeCopyFileRanger.
func (*watched) CopyFileRange(context.Context, fusefs.FileHandle, uint64, *fusefs.Inode, fusefs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.EOPNOTSUPP
}

// Fsync implements fs.NodeFsyncer.
func (n *watched) Fsync(ctx context.Context, h fusefs.FileHandle, flags uint32) syscall.Errno {
	if errno := h.(fusefs.FileFsyncer).Fsync(ctx, flags); errno != 0 {
		return errno
	}
	n.j.add(operation{kind: opSync, file: n.StableAttr()})
	return 0
}

// mountWatched mounts a file system that keeps a journal.
func mountWatched(t *testing.T) (dir string, j *journal) {
	t.Helper()
	root, err := fusefs.NewLoopbackRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	j = &journal{}
	dir = t.TempDir()
	server, err := fusefs.Mount(dir, &watched{root.(*fusefs.LoopbackNode), j}, &fusefs.Options{})
	if err != nil {
		t.Fatalf("needs /dev/fuse: %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir, j
}

// aftermath is what a disk may hold after a power cut behind the first operations.
// What was synced is there. Of the rest each write and each change of a directory has
// survived or not, by itself, and a write may have left zeros or its begin only.
type aftermath struct {
	ops   []operation
	rng   *rand.Rand
	files map[fusefs.StableAttr][]byte
}

// survives says whether operation n did, which some later operation may have made
// sure.
func (a *aftermath) survives(n int) bool {
	o := a.ops[n]
	for _, later := range a.ops[n+1:] {
		switch o.kind {
		case opWrite, opTruncate:
			if later.kind == opSync && later.file == o.file {
				return true
			}
		case opMkdir:
			if later.kind == opSyncDir && later.dir == filepath.Dir(o.dir) {
				return true
			}
		default:
			if later.kind == opSyncDir && later.dir == o.dir {
				return true
			}
		}
	}
	if o.kind == opMkdir {
		return a.rng.IntN(20) > 0 // or too little is left to look at
	}
	return a.rng.IntN(2) == 0
}

func (a *aftermath) write(o operation, whole bool) {
	data := o.data
	if !whole {
		switch a.rng.IntN(3) {
		case 0:
			return
		case 1:
			data = data[:a.rng.IntN(len(data)+1)]
		case 2:
			data = make([]byte, len(data))
		}
	}
	b := a.files[o.file]
	if end := int(o.at) + len(data); end > len(b) {
		b = append(b, make([]byte, end-len(b))...)
	}
	copy(b[o.at:], data)
	a.files[o.file] = b
}

// tree returns the directories and the entries that survived.
func (a *aftermath) tree() (dirs []string, entries map[string]fusefs.StableAttr) {
	entries = map[string]fusefs.StableAttr{}
	for n, o := range a.ops {
		survived := a.survives(n)
		path := filepath.Join(o.dir, o.name)
		switch {
		case o.kind == opWrite:
			a.write(o, survived)
		case !survived:
		case o.kind == opTruncate:
			b := append(a.files[o.file], make([]byte, max(0, int(o.at)-len(a.files[o.file])))...)
			a.files[o.file] = b[:o.at]
		case o.kind == opMkdir:
			dirs = append(dirs, o.dir)
		case o.kind == opLink:
			entries[path] = o.file
		case o.kind == opUnlink:
			delete(entries, path)
		case o.kind == opRename:
			delete(entries, filepath.Join(o.dir, o.old))
			entries[path] = o.file
		}
	}
	return dirs, entries
}

// make puts the aftermath into a directory. What lies in a lost directory is lost.
func (a *aftermath) make(t *testing.T, dir string) {
	t.Helper()
	dirs, entries := a.tree()
	for _, d := range dirs {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := os.WriteFile(filepath.Join(dir, name), a.files[entries[name]], 0o600); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestPowerCut pulls an image, moves its tag to another and pulls again, with a journal
// of all that the store did. Then the power fails behind each operation: every file
// with a final name is whole, the next pull finishes, and the image is right.
func TestPowerCut(t *testing.T) {
	needRoot(t, "mount a file system")
	const size = 40_000
	h := newHub(t)
	first, second := three(t, size), paint(t, layerOf(t, "new", noise(3, size)), layerOf(t, "newer", "x"))
	ref := h.push(t, "team/torch:1", first)
	dir, j := mountWatched(t)
	s := open(t, filepath.Join(dir, "store"))
	mustPull(t, s, ref)
	h.push(t, "team/torch:1", second)
	mustPull(t, s, ref)
	h.push(t, "team/torch:1", first)
	j.mu.Lock()
	ops := slices.Clone(j.ops)
	j.mu.Unlock()
	kinds := map[operationKind]int{}
	for _, o := range ops {
		kinds[o.kind]++
	}
	if len(kinds) != 8 || kinds[opSync] < 10 || kinds[opSyncDir] < 10 {
		t.Fatalf("the journal does not show what the store does: %v", kinds)
	}
	each, times := max(1, len(ops)/60), 1
	if isLong() {
		each, times = 1, 10
	}
	for cut := len(ops); cut >= 0; cut -= each {
		for seed := range times {
			a := &aftermath{ops: ops[:cut], rng: rand.New(rand.NewPCG(uint64(cut), uint64(seed))), files: map[fusefs.StableAttr][]byte{}}
			disk := mountTmpfs(t, "size=16m")
			a.make(t, disk)
			checkAftermath(t, h, open(t, filepath.Join(disk, "store")), ref)
			if t.Failed() {
				t.Fatalf("after a cut behind operation %d of %d (%+v)", cut, len(ops), ops[max(0, cut-1)].kind)
			}
		}
	}
	t.Logf("%d operations, a cut behind every %d.: %v", len(ops), each, kinds)
}

func checkAftermath(t *testing.T, h *hub, s *image.Store, ref string) {
	t.Helper()
	checkFiles(t, s)
	if _, err := s.List(); err != nil {
		t.Error(err)
	}
	// What has a record is whole, not only after the next pull.
	r, err := s.VerifyAll(t.Context(), image.VerifyOptions{Keep: true})
	if err != nil || len(r.Problems) > 0 {
		t.Errorf("listed, but not whole: %+v %v", r.Problems, err)
	}
	i, err := pull(t, s, ref, image.PullOptions{Limits: layer.Limits{}})
	if err != nil {
		t.Error(err)
		return
	}
	mustHold(t, s, &i, threeTree(40_000))
	mustBeTidy(t, s)
	h.requests()
}
