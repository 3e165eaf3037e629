package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// The rungs of the ladder of root file systems, best first. The one in use is named
// by --verbose, and in a warning where it is slow.
const (
	rungFUSE        = "fuse"                  // served from the cached layers, read-only
	rungOverlay     = "fuse + overlay"        // the kernel's overlay takes what is written
	rungFuseOverlay = "fuse + fuse-overlayfs" // where the kernel's cannot be used over FUSE
	rungTree        = "tree"                  // the image, written to disk
	rungTreeOverlay = "tree + overlay"
	rungDir         = "directory"
	rungDirOverlay  = "directory + overlay"
)

// root is the root file system of a container, as far as this process has to do with
// it.
type root struct {
	rung   string
	broken chan error // why it is not served any more
}

// config makes the runtime's configuration for the best rung, and for the others when
// that one has failed.
func (s *step) configFor(ctx context.Context, rung string) (*runtime.Config, error) {
	s.root = &root{rung: rung, broken: make(chan error, 1)}
	c := &runtime.Config{
		Stage: s.dir.file(stageName),
		Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr,
		FakeRoot: s.Request.RemapRoot, Ignored: ignored(), Linger: s.ranks.wait,
		Orphan: runtime.Orphan{Message: "gangway: error: the container's supervisor died, and the container with it\n", Remove: s.dir.orphan()},
		Log:    s.Log,
	}
	if s.group != nil {
		c.Placed, c.Cgroup = s.place, s.ranksDir
	}
	var err error
	switch rung {
	case rungDir, rungDirOverlay:
		err = s.directoryRoot(c, rung)
	case rungTree, rungTreeOverlay:
		err = s.treeRoot(ctx, c, rung)
	default:
		err = s.servedRoot(ctx, c, rung)
	}
	if err != nil {
		return nil, err
	}
	s.mounted = time.Now() // what is served sets it again
	c.Spec, c.Umounts = s.built.Spec, s.built.Umounts
	return c, limitFiles(c.Spec)
}

// build makes the spec, and has the root made what that needs. mountpoint returns where
// a path leads, so that no symlink of the image takes a mount to where none may be.
func (s *step) build(in spec.Root, file func(spec.File) error, mountpoint func(path string, dir bool) (string, error)) error {
	var err error
	if s.built, err = spec.Build(s.Request, s.image.Config, s.host, in); err != nil {
		return err
	}
	s.apply()
	if err := s.given.hidden(s.built.Spec.Linux); err != nil {
		return err
	}
	for _, f := range s.built.Files {
		if err := file(f); err != nil {
			return rootFault(f.Path, err)
		}
	}
	return s.built.Settle(mountpoint)
}

func rootFault(path string, err error) error {
	return &fault.Error{
		What: fmt.Errorf("make %s in the container: %w", path, err),
		Hint: "the image has something else there; look: gangway image inspect, or mount elsewhere",
	}
}

// tree makes the tree of the image with what this container adds.
func (s *step) tree() (*rootfs.Tree, error) {
	t, err := s.image.tree()
	if err != nil {
		return nil, err
	}
	if o := s.image.Opened; o != nil && o.HotPath() != "" {
		t.UseHot(o.HotPath())
		s.onClose(func() error {
			if err := t.CloseHot(context.Background()); err != nil {
				s.Log.Debug("the next containers start slower", "err", err) // a store that cannot be written
			}
			return nil
		})
	}
	err = s.build(t, func(f spec.File) error { return addFile(t, f) }, t.Mountpoint)
	return t, err
}

// addFile puts a file into a tree.
func addFile(t *rootfs.Tree, f spec.File) (err error) {
	if f.Link != "" {
		_, err = t.AddLink(f.Path, f.Link)
	} else {
		_, err = t.AddFile(f.Path, f.Content, f.Mode)
	}
	return err
}

// servedRoot is the image through FUSE.
func (s *step) servedRoot(ctx context.Context, c *runtime.Config, rung string) error {
	serving := s.serveHere
	if s.image.Files != nil {
		serving = s.serveConfined
	}
	serve, err := serving(ctx)
	if err != nil {
		return err
	}
	uid, gid := s.inside()
	c.Root.FUSE = &runtime.FUSE{
		Options: func(fd int) string { return rootfs.MountOptions(fd, uid, gid) },
		Serve: func(ctx context.Context, dev *os.File) error {
			err := serve(ctx, dev)
			s.mounted = time.Now()
			return err
		},
	}
	if rung == rungFUSE {
		return nil
	}
	if c.Root.Overlay, err = s.overlay(); err != nil {
		return err
	}
	if rung == rungFuseOverlay {
		c.Root.Overlay.Program, err = fuseOverlayProgram()
	}
	return err
}

// serveHere makes the tree of the image, and serves it in this process.
func (s *step) serveHere(ctx context.Context) (func(context.Context, *os.File) error, error) {
	t, err := s.tree()
	if err != nil {
		return nil, err
	}
	uid, gid := s.inside()
	broken := s.root.broken
	return func(_ context.Context, dev *os.File) error {
		server, err := rootfs.Serve(dev, t, rootfs.ServeOptions{UID: uid, GID: gid, Log: s.Log})
		if err != nil {
			return err
		}
		s.onClose(server.Close)
		go func() {
			if err := server.Wait(); err != nil {
				broken <- err
			}
		}()
		return nil
	}, nil
}

// inside are the ids that the user has in the container.
func (s *step) inside() (uid, gid uint32) {
	if s.Request.RemapRoot {
		return 0, 0
	}
	return uint32(s.host.UID), uint32(s.host.GID)
}

