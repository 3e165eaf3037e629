package squashfs

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// CheckOptions say what Check does. The zero value checks everything.
type CheckOptions struct {
	SkipData    bool // do not decode data blocks and fragments
	MaxProblems int  // how many problems to report before giving up; 0 means 20
}

const (
	defaultProblems = 20
	// Check holds 4 bytes for an inode and for a fragment; a small hostile image
	// may have very many.
	maxChecked = 1 << 26
	// It remembers that many data blocks as done; of those beyond it may decode one
	// more than once.
	maxCheckedBlocks = 1 << 22
)

// Check proves that an image keeps the rules of its format:
//
//   - every table can be decoded, and its blocks follow each other;
//   - the inode table has exactly the inodes that the superblock counts, with the
//     numbers from 1 on, each once, and the export table leads to each;
//   - every inode is reached from the root, by as many names as it says; no
//     directory is reached twice, and each says rightly what it lies in;
//   - names are sorted and directory indexes lead to where they should;
//   - all indices of ids, fragments and xattrs are in range, xattrs can be read;
//   - every data block and fragment lies within the data and decodes to the length
//     that its files want. The format has no checksums: that the content is what was
//     once written cannot be proved.
//
// Problems are joined in the order found, at most MaxProblems; each wraps
// ErrCorrupt and names a path or an inode. Other errors, of reading and of ctx, end the
// check at once. Memory is bounded: about 5 bytes an inode and 24 a data block.
func Check(ctx context.Context, r *Reader, o CheckOptions) error {
	if o.MaxProblems <= 0 {
		o.MaxProblems = defaultProblems
	}
	c := &checker{ctx: ctx, r: r, o: o}
	err := c.run()
	if err == errEnough {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("check image: %w", err)
	}
	if len(c.problems) > 0 {
		return fmt.Errorf("check image: %w", errors.Join(c.problems...))
	}
	return nil
}

type checker struct {
	ctx context.Context // of the one call of Check that this is
	r   *Reader
	o   CheckOptions

	listings uint64   // bytes that the listings of directories can yet have
	names    []uint32 // by inode number - 1: how many names lead to it
	fragEnd  []uint32 // by fragment: how many bytes files want of it

	mu       sync.Mutex // guards problems
	problems []error
}

var errEnough = errors.New("enough problems")

// problem notes err if it is about the image; else, and when there are enough, it
// returns an error, which ends the check.
func (c *checker) problem(err error) error {
	if err == nil || err == errEnough {
		return err
	}
	if !errors.Is(err, ErrCorrupt) {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.problems) >= c.o.MaxProblems {
		return errEnough
	}
	c.problems = append(c.problems, err)
	if len(c.problems) >= c.o.MaxProblems {
		return errEnough
	}
	return nil
}

// run makes the steps in an order in which each may rely on those before.
func (c *checker) run() error {
	r := c.r
	for _, t := range []*lookupTable{&r.fragTable, &r.exportTable, &r.xattrIDTab} {
		if err := c.lookup(t); err != nil {
			return err
		}
	}
	// Only now is it known how many there are.
	n, err := c.countInodes()
	if err != nil {
		return err
	}
	if n != uint64(r.sb.Inodes) {
		return c.problem(corrupt("the inode table has %d inodes, the superblock says %d", n, r.sb.Inodes))
	}
	if n > maxChecked || r.sb.Fragments > maxChecked {
		return fmt.Errorf("%w: %d inodes and %d fragments, more than %d are not checked",
			ErrUnsupported, n, r.sb.Fragments, maxChecked)
	}
	if c.listings, err = r.dirBytes(c.ctx); err != nil {
		return c.problem(err)
	}
	c.names = make([]uint32, n)
	c.fragEnd = make([]uint32, r.fragTable.n)
	if err := c.walk(); err != nil {
		return err
	}
	if err := c.xattrs(); err != nil {
		return err
	}
	return c.content()
}

