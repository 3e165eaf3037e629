package rootfs

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/merged"
)

// Every container of an image reads the same files when it starts: the loader, the C
// library, the shell, the interpreter. Each has a server of its own, whose mount's pages
// nobody shares, so that they would be decompressed each time. Therefore the first
// containers note what they read, and leave it, decompressed, in a file beside the
// index. It is a cache: who has none, or a wrong one, reads the layers.
//
// The file is little endian: a head of 64 bytes (magic, number of entries, CRC-32C of the
// head and the entries, where that is 0, and what tells the index from others), entries
// of 20 bytes sorted by inode and block (inode, block of the file, position and size
// here, CRC-32C), and the blocks.
//
// What is read from it was proved: head and entries when it is opened, a block when it is
// first used, by its checksum (128 KiB take 10 microseconds) and by its size, which the
// file's size in the index implies. CRC-32C finds what disks and networks do; who can
// forge it can write the store, and could as well write its layers' files.
const (
	hotMagic = "GWHOT\x00\x00\x02"
	hotHead  = 64
	hotSum   = 12 // where in the head the checksum is
	hotID    = 16 // where what tells the index begins
	hotEntry = 20
	hotBlock = 128 << 10 // of a file; the last one is shorter
	hotMost  = 16 << 20  // bytes of blocks in a file
	hotCount = hotMost / hotBlock
)

// hot is such a file, mapped. Any number of readers may use it at a time.
type hot struct {
	b       []byte
	info    fs.FileInfo
	ix      *merged.Index
	entries []hotPlace
	proved  [hotCount]atomic.Bool // of each entry
	bad     atomic.Bool           // a block was not what it was: nothing is read here any more
}

// hotPlace is an entry.
type hotPlace struct {
	key            uint64 // see hotKey
	pos, size, sum uint32
}

func hotKey(inode, block uint32) uint64 { return uint64(inode)<<32 | uint64(block) }

// errHot says that a file is not what it was, or was made for another index.
var errHot = errors.New("it is damaged, or of another index")

// hotOf tells an index from others: what it was made of, and how many inodes that gave.
func hotOf(ix *merged.Index) [32]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %d\n", ix.Image(), ix.NumInodes())
	for _, l := range ix.Layers() {
		fmt.Fprintf(h, "%q %q %d %d %d %d %d\n", l.Digest, l.Path, l.Size, l.ModTime, l.Inode, l.BlockSize, l.Compression)
	}
	return [32]byte(h.Sum(nil))
}

func hotCRC(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// openHot maps a file that was made for an index.
func openHot(name string, ix *merged.Index) (*hot, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := &hot{ix: ix}
	if h.info, err = f.Stat(); err != nil {
		return nil, err
	}
	if err := h.readEntries(f); err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	h.b, err = unix.Mmap(int(f.Fd()), 0, int(h.info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", name, err)
	}
	return h, nil
}

// readEntries reads all but the blocks.
func (h *hot) readEntries(r io.ReaderAt) error {
	size := h.info.Size()
	if !h.info.Mode().IsRegular() || size < hotHead || size > 2*hotMost {
		return fmt.Errorf("%w: it has %d bytes", errHot, size)
	}
	table := make([]byte, min(size, hotHead+hotCount*hotEntry))
	if _, err := r.ReadAt(table, 0); err != nil {
		return err
	}
	le := binary.LittleEndian
	id := hotOf(h.ix)
	count := int64(le.Uint32(table[8:]))
	begin := hotHead + count*hotEntry
	if string(table[:8]) != hotMagic || begin > int64(len(table)) || string(table[hotID:][:len(id)]) != string(id[:]) {
		return errHot
	}
	table = table[:begin]
	sum := le.Uint32(table[hotSum:])
	clear(table[hotSum:hotID])
	if hotCRC(table) != sum {
		return fmt.Errorf("%w: the checksum of its head is wrong", errHot)
	}
	h.entries = make([]hotPlace, count)
	for n := range h.entries {
		e := table[hotHead+n*hotEntry:]
		p := hotPlace{hotKey(le.Uint32(e), le.Uint32(e[4:])), le.Uint32(e[8:]), le.Uint32(e[12:]), le.Uint32(e[16:])}
		if int64(p.pos) < begin || int64(p.pos)+int64(p.size) > size || n > 0 && p.key <= h.entries[n-1].key {
			return fmt.Errorf("%w: entry %d is wrong", errHot, n)
		}
		h.entries[n] = p
	}
	return nil
}

func (h *hot) close() error {
	if h.b == nil {
		return nil
	}
	return unix.Munmap(h.b)
}

// span returns what a file has from off on, at most most bytes, in the mapping, if all
// of that is here: less only at the end of the file. Blocks of a file that follow each
// other lie behind each other.
func (h *hot) span(inode uint32, off int64, most int) ([]byte, bool) {
	if h.bad.Load() {
		return nil, false
	}
	block := uint32(off / hotBlock)
	n, ok := slices.BinarySearchFunc(h.entries, hotKey(inode, block), func(p hotPlace, key uint64) int { return cmp.Compare(p.key, key) })
	if !ok {
		return nil, false
	}
	begin, end := uint64(h.entries[n].pos), uint64(h.entries[n].pos)
	for want := uint64(off%hotBlock) + uint64(most); n < len(h.entries) && h.entries[n].key == hotKey(inode, block); n, block = n+1, block+1 {
		p := &h.entries[n]
		if uint64(p.pos) != end || !h.prove(n) {
			return nil, false
		}
		end += uint64(p.size)
		if end-begin >= want || p.size < hotBlock {
			from := min(begin+uint64(off%hotBlock), end)
			to := min(from+uint64(most), end)
			return h.b[from:to:to], true
		}
	}
	return nil, false
}

// prove says whether a block is what it was. It is asked once; after one that is not, the
// whole file counts as missing.
func (h *hot) prove(n int) bool {
	if h.proved[n].Load() {
		return true
	}
	if err := h.check(n); err != nil {
		h.bad.Store(true)
		return false
	}
	h.proved[n].Store(true)
	return true
}

// check says what is wrong with a block. A part of the file that cannot be read is.
func (h *hot) check(n int) (err error) {
	defer caught(debug.SetPanicOnFault(true), &err)
	p := &h.entries[n]
	inode, block := uint32(p.key>>32), uint32(p.key)
	i, err := h.ix.Inode(inode)
	if err != nil {
		return err
	}
	if rest := i.Size - int64(block)*hotBlock; kindOf(i.Mode) != File || rest <= 0 || int64(p.size) != min(rest, hotBlock) {
		return fmt.Errorf("%w: %d bytes for block %d of inode %d", errHot, p.size, block, inode)
	}
	if hotCRC(h.b[p.pos:][:p.size]) != p.sum {
		return fmt.Errorf("%w: the checksum of block %d of inode %d is wrong", errHot, block, inode)
	}
	return nil
}

// CheckHot proves all of a file for what containers of an image read when they start;
// see Tree.UseHot. IsHotDamage tells what is wrong with the file from other errors.
func CheckHot(name string, ix *merged.Index) error {
	h, err := openHot(name, ix)
	if err != nil {
		return err
	}
	for n := range h.entries {
		if err = h.check(n); err != nil {
			err = fmt.Errorf("check %s: %w", name, err)
			break
		}
	}
	return errors.Join(err, h.close())
}

// IsHotDamage says whether an error of CheckHot is the file's own.
func IsHotDamage(err error) bool { return errors.Is(err, errHot) || errors.Is(err, errMemory) }
