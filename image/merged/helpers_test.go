package merged

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

func long() bool { return os.Getenv("GANGWAY_TEST_LONG") != "" }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seen is what can be seen of a name in a tree, whoever made it.
type seen struct {
	mode, uid, gid, nsec, major, minor uint32
	sec, size                          int64
	links                              uint32
	content                            string // which file of which layer it is
	target                             string
	xattrs                             string
	first                              string // the least path of the same inode
}

func (s seen) String() string {
	type plain seen // without this method
	return fmt.Sprintf("%#o %+v", s.mode, plain(s))
}

// seenTree is a tree by path; the root is "".
type seenTree map[string]seen

// diff says how got differs, in a few lines.
func (want seenTree) diff(got seenTree) error {
	var b strings.Builder
	paths := map[string]bool{}
	for p := range want {
		paths[p] = true
	}
	for p := range got {
		paths[p] = true
	}
	for _, p := range slices.Sorted(maps.Keys(paths)) {
		w, inWant := want[p]
		g, inGot := got[p]
		switch {
		case !inWant:
			fmt.Fprintf(&b, "%q: should not be there: %v\n", p, g)
		case !inGot:
			fmt.Fprintf(&b, "%q: missing: %v\n", p, w)
		case w != g:
			fmt.Fprintf(&b, "%q:\n got %v\nwant %v\n", p, g, w)
		}
	}
	if b.Len() > 0 {
		return fmt.Errorf("trees differ:\n%s", b.String())
	}
	return nil
}

