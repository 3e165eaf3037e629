package merged

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Limits bound what an image may take.
type Limits struct {
	// Entries is how many entries all layers may have together, and how many names
	// the tree may have at any time; 0 means 2,000,000.
	Entries uint32
	// Bytes is how much names, symlinks' targets, xattrs and lists of blocks of all
	// layers may take together; 0 means 1 GiB, and more than 3 GiB means 3 GiB.
	Bytes int64
}

// Options say how a Builder works. The zero value is a good choice.
type Options struct {
	Image  oci.Digest // what the index is of: the manifest's digest, if it has one
	Limits Limits
}

const (
	defaultEntries = 2_000_000
	defaultBytes   = 1 << 30
	maxBytes       = 3 << 30 // places of strings have 32 bits
	maxLayers      = 1000    // overlayfs takes 500, Docker 127
)

// Builder applies layers. It is for one goroutine.
type Builder struct {
	image    oci.Digest
	limits   Limits
	layers   []LayerInfo
	t        *tree
	files    chunked[fileData]
	blocks   chunked[uint32]
	xattrs   xattrSets
	applied  uint32 // entries
	taken    int64  // of limits.Bytes
	followed int64  // bytes of symlinks' targets
	plnk     uint32 // node of the layer's .wh..wh.plnk, or none
	literal  bool   // names that begin with .wh. mean nothing in the layer
	err      error  // ends the Builder
}

// fileData is where the content of a file lies.
type fileData struct {
	layer, inode uint32
	start        int64
	first, count uint32 // blocks
	fragment     squashfs.Fragment
}

// NewBuilder returns a Builder whose tree has the root only.
func NewBuilder(o Options) *Builder {
	o.Limits.Entries = cmp.Or(o.Limits.Entries, defaultEntries)
	o.Limits.Bytes = min(cmp.Or(o.Limits.Bytes, defaultBytes), maxBytes)
	b := &Builder{image: o.Image, limits: o.Limits, t: newTree(), xattrs: newXattrSets(), plnk: none}
	b.files.add(fileData{}) // number 0 is no data
	return b
}

// Apply puts a layer over those before it. entries are the layer's, in the order of
// its tar archive; layout says where the content of an inode of its squashfs lies.
// An error names the layer and the entry, and ends the Builder.
func (b *Builder) Apply(ctx context.Context, info LayerInfo, entries iter.Seq2[layer.Entry, error], layout func(inode uint32) (squashfs.Layout, error)) error {
	if b.err == nil {
		b.err = b.layer(ctx, info, entries, layout)
	}
	return b.err
}

// ApplyTree is Apply of a tree of files that is no OCI layer, as of a squashfs file:
// it removes nothing, and names that begin with .wh. are names like others.
func (b *Builder) ApplyTree(ctx context.Context, info LayerInfo, entries iter.Seq2[layer.Entry, error], layout func(inode uint32) (squashfs.Layout, error)) error {
	b.literal = true
	defer func() { b.literal = false }()
	return b.Apply(ctx, info, entries, layout)
}

func (b *Builder) layer(ctx context.Context, info LayerInfo, entries iter.Seq2[layer.Entry, error], layout func(inode uint32) (squashfs.Layout, error)) error {
	if err := info.check(); err != nil {
		return fmt.Errorf("apply layer %s: %w", info.name(), err)
	}
	if len(b.layers) == maxLayers {
		return fmt.Errorf("apply layer %s: %w: more than %d layers", info.name(), ErrLimit, maxLayers)
	}
	b.layers = append(b.layers, info)
	for e, err := range entries {
		if err == nil && b.applied%1024 == 0 {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("apply layer %s: %w", info.name(), err)
		}
		if err := b.entry(&e, layout); err != nil {
			return fmt.Errorf("apply layer %s: entry %.300q: %w", info.name(), e.Name, err)
		}
	}
	b.dropPlnk()
	return nil
}

// current is the number of the layer being applied, from 1 on.
func (b *Builder) current() uint16 { return uint16(len(b.layers)) }

