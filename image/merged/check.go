package merged

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"syscall"

	"github.com/gangway-hpc/gangway/squashfs"
	"github.com/zeebo/blake3"
)

// Check proves that an index is whole and right: its checksum; that every part of it
// is used, in the order in which a Builder writes it, so that nothing is hidden or
// shared; that names are valid and sorted, each directory is reached once and says
// rightly what it lies in, links are as many as names, and all content lies within
// its layer.
//
// Where openLayer is not nil, it is called once for each layer that a file lies in,
// and the size and layout of each file are compared with what the layer says. Check
// does not close the readers.
//
// Errors wrap ErrCorrupt, or are those of ctx and openLayer.
func Check(ctx context.Context, ix *Index, openLayer func(layer int) (*squashfs.Reader, error)) error {
	c := &checker{ix: ix, open: openLayer, names: make([]uint32, ix.NumInodes()), layers: make([]*squashfs.Reader, len(ix.layers))}
	for _, step := range []func(context.Context) error{c.sum, c.head, c.tree, c.inodes, c.rest} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("check merged index: %w", err)
		}
	}
	return nil
}

// checker goes through the sections in the order of the file. Its counters say what
// must come next in each.
type checker struct {
	ix     *Index
	open   func(int) (*squashfs.Reader, error)
	layers []*squashfs.Reader
	names  []uint32 // how many names an inode has, by number-1

	inode, dirent, file, block, set, str uint32
}

// sum compares the checksum of all, in pieces between which ctx may end it.
func (c *checker) sum(ctx context.Context) error {
	content := c.ix.b[:len(c.ix.b)-sumLen]
	h := blake3.New()
	for part := range slices.Chunk(content, 4<<20) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _ = h.Write(part)
	}
	if !bytes.Equal(h.Sum(nil), c.ix.b[len(content):]) {
		return corrupt("the checksum is wrong")
	}
	return nil
}

// text proves that the next string is at off, n bytes long.
func (c *checker) text(off, n uint32) error {
	if off != c.str || n > c.ix.counts[secStrings]-c.str {
		return corrupt("string of %d bytes at %d, want it at %d of %d", n, off, c.str, c.ix.counts[secStrings])
	}
	c.str += n
	return nil
}

func (c *checker) head(context.Context) error {
	ix := c.ix
	le := binary.LittleEndian
	if err := c.text(le.Uint32(ix.b[24:]), le.Uint32(ix.b[28:])); err != nil {
		return err
	}
	for b := range slices.Chunk(ix.parts[secLayers], layerLen) {
		if err := c.text(le.Uint32(b), le.Uint32(b[4:])); err != nil {
			return err
		}
		if err := c.text(le.Uint32(b[8:]), le.Uint32(b[12:])); err != nil {
			return err
		}
	}
	h := head{counts: ix.counts}
	at, end := h.offsets()
	for s := range sections {
		next := end - sumLen
		if s+1 < sections {
			next = at[s+1]
		}
		for _, x := range ix.b[at[s]+uint64(len(ix.parts[s])) : next] {
			if x != 0 {
				return corrupt("the %v section is padded with %d", s, x)
			}
		}
	}
	return nil
}

// tree walks all directories from the root.
func (c *checker) tree(ctx context.Context) error {
	root, err := c.ix.inodeOf(Root, syscall.S_IFDIR, syscall.ENOTDIR)
	if err != nil {
		return corrupt("root: %w", err)
	}
	if root.Parent != Root {
		return corrupt("the root's parent is %d", root.Parent)
	}
	c.inode = Root + 1
	c.names[0] = 2
	stack := []uint32{Root}
	for len(stack) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		subdirs, err := c.directory(dir)
		if err != nil {
			return fmt.Errorf("directory %d: %w", dir, err)
		}
		slices.Reverse(subdirs)
		stack = append(stack, subdirs...)
	}
	if c.inode-1 != c.ix.NumInodes() || c.dirent != c.ix.counts[secDirents] {
		return corrupt("%d of %d inodes and %d of %d entries are reached", c.inode-1, c.ix.NumInodes(), c.dirent, c.ix.counts[secDirents])
	}
	return nil
}

// directory checks a directory's entries and returns its subdirectories.
func (c *checker) directory(dir uint32) (subdirs []uint32, err error) {
	i, err := c.ix.Inode(dir)
	if err != nil {
		return nil, err
	}
	if i.a != c.dirent {
		return nil, corrupt("entries from %d on, want %d", i.a, c.dirent)
	}
	c.dirent += i.b
	list, err := c.ix.dirents(dir)
	if err != nil {
		return nil, err
	}
	for rec := range slices.Chunk(list, direntLen) {
		if err := c.text(binary.LittleEndian.Uint32(rec), uint32(rec[8])); err != nil {
			return nil, err
		}
		if rec[10] != 0 || rec[11] != 0 {
			return nil, corrupt("an entry's reserved bytes are %d, %d", rec[10], rec[11])
		}
	}
	var last []byte
	for e, err := range c.ix.ReadDir(dir, 0) {
		if err != nil {
			return nil, err
		}
		name := string(e.Name)
		if bad := name == "" || checkName(name) != nil || bytes.IndexByte(e.Name, '/') >= 0; bad || bytes.Compare(last, e.Name) >= 0 {
			return nil, corrupt("name %q after %q", name, last)
		}
		last = e.Name
		isDir := e.Type == syscall.S_IFDIR
		switch {
		case e.Inode == c.inode:
			c.inode++
		case e.Inode > c.inode || isDir:
			return nil, corrupt("%q is inode %d, want %d", name, e.Inode, c.inode)
		}
		if isDir {
			c.names[dir-1]++
			c.names[e.Inode-1] = 2
			subdirs = append(subdirs, e.Inode)
		} else {
			c.names[e.Inode-1]++
		}
	}
	return subdirs, nil
}

