package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Converter writes the layer file of a blob into out, an empty file. It is
// layer.Convert, or does the same in a process of fewer rights.
type Converter func(ctx context.Context, out *os.File, blob io.Reader, o layer.Options) (layer.Info, error)

// Options say what a Store is. Dir must be set.
type Options struct {
	Dir     string           // the store; made when something is first written
	Convert Converter        // nil converts in this process
	Perform Performer        // nil does tasks in this process
	Log     *slog.Logger     // nil logs nothing
	Now     func() time.Time // nil is time.Now
}

// Store is a directory of images. It is safe for concurrent use, also by several
// processes.
type Store struct {
	dir     string
	convert Converter
	perform Performer
	log     *slog.Logger
	now     func() time.Time
	durable sync.Map // of paths of directories that a power cut leaves there
}

// Open returns the store in a directory, which need not exist. It refuses one that
// belongs to somebody else, whose files could be changed under us.
func Open(o Options) (*Store, error) {
	s := &Store{dir: filepath.Clean(o.Dir), convert: o.Convert, perform: o.Perform, log: o.Log, now: o.Now}
	if s.convert == nil {
		s.convert = convertHere
	}
	if s.perform == nil {
		s.perform = func(ctx context.Context, t Task, files []*os.File) (layer.Info, error) { return t.Perform(ctx, files) }
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	st, err := os.Stat(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, s.fault(fmt.Errorf("open store: %w", err))
	case !st.IsDir():
		return nil, storeFault(fmt.Errorf("open store %s: %w", s.dir, syscall.ENOTDIR))
	}
	if owner, ok := st.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return nil, &fault.Error{
			What:  fmt.Errorf("open store %s: it belongs to user %d", s.dir, owner.Uid),
			Cause: fmt.Sprintf("this is user %d, and a store is its owner's alone", os.Geteuid()),
			Hint:  "choose another: --store DIR, or set GANGWAY_STORE or XDG_CACHE_HOME",
		}
	}
	if mode := st.Mode().Perm(); mode&0o022 != 0 {
		who := "its group"
		if mode&0o002 != 0 {
			who = "everybody"
		}
		return nil, &fault.Error{
			What:  fmt.Errorf("open store %s: %s may write there (mode %04o)", s.dir, who, mode),
			Cause: "who writes there could give you other images than you asked for",
			Hint:  "chmod 700 " + s.dir + ", or choose another: --store DIR",
		}
	}
	return s, nil
}

func convertHere(ctx context.Context, out *os.File, blob io.Reader, o layer.Options) (layer.Info, error) {
	return layer.Convert(ctx, out, blob, o)
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// LayerPath returns where the file of the layer with a blob digest lies, or would.
func (s *Store) LayerPath(d oci.Digest) string {
	return s.path("layers", "v1", d.Algorithm(), d.Hex()+".sqsh")
}

// IndexPath returns where the merged index of the image with a manifest digest
// lies, or would.
func (s *Store) IndexPath(manifest oci.Digest) string {
	return s.path("indexes", "v1", manifest.Algorithm(), manifest.Hex()+".gwi")
}

// hotSuffix makes the name of an index that of what containers read when they start,
// which lives as long as the index does.
const hotSuffix = rootfs.HotSuffix

// HotPath returns where what containers read when they start is kept of an image that
// another store has, by its manifest's digest.
func (s *Store) HotPath(manifest oci.Digest) string {
	return s.path("hot", "v1", manifest.Algorithm()+"-"+manifest.Hex())
}

func (s *Store) blobPath(d oci.Digest) string { return s.path("blobs", d.Algorithm(), d.Hex()) }

// lockPath is the lock of whoever makes the file of a layer or an index.
func (s *Store) lockPath(kind string, d oci.Digest) string {
	return s.path("locks", kind+"-"+d.Algorithm()+"-"+d.Hex())
}

// gcLock is held by who decides what is garbage, alone, and shared by who makes that
// decision wrong: by a new lease or record.
func (s *Store) gcLock() string { return s.path("locks", "gc") }

// write makes a file of the store, with the directories above it.
func (s *Store) write(ctx context.Context, name string, fill func(*os.File) error) error {
	if err := s.mkdirDurable(filepath.Dir(name)); err != nil {
		return err
	}
	return s.fault(fsx.WriteFile(ctx, name, fsx.Options{Mode: 0o600}, fill))
}

// glob returns the files of the store that match a pattern. The store's own path is
// no part of the pattern.
func (s *Store) glob(pattern string) []string {
	names, _ := fs.Glob(os.DirFS(s.dir), pattern) // which only fails for bad patterns
	for n, name := range names {
		names[n] = s.path(filepath.FromSlash(name))
	}
	return names
}

// mkdir makes a directory of the store, for its owner alone.
func (s *Store) mkdir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s.fault(fmt.Errorf("make store: %w", err))
	}
	return nil
}