// lookup checks that the blocks of a lookup table follow each other, and that
// all of them can be decoded and have the records that they should.
func (c *checker) lookup(t *lookupTable) error {
	if t.n == 0 {
		return nil
	}
	end := t.first
	per := uint32(metaSize / t.size)
	for i := uint32(0); i <= (t.n-1)/per; i++ {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		pos, err := c.r.place(t, i)
		if err == nil && pos < end {
			err = corrupt("%s table: block %d at %d, the one before ends at %d", t.name, i, pos, end)
		}
		if err != nil {
			return c.problem(err) // the rest would say the same again
		}
		b, err := c.r.readMeta(pos, t.end)
		if err == nil {
			end = pos + uint64(b.disk)
			if want := int(min(per, t.n-i*per)) * t.size; len(b.data) != want {
				err = corrupt("block at %d has %d bytes, want %d", pos, len(b.data), want)
			}
			b.release()
		}
		if err != nil {
			if err := c.problem(fmt.Errorf("%s table: %w", t.name, err)); err != nil {
				return err
			}
		}
	}
	return nil
}

// countInodes decodes the whole inode table.
func (c *checker) countInodes() (n uint64, err error) {
	err = c.scan(func(*Inode, Ref) error { n++; return nil })
	return n, err
}

// scan calls f with every inode in the order of the table.
func (c *checker) scan(f func(i *Inode, ref Ref) error) error {
	cur := c.r.cursor(&c.r.inodeTable, 0, 0)
	defer cur.release()
	for !cur.atEnd() {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		ref := cur.ref()
		i, err := c.r.parseInode(&cur)
		if err == nil {
			err = c.r.skipTail(&cur, &i)
		}
		if err != nil {
			// Where the next one begins cannot be known.
			if err := c.problem(fmt.Errorf("inode at %#x: %w", uint64(ref), err)); err != nil {
				return err
			}
			return errEnough
		}
		if err := f(&i, ref); err != nil {
			return err
		}
	}
	return nil
}

// skipTail goes from behind an inode's fixed part to the next inode.
func (r *Reader) skipTail(c *metaCursor, i *Inode) error {
	switch i.Type {
	case TypeSymlink:
		if i.extended {
			return nil // parseInode was there
		}
		return c.skip(i.Size)
	case TypeFile:
		return c.skip(4 * r.blockCount(i))
	case TypeDir:
		for range i.dirIndex {
			b, err := c.read(dirIndexSize)
			if err != nil {
				return err
			}
			if err := c.skip(uint64(le.Uint32(b[8:])) + 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// xattrs decodes every set.
func (c *checker) xattrs() error {
	for n := range c.r.xattrIDTab.n {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		set, err := c.r.xattrSet(n)
		if err == nil {
			seen := make(map[string]bool, len(set))
			for _, x := range set {
				if seen[x.Name] {
					err = corrupt("%q is there twice", x.Name)
				}
				seen[x.Name] = true
			}
		}
		if err != nil {
			if err := c.problem(fmt.Errorf("xattrs %d: %w", n, err)); err != nil {
				return err
			}
		}
	}
	return nil
}

// inode checks what follows from one inode and from what the walk found.
func (c *checker) inode(i *Inode, ref Ref, seen bitmap) error {
	if !seen.set(i.Number - 1) {
		return corrupt("another inode has the same number")
	}
	if c.r.exportable() {
		if at, err := c.r.exported(i.Number); err != nil {
			return err
		} else if at != ref {
			return corrupt("it lies at %#x, the export table says %#x", uint64(ref), uint64(at))
		}
	}
	names := c.names[i.Number-1]
	if names == 0 {
		return corrupt("no path leads to it")
	}
	if i.Type != TypeDir && names != i.Links {
		return corrupt("it has %d names and says %d", names, i.Links)
	}
	if i.Type == TypeSymlink {
		_, err := c.r.ReadLink(*i)
		return err
	}
	return nil
}

type bitmap []uint64

func newBitmap(n uint32) bitmap { return make(bitmap, (uint64(n)+63)/64) }

// set sets a bit, and says whether it was clear.
func (b bitmap) set(i uint32) bool {
	was := b[i/64]&(1<<(i%64)) != 0
	b[i/64] |= 1 << (i % 64)
	return !was
}
