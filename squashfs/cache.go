package squashfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
)

const (
	// A slab holds slots of one size. It has room for the largest data block, so
	// that any slab can serve any image, and a page for the slack of its slots.
	slabContent = maxBlockSize
	slabSize    = slabContent + 4096
	// Two at least: metadata and data must not evict each other forever.
	minSlabs     = 2
	defaultCache = 16 << 20

	slotClasses  = 8 // 8 KiB, 16 KiB, ... 1 MiB
	minSlotShift = 13
)

// Cache keeps decoded blocks, of data and of metadata, in memory outside the Go
// heap: the garbage collector need not look at it, and a fork does not copy its
// page tables. One Cache may serve many Readers, which then share its bytes; they
// never see each other's blocks. It is safe for concurrent use.
//
// The memory is one mapping, cut into slabs of 1 MiB. A slab holds slots of one
// of eight sizes, and each size has a list of its slots by last use. A block goes
// into a free slot of its size, else into a slab that nobody uses yet, else it
// replaces the oldest block of its size; but where a whole slab of another size
// was last used before that block, the slab changes its size. So the split
// between metadata and data follows the use. A slot that is being read is pinned
// and stays as it is; where every slot is pinned, a block lives on the heap for
// the time of one call.
type Cache struct {
	bytes int                // length of the mapping
	unmap func([]byte) error // frees it

	scratch scratch

	mu      sync.Mutex // guards all below, and the slots and slabs
	mem     []byte     // the mapping; nil once closed
	idle    sync.Cond  // signalled when the last pin of a closed cache goes
	closed  bool
	pins    int
	tick    uint64 // counts uses, to order them
	readers uint64 // how many ids were given out
	slots   map[blockKey]*slot
	slabs   []*slab
	unused  int // slabs that were never cut; the last ones
	classes [slotClasses]slotClass
}

// blockKey names a decoded block. The size is part of it because a hostile image
// may have a data block and a metadata block, or two sizes, at one position.
type blockKey struct {
	reader uint64 // never given out twice
	pos    uint64 // where the block begins in the image
	size   uint32 // a data block's size as stored, or keyMeta
}

// keyMeta as the size of a blockKey: a metadata block. No data block has it.
const keyMeta = 0xFFFFFFFF

type slotClass struct {
	free *slot // linked by next
	// The slots that hold a block and are not pinned, a ring: next of the root is
	// the one used last, prev the oldest.
	used slot
}

type slab struct {
	mem   []byte
	class int
	slots []slot
	pins  int
	tick  uint64 // last use of any of its slots
}

type slot struct {
	slab       *slab
	data       []byte // as long as the class says
	key        blockKey
	n          int      // bytes of the block
	disk       int      // bytes that it takes in the image, with its header
	pins       int      // users, and the loader
	tick       uint64   // last use; 0 if it is spent
	loading    *loading // nil unless it is being filled
	known      bool     // the map has it
	next, prev *slot
}

// loading is what those wait for who want a block that another one loads.
type loading struct {
	done chan struct{}
	err  error
}

// blockLoader reads the block that a key names into dst, and says how long it is,
// decoded and in the image.
type blockLoader interface {
	loadBlock(k blockKey, dst []byte) (n, disk int, err error)
}

// block is a decoded block in use. Its bytes are valid until release.
type block struct {
	data []byte
	disk int
	c    *Cache
	s    *slot // nil where the block lives on the heap
}

// NewCache returns a cache of the given size in bytes, rounded up to whole MiB
// and at least 2 MiB; it takes 4 KiB more for each. Close frees it.
func NewCache(bytes int64) (*Cache, error) {
	if bytes < 0 || bytes > 1<<46 {
		return nil, fmt.Errorf("make cache of %d bytes: %w", bytes, fs.ErrInvalid)
	}
	n := max((bytes+slabContent-1)/slabContent, minSlabs) * slabSize
	mem, err := mapMemory(int(n))
	if err != nil {
		return nil, fmt.Errorf("make cache of %d bytes: %w", bytes, err)
	}
	return newCacheOn(mem, unmapMemory), nil
}

