package merged

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/zeebo/blake3"
)

// plan says in which order the tree goes into the file.
type plan struct {
	head
	numbers []uint32 // of the inodes, by node; 0 for none
	nodes   []uint32 // by number-1
	entries []uint32
	first   []uint32 // by number-1: a directory's first place in entries
	sets    []uint32 // xattr sets by number-1
	setOf   map[uint32]uint32
	targets uint64 // where symlinks' targets begin in the strings
	values  uint64 // where xattrs' begin
}

// plan walks the tree: directories in depth-first order, in each the entries by
// name. Inodes are numbered as they are met first, so that what a directory lists
// lies side by side.
func (b *Builder) plan() (*plan, error) {
	t := b.t
	p := &plan{numbers: make([]uint32, t.nodes.n), setOf: map[uint32]uint32{0: 0}}
	var names, targets uint64
	number := func(n uint32) {
		p.nodes = append(p.nodes, n)
		p.first = append(p.first, 0)
		p.numbers[n] = uint32(len(p.nodes))
		v := t.nodes.at(n)
		if _, ok := p.setOf[v.xattr]; !ok {
			p.sets = append(p.sets, v.xattr)
			p.setOf[v.xattr] = uint32(len(p.sets))
		}
		switch v.mode & syscall.S_IFMT {
		case syscall.S_IFLNK:
			targets += uint64(v.size)
		case syscall.S_IFREG:
			if v.data != 0 {
				p.counts[secFiles]++
				p.counts[secBlocks] += b.files.at(v.data).count
			}
		}
	}
	number(rootNode)
	stack := []uint32{rootNode}
	for len(stack) > 0 {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		first := len(p.entries)
		p.first[p.numbers[dir]-1] = uint32(first)
		for e := t.nodes.at(dir).data; e != none; e = t.entries.at(e).next {
			p.entries = append(p.entries, e)
			names += uint64(t.entries.at(e).nameLen)
		}
		list := p.entries[first:]
		slices.SortFunc(list, func(x, y uint32) int {
			return bytes.Compare(t.nameOf(t.entries.at(x)), t.nameOf(t.entries.at(y)))
		})
		for _, e := range list {
			if n := t.entries.at(e).node; p.numbers[n] == 0 {
				number(n)
			}
		}
		for _, e := range slices.Backward(list) {
			if n := t.entries.at(e).node; t.nodes.at(n).isDir() {
				stack = append(stack, n)
			}
		}
	}
	p.counts[secLayers] = uint32(len(b.layers))
	p.counts[secInodes] = uint32(len(p.nodes))
	p.counts[secDirents] = uint32(len(p.entries))
	return p, b.planStrings(p, names, targets)
}

// planStrings counts the bytes of strings.
func (b *Builder) planStrings(p *plan, names, targets uint64) error {
	n := uint64(len(b.image))
	p.imageLen = uint32(n)
	for _, l := range b.layers {
		n += uint64(len(l.Digest) + len(l.Path))
	}
	p.targets = n + names
	p.values = p.targets + targets
	n = p.values
	p.counts[secXattrSets] = uint32(len(p.sets))
	for _, set := range p.sets {
		for _, x := range b.xattrs.sets[set] {
			p.counts[secXattrs]++
			n += uint64(len(x.Name) + len(x.Value))
		}
	}
	if n >= none {
		return fmt.Errorf("write merged index: %w: %d bytes of strings", ErrLimit, n)
	}
	p.counts[secStrings] = uint32(n)
	return nil
}

// encoder writes little-endian records and counts what it wrote. Errors stay in the
// bufio.Writer until it is flushed.
type encoder struct {
	w *bufio.Writer
	n uint64
}

func (e *encoder) bytes(b []byte) {
	n, _ := e.w.Write(b)
	e.n += uint64(n)
}

func (e *encoder) string(s string) { e.bytes([]byte(s)) }

func (e *encoder) u32(values ...uint32) {
	var b [4]byte
	for _, v := range values {
		binary.LittleEndian.PutUint32(b[:], v)
		e.bytes(b[:])
	}
}

func (e *encoder) u64(values ...uint64) {
	var b [8]byte
	for _, v := range values {
		binary.LittleEndian.PutUint64(b[:], v)
		e.bytes(b[:])
	}
}

// pad ends a section.
func (e *encoder) pad() {
	for e.n < aligned(e.n) {
		e.bytes([]byte{0})
	}
}

