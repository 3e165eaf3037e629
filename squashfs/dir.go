package squashfs

import (
	"bytes"
	"fmt"
	"io/fs"
	"iter"
)

// DirEntry is one entry of a directory.
type DirEntry struct {
	Name   string // 1 to 255 bytes, any but '/' and 0
	Type   Type
	Number uint32 // of the inode
	Ref    Ref    // where the inode lies
	Next   DirPos // the position behind the entry
}

// DirPos is a position in a directory's listing: 0 is the start, others come from
// DirEntry.Next. It means the same in every Reader of the same image.
type DirPos uint64

// A position is the offset of a header in the listing, which has 32 bits, and how
// many entries of its run are behind.
const dirPosBits = 9

// ReadDir yields the entries of a directory in their order on disk, bytewise by
// name, without loading all of them. After an error it ends.
func (r *Reader) ReadDir(dir Inode) iter.Seq2[DirEntry, error] { return r.ReadDirFrom(dir, 0) }

// ReadDirFrom is ReadDir from a position on. It goes there by way of the blocks
// before it, which costs little where they are cached.
func (r *Reader) ReadDirFrom(dir Inode, pos DirPos) iter.Seq2[DirEntry, error] {
	return func(yield func(DirEntry, error) bool) {
		s := r.scanDir(&dir)
		err := s.seek(pos)
		// In lots, so that nothing is pinned while the caller works.
		var lot [32]DirEntry
		for err == nil {
			n := 0
			for n < len(lot) && err == nil {
				if err = s.next(); err == nil {
					lot[n] = s.entry()
					n++
				}
			}
			s.cur.release()
			for i := range n {
				if !yield(lot[i], nil) {
					return
				}
			}
		}
		s.cur.release()
		if err != errDirEnd {
			yield(DirEntry{}, fmt.Errorf("read directory %d: %w", dir.Number, err))
		}
	}
}

// Lookup returns the inode that a directory has under a name. It wraps
// fs.ErrNotExist where there is none. Of a subdirectory it proves that this is
// the directory which it says it lies in, so that no path leads into itself.
func (r *Reader) Lookup(dir Inode, name string) (Inode, error) {
	e, err := r.lookupEntry(&dir, name)
	if err != nil {
		return Inode{}, fmt.Errorf("look up %q in directory %d: %w", name, dir.Number, err)
	}
	return r.Child(dir, e)
}

// Child returns the inode of a directory's entry, with the proofs that Lookup
// makes. Who walks a tree uses it instead of Inode, and comes to an end also on an
// image made to be endless.
func (r *Reader) Child(dir Inode, e DirEntry) (Inode, error) {
	i, err := r.Inode(e.Ref)
	if err == nil {
		err = r.checkChild(&dir, &e, &i)
	}
	if err != nil {
		return Inode{}, fmt.Errorf("entry %q of directory %d: %w", e.Name, dir.Number, err)
	}
	return i, nil
}

func (r *Reader) checkChild(dir *Inode, e *DirEntry, i *Inode) error {
	if i.Type != e.Type || i.Number != e.Number {
		return corrupt("it names %s %d, but its inode is %s %d", e.Type, e.Number, i.Type, i.Number)
	}
	if i.Type != TypeDir {
		return nil
	}
	if i.Parent != dir.Number {
		return corrupt("directory %d lies in %d, as it says itself", i.Number, i.Parent)
	}
	if e.Ref == r.sb.Root {
		return corrupt("it is the root")
	}
	// Of two directories with one number, each could lie in the other.
	var ref Ref
	var err error
	if r.exportable() {
		ref, err = r.exported(i.Number)
	} else {
		ref, err = r.firstRef(i.Number, e.Ref)
	}
	if err == nil && ref != e.Ref {
		err = corrupt("directory %d is at %#x and at %#x", i.Number, uint64(ref), uint64(e.Ref))
	}
	return err
}