func newCacheOn(mem []byte, unmap func([]byte) error) *Cache {
	c := &Cache{bytes: len(mem), unmap: unmap, mem: mem, unused: len(mem) / slabSize, slots: make(map[blockKey]*slot)}
	c.idle.L = &c.mu
	for i := range c.classes {
		u := &c.classes[i].used
		u.next, u.prev = u, u
	}
	return c
}

// Close frees the memory. It waits for calls that read from the cache; calls
// that come later, also those of Readers, give fs.ErrClosed.
func (c *Cache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	for c.pins > 0 {
		c.idle.Wait()
	}
	mem := c.mem
	c.mem, c.slabs, c.slots = nil, nil, nil
	c.classes = [slotClasses]slotClass{}
	if err := c.unmap(mem); err != nil {
		return fmt.Errorf("close cache: %w", err)
	}
	return nil
}

func (c *Cache) newReader() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readers++
	return c.readers
}

// get returns the block k, of up to limit bytes, loading it if need be; several that
// want it at once load it once.
func (c *Cache) get(l blockLoader, k blockKey, limit int) (block, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return block{}, fs.ErrClosed
	}
	if s := c.slots[k]; s != nil {
		return c.await(s)
	}
	s := c.reserve(k, limit)
	c.mu.Unlock()
	if s == nil {
		buf := make([]byte, limit, limit+decodeSlack)
		n, disk, err := l.loadBlock(k, buf)
		if err != nil {
			return block{}, err
		}
		return block{data: buf[:n], disk: disk}, nil
	}
	return c.fill(l, s, limit)
}

// begin takes a slot for a block that is to be filled soon, and makes those wait
// who want it. It returns nil where the block is there or there is no slot.
func (c *Cache) begin(k blockKey, limit int) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.slots[k] != nil {
		return nil
	}
	return c.reserve(k, limit)
}

// reserve returns a pinned slot that counts as being loaded, or nil. It needs the
// lock.
func (c *Cache) reserve(k blockKey, limit int) *slot {
	s := c.take(classOf(limit))
	if s != nil {
		s.key, s.known, s.loading = k, true, &loading{done: make(chan struct{})}
		c.slots[k] = s
		c.pin(s)
	}
	return s
}

// await returns a block that the map has, and unlocks.
func (c *Cache) await(s *slot) (block, error) {
	c.pin(s)
	load := s.loading
	c.mu.Unlock()
	if load != nil {
		<-load.done
		if load.err != nil {
			c.unpin(s, false)
			return block{}, load.err
		}
	}
	return block{data: s.data[:s.n], disk: s.disk, c: c, s: s}, nil
}

var errLoadPanicked = errors.New("reading the block panicked")

// fill loads a reserved slot.
func (c *Cache) fill(l blockLoader, s *slot, limit int) (block, error) {
	err := errLoadPanicked // unless the loader returns
	var n, disk int
	defer func() {
		c.mu.Lock()
		load := s.loading
		s.n, s.disk, s.loading, load.err = n, disk, nil, err
		if err != nil {
			delete(c.slots, s.key)
			s.known = false
		}
		c.mu.Unlock()
		close(load.done)
		if err != nil {
			c.unpin(s, false)
		}
	}()
	n, disk, err = l.loadBlock(s.key, s.data[:limit])
	if err != nil {
		return block{}, err
	}
	return block{data: s.data[:n], disk: disk, c: c, s: s}, nil
}

// peek is get for a block that is there or is being loaded already; ok is false
// where it is not.
func (c *Cache) peek(k blockKey) (b block, ok bool, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return block{}, false, fs.ErrClosed
	}
	s := c.slots[k]
	if s == nil {
		c.mu.Unlock()
		return block{}, false, nil
	}
	b, err = c.await(s)
	return b, true, err
}