func (b *Builder) entry(e *layer.Entry, layout func(uint32) (squashfs.Layout, error)) error {
	if b.applied++; b.applied > b.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, b.limits.Entries)
	}
	if err := checkName(e.Name); err != nil {
		return err
	}
	dir, base := split(e.Name)
	switch {
	case e.Type == layer.HardLink && b.literal:
		return b.hardLink(e, dir, base)
	case b.literal:
	case strings.Contains("/"+e.Name, "/"+aufsPrefix) && (base != opaqueName || strings.Contains("/"+dir, "/"+aufsPrefix)):
		return b.aufs(e, layout)
	case strings.HasPrefix(base, whiteoutPrefix):
		return b.whiteout(dir, base)
	case e.Type == layer.HardLink:
		return b.hardLink(e, dir, base)
	}
	v, err := b.nodeOf(e)
	if err != nil {
		return err
	}
	if e.Name == "" {
		return b.root(&v)
	}
	p, err := b.resolve(dir)
	if err != nil {
		return err
	}
	into, err := b.makeDirs(p)
	if err != nil {
		return err
	}
	if old, ok := b.t.find(into, base); ok && v.isDir() && b.dirAt(old).isDir() {
		b.dirAt(old).setAttributes(&v)
		b.touch(old)
		return nil
	}
	if e.Type == layer.File && e.Size > 0 {
		if v.data, err = b.content(e, layout); err != nil {
			return err
		}
	}
	n, err := b.newNode(v)
	if err != nil {
		return err
	}
	return b.put(into, base, n)
}

func (b *Builder) dirAt(e uint32) *node { return b.t.nodes.at(b.t.entries.at(e).node) }

func (b *Builder) root(v *node) error {
	if !v.isDir() {
		return errors.New("the root is not a directory")
	}
	b.t.nodes.at(rootNode).setAttributes(v)
	return nil
}

// setAttributes gives a directory the attributes of v.
func (n *node) setAttributes(v *node) {
	n.mode, n.uid, n.gid, n.sec, n.nsec, n.xattr = v.mode, v.uid, v.gid, v.sec, v.nsec, v.xattr
}

// newNode adds a node that is not named yet.
func (b *Builder) newNode(v node) (uint32, error) {
	if b.t.live >= b.limits.Entries {
		return 0, fmt.Errorf("%w: more than %d names", ErrLimit, b.limits.Entries)
	}
	if v.isDir() {
		v.data, v.more, v.cleared = none, none, b.current()
	}
	v.links = 1
	return b.t.newNode(v), nil
}

// put gives node n a name, in the place of what has it.
func (b *Builder) put(dir uint32, name string, n uint32) error {
	e, ok := b.t.find(dir, name)
	if ok {
		b.t.replace(e, n)
	} else {
		if err := b.take(len(name)); err != nil {
			return err
		}
		e = b.t.insert(dir, name, n)
	}
	if v := b.t.nodes.at(n); v.isDir() {
		if v.depth = b.t.nodes.at(dir).depth + 1; v.depth > maxDepth {
			return errTooDeep
		}
	}
	b.touch(e)
	return nil
}

// touch notes that this layer put something at an entry or below it.
func (b *Builder) touch(e uint32) {
	for v := b.t.entries.at(e); v.layer != b.current(); v = b.t.entries.at(b.t.nodes.at(v.dir).more) {
		v.layer = b.current()
		if v.dir == rootNode {
			return
		}
	}
}

// take counts bytes against the limit.
func (b *Builder) take(n int) error {
	if b.taken += int64(n); b.taken > b.limits.Bytes {
		return fmt.Errorf("%w: names, targets, xattrs and block lists take more than %d bytes", ErrLimit, b.limits.Bytes)
	}
	return nil
}

// hardLink gives the inode that is now at e.Link another name. The entry's own
// attributes are ignored, as GNU tar, umoci and Docker do.
func (b *Builder) hardLink(e *layer.Entry, dir, base string) error {
	if e.Name == "" {
		return errors.New("the root is not a directory")
	}
	n, err := b.linkTarget(e.Link)
	if err != nil {
		return fmt.Errorf("hard link to %.300q: %w", e.Link, err)
	}
	// From here on the node has the name that it is to get, so that it survives the
	// removal of what is in the way, even where that is its only other name.
	b.t.nodes.at(n).links++
	p, err := b.resolve(dir)
	if err != nil {
		return err
	}
	into, err := b.makeDirs(p)
	if err != nil {
		return err
	}
	return b.put(into, base, n)
}

func (b *Builder) linkTarget(target string) (uint32, error) {
	if err := checkName(target); err != nil {
		return 0, err
	}
	if name, ok := strings.CutPrefix(target, plnkDir); ok && b.plnk != none {
		if e, ok := b.t.find(b.plnk, name); ok {
			return b.t.entries.at(e).node, nil
		}
	}
	e, ok, err := b.locate(target)
	switch {
	case target == "":
		return 0, syscall.EISDIR
	case err != nil:
		return 0, err
	case !ok:
		return 0, syscall.ENOENT
	case b.dirAt(e).isDir():
		return 0, syscall.EISDIR
	}
	return b.t.entries.at(e).node, nil
}