func showXattrs(set []squashfs.Xattr) string {
	var list []string
	for _, x := range set {
		list = append(list, fmt.Sprintf("%s=%x", x.Name, x.Value))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// groups fills in links and first of all but directories.
func (want seenTree) groups(inode map[string]any) {
	names := map[any][]string{}
	for _, p := range slices.Sorted(maps.Keys(want)) {
		names[inode[p]] = append(names[inode[p]], p)
	}
	for p, s := range want {
		if s.mode&syscall.S_IFMT != syscall.S_IFDIR {
			s.links, s.first = uint32(len(names[inode[p]])), names[inode[p]][0]
			want[p] = s
		}
	}
}

// see walks an index.
func see(ix *Index) (seenTree, error) {
	tree := seenTree{}
	inode := map[string]any{}
	hasXattrs := false
	var walk func(path string, n uint32) error
	walk = func(path string, n uint32) error {
		i, err := ix.Inode(n)
		if err != nil {
			return err
		}
		xattrs, err := ix.Xattrs(n)
		if err != nil {
			return err
		}
		hasXattrs = hasXattrs || len(xattrs) > 0
		s := seen{
			mode: i.Mode, uid: i.UID, gid: i.GID, sec: i.Sec, nsec: i.Nsec, size: i.Size,
			major: i.Major, minor: i.Minor, xattrs: showXattrs(xattrs), links: i.Links,
		}
		switch i.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			d, err := ix.Data(n)
			if err != nil {
				return err
			}
			if i.Size > 0 {
				s.content = contentOf(d.Layer, d.Inode)
			}
		case syscall.S_IFLNK:
			if s.target, err = ix.ReadLink(n); err != nil {
				return err
			}
		case syscall.S_IFDIR:
			for e, err := range ix.ReadDir(n, 0) {
				if err != nil {
					return err
				}
				if got, err := ix.Lookup(n, string(e.Name)); err != nil || got != e.Inode {
					return fmt.Errorf("%q: %q is inode %d when listed, %d (%v) when looked up", path, e.Name, e.Inode, got, err)
				}
				if err := walk(join(path, string(e.Name)), e.Inode); err != nil {
					return err
				}
			}
		}
		tree[path], inode[path] = s, n
		return nil
	}
	if err := walk("", Root); err != nil {
		return nil, err
	}
	if ix.HasXattrs() != hasXattrs {
		return nil, fmt.Errorf("HasXattrs is %t", ix.HasXattrs())
	}
	links := maps.Clone(tree)
	tree.groups(inode)
	for p, s := range tree {
		if s.links != links[p].links {
			return nil, fmt.Errorf("%q has %d links, %d names", p, links[p].links, s.links)
		}
	}
	return tree, nil
}

func join(dir, name string) string { return strings.TrimPrefix(dir+"/"+name, "/") }

// contentOf stands for the content of a file: no two files of a stack have the same.
func contentOf(layer int, inode uint32) string { return fmt.Sprintf("layer %d inode %d", layer, inode) }

const testBlock = 4096

// layoutOf makes up where a file lies, different for each inode.
func layoutOf(inode uint32, size int64) squashfs.Layout {
	l := squashfs.Layout{Start: 96 + int64(inode)*1000}
	for range size / testBlock {
		l.Blocks = append(l.Blocks, 1000+inode%3000)
	}
	switch tail := uint32(size % testBlock); {
	case tail > 0 && inode%2 == 0:
		l.Fragment = squashfs.Fragment{Start: 50 + int64(inode), Size: 1<<24 | testBlock, Offset: testBlock - tail}
	case tail > 0:
		l.Blocks = append(l.Blocks, 1<<24|tail)
	}
	return l
}

func infoOf(i int) LayerInfo {
	return LayerInfo{
		Digest: oci.DigestOf(fmt.Append(nil, i)), Size: 1 << 30, BlockSize: testBlock, Compression: squashfs.Zstd,
		ModTime: int64(i) - 5, Inode: uint64(i) << 40,
	}
}

func each(list []layer.Entry) iter.Seq2[layer.Entry, error] {
	return func(yield func(layer.Entry, error) bool) {
		for _, e := range list {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// apply puts a made-up layer over b.
func apply(b *Builder, i int, list []layer.Entry) error {
	return b.Apply(context.Background(), infoOf(i), each(list), sizesOf(list))
}

// sizesOf gives the layouts of a made-up layer's files.
func sizesOf(list []layer.Entry) func(uint32) (squashfs.Layout, error) {
	sizes := map[uint32]int64{}
	for _, e := range list {
		sizes[e.Inode] = e.Size
	}
	return func(inode uint32) (squashfs.Layout, error) { return layoutOf(inode, sizes[inode]), nil }
}

// image returns the bytes of the index of a stack.
func image(layers ...[]layer.Entry) ([]byte, error) {
	b := NewBuilder(Options{Image: oci.DigestOf([]byte("image"))})
	for i, list := range layers {
		if err := apply(b, i, list); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	n, err := b.WriteTo(&out)
	if err == nil && n != int64(out.Len()) {
		err = fmt.Errorf("WriteTo returns %d, wrote %d", n, out.Len())
	}
	return out.Bytes(), err
}

// merge returns the checked tree of a stack.
func merge(layers ...[]layer.Entry) (seenTree, error) {
	b, err := image(layers...)
	if err != nil {
		return nil, err
	}
	ix, err := New(b)
	if err != nil {
		return nil, err
	}
	if err := Check(context.Background(), ix, nil); err != nil {
		return nil, err
	}
	for n := range ix.NumInodes() {
		if i, err := ix.Inode(n + 1); err == nil && i.Mode&syscall.S_IFMT == syscall.S_IFREG && i.Size > 0 {
			d, err := ix.Data(n + 1)
			if want := layoutOf(d.Inode, i.Size); err != nil || fmt.Sprint(want) != fmt.Sprint(d.Layout) {
				return nil, fmt.Errorf("inode %d lies at %v (%v), want %v", n+1, d.Layout, err, want)
			}
		}
	}
	return see(ix)
}

// The entries of tests. Inodes are numbered by finish.

func dir(name string, mode uint32) layer.Entry {
	return layer.Entry{Name: name, Type: layer.Dir, Mode: mode, Sec: 7}
}

func file(name string) layer.Entry {
	return layer.Entry{Name: name, Type: layer.File, Mode: 0o644, Size: 20, Sec: 8}
}

func symlink(name, target string) layer.Entry {
	return layer.Entry{Name: name, Type: layer.Symlink, Link: target, Mode: 0o777}
}

func hardlink(name, target string) layer.Entry {
	return layer.Entry{Name: name, Type: layer.HardLink, Link: target}
}

// list numbers the files of a layer.
func list(entries ...layer.Entry) []layer.Entry {
	for i := range entries {
		if entries[i].Type == layer.File && entries[i].Size > 0 {
			entries[i].Inode = uint32(i) + 1
		}
	}
	return entries
}
