package merged

import (
	"hash/maphash"
	"syscall"
)

// chunked is a list that grows without moving what it holds, so that memory grows
// with the image and not in doublings.
type chunked[T any] struct {
	chunks [][]T
	n      uint32
}

const chunkLen = 1 << 10

func (c *chunked[T]) add(v T) uint32 {
	if int(c.n/chunkLen) == len(c.chunks) {
		c.chunks = append(c.chunks, make([]T, chunkLen))
	}
	i := c.n
	c.n++
	*c.at(i) = v
	return i
}

func (c *chunked[T]) at(i uint32) *T { return &c.chunks[i/chunkLen][i%chunkLen] }

// byteStore keeps short strings without a header or an allocation for each.
type byteStore struct {
	chunks [][]byte
	n      uint32
}

const byteChunk = 1 << 16

// add returns the place of s, which must be shorter than byteChunk.
func (b *byteStore) add(s string) uint32 {
	if used := b.n % byteChunk; used+uint32(len(s)) > byteChunk {
		b.n += byteChunk - used
	}
	for b.n+uint32(len(s)) > uint32(len(b.chunks))*byteChunk {
		b.chunks = append(b.chunks, make([]byte, byteChunk))
	}
	at := b.n
	if len(s) > 0 {
		copy(b.chunks[at/byteChunk][at%byteChunk:], s)
	}
	b.n += uint32(len(s))
	return at
}

func (b *byteStore) get(at, n uint32) []byte {
	if n == 0 {
		return nil
	}
	return b.chunks[at/byteChunk][at%byteChunk:][:n]
}

// node is an inode to be. Nodes and entries that were removed are used again; a list
// of them goes through data and next.
type node struct {
	size  int64 // of a file or a symlink's target
	sec   int64
	nsec  uint32
	uid   uint32
	gid   uint32
	links uint32 // names; of a directory 1
	xattr uint32 // set number, 0 for none
	data  uint32 // directory: first entry; file: content; symlink: target; device: major
	more  uint32 // directory: the entry that names it; device: minor
	mode  uint32 // st_mode
	// cleared is the layer in which a directory was made or last rid of what lower
	// layers put there: it needs no clearing in that layer any more. So clearing
	// costs, over all, no more than the entries do.
	cleared uint16
	depth   uint16 // of a directory: names on the way from the root
}

func (n *node) isDir() bool { return n.mode&syscall.S_IFMT == syscall.S_IFDIR }

// entry is a name in a directory.
type entry struct {
	name       uint32 // in the byteStore
	node       uint32
	dir        uint32 // the node of the directory
	next, prev uint32 // in the list of that directory
	layer      uint16 // the last that put the name there, or something below it
	nameLen    uint8
}

const (
	none     = 1<<32 - 1 // no entry, no node
	rootNode = 0
)

// tree is what a Builder knows: about 110 bytes an entry, and no pointers for the
// garbage collector to follow.
type tree struct {
	nodes     chunked[node]
	entries   chunked[entry]
	freeNode  uint32
	freeEntry uint32
	live      uint32 // entries in use
	bytes     byteStore
	// slots finds an entry by directory and name: open addressing with linear
	// probing, entry+1, 0 is free.
	slots []uint32
	seed  maphash.Seed
}

func newTree() *tree {
	t := &tree{slots: make([]uint32, 1<<10), seed: maphash.MakeSeed(), freeNode: none, freeEntry: none}
	t.newNode(node{mode: syscall.S_IFDIR | 0o755, links: 1, data: none, more: none})
	return t
}

func (t *tree) newNode(n node) uint32 {
	if t.freeNode == none {
		return t.nodes.add(n)
	}
	i := t.freeNode
	t.freeNode = t.nodes.at(i).data
	*t.nodes.at(i) = n
	return i
}

func (t *tree) nameOf(e *entry) []byte { return t.bytes.get(e.name, uint32(e.nameLen)) }

// home is where the search for dir/name begins.
func (t *tree) home(dir uint32, name []byte) int {
	h := maphash.Bytes(t.seed, name) ^ uint64(dir)*0x9E3779B97F4A7C15
	return int(h>>7) & (len(t.slots) - 1)
}