// WriteTo writes the index of the tree as it is now. The bytes depend only on the
// tree, the image and the layers, not on how the tree came about.
func (b *Builder) WriteTo(w io.Writer) (int64, error) {
	if b.err != nil {
		return 0, b.err
	}
	p, err := b.plan()
	if err != nil {
		return 0, err
	}
	header := p.marshal()
	sum := blake3.Sum256(header[:headerSum])
	copy(header[headerSum:], sum[:])
	all := blake3.New()
	e := &encoder{w: bufio.NewWriterSize(io.MultiWriter(w, all), 64<<10)}
	e.bytes(header)
	for _, write := range []func(*encoder, *plan){
		b.writeLayers, b.writeInodes, b.writeEntries, b.writeFiles, b.writeBlocks, b.writeXattrs, b.writeStrings,
	} {
		write(e, p)
		e.pad()
	}
	if err := e.w.Flush(); err != nil {
		return int64(e.n), fmt.Errorf("write merged index: %w", err)
	}
	n, err := w.Write(all.Sum(nil))
	if err != nil {
		return int64(e.n) + int64(n), fmt.Errorf("write merged index: %w", err)
	}
	return int64(e.n) + int64(n), nil
}

func (b *Builder) writeLayers(e *encoder, p *plan) {
	at := p.imageLen
	for _, l := range b.layers {
		path := at + uint32(len(l.Digest))
		e.u32(at, uint32(len(l.Digest)), path, uint32(len(l.Path)))
		e.u64(uint64(l.Size), uint64(l.ModTime), l.Inode)
		e.u32(l.BlockSize, uint32(l.Compression))
		at = path + uint32(len(l.Path))
	}
}

func (b *Builder) writeInodes(e *encoder, p *plan) {
	subdirs := make([]uint32, len(p.nodes))
	for _, i := range p.entries {
		if v := b.t.entries.at(i); b.t.nodes.at(v.node).isDir() {
			subdirs[p.numbers[v.dir]-1]++
		}
	}
	files := uint32(0)
	target := uint32(p.targets)
	for i, n := range p.nodes {
		v := b.t.nodes.at(n)
		var ref, more, parent uint32
		links, size := v.links, uint64(v.size)
		switch v.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			for j := v.data; j != none; j = b.t.entries.at(j).next {
				more++
			}
			ref, links, parent = p.first[i], 2+subdirs[i], p.numbers[b.t.parent(n)]
		case syscall.S_IFREG:
			if v.data != 0 {
				files++
				ref = files
			}
		case syscall.S_IFLNK:
			ref = target
			target += uint32(v.size)
		default:
			ref, more = v.data, v.more
		}
		e.u32(v.mode, v.uid, v.gid, links)
		e.u64(uint64(v.sec), size)
		e.u32(v.nsec, p.setOf[v.xattr], ref, more, parent, 0, 0, 0)
	}
}

func (b *Builder) writeEntries(e *encoder, p *plan) {
	name := p.targets
	for _, i := range p.entries {
		name -= uint64(b.t.entries.at(i).nameLen)
	}
	for _, i := range p.entries {
		v := b.t.entries.at(i)
		typ := b.t.nodes.at(v.node).mode & syscall.S_IFMT
		e.u32(uint32(name), p.numbers[v.node], uint32(v.nameLen)|typ>>12<<8)
		name += uint64(v.nameLen)
	}
}

// eachFile calls do for the content of each file, in the order of their numbers.
func (b *Builder) eachFile(p *plan, do func(*fileData)) {
	for _, n := range p.nodes {
		if v := b.t.nodes.at(n); v.mode&syscall.S_IFMT == syscall.S_IFREG && v.data != 0 {
			do(b.files.at(v.data))
		}
	}
}

func (b *Builder) writeFiles(e *encoder, p *plan) {
	first := uint32(0)
	b.eachFile(p, func(f *fileData) {
		e.u32(f.layer, f.inode)
		e.u64(uint64(f.start))
		e.u32(first, f.count)
		e.u64(uint64(f.fragment.Start))
		e.u32(f.fragment.Size, f.fragment.Offset)
		first += f.count
	})
}

func (b *Builder) writeBlocks(e *encoder, p *plan) {
	b.eachFile(p, func(f *fileData) {
		for i := range f.count {
			e.u32(*b.blocks.at(f.first + i))
		}
	})
}

func (b *Builder) writeXattrs(e *encoder, p *plan) {
	first := uint32(0)
	for _, set := range p.sets {
		n := uint32(len(b.xattrs.sets[set]))
		e.u32(first, n)
		first += n
	}
	at := uint32(p.values)
	for _, set := range p.sets {
		for _, x := range b.xattrs.sets[set] {
			value := at + uint32(len(x.Name))
			e.u32(at, uint32(len(x.Name)), value, uint32(len(x.Value)))
			at = value + uint32(len(x.Value))
		}
	}
}

func (b *Builder) writeStrings(e *encoder, p *plan) {
	e.string(string(b.image))
	for _, l := range b.layers {
		e.string(string(l.Digest))
		e.string(l.Path)
	}
	for _, i := range p.entries {
		e.bytes(b.t.nameOf(b.t.entries.at(i)))
	}
	for _, n := range p.nodes {
		if v := b.t.nodes.at(n); v.mode&syscall.S_IFMT == syscall.S_IFLNK {
			e.bytes(b.t.bytes.get(v.data, uint32(v.size)))
		}
	}
	for _, set := range p.sets {
		for _, x := range b.xattrs.sets[set] {
			e.string(x.Name)
			e.bytes(x.Value)
		}
	}
}
