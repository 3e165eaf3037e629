package merged

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Names with a meaning (OCI image-spec layer.md, and aufs, from which they come).
const (
	whiteoutPrefix = ".wh."
	aufsPrefix     = whiteoutPrefix + whiteoutPrefix
	opaqueName     = aufsPrefix + ".opq"
	plnkDir        = aufsPrefix + "plnk/"
)

// whiteout removes from dir what lower layers put there: one name, or all. What this
// layer put there stays, whether its entry came before or comes after; of a directory
// that stays for the sake of what this layer put below it, the rest goes.
func (b *Builder) whiteout(dir, base string) error {
	name := strings.TrimPrefix(base, whiteoutPrefix)
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("whiteout of %q, which is no name", name)
	}
	p, err := b.resolve(dir)
	var notDir *notDirError
	if errors.As(err, &notDir) || err == nil && len(p.missing) > 0 {
		return nil // what is not there need not be removed
	}
	if err != nil {
		return err
	}
	if base == opaqueName {
		b.clear(p.dir)
		return nil
	}
	e, ok := b.t.find(p.dir, name)
	switch {
	case !ok:
	case b.t.entries.at(e).layer != b.current():
		b.t.remove(e)
	case b.dirAt(e).isDir():
		b.clear(b.t.entries.at(e).node)
	}
	return nil
}

// clear removes from a directory and from all below it what lower layers put there.
func (b *Builder) clear(dir uint32) {
	stack := []uint32{dir}
	for len(stack) > 0 {
		v := b.t.nodes.at(stack[len(stack)-1])
		stack = stack[:len(stack)-1]
		if v.cleared == b.current() {
			continue
		}
		v.cleared = b.current()
		for i := v.data; i != none; {
			e := b.t.entries.at(i)
			next := e.next
			if e.layer != b.current() {
				b.t.remove(i)
			} else if b.t.nodes.at(e.node).isDir() {
				stack = append(stack, e.node)
			}
			i = next
		}
	}
}

// aufs deals with aufs' own files, which are not part of the tree. Of old images,
// files in .wh..wh.plnk may be the targets of hard links in the same layer: they are
// kept in a directory that has no name.
func (b *Builder) aufs(e *layer.Entry, layout func(uint32) (squashfs.Layout, error)) error {
	name, ok := strings.CutPrefix(e.Name, plnkDir)
	if !ok || e.Type != layer.File || strings.Contains(name, "/") {
		return nil
	}
	v, err := b.nodeOf(e)
	if err != nil {
		return err
	}
	if e.Size > 0 {
		if v.data, err = b.content(e, layout); err != nil {
			return err
		}
	}
	if b.plnk == none {
		if b.plnk, err = b.newNode(node{mode: syscall.S_IFDIR}); err != nil {
			return err
		}
	}
	n, err := b.newNode(v)
	if err != nil {
		return err
	}
	if old, ok := b.t.find(b.plnk, name); ok {
		b.t.replace(old, n)
		return nil
	}
	b.t.insert(b.plnk, name, n)
	return b.take(len(name))
}

func (b *Builder) dropPlnk() {
	if b.plnk != none {
		b.t.drop(b.plnk)
		b.plnk = none
	}
}