// mkdirDurable is mkdir of a directory that is there after a power cut, too. That it is
// there now does not say so: another process may have made it just now, or have been
// killed before it could do this.
func (s *Store) mkdirDurable(dir string) error {
	if _, done := s.durable.Load(dir); done {
		return nil
	}
	above := dir // the nearest directory that is there
	for above != filepath.Dir(above) {
		if _, err := os.Stat(above); err == nil {
			break
		}
		above = filepath.Dir(above)
	}
	if err := s.mkdir(dir); err != nil {
		return err
	}
	for made, last := dir, filepath.Dir(s.dir); made != filepath.Dir(made); made = filepath.Dir(made) {
		parent := filepath.Dir(made)
		// Directories above the store may be ones that one can pass but not open.
		if err := fsx.SyncDir(parent); err != nil && (len(parent) > len(last) || !errors.Is(err, fs.ErrPermission)) {
			return s.fault(fmt.Errorf("make store: %w", err))
		}
		if len(parent) <= len(last) && len(parent) <= len(above) {
			break
		}
	}
	s.durable.Store(dir, true)
	return nil
}

// writeBytes is write of what is in memory.
func (s *Store) writeBytes(ctx context.Context, name string, b []byte) error {
	return s.write(ctx, name, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// blob returns a manifest, index or configuration that the store has, once its
// digest is proved.
func (s *Store) blob(d oci.Digest) ([]byte, error) {
	f, err := os.Open(s.blobPath(d))
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, oci.MaxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("read blob: %w", err)
	}
	h := d.Hash()
	h.Write(b)
	if !d.Is(h.Sum(nil)) {
		return nil, fmt.Errorf("read blob %s: %w: its content has another digest", f.Name(), ErrDamaged)
	}
	return b, nil
}

// ErrDamaged says that a file of the store is not what it was. Store.Verify finds
// and removes such files, and the next pull makes them again.
var ErrDamaged = errors.New("damaged")

// fault explains errors of the store's file system.
func (s *Store) fault(err error) error {
	f := &fault.Error{What: err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		f.Cause = "no space or no inodes are left for the store " + s.dir
		f.Hint = "free some: gangway image gc --keep-bytes 10G; or choose another store: --store DIR"
	case errors.Is(err, syscall.EROFS):
		f.Cause = "the store " + s.dir + " is on a read-only file system"
		f.Hint = "choose another: --store DIR, or set GANGWAY_STORE"
	case errors.Is(err, fs.ErrPermission):
		f.Cause = fmt.Sprintf("user %d may not use the store %s", os.Geteuid(), s.dir)
		f.Hint = "choose another: --store DIR, or set GANGWAY_STORE or XDG_CACHE_HOME"
	default:
		return err
	}
	return f
}

// storeFault is for what is no store at all.
func storeFault(err error) error {
	return &fault.Error{What: err, Hint: "name a directory: --store DIR, or set GANGWAY_STORE"}
}

// lock takes one of the store's locks.
func (s *Store) lock(ctx context.Context, name string, mode fsx.LockMode) (*fsx.Lock, error) {
	if err := s.mkdir(filepath.Dir(name)); err != nil {
		return nil, err
	}
	l, err := fsx.Acquire(ctx, name, mode)
	return l, s.fault(err)
}
