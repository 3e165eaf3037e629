package rootfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Every container of an image reads the same files when it starts: the loader, the C
// library, the shell, the interpreter. Each has a server of its own, whose mount's pages
// nobody shares, so that they would be decompressed each time. Therefore the first
// containers note what they read, and leave it, decompressed, in a file beside the
// index. It is a cache: who has none, or a wrong one, reads the layers.
//
// The file is little endian: a head of 64 bytes (magic, number of entries, number of the
// index's inodes), entries of 16 bytes sorted by inode and block (inode, block of the
// file, position and size here), and the blocks.
const (
	hotMagic = "GWHOT\x00\x00\x01"
	hotHead  = 64
	hotEntry = 16
	hotBlock = 128 << 10 // of a file; the last one is shorter
	hotMost  = 16 << 20  // bytes of blocks in a file
	hotFor   = 5 * time.Second
)

// hot is such a file, mapped.
type hot struct {
	b     []byte
	count int
}

// openHot maps a file that was made for an index with so many inodes.
func openHot(name string, inodes uint32) (*hot, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	size := st.Size()
	if size < hotHead || size > 2*hotMost {
		return nil, fmt.Errorf("open %s: it has %d bytes", name, size)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	h := &hot{b: b, count: int(binary.LittleEndian.Uint32(b[8:]))}
	if string(b[:8]) != hotMagic || binary.LittleEndian.Uint32(b[12:]) != inodes || int64(h.count) > (size-hotHead)/hotEntry {
		return nil, errors.Join(fmt.Errorf("open %s: it is of another index", name), h.close())
	}
	return h, nil
}

func (h *hot) close() error { return unix.Munmap(h.b) }

// key orders entries.
func (h *hot) key(n int) uint64 {
	e := h.b[hotHead+n*hotEntry:]
	return hotKey(binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:]))
}

func hotKey(inode, block uint32) uint64 { return uint64(inode)<<32 | uint64(block) }

// find returns the first entry that is not before a key.
func (h *hot) find(key uint64) int {
	low, high := 0, h.count
	for low < high {
		if mid := (low + high) / 2; h.key(mid) < key {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// place returns where a block lies.
func (h *hot) place(n int) (pos, size uint64) {
	e := h.b[hotHead+n*hotEntry:]
	return uint64(binary.LittleEndian.Uint32(e[8:])), uint64(binary.LittleEndian.Uint32(e[12:]))
}

// span returns what a file has from off on, at most most bytes, in the mapping, if all
// of that is here: less only at the end of the file. Blocks of a file that follow each
// other lie behind each other.
func (h *hot) span(inode uint32, off int64, most int) ([]byte, bool) {
	block := uint32(off / hotBlock)
	n := h.find(hotKey(inode, block))
	begin, end := uint64(0), uint64(0)
	for want := uint64(off%hotBlock) + uint64(most); n < h.count && h.key(n) == hotKey(inode, block); n, block = n+1, block+1 {
		pos, size := h.place(n)
		if size > hotBlock || pos+size > uint64(len(h.b)) || end != 0 && pos != end {
			return nil, false
		}
		if end == 0 {
			begin = pos
		}
		end = pos + size
		if end-begin >= want || size < hotBlock {
			from := min(begin+uint64(off%hotBlock), end)
			to := min(from+uint64(most), end)
			return h.b[from:to:to], true
		}
	}
	return nil, false
}

// trace notes which blocks are read in the first seconds.
type trace struct {
	on    atomic.Bool
	until time.Time

	mu     sync.Mutex
	blocks map[uint64]bool
}

// note notes a read that was answered from the layers.
func (t *trace) note(inode uint32, off int64, n int) {
	if n == 0 || !t.on.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.blocks) >= hotMost/hotBlock || time.Now().After(t.until) {
		t.on.Store(false)
		return
	}
	for b := off / hotBlock; b <= (off+int64(n)-1)/hotBlock; b++ {
		t.blocks[hotKey(inode, uint32(b))] = true
	}
}

// UseHot has the Tree read what is in the named file from there, and note what is not.
// It must be called before the Tree is served, once. A file that is not there, or is of
// no use, is no error: CloseHot makes it.
func (t *Tree) UseHot(name string) {
	t.hotName = name
	t.hot, _ = openHot(name, t.ix.NumInodes()) // else it is made again
	t.trace.blocks = map[uint64]bool{}
	t.trace.until = time.Now().Add(hotFor)
	t.trace.on.Store(true)
}

// CloseHot ends the use of the file, and writes it anew if much was read that is not in
// it. The Tree may not be served any more.
func (t *Tree) CloseHot(ctx context.Context) error {
	if t.hotName == "" {
		return nil
	}
	t.trace.on.Store(false)
	var err error
	had := 0
	if t.hot != nil {
		had = t.hot.count
	}
	if fresh := len(t.trace.blocks); fresh > had/8 && had < hotMost/hotBlock {
		err = fsx.WriteFile(ctx, t.hotName, fsx.Options{Mode: 0o600}, func(f *os.File) error { return t.writeHot(ctx, f) })
	}
	if t.hot != nil {
		err = errors.Join(err, t.hot.close())
		t.hot = nil
	}
	if err != nil {
		return fmt.Errorf("keep what containers read when they start: %w", err)
	}
	return nil
}

// writeHot writes what the file had and what was noted.
func (t *Tree) writeHot(ctx context.Context, w io.Writer) error {
	var keys []uint64
	if t.hot != nil {
		for n := range t.hot.count {
			keys = append(keys, t.hot.key(n))
		}
	}
	for k := range t.trace.blocks {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	keys = keys[:min(len(keys), hotMost/hotBlock)]

	var head, data bytes.Buffer
	buffer := make([]byte, hotBlock)
	le := binary.LittleEndian
	for _, k := range keys {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		inode, block := uint32(k>>32), uint32(k)
		n, err := t.readAt(inode, buffer, int64(block)*hotBlock)
		if err != nil {
			return err
		}
		var e [hotEntry]byte
		le.PutUint32(e[:], inode)
		le.PutUint32(e[4:], block)
		le.PutUint32(e[8:], uint32(hotHead+len(keys)*hotEntry+data.Len()))
		le.PutUint32(e[12:], uint32(n))
		head.Write(e[:])
		data.Write(buffer[:n])
	}
	top := make([]byte, hotHead)
	copy(top, hotMagic)
	le.PutUint32(top[8:], uint32(len(keys)))
	le.PutUint32(top[12:], t.ix.NumInodes())
	for _, b := range [][]byte{top, head.Bytes(), data.Bytes()} {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
