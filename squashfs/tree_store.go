package squashfs

import (
	"hash/maphash"
	"iter"
)

// chunked is a list that grows without moving what it holds: a writer's memory
// then grows with the image, not in doublings.
type chunked[T any] struct {
	chunks [][]T
	n      uint32
}

const chunkLen = 1 << 10

func (c *chunked[T]) add(v T) uint32 {
	if c.n%chunkLen == 0 && int(c.n/chunkLen) == len(c.chunks) {
		c.chunks = append(c.chunks, make([]T, chunkLen))
	}
	i := c.n
	c.n++
	*c.at(i) = v
	return i
}

func (c *chunked[T]) at(i uint32) *T { return &c.chunks[i/chunkLen][i%chunkLen] }

func (c *chunked[T]) truncate(n uint32) { c.n = n }

// byteStore keeps short strings without a header or an allocation for each.
type byteStore struct {
	chunks [][]byte
	n      uint32
}

const byteChunk = 1 << 16

// add returns the place of s, which must be shorter than byteChunk.
func (b *byteStore) add(s string) uint32 {
	if len(b.chunks) == 0 || int(b.n%byteChunk)+len(s) > byteChunk || b.n == uint32(len(b.chunks))*byteChunk {
		b.n = uint32(len(b.chunks)) * byteChunk
		b.chunks = append(b.chunks, make([]byte, byteChunk))
	}
	at := b.n
	copy(b.chunks[at/byteChunk][at%byteChunk:], s)
	b.n += uint32(len(s))
	return at
}

func (b *byteStore) get(at uint32, n int) []byte {
	return b.chunks[at/byteChunk][at%byteChunk:][:n]
}

// node is an inode to be.
type node struct {
	size   uint64 // of a file or target
	data   uint32 // file: content; directory: first entry; symlink: target; device: number
	mtime  uint32
	links  uint32
	xattr  uint32
	number uint32 // given when the image is finished
	uid    uint16 // index into the id table
	gid    uint16
	perm   uint16
	typ    Type
}

const noEntry = none32 // ends a directory's list of entries

// entry is a name in a directory.
type entry struct {
	name    uint32 // in the byteStore
	node    uint32
	dir     uint32 // the node of the directory
	next    uint32 // the next entry of that directory
	nameLen uint8
}

// tree is what a Writer knows of the image's names. It holds about 90 bytes an
// entry, and no pointers for the garbage collector to follow.
type tree struct {
	nodes   chunked[node]
	entries chunked[entry]
	bytes   byteStore
	refs    chunked[Ref] // where inodes lie, by number-1, once the image is finished
	// slots finds an entry by directory and name: open addressing, entry+1, 0 is free.
	slots []uint32
	seed  maphash.Seed
}

const rootNode = 0

func newTree() *tree {
	t := &tree{slots: make([]uint32, 1<<10), seed: maphash.MakeSeed()}
	t.nodes.add(node{typ: TypeDir, perm: 0o755, links: 1, data: noEntry, xattr: none32})
	return t
}

func (t *tree) nameOf(e *entry) []byte { return t.bytes.get(e.name, int(e.nameLen)) }

// slot returns where dir/name is or would be in slots.
func (t *tree) slot(dir uint32, name string) int {
	mask := len(t.slots) - 1
	h := maphash.String(t.seed, name) ^ uint64(dir)*0x9E3779B97F4A7C15
	i := int(h>>7) & mask
	for ; t.slots[i] != 0; i = (i + 1) & mask {
		e := t.entries.at(t.slots[i] - 1)
		if e.dir == dir && string(t.nameOf(e)) == name {
			break
		}
	}
	return i
}

// find returns the node of dir/name.
func (t *tree) find(dir uint32, name string) (uint32, bool) {
	s := t.slots[t.slot(dir, name)]
	if s == 0 {
		return 0, false
	}
	return t.entries.at(s - 1).node, true
}

// insert gives node the name dir/name, which must be free.
func (t *tree) insert(dir uint32, name string, n uint32) {
	if int(t.entries.n)*4 >= len(t.slots)*3 {
		t.grow()
	}
	d := t.nodes.at(dir)
	i := t.slot(dir, name)
	e := t.entries.add(entry{name: t.bytes.add(name), nameLen: uint8(len(name)), node: n, dir: dir, next: d.data})
	d.data = e
	t.slots[i] = e + 1
}

func (t *tree) grow() {
	t.slots = make([]uint32, 2*len(t.slots))
	for i := range t.entries.n {
		e := t.entries.at(i)
		t.slots[t.slot(e.dir, string(t.nameOf(e)))] = i + 1
	}
}

// list returns the entries of a directory.
func (t *tree) list(dir uint32) []uint32 {
	var list []uint32
	for i := t.nodes.at(dir).data; i != noEntry; i = t.entries.at(i).next {
		list = append(list, i)
	}
	return list
}

// each yields the entries of a directory, in the order of their list.
func (t *tree) each(dir uint32) iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for i := t.nodes.at(dir).data; i != noEntry; {
			e := t.entries.at(i)
			if !yield(e) {
				return
			}
			i = e.next
		}
	}
}
