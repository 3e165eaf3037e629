package squashfs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// wNode is all that a reader can see of an inode, in a form to be compared.
type wNode struct {
	typ    Type
	perm   uint16
	uid    uint32
	gid    uint32
	mtime  uint32
	links  uint32
	dev    uint32
	target string
	xattrs string
	size   uint64
	sum    [32]byte
	holes  string
	group  string // the first of the names of a hard linked inode
}

// wTree is a tree by its paths; "" is the root.
type wTree map[string]wNode

// diff says how got differs from m.
func (m wTree) diff(got wTree) error {
	var errs []error
	for _, p := range slices.Sorted(maps.Keys(m)) {
		if n, ok := got[p]; !ok {
			errs = append(errs, fmt.Errorf("%.60q is missing", p))
		} else if n != m[p] {
			errs = append(errs, fmt.Errorf("%.60q:\n got %+v\nwant %+v", p, n, m[p]))
		}
	}
	for _, p := range slices.Sorted(maps.Keys(got)) {
		if _, ok := m[p]; !ok {
			errs = append(errs, fmt.Errorf("%.60q is there, but was not added", p))
		}
	}
	return errors.Join(errs[:min(len(errs), 5)]...)
}

func wAttrs(attrs []Xattr) string {
	var list []string
	for _, a := range attrs {
		list = append(list, fmt.Sprintf("%s=%x", a.Name, sha256.Sum256(a.Value)))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// wWant is the tree that the items make.
func wWant(o WriterOptions, items []wItem) wTree {
	m := wTree{"": {typ: TypeDir, perm: 0o755}}
	alias := map[string]string{} // of links, the path with the inode
	for i := range items {
		p := strings.Trim(path.Clean("/"+items[i].Path), "/")
		for d := path.Dir(p); p != "" && d != "."; d = path.Dir(d) {
			if _, ok := m[d]; !ok {
				m[d] = wNode{typ: TypeDir, perm: 0o755}
			}
		}
		if items[i].link == "" {
			m[p] = items[i].want(o)
			continue
		}
		first := items[i].link
		if a, ok := alias[first]; ok {
			first = a
		}
		alias[p] = first
	}
	for p, first := range alias {
		m[p] = m[first]
	}
	m.group(func(p string) string { return cmp.Or(alias[p], p) })
	return m
}

// group gives all names of an inode the first of them and their number, and
// directories their link count. inode says which inode a path is of.
func (m wTree) group(inode func(string) string) {
	names := map[string][]string{}
	subdirs := map[string]uint32{}
	for p, n := range m {
		if n.typ != TypeDir {
			names[inode(p)] = append(names[inode(p)], p)
		} else if p != "" {
			subdirs[strings.TrimPrefix(path.Dir("/"+p), "/")]++
		}
	}
	for p, n := range m {
		if n.typ == TypeDir {
			n.links = 2 + subdirs[p]
		} else if all := names[inode(p)]; len(all) > 0 {
			n.links = uint32(len(all))
			if len(all) > 1 {
				n.group = slices.Min(all)
			}
		}
		m[p] = n
	}
}

func (i *wItem) want(o WriterOptions) wNode {
	typ, _ := typeOf(i.Mode)
	n := wNode{
		typ: typ, perm: permOf(i.Mode), uid: i.UID, gid: i.GID,
		mtime: clampTime(i.ModTime), target: i.Target, xattrs: wAttrs(i.Xattrs),
	}
	switch typ {
	case TypeFile:
		n.size, n.sum, n.holes = uint64(len(i.content)), sha256.Sum256(i.content), wHoles(o, i.content)
	case TypeSymlink:
		n.size = uint64(len(i.Target))
	case TypeBlockDevice, TypeCharDevice:
		n.dev = i.Major<<20 | i.Minor
	}
	return n
}

// wHoles lists the holes that content must have: its blocks of zeros only, but
// not its tail, where that goes into a fragment.
func wHoles(o WriterOptions, content []byte) string {
	bs := cmp.Or(o.BlockSize, defaultBlockSize)
	var s strings.Builder
	for k := 0; k*bs < len(content); k++ {
		b := content[k*bs : min(len(content), (k+1)*bs)]
		if len(b) < bs && !o.NoFragments && (k == 0 || o.AlwaysFragments) {
			break
		}
		if bytes.Count(b, []byte{0}) == len(b) {
			fmt.Fprintf(&s, "%d+%d ", k*bs, len(b))
		}
	}
	return s.String()
}

// wRead reads all of an image, by every way that the Reader has.
func wRead(r *Reader) (wTree, error) {
	root, err := r.Root()
	if err != nil {
		return nil, err
	}
	v := wReader{r: r, tree: wTree{}, numbers: map[string]uint32{}}
	if err := v.walk("", root); err != nil {
		return nil, err
	}
	links := map[string]uint32{}
	for p, n := range v.tree {
		links[p] = n.links
	}
	v.tree.group(func(p string) string { return fmt.Sprint(v.numbers[p]) })
	for p, n := range v.tree {
		if n.links != links[p] {
			return nil, fmt.Errorf("%q: its inode says %d links, there are %d", p, links[p], n.links)
		}
	}
	return v.tree, nil
}

type wReader struct {
	r       *Reader
	tree    wTree
	numbers map[string]uint32
}

func (v *wReader) walk(name string, i Inode) error {
	n, err := v.node(i)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	v.tree[name], v.numbers[name] = n, i.Number
	if v.r.Superblock().Flags&FlagExportable != 0 {
		if j, err := v.r.InodeByNumber(i.Number); err != nil || j != i {
			return fmt.Errorf("%q: inode by number: %+v, %v", name, j, err)
		}
	}
	if i.Type != TypeDir {
		return nil
	}
	for e, err := range v.r.ReadDir(i) {
		if err != nil {
			return err
		}
		child, err := v.r.Child(i, e)
		if err != nil {
			return err
		}
		if found, err := v.r.Lookup(i, e.Name); err != nil || found != child {
			return fmt.Errorf("%q: lookup: %+v, %v", e.Name, found, err)
		}
		if err := v.walk(strings.TrimPrefix(name+"/"+e.Name, "/"), child); err != nil {
			return err
		}
	}
	return nil
}

func (v *wReader) node(i Inode) (wNode, error) {
	n := wNode{typ: i.Type, perm: i.Perm, uid: i.UID, gid: i.GID, mtime: i.MTime, links: i.Links}
	attrs, err := v.r.Xattrs(i)
	if err != nil {
		return n, err
	}
	n.xattrs = wAttrs(attrs)
	switch i.Type {
	case TypeFile:
		err = v.file(&n, i)
	case TypeSymlink:
		n.size = i.Size
		n.target, err = v.r.ReadLink(i)
	case TypeBlockDevice, TypeCharDevice:
		n.dev = i.Major()<<20 | i.Minor()
	}
	return n, err
}

func (v *wReader) file(n *wNode, i Inode) error {
	f, err := v.r.OpenFile(i)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	got, err := f.WriteTo(sum)
	if err != nil || got != int64(i.Size) {
		return fmt.Errorf("%d of %d bytes: %w", got, i.Size, err)
	}
	n.size, n.sum = i.Size, [32]byte(sum.Sum(nil))
	bs, sparse := int64(v.r.Superblock().BlockSize), uint64(0)
	for e, err := range f.Extents() {
		if err != nil {
			return err
		}
		for at := e.Offset; e.Hole && at < e.Offset+e.Length; at += bs {
			n.holes += fmt.Sprintf("%d+%d ", at, min(bs, e.Offset+e.Length-at))
			sparse += uint64(min(bs, e.Offset+e.Length-at))
		}
	}
	if sparse != i.Sparse {
		n.holes += fmt.Sprintf("but its inode says %d", i.Sparse)
	}
	return nil
}