// slot returns where dir/name is or would be in slots.
func (t *tree) slot(dir uint32, name []byte) int {
	i := t.home(dir, name)
	for ; t.slots[i] != 0; i = (i + 1) & (len(t.slots) - 1) {
		if e := t.entries.at(t.slots[i] - 1); e.dir == dir && string(t.nameOf(e)) == string(name) {
			break
		}
	}
	return i
}

// find returns the entry dir/name.
func (t *tree) find(dir uint32, name string) (uint32, bool) {
	s := t.slots[t.slot(dir, []byte(name))]
	return s - 1, s != 0
}

// insert gives node n the name dir/name, which must be free.
func (t *tree) insert(dir uint32, name string, n uint32) uint32 {
	if int(t.live)*4 >= len(t.slots)*3 {
		t.grow()
	}
	first := t.nodes.at(dir).data
	v := entry{name: t.bytes.add(name), nameLen: uint8(len(name)), node: n, dir: dir, next: first, prev: none}
	e := t.freeEntry
	if e == none {
		e = t.entries.add(v)
	} else {
		t.freeEntry = t.entries.at(e).next
		*t.entries.at(e) = v
	}
	if first != none {
		t.entries.at(first).prev = e
	}
	t.nodes.at(dir).data = e
	t.slots[t.slot(dir, []byte(name))] = e + 1
	t.live++
	t.named(e)
	return e
}

// named tells a directory which entry names it.
func (t *tree) named(e uint32) {
	if n := t.nodes.at(t.entries.at(e).node); n.isDir() {
		n.more = e
	}
}

func (t *tree) grow() {
	old := t.slots
	t.slots = make([]uint32, 2*len(old))
	for _, s := range old {
		if s != 0 {
			e := t.entries.at(s - 1)
			t.slots[t.slot(e.dir, t.nameOf(e))] = s
		}
	}
}

// remove takes an entry away, and all that is only reached through it.
func (t *tree) remove(e uint32) {
	n := t.entries.at(e).node
	t.unlink(e)
	t.drop(n)
}

// replace makes an entry name another node.
func (t *tree) replace(e, n uint32) {
	old := t.entries.at(e).node
	t.entries.at(e).node = n
	t.named(e)
	t.drop(old)
}

// unlink takes an entry out of its directory's list and out of slots.
func (t *tree) unlink(e uint32) {
	v := t.entries.at(e)
	if v.prev != none {
		t.entries.at(v.prev).next = v.next
	} else {
		t.nodes.at(v.dir).data = v.next
	}
	if v.next != none {
		t.entries.at(v.next).prev = v.prev
	}
	t.forget(e)
}

// forget takes an entry out of slots and gives it free. Those behind it that would
// not be found any more move up.
func (t *tree) forget(e uint32) {
	v := t.entries.at(e)
	mask := len(t.slots) - 1
	hole := t.slot(v.dir, t.nameOf(v))
	for i := (hole + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		other := t.entries.at(t.slots[i] - 1)
		home := t.home(other.dir, t.nameOf(other))
		if (i-home)&mask >= (i-hole)&mask {
			t.slots[hole] = t.slots[i]
			hole = i
		}
	}
	t.slots[hole] = 0
	*v = entry{next: t.freeEntry}
	t.freeEntry = e
	t.live--
}

// drop takes a name from node n, of a directory all below it too.
func (t *tree) drop(n uint32) {
	stack := []uint32{n}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		v := t.nodes.at(i)
		if v.links--; v.links > 0 {
			continue
		}
		if v.isDir() {
			for e := v.data; e != none; {
				next := t.entries.at(e).next
				stack = append(stack, t.entries.at(e).node)
				t.forget(e)
				e = next
			}
		}
		*v = node{data: t.freeNode}
		t.freeNode = i
	}
}

// parent returns the directory in which a directory lies; of the root, itself.
func (t *tree) parent(dir uint32) uint32 {
	if dir == rootNode {
		return rootNode
	}
	return t.entries.at(t.nodes.at(dir).more).dir
}
