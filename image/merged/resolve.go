package merged

import (
	"fmt"
	"strings"
	"syscall"
)

// Limits of paths.
const (
	maxName  = 255  // bytes of a name (NAME_MAX)
	maxPath  = 4095 // bytes of a path or of a symlink's target (PATH_MAX)
	maxLinks = 255  // symlinks on the way to one entry, as containerd and umoci have it
	// maxDepth is how many names a path of the longest can have. Deeper directories
	// could be made by way of symlinks, but hardly used.
	maxDepth = 2047
	// maxFollowed bounds the work of resolving: bytes of all targets followed for one
	// image. It is enough for 2 million entries of which each follows 64 bytes.
	maxFollowed = 128 << 20
)

var errTooDeep = fmt.Errorf("%w: directories deeper than %d", ErrLimit, maxDepth)

// place is where a path leads: a directory, and the names behind it that are not
// there.
type place struct {
	dir     uint32
	missing []string
}

// notDirError says what stands in the way of an entry.
type notDirError struct{ path string }

func (e *notDirError) Error() string { return fmt.Sprintf("%.300q is not a directory", e.path) }
func (e *notDirError) Unwrap() error { return syscall.ENOTDIR }

// resolve follows a path of directories from the root, and symlinks on its way as
// under chroot(2): an absolute target begins at the root, and ".." ends there. What
// is missing does not count as an error, and ".." behind it only takes the missing
// name back: so do containerd (fs.RootPath) and umoci (securejoin), which then make
// the directories that are left.
func (b *Builder) resolve(path string) (place, error) {
	p := place{dir: rootNode}
	links := 0
	rest := []string{path}
	for len(rest) > 0 {
		top := len(rest) - 1
		name, after, more := strings.Cut(rest[top], "/")
		if rest[top] = after; !more {
			rest = rest[:top]
		}
		switch {
		case name == "" || name == ".":
			continue
		case name == ".." && len(p.missing) > 0:
			p.missing = p.missing[:len(p.missing)-1]
			continue
		case name == "..":
			p.dir = b.t.parent(p.dir)
			continue
		case len(name) > maxName:
			return p, syscall.ENAMETOOLONG
		case len(p.missing) > maxDepth:
			return p, errTooDeep
		}
		e, ok := b.t.find(p.dir, name)
		if len(p.missing) > 0 || !ok {
			p.missing = append(p.missing, name)
			continue
		}
		n := b.t.entries.at(e).node
		switch v := b.t.nodes.at(n); v.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			p.dir = n
		case syscall.S_IFLNK:
			target := string(b.t.bytes.get(v.data, uint32(v.size)))
			if links++; links > maxLinks {
				return p, syscall.ELOOP
			}
			if b.followed += int64(len(target)); b.followed > maxFollowed {
				return p, fmt.Errorf("%w: following symlinks took over %d bytes of targets", ErrLimit, int64(maxFollowed))
			}
			if target[0] == '/' {
				p.dir = rootNode
			}
			rest = append(rest, target)
		default:
			return p, &notDirError{b.pathOf(e)}
		}
	}
	return p, nil
}

// makeDirs makes the directories of a place that are missing.
func (b *Builder) makeDirs(p place) (uint32, error) {
	dir := p.dir
	for _, name := range p.missing {
		n, err := b.newNode(node{mode: syscall.S_IFDIR | 0o755})
		if err != nil {
			return 0, err
		}
		if err := b.put(dir, name, n); err != nil {
			return 0, err
		}
		dir = n
	}
	return dir, nil
}

// locate returns the entry that a path names; symlinks are followed but for the last
// name.
func (b *Builder) locate(path string) (uint32, bool, error) {
	dir, base := split(path)
	p, err := b.resolve(dir)
	if err != nil || len(p.missing) > 0 {
		return 0, false, err
	}
	e, ok := b.t.find(p.dir, base)
	return e, ok, nil
}

// split parts the last name of a path from its directory.
func split(path string) (dir, base string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, 0)], path[i+1:]
}

// pathOf returns the path of an entry, for people.
func (b *Builder) pathOf(e uint32) string {
	v := b.t.entries.at(e)
	path := string(b.t.nameOf(v))
	for v.dir != rootNode {
		v = b.t.entries.at(b.t.nodes.at(v.dir).more)
		path = string(b.t.nameOf(v)) + "/" + path
	}
	return path
}

// checkName says what is wrong with a cleaned name of an entry.
func checkName(path string) error {
	if path == "" {
		return nil
	}
	if len(path) > maxPath {
		return syscall.ENAMETOOLONG
	}
	for name := range strings.SplitSeq(path, "/") {
		switch {
		case len(name) > maxName:
			return syscall.ENAMETOOLONG
		case name == "" || name == "." || name == ".." || strings.IndexByte(name, 0) >= 0:
			return fmt.Errorf("%w: name %q", syscall.EINVAL, name)
		}
	}
	return nil
}