// firstRef returns where the directory of a number was first seen. It is for
// images without an export table, and remembers 12 bytes for each directory that
// is entered.
func (r *Reader) firstRef(n uint32, ref Ref) (Ref, error) {
	r.dirMu.Lock()
	defer r.dirMu.Unlock()
	if r.dirRefs == nil {
		root, err := r.Root()
		if err != nil {
			return 0, err
		}
		r.dirRefs = map[uint32]Ref{root.Number: r.sb.Root}
	}
	if first, ok := r.dirRefs[n]; ok {
		return first, nil
	}
	r.dirRefs[n] = ref
	return ref, nil
}

func (r *Reader) lookupEntry(dir *Inode, name string) (DirEntry, error) {
	if name == "" || len(name) > maxName {
		return DirEntry{}, fs.ErrNotExist
	}
	s := r.scanDir(dir)
	defer s.cur.release()
	if dir.Type == TypeDir && dir.dirIndex > 0 {
		if err := s.seekName(name); err != nil {
			return DirEntry{}, err
		}
	}
	for {
		switch err := s.next(); {
		case err == errDirEnd:
			return DirEntry{}, fs.ErrNotExist
		case err != nil:
			return DirEntry{}, err
		case string(s.name) == name:
			return s.entry(), nil
		case string(s.name) > name:
			return DirEntry{}, fs.ErrNotExist
		}
	}
}

// dirScanner reads a listing entry by entry.
type dirScanner struct {
	r    *Reader
	dir  *Inode
	cur  metaCursor
	done uint64 // bytes of the listing that are behind

	head   uint64 // offset in the listing of the current run's header
	headAt Ref    // where that lies in the directory table
	block  uint64 // of the run's inodes
	base   uint32 // from which the run's inode numbers count
	left   int    // entries of the run to come
	passed int    // and those behind

	// The current entry.
	offset int
	number uint32
	typ    Type
	name   []byte // in nameIn
	nameIn [maxName]byte
}

type dirEnd struct{}

func (dirEnd) Error() string { return "end of directory" }

var errDirEnd error = dirEnd{}

func (r *Reader) scanDir(dir *Inode) dirScanner {
	return dirScanner{r: r, dir: dir, cur: r.cursor(&r.dirTable, uint64(dir.dirBlock), int(dir.dirOffset))}
}

func (s *dirScanner) entry() DirEntry {
	return DirEntry{
		Name: string(s.name), Type: s.typ, Number: s.number, Ref: makeRef(s.block, s.offset),
		Next: DirPos(s.head<<dirPosBits | uint64(s.passed)),
	}
}

// next goes to the next entry; at the end it gives errDirEnd.
func (s *dirScanner) next() error {
	if s.dir.Type != TypeDir {
		return fmt.Errorf("it is a %s: %w", s.dir.Type, fs.ErrInvalid)
	}
	if s.left == 0 {
		if err := s.readHeader(); err != nil {
			return err
		}
	}
	b, err := s.take(dirEntrySize)
	if err != nil {
		return err
	}
	delta := int16(le.Uint16(b[2:]))
	diskType := le.Uint16(b[4:])
	size := int(le.Uint16(b[6:])) + 1
	s.offset, s.number, s.typ = int(le.Uint16(b)), s.base+uint32(int32(delta)), Type(diskType)
	if size > maxName {
		return corrupt("name of %d bytes at %d of the listing", size, s.done)
	}
	if diskType < uint16(TypeDir) || diskType > uint16(TypeSocket) {
		return corrupt("entry type %d at %d of the listing", diskType, s.done)
	}
	if s.number == 0 || s.number > s.r.sb.Inodes || s.offset >= metaSize {
		return corrupt("inode %d of %d, offset %d, at %d of the listing", s.number, s.r.sb.Inodes, s.offset, s.done)
	}
	if b, err = s.take(size); err != nil {
		return err
	}
	if err := checkEntryName(b); err != nil {
		return err
	}
	if bytes.Compare(s.name, b) >= 0 {
		return corrupt("name %q follows %q, it must sort before it", b, s.name)
	}
	s.name = s.nameIn[:copy(s.nameIn[:], b)]
	s.left--
	s.passed++
	return nil
}