// release ends the use of a block.
func (b *block) release() {
	if b.s != nil {
		b.c.unpin(b.s, false)
	}
	*b = block{}
}

// releaseSpent is release for a block that will hardly be wanted again: it is
// the first to be replaced.
func (b *block) releaseSpent() {
	if b.s != nil {
		b.c.unpin(b.s, true)
	}
	*b = block{}
}

// pin needs the lock.
func (c *Cache) pin(s *slot) {
	if s.pins == 0 && s.prev != nil {
		s.unlink()
	}
	c.tick++
	s.tick, s.slab.tick = c.tick, c.tick
	s.pins++
	s.slab.pins++
	c.pins++
}

func (c *Cache) unpin(s *slot, spent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.pins--
	s.slab.pins--
	c.pins--
	if c.closed {
		if c.pins == 0 {
			c.idle.Broadcast()
		}
		return
	}
	if s.pins > 0 {
		return
	}
	cl := &c.classes[s.slab.class]
	switch {
	case !s.known:
		s.next, cl.free = cl.free, s
	case spent:
		s.tick = 0
		s.linkBehind(cl.used.prev)
	default:
		s.linkBehind(&cl.used)
	}
}

func (s *slot) unlink() {
	s.prev.next, s.next.prev = s.next, s.prev
	s.prev, s.next = nil, nil
}

func (s *slot) linkBehind(p *slot) {
	s.prev, s.next = p, p.next
	p.next.prev = s
	p.next = s
}

// classOf returns the class of the smallest slots that hold n bytes.
func classOf(n int) int {
	class := 0
	for n > 1<<(minSlotShift+class) {
		class++
	}
	return class
}

// take returns a slot of the class that holds nothing and is on no list, or nil
// if all are pinned. It needs the lock.
func (c *Cache) take(class int) *slot {
	cl := &c.classes[class]
	if cl.free == nil && c.unused > 0 {
		at := len(c.slabs) * slabSize
		sb := &slab{mem: c.mem[at : at+slabSize : at+slabSize]}
		c.slabs = append(c.slabs, sb)
		c.unused--
		c.cut(sb, class)
	}
	if cl.free == nil {
		oldest := cl.used.prev
		if sb := c.stealable(class); sb != nil && (oldest == &cl.used || sb.tick < oldest.tick) {
			c.clear(sb)
			c.cut(sb, class)
		} else if oldest != &cl.used {
			oldest.unlink()
			c.forget(oldest)
			return oldest
		}
	}
	s := cl.free
	if s != nil {
		cl.free, s.next = s.next, nil
	}
	return s
}

// stealable returns the slab of other classes that was used longest ago, of
// those without a pin.
func (c *Cache) stealable(class int) *slab {
	var best *slab
	for _, sb := range c.slabs {
		if sb.class != class && sb.pins == 0 && (best == nil || sb.tick < best.tick) {
			best = sb
		}
	}
	return best
}

// clear takes the slots of a slab without pins off all lists.
func (c *Cache) clear(sb *slab) {
	for i := range sb.slots {
		s := &sb.slots[i]
		if s.known {
			s.unlink()
			c.forget(s)
		}
	}
	cl := &c.classes[sb.class]
	for p := &cl.free; *p != nil; {
		if (*p).slab == sb {
			*p = (*p).next
		} else {
			p = &(*p).next
		}
	}
}

func (c *Cache) forget(s *slot) {
	delete(c.slots, s.key)
	s.known = false
}

// cut makes free slots of a slab.
func (c *Cache) cut(sb *slab, class int) {
	size := 1 << (minSlotShift + class)
	sb.class = class
	sb.slots = make([]slot, slabContent/size)
	cl := &c.classes[class]
	for i := range sb.slots {
		s := &sb.slots[i]
		at := i * (size + decodeSlack)
		s.slab, s.data = sb, sb.mem[at:at+size:at+size+decodeSlack]
		s.next, cl.free = cl.free, s
	}
}
