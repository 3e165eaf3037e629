package rootfs

import (
	"io/fs"
	"slices"
	"syscall"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Kind is what a path of a Tree is.
type Kind uint8

// The kinds of files that make a difference to who mounts something on them.
const (
	Dir   Kind = iota + 1
	File       // a regular file
	Other      // a device or a named pipe
)

// String returns the kind's name as people say it.
func (k Kind) String() string {
	switch k {
	case Dir:
		return "directory"
	case File:
		return "file"
	}
	return "special file"
}

func kindOf(mode uint32) Kind {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return Dir
	case syscall.S_IFREG:
		return File
	}
	return Other
}

// Tree is the tree of an image with what was added to it.
type Tree struct {
	ix     *merged.Index
	layers []*squashfs.Reader
	files  fileCache

	// What was added has the numbers behind those of the index.
	added []addition
	// patched are the directories, of the index or added, that have other entries than
	// the index says.
	patched map[uint32]*patch

	hotName string // file of what containers read when they start; see UseHot
	hot     *hot   // nil if there is none
	trace   trace
}

// addition is a directory or a file that the image does not have.
type addition struct {
	mode    uint32
	parent  uint32
	content []byte
}

// patch is a directory's entries that were added, sorted by name. They hide those of
// the index with the same name.
type patch struct {
	entries []entry
	subdirs uint32 // that are new
}

type entry struct {
	name string
	node uint32
}

// New returns the tree of an image. The layers are those that the index counts, in its
// order; let them share a squashfs.Cache.
func New(ix *merged.Index, layers []*squashfs.Reader) *Tree {
	return &Tree{ix: ix, layers: layers, patched: map[uint32]*patch{}}
}

// addition returns a node that was added, or nil for one of the image.
func (t *Tree) addition(n uint32) *addition {
	if i := int64(n) - int64(t.ix.NumInodes()) - 1; i >= 0 && i < int64(len(t.added)) {
		return &t.added[i]
	}
	return nil
}

// stat returns a node's inode.
func (t *Tree) stat(n uint32) (merged.Inode, error) {
	var i merged.Inode
	if a := t.addition(n); a != nil {
		i = merged.Inode{Number: n, Mode: a.mode, Links: 1, Size: int64(len(a.content)), Parent: a.parent}
		if a.mode&syscall.S_IFMT == syscall.S_IFDIR {
			i.Links = 2
		}
	} else {
		var err error
		if i, err = t.ix.Inode(n); err != nil {
			return i, err
		}
	}
	if p := t.patched[n]; p != nil {
		i.Links += p.subdirs
	}
	return i, nil
}

// lookup returns the node that a directory has under a name; fs.ErrNotExist itself
// where there is none.
func (t *Tree) lookup(dir uint32, name string) (uint32, error) {
	if len(t.patched) > 0 {
		if p := t.patched[dir]; p != nil {
			if i, ok := p.find(name); ok {
				return p.entries[i].node, nil
			}
		}
		if a := t.addition(dir); a != nil {
			if a.mode&syscall.S_IFMT != syscall.S_IFDIR {
				return 0, syscall.ENOTDIR
			}
			return 0, fs.ErrNotExist
		}
	}
	return t.ix.Lookup(dir, name)
}

func (p *patch) find(name string) (int, bool) {
	return slices.BinarySearchFunc(p.entries, name, func(e entry, name string) int {
		switch {
		case e.name < name:
			return -1
		case e.name > name:
			return 1
		}
		return 0
	})
}

// readLink returns a symlink's target.
func (t *Tree) readLink(n uint32) (string, error) {
	if a := t.addition(n); a != nil {
		if a.mode&syscall.S_IFMT != syscall.S_IFLNK {
			return "", syscall.EINVAL
		}
		return string(a.content), nil
	}
	return t.ix.ReadLink(n)
}

// child is one entry of a directory, as list gives it.
type child struct {
	name string
	node uint32
	typ  uint32 // S_IFMT bits
	next uint64 // the position behind it
}

// Positions in a directory: those of the index, then from addedPos on what was added.
const addedPos = 1 << 32

// list calls yield with a directory's entries from a position on, until yield says
// false. Those of the index come first, in bytewise order, then what was added.
func (t *Tree) list(dir uint32, from uint64, yield func(*child) bool) error {
	p := t.patched[dir]
	if from < addedPos && t.addition(dir) == nil {
		for e, err := range t.ix.ReadDir(dir, uint32(from)) {
			if err != nil {
				return err
			}
			c := child{name: string(e.Name), node: e.Inode, typ: e.Type, next: uint64(e.Next)}
			if p != nil {
				if _, hidden := p.find(c.name); hidden {
					continue
				}
			}
			if !yield(&c) {
				return nil
			}
		}
	}
	if p == nil {
		return nil
	}
	for k := max(from, addedPos) - addedPos; k < uint64(len(p.entries)); k++ {
		e := p.entries[k]
		a := t.addition(e.node)
		if !yield(&child{name: e.name, node: e.node, typ: a.mode & syscall.S_IFMT, next: addedPos + k + 1}) {
			return nil
		}
	}
	return nil
}

// add puts a new node into a directory, where it hides what has that name.
func (t *Tree) add(dir uint32, name string, a addition) uint32 {
	a.parent = dir
	t.added = append(t.added, a)
	n := t.ix.NumInodes() + uint32(len(t.added))
	p := t.patched[dir]
	if p == nil {
		p = &patch{}
		t.patched[dir] = p
	}
	if i, ok := p.find(name); ok {
		p.entries[i].node = n
	} else {
		p.entries = slices.Insert(p.entries, i, entry{name: name, node: n})
	}
	if a.mode&syscall.S_IFMT == syscall.S_IFDIR {
		p.subdirs++
	}
	return n
}