// overlay says where what is written goes: to a named container's directory; to a
// directory that is removed at the end, where it is saved before that; else to memory.
func (s *step) overlay() (*runtime.Overlay, error) {
	switch {
	case s.named != nil:
		return &runtime.Overlay{Upper: s.named.Upper(), Work: s.named.Work()}, nil
	case s.SaveTo != "" && s.Request.Writable:
		dir, err := s.scratch()
		if err != nil {
			return nil, err
		}
		o := &runtime.Overlay{Upper: filepath.Join(dir, upperName), Work: filepath.Join(dir, workName)}
		if s.dry {
			return o, nil
		}
		for _, dir := range []string{o.Upper, o.Work} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, err
			}
		}
		return o, nil
	}
	return &runtime.Overlay{Size: s.RootSize}, nil
}

// upper is the directory of what was written, "" if it lies in memory or nothing was.
func (s *step) upper(c *runtime.Config) string {
	if c == nil || c.Root.Overlay == nil {
		return ""
	}
	return c.Root.Overlay.Upper
}

// treeRoot is the image written to disk: slow and large, but all that can be had where
// there is no /dev/fuse, as within other containers.
func (s *step) treeRoot(ctx context.Context, c *runtime.Config, rung string) error {
	if s.image.Files != nil {
		return &fault.Error{
			What:  errors.New("write the image to disk for this run: root takes apart no files of strangers"),
			Cause: "without /dev/fuse, or an overlay over it for what is written, that is the only way to use an image",
			Hint:  "run it as an ordinary user; or see what this machine lacks: gangway doctor",
		}
	}
	t, err := s.tree()
	if err != nil {
		return err
	}
	dir, err := s.scratch()
	if err != nil {
		return err
	}
	c.Root.Dir = filepath.Join(dir, "tree")
	if !s.dry {
		if err := os.Mkdir(c.Root.Dir, 0o755); err != nil {
			return err
		}
		if err := t.Extract(ctx, c.Root.Dir, rootfs.ExtractOptions{}); err != nil {
			return fmt.Errorf("write image to %s: %w", c.Root.Dir, err)
		}
	}
	if rung == rungTree {
		c.Root.Writable = s.Request.Writable
		return nil
	}
	c.Root.Overlay, err = s.overlay()
	return err
}

// directoryRoot is a directory of the host. What a container needs, and what it writes,
// lies over it: the directory itself is not changed.
func (s *step) directoryRoot(c *runtime.Config, rung string) error {
	in, err := openDirRoot(s.image.Dir)
	if err != nil {
		return fmt.Errorf("use directory as an image: %w", err)
	}
	defer in.close()
	c.Root.Dir = s.image.Dir
	if rung == rungDir && len(s.given.needs.Dirs) > 0 {
		s.given.pathNeeded = true // no file can be put into it
	}
	var missing []string
	add := func(path string, dir bool, f spec.File) (string, error) {
		at, st, err := in.resolve(path)
		if err != nil {
			return "", err
		}
		if st == nil {
			missing = append(missing, at)
		} else if isDir(st) != dir {
			return "", fmt.Errorf("the directory has %s there", kindName(st))
		}
		if st == nil || f.Content != nil {
			c.Root.Additions = append(c.Root.Additions, runtime.Addition{Path: at, Dir: dir, Content: f.Content, Mode: fs.FileMode(f.Mode)})
		}
		return at, nil
	}
	err = s.build(in,
		func(f spec.File) error {
			if f.Link != "" {
				return s.addLink(c, in, f)
			}
			_, err := add(f.Path, false, f)
			return err
		},
		func(path string, dir bool) (string, error) { return add(path, dir, spec.File{}) })
	if err != nil {
		return err
	}
	if rung == rungDir {
		c.Root.Additions = nil
		if len(missing) > 0 {
			return &fault.Error{
				What:  fmt.Errorf("use directory %s as an image: %s is missing in it", s.image.Dir, strings.Join(missing, ", ")),
				Cause: "no overlay can be mounted here, so that nothing can be put over the directory",
				Hint:  "make them: cd " + s.image.Dir + " && mkdir -p ." + strings.Join(missing, " ."),
			}
		}
		if s.Request.Writable || s.named != nil {
			return &fault.Error{
				What:  fmt.Errorf("use directory %s as a writable image: no overlay can be mounted here", s.image.Dir),
				Cause: "what the container writes would be written to the directory itself",
				Hint:  "leave out --container-writable and --container-name; gangway doctor says why there is no overlay",
			}
		}
		return nil
	}
	if !s.Request.Writable && s.named == nil {
		c.Root.Overlay = &runtime.Overlay{ReadOnly: true}
		return nil
	}
	c.Root.Overlay, err = s.overlay()
	return err
}

// addLink puts a link over what the directory has in its place. What that may be is
// looked at without following it.
func (s *step) addLink(c *runtime.Config, in *dirRoot, f spec.File) error {
	isDirectory := false
	dir, err := in.walk(filepath.Dir(f.Path), func(fd int, base string, st *unix.Stat_t) error {
		if st == nil || !isDir(st) {
			return nil
		}
		var there unix.Stat_t
		err := unix.Fstatat(fd, filepath.Join(base, filepath.Base(f.Path)), &there, unix.AT_SYMLINK_NOFOLLOW)
		isDirectory = err == nil && isDir(&there)
		return nil
	})
	if err != nil {
		return err
	}
	if isDirectory {
		return errors.New("the directory has a directory there")
	}
	c.Root.Additions = append(c.Root.Additions, runtime.Addition{Path: filepath.Join(dir, filepath.Base(f.Path)), Link: f.Link})
	return nil
}

func kindName(st *unix.Stat_t) string {
	if isDir(st) {
		return "a directory"
	}
	return "a file"
}