func checkEntryName(b []byte) error {
	if string(b) == "." || string(b) == ".." || bytes.IndexByte(b, '/') >= 0 || bytes.IndexByte(b, 0) >= 0 {
		return corrupt("name %q", b)
	}
	return nil
}

func (s *dirScanner) readHeader() error {
	if s.done >= s.dir.Size {
		return errDirEnd
	}
	s.head, s.headAt = s.done, s.cur.ref()
	b, err := s.take(dirHeaderSize)
	if err != nil {
		return err
	}
	count := uint64(le.Uint32(b)) + 1
	s.block, s.base = uint64(le.Uint32(b[4:])), le.Uint32(b[8:])
	if count > dirMaxRun {
		return corrupt("run of %d entries at %d of the listing", count, s.head)
	}
	if s.block >= s.r.inodeTable.end-s.r.inodeTable.start {
		return corrupt("inodes in the block at %d, outside the inode table, at %d of the listing", s.block, s.head)
	}
	s.left, s.passed = int(count), 0
	return nil
}

// take returns the listing's next n bytes.
func (s *dirScanner) take(n int) ([]byte, error) {
	if uint64(n) > s.dir.Size-s.done {
		return nil, corrupt("listing of %d bytes ends within an entry", s.dir.Size)
	}
	b, err := s.cur.read(n)
	s.done += uint64(n)
	return b, err
}

// seek goes behind the entry that a position names.
func (s *dirScanner) seek(pos DirPos) error {
	head, passed := uint64(pos>>dirPosBits), int(pos&(1<<dirPosBits-1))
	if pos == 0 {
		return nil
	}
	if s.dir.Type != TypeDir || head > s.dir.Size || passed > dirMaxRun {
		return fmt.Errorf("position %#x: %w", uint64(pos), fs.ErrInvalid)
	}
	if err := s.cur.skip(head); err != nil {
		return err
	}
	s.done = head
	for s.passed < passed {
		if err := s.next(); err != nil {
			return err
		}
		if s.head != head {
			return fmt.Errorf("position %#x: %w", uint64(pos), fs.ErrInvalid)
		}
	}
	return nil
}

// seekName goes to the last run that the directory's index knows of whose names
// do not begin behind the given one.
func (s *dirScanner) seekName(name string) error {
	found := dirIndexEntry{}
	err := s.r.scanIndex(s.dir, func(e *dirIndexEntry, first []byte) bool {
		if string(first) > name {
			return false
		}
		found = *e
		return true
	})
	if err != nil || found.offset == 0 {
		return err
	}
	// The index knows the block; where in it the run begins follows from the
	// listing's offset, as blocks of a listing are all full.
	off := (uint64(s.dir.dirOffset) + uint64(found.offset)) % metaSize
	s.cur = s.r.cursor(&s.r.dirTable, uint64(found.block), int(off))
	s.done = uint64(found.offset)
	return nil
}

// scanIndex calls f with the entries of a directory's index, without their names,
// and with the first name of the run, which is valid during the call. It ends where f says false.
func (r *Reader) scanIndex(dir *Inode, f func(e *dirIndexEntry, first []byte) bool) error {
	c := r.cursor(&r.inodeTable, dir.tail.block(), dir.tail.offset())
	defer c.release()
	before := uint32(0)
	for range dir.dirIndex {
		b, err := c.read(dirIndexSize)
		if err != nil {
			return fmt.Errorf("index: %w", err)
		}
		e := dirIndexEntry{offset: le.Uint32(b), block: le.Uint32(b[4:])}
		size := uint64(le.Uint32(b[8:])) + 1
		if size > maxName || uint64(e.offset) >= dir.Size || e.offset < before {
			return corrupt("index: name of %d bytes for %d of the listing", size, e.offset)
		}
		before = e.offset
		if b, err = c.read(int(size)); err != nil {
			return fmt.Errorf("index: %w", err)
		}
		if !f(&e, b) {
			return nil
		}
	}
	return nil
}
