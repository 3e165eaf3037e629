package squashfs

import (
	"fmt"
	"sync"
)

// dataBlock is a data block or fragment to be decoded.
type dataBlock struct {
	pos       uint64
	size      uint32
	low, high int    // bytes that it must have
	of        uint32 // inode, or fragment
	fragment  bool
}

type dataKey struct {
	pos  uint64
	size uint32
	low  int32
}

// content checks every inode, block list and fragment; data is decoded by workers.
func (c *checker) content() error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards bad
		bad  error      // the first that ends the check
		done = map[dataKey]struct{}{}
		jobs = make(chan dataBlock, 4*c.r.workers)
		stop = make(chan struct{})
		once sync.Once
	)
	for range c.r.workers {
		wg.Go(func() {
			buf := make([]byte, c.r.sb.BlockSize, c.r.sb.BlockSize+decodeSlack)
			for b := range jobs {
				if err := c.problem(c.decode(&b, buf)); err != nil {
					mu.Lock()
					bad = err
					mu.Unlock()
					once.Do(func() { close(stop) })
					return
				}
			}
		})
	}
	submit := func(b dataBlock) error {
		k := dataKey{b.pos, b.size, int32(b.low)}
		if _, ok := done[k]; ok || c.o.SkipData {
			return nil
		}
		if len(done) < maxCheckedBlocks {
			done[k] = struct{}{}
		}
		select {
		case jobs <- b:
			return nil
		case <-stop:
			return errEnough
		case <-c.ctx.Done():
			return c.ctx.Err()
		}
	}
	seen := newBitmap(c.r.sb.Inodes)
	err := c.scan(func(i *Inode, ref Ref) error {
		if err := c.inode(i, ref, seen); err != nil {
			return c.problem(fmt.Errorf("%s %d: %w", i.Type, i.Number, err))
		}
		if i.Type == TypeFile {
			return c.file(i, submit)
		}
		return nil
	})
	if err == nil {
		err = c.fragments(submit)
	}
	close(jobs)
	wg.Wait()
	if bad != nil && bad != errEnough {
		return bad
	}
	return err
}

// file checks a file's block list and hands its blocks on.
func (c *checker) file(i *Inode, submit func(dataBlock) error) error {
	bs := uint64(c.r.sb.BlockSize)
	if tail := i.Size % bs; i.fragment != none32 && tail > 0 {
		c.fragEnd[i.fragment] = max(c.fragEnd[i.fragment], i.fragOffset+uint32(tail))
	}
	pos, left := i.start, i.Size
	for size, err := range c.r.blockSizes(*i) {
		want := min(bs, left)
		left -= want
		if err == nil && size != 0 {
			if err = c.r.checkBlock(pos, size); err == nil {
				// A block in the middle may be short: what it lacks is zero.
				low := 1
				if want < bs {
					low = int(want)
				}
				if err := submit(dataBlock{pos: pos, size: size, low: low, high: int(want), of: i.Number}); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return c.problem(fmt.Errorf("file %d at offset %d: %w", i.Number, i.Size-left-want, err))
		}
		pos += uint64(size & blockSizeMask)
		if err := c.ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) fragments(submit func(dataBlock) error) error {
	for n := range c.r.fragTable.n {
		pos, size, err := c.r.fragmentEntry(n)
		if err == nil {
			err = c.r.checkBlock(pos, size)
		}
		if err != nil {
			if err := c.problem(fmt.Errorf("fragment %d: %w", n, err)); err != nil {
				return err
			}
			continue
		}
		b := dataBlock{pos: pos, size: size, low: max(1, int(c.fragEnd[n])), high: int(c.r.sb.BlockSize), of: n, fragment: true}
		if err := submit(b); err != nil {
			return err
		}
	}
	return nil
}

// decode proves that a block has the right length.
func (c *checker) decode(b *dataBlock, buf []byte) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	n, err := c.r.loadData(b.pos, b.size, buf[:b.high])
	if err == nil && n < b.low {
		err = corrupt("data block at %d has %d bytes, want %d", b.pos, n, b.low)
	}
	if err == nil {
		return nil
	}
	if b.fragment {
		return fmt.Errorf("fragment %d: %w", b.of, err)
	}
	return fmt.Errorf("file %d: %w", b.of, err)
}