// inodes goes through all inodes and what they refer to.
func (c *checker) inodes(ctx context.Context) error {
	for n := range c.ix.NumInodes() {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		i, err := c.ix.Inode(n + 1)
		if err == nil {
			err = c.attributes(&i)
		}
		if err == nil && i.Mode&syscall.S_IFMT == syscall.S_IFREG {
			err = c.data(&i)
		}
		if err != nil {
			return fmt.Errorf("inode %d: %w", n+1, err)
		}
	}
	return nil
}

func (c *checker) attributes(i *Inode) error {
	rec, err := c.ix.record(secInodes, i.Number-1)
	if err != nil {
		return err
	}
	typ := i.Mode & syscall.S_IFMT
	switch {
	case i.Mode&^(syscall.S_IFMT|0o7777) != 0 || i.Nsec >= 1e9:
		return corrupt("mode %#o, %d ns", i.Mode, i.Nsec)
	case i.Links != c.names[i.Number-1]:
		return corrupt("%d links, has %d names", i.Links, c.names[i.Number-1])
	case typ != syscall.S_IFREG && typ != syscall.S_IFLNK && i.Size != 0:
		return corrupt("mode %#o with %d bytes", i.Mode, i.Size)
	case typ == syscall.S_IFIFO && i.a != 0, (typ == syscall.S_IFIFO || typ == syscall.S_IFREG || typ == syscall.S_IFLNK) && i.b != 0:
		return corrupt("mode %#o refers to %d, %d", i.Mode, i.a, i.b)
	}
	unused := rec[52:]
	if typ != syscall.S_IFDIR {
		unused = rec[48:]
	}
	if slices.ContainsFunc(unused, func(b byte) bool { return b != 0 }) {
		return corrupt("reserved bytes are not 0")
	}
	if i.xattr > c.set {
		if c.set++; i.xattr != c.set {
			return corrupt("xattr set %d, want %d", i.xattr, c.set)
		}
	}
	if typ == syscall.S_IFLNK {
		target, err := c.ix.ReadLink(i.Number)
		if err != nil {
			return err
		}
		if bytes.IndexByte([]byte(target), 0) >= 0 {
			return corrupt("target %.100q", target)
		}
		return c.text(i.a, uint32(i.Size))
	}
	return nil
}

// data checks where a file's content lies, and that its layer says so too.
func (c *checker) data(i *Inode) error {
	if i.Size == 0 {
		if i.a != 0 {
			return corrupt("an empty file has content %d", i.a)
		}
		return nil
	}
	d, err := c.ix.Data(i.Number)
	if err != nil {
		return err
	}
	if c.file++; i.a != c.file {
		return corrupt("content %d, want %d", i.a, c.file)
	}
	rec, err := c.ix.record(secFiles, i.a-1)
	if err != nil {
		return err
	}
	if first := binary.LittleEndian.Uint32(rec[16:]); first != c.block {
		return corrupt("blocks from %d on, want %d", first, c.block)
	}
	c.block += uint32(len(d.Blocks))
	if err := checkLayout(&c.ix.layers[d.Layer], i.Size, &d.Layout); err != nil {
		return corrupt("%w", err)
	}
	if c.open == nil {
		return nil
	}
	return c.compare(i, &d)
}

func (c *checker) compare(i *Inode, d *Data) error {
	if c.layers[d.Layer] == nil {
		r, err := c.open(d.Layer)
		if err != nil {
			return fmt.Errorf("open layer %d: %w", d.Layer, err)
		}
		c.layers[d.Layer] = r
	}
	r := c.layers[d.Layer]
	in, err := r.InodeByNumber(d.Inode)
	if err != nil {
		return fmt.Errorf("layer %d: %w", d.Layer, err)
	}
	l, err := r.Layout(in)
	if err != nil {
		return fmt.Errorf("layer %d: %w", d.Layer, err)
	}
	if in.Size != uint64(i.Size) || l.Start != d.Start || l.Fragment != d.Fragment || !slices.Equal(l.Blocks, d.Blocks) {
		return corrupt("inode %d of layer %d lies elsewhere than the index says", d.Inode, d.Layer)
	}
	return nil
}

// rest checks the xattrs, and that nothing is left over.
func (c *checker) rest(context.Context) error {
	ix := c.ix
	le := binary.LittleEndian
	next := uint32(0)
	for set := range slices.Chunk(ix.parts[secXattrSets], xattrSetLen) {
		first, count := le.Uint32(set), le.Uint32(set[4:])
		list, err := ix.span(secXattrs, first, count)
		if err != nil {
			return err
		}
		if first != next || count == 0 {
			return corrupt("%d xattrs from %d on, want them from %d on", count, first, next)
		}
		next += count
		var last []byte
		for x := range slices.Chunk(list, xattrLen) {
			if err := c.text(le.Uint32(x), le.Uint32(x[4:])); err != nil {
				return err
			}
			name := ix.parts[secStrings][le.Uint32(x):c.str]
			if err := c.text(le.Uint32(x[8:]), le.Uint32(x[12:])); err != nil {
				return err
			}
			if !validXattr(string(name), int(le.Uint32(x[12:]))) || bytes.Compare(last, name) >= 0 {
				return corrupt("xattr %q after %q", name, last)
			}
			last = name
		}
	}
	if got := [...]uint32{c.file, c.block, c.set, next, c.str}; got != [...]uint32{
		ix.counts[secFiles], ix.counts[secBlocks], ix.counts[secXattrSets], ix.counts[secXattrs], ix.counts[secStrings],
	} {
		return corrupt("files, blocks, xattr sets, xattrs, strings: %d are used, of %d", got, ix.counts[secFiles:])
	}
	return nil
}
