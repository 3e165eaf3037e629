package merged

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/layer"
)

// oracle applies entries in the most obvious way: a map of all paths. It shares no
// code with the Builder.
type oracle struct {
	at    map[string]*object
	upper map[string]bool // paths that the current layer put there, and those above them
	layer int
}

type object struct {
	layer.Entry
	from int // the layer
}

func newOracle() *oracle {
	return &oracle{at: map[string]*object{"": {Entry: layer.Entry{Type: layer.Dir, Mode: 0o755}}}, layer: -1}
}

func (o *oracle) nextLayer() {
	o.layer++
	o.upper = map[string]bool{}
}

func parentOf(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }
func baseOf(path string) string   { return path[strings.LastIndexByte(path, '/')+1:] }

// follow returns where a path of directories leads, whether all of it is there or not.
func (o *oracle) follow(path string) (string, error) {
	done, links := "", 0
	todo := strings.Split(path, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			done = parentOf(done)
			continue
		}
		next := join(done, name)
		there := o.at[next]
		switch {
		case there == nil || there.Type == layer.Dir:
			done = next
		case there.Type != layer.Symlink:
			return "", fmt.Errorf("%q: %w", next, syscall.ENOTDIR)
		default:
			if links++; links > 255 {
				return "", syscall.ELOOP
			}
			if strings.HasPrefix(there.Link, "/") {
				done = ""
			}
			todo = slices.Concat(strings.Split(there.Link, "/"), todo)
		}
	}
	return done, nil
}

// remove removes a path and all below it.
func (o *oracle) remove(path string) {
	maps.DeleteFunc(o.at, func(p string, _ *object) bool { return p == path || strings.HasPrefix(p, path+"/") })
}

// removeLower is remove for what lower layers put there.
func (o *oracle) removeLower(path string) {
	maps.DeleteFunc(o.at, func(p string, _ *object) bool {
		return (p == path || strings.HasPrefix(p, path+"/") || path == "" && p != "") && !o.upper[p]
	})
}

func (o *oracle) touch(path string) {
	for ; path != ""; path = parentOf(path) {
		o.upper[path] = true
	}
}

// mkdirs makes a directory and those above it where they are missing.
func (o *oracle) mkdirs(path string) {
	if path == "" || o.at[path] != nil {
		return
	}
	o.mkdirs(parentOf(path))
	o.at[path] = &object{Entry: layer.Entry{Type: layer.Dir, Mode: 0o755}}
}

// apply does what an entry says. After an error nothing has changed.
func (o *oracle) apply(e layer.Entry) error {
	base := baseOf(e.Name)
	if strings.HasPrefix(base, ".wh.") && (base == ".wh..wh..opq" || !strings.HasPrefix(base, ".wh..wh.")) {
		return o.whiteout(e, base)
	}
	if strings.Contains("/"+e.Name, "/.wh..wh.") {
		return nil
	}
	var put *object
	if e.Type == layer.HardLink {
		dir, err := o.follow(parentOf(e.Link))
		if err != nil {
			return err
		}
		put = o.at[join(dir, baseOf(e.Link))]
		if put == nil || put.Type == layer.Dir {
			return fmt.Errorf("hard link to %q: missing or a directory", e.Link)
		}
	} else {
		put = &object{Entry: e, from: o.layer}
	}
	if e.Name == "" {
		if e.Type != layer.Dir {
			return fmt.Errorf("the root is no directory")
		}
		o.at[""] = put
		return nil
	}
	dir, err := o.follow(parentOf(e.Name))
	if err != nil {
		return err
	}
	o.mkdirs(dir)
	path := join(dir, base)
	if old := o.at[path]; old == nil || old.Type != layer.Dir || put.Type != layer.Dir {
		o.remove(path)
	}
	o.at[path] = put
	o.touch(path)
	return nil
}

func (o *oracle) whiteout(e layer.Entry, base string) error {
	name := strings.TrimPrefix(base, ".wh.")
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("whiteout of %q", name)
	}
	dir, err := o.follow(parentOf(e.Name))
	if err == syscall.ELOOP {
		return err
	}
	if err != nil || o.at[dir] == nil {
		return nil
	}
	if base == ".wh..wh..opq" {
		keep := o.at[dir]
		o.removeLower(dir)
		o.at[dir] = keep
		return nil
	}
	o.removeLower(join(dir, name))
	return nil
}

// see returns the tree.
func (o *oracle) see() seenTree {
	tree := seenTree{}
	inode := map[string]any{}
	for path, v := range o.at {
		types := map[layer.Type]uint32{
			layer.File: syscall.S_IFREG, layer.Dir: syscall.S_IFDIR, layer.Symlink: syscall.S_IFLNK,
			layer.CharDevice: syscall.S_IFCHR, layer.BlockDevice: syscall.S_IFBLK, layer.FIFO: syscall.S_IFIFO,
		}
		s := seen{mode: types[v.Type] | v.Mode, uid: v.UID, gid: v.GID, sec: v.Sec, nsec: v.Nsec, xattrs: showXattrs(v.Xattrs)}
		switch v.Type {
		case layer.File:
			if s.size = v.Size; s.size > 0 {
				s.content = contentOf(v.from, v.Inode)
			}
		case layer.Symlink:
			s.target, s.size, s.mode = v.Link, int64(len(v.Link)), syscall.S_IFLNK|0o777
		case layer.CharDevice, layer.BlockDevice:
			s.major, s.minor = v.Major, v.Minor
		case layer.Dir:
			s.links = 2
		}
		tree[path], inode[path] = s, v
	}
	tree.groups(inode)
	for path, v := range o.at {
		if path != "" && v.Type == layer.Dir {
			s := tree[parentOf(path)]
			s.links++
			tree[parentOf(path)] = s
		}
	}
	return tree
}
