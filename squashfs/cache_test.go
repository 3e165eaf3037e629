package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

// fakeLoader gives blocks whose bytes follow from their key.
type fakeLoader struct {
	loads atomic.Int64
	fail  func(k blockKey) error
	wait  chan struct{} // if not nil, loads wait for it
}

func fakeBytes(k blockKey, p []byte) {
	for i := range p {
		p[i] = byte(k.pos) ^ byte(k.reader)<<4 ^ byte(i)
	}
}

func (l *fakeLoader) loadBlock(k blockKey, dst []byte) (int, int, error) {
	l.loads.Add(1)
	if l.wait != nil {
		<-l.wait
	}
	if l.fail != nil {
		if err := l.fail(k); err != nil {
			return 0, 0, err
		}
	}
	fakeBytes(k, dst)
	return len(dst), len(dst) / 2, nil
}

// heapCache is a cache whose memory the race detector watches.
func heapCache(mib int) *Cache {
	return newCacheOn(make([]byte, mib*slabSize), func([]byte) error { return nil })
}

// checkCache proves what always holds of a cache that nobody uses.
func checkCache(t *testing.T, c *Cache) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pins != 0 {
		t.Errorf("%d pins are left", c.pins)
	}
	known, listed, free, all := 0, 0, 0, 0
	for _, sb := range c.slabs {
		all += len(sb.slots)
		for i := range sb.slots {
			if s := &sb.slots[i]; s.known {
				known++
				if c.slots[s.key] != s {
					t.Errorf("slot of %v is lost", s.key)
				}
			}
		}
	}
	for i := range c.classes {
		cl := &c.classes[i]
		for s := cl.used.next; s != &cl.used; s = s.next {
			listed++
		}
		for s := cl.free; s != nil; s = s.next {
			free++
		}
	}
	if known != len(c.slots) || known != listed || listed+free != all {
		t.Errorf("%d blocks, %d in the map, %d in lists, %d free of %d", known, len(c.slots), listed, free, all)
	}
}

func TestCacheFollowsItsUse(t *testing.T) {
	c := heapCache(4)
	l := &fakeLoader{}
	get := func(pos uint64, size int) {
		t.Helper()
		k := blockKey{1, pos, uint32(size)}
		b, err := c.get(l, k, size)
		must(t, err)
		want := make([]byte, size)
		fakeBytes(k, want)
		if !bytes.Equal(b.data, want) || b.disk != size/2 {
			t.Fatalf("block %d is wrong", pos)
		}
		b.release()
	}
	// One size after the other may fill the cache.
	for _, size := range []int{metaSize, 1 << 20, 128 << 10, 4096, 1 << 20, metaSize} {
		n := 4 << 20 / max(size, metaSize)
		for range 2 {
			before := l.loads.Load()
			for pos := range n {
				get(uint64(pos), size)
			}
			if got := l.loads.Load() - before; got != 0 && got != int64(n) {
				t.Errorf("%d loads of %d blocks of %d bytes", got, n, size)
			}
		}
		before := l.loads.Load()
		for pos := range n {
			get(uint64(pos), size)
		}
		if l.loads.Load() != before {
			t.Errorf("blocks of %d bytes do not stay", size)
		}
		checkCache(t, c)
	}
	// The one used last stays, the oldest goes.
	for pos := range 100 {
		get(uint64(1000+pos), 1<<20)
		before := l.loads.Load()
		get(1000, 1<<20)
		if l.loads.Load() != before {
			t.Fatalf("after %d others the block that is always used is gone", pos)
		}
	}
	must(t, c.Close())
}

func TestCacheLoadsOnce(t *testing.T) {
	c := heapCache(2)
	l := &fakeLoader{wait: make(chan struct{})}
	var wg sync.WaitGroup
	var started sync.WaitGroup
	for range 20 {
		started.Add(1)
		wg.Go(func() {
			started.Done()
			b, err := c.get(l, blockKey{1, 7, 0}, metaSize)
			if err != nil {
				t.Error(err)
			}
			b.release()
		})
	}
	started.Wait()
	close(l.wait)
	wg.Wait()
	if n := l.loads.Load(); n != 1 {
		t.Errorf("%d loads", n)
	}
	checkCache(t, c)
}

func TestCacheForgetsFailures(t *testing.T) {
	c := heapCache(2)
	bad := errors.New("bad")
	l := &fakeLoader{fail: func(blockKey) error { return bad }}
	for range 3 {
		if _, err := c.get(l, blockKey{1, 7, 0}, metaSize); err != bad {
			t.Errorf("get: %v", err)
		}
	}
	if l.loads.Load() != 3 {
		t.Errorf("%d loads", l.loads.Load())
	}
	func() {
		defer func() { _ = recover() }()
		l.fail = func(blockKey) error { panic("decoder") }
		_, _ = c.get(l, blockKey{1, 8, 0}, metaSize)
	}()
	l.fail = nil
	b, err := c.get(l, blockKey{1, 8, 0}, metaSize)
	must(t, err)
	b.release()
	checkCache(t, c)
	must(t, c.Close())
}

func TestCacheAllPinned(t *testing.T) {
	c := heapCache(2)
	l := &fakeLoader{}
	var pinned []block
	for pos := range 5 {
		b, err := c.get(l, blockKey{1, uint64(pos), 0}, 1<<20)
		must(t, err)
		pinned = append(pinned, b)
	}
	for pos, b := range pinned {
		want := make([]byte, 1<<20)
		fakeBytes(blockKey{1, uint64(pos), 0}, want)
		if (b.s == nil) != (pos >= 2) || !bytes.Equal(b.data, want) {
			t.Errorf("block %d: on the heap %v", pos, b.s == nil)
		}
	}
	for i := range pinned {
		pinned[i].release()
	}
	checkCache(t, c)
}

func TestCacheCloseWaits(t *testing.T) {
	c, err := NewCache(1)
	must(t, err)
	b, err := c.get(&fakeLoader{}, blockKey{1, 1, 0}, metaSize)
	must(t, err)
	closed := make(chan error)
	go func() { closed <- c.Close() }()
	for {
		if _, _, err := c.peek(blockKey{1, 2, 0}); err == fs.ErrClosed {
			break
		}
	}
	select {
	case <-closed:
		t.Fatal("closed while a block was in use")
	default:
	}
	if b.data[1] != fakeByte(1, 1) {
		t.Error("the block changed")
	}
	b.release()
	must(t, <-closed)
	if _, err := c.get(&fakeLoader{}, blockKey{1, 1, 0}, metaSize); err != fs.ErrClosed {
		t.Errorf("get from a closed cache: %v", err)
	}
	must(t, c.Close())
}

func fakeByte(pos uint64, i int) byte {
	p := make([]byte, i+1)
	fakeBytes(blockKey{1, pos, 0}, p)
	return p[i]
}

func TestCacheBadSize(t *testing.T) {
	for _, n := range []int64{-1, 1 << 60} {
		if _, err := NewCache(n); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestCacheConcurrent has many goroutines use a cache that is too small for them,
// with blocks of all sizes and failures between.
func TestCacheConcurrent(t *testing.T) {
	c := heapCache(3)
	bad := errors.New("bad")
	l := &fakeLoader{fail: func(k blockKey) error {
		if k.pos%13 == 0 {
			return bad
		}
		return nil
	}}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 0))
			for range 400 {
				k := blockKey{uint64(rnd.IntN(2)), uint64(rnd.IntN(60)), 0}
				size := metaSize << (k.pos % 8)
				b, err := c.get(l, k, size)
				if k.pos%13 == 0 {
					if err != bad {
						t.Errorf("block %d: %v", k.pos, err)
					}
					continue
				}
				if err != nil || len(b.data) != size {
					t.Errorf("block %d: %d bytes, %v", k.pos, len(b.data), err)
					continue
				}
				at := rnd.IntN(size)
				if want := byte(k.pos) ^ byte(k.reader)<<4 ^ byte(at); b.data[at] != want {
					t.Errorf("block %d: byte %d is %d, want %d", k.pos, at, b.data[at], want)
				}
				if rnd.IntN(4) == 0 {
					b.releaseSpent()
				} else {
					b.release()
				}
			}
		})
	}
	wg.Wait()
	checkCache(t, c)
	must(t, c.Close())
}

// TestReadersShareACache reads two images at once through one small cache.
func TestReadersShareACache(t *testing.T) {
	dirs := []string{richTree(t, 200_000), t.TempDir()}
	must(t, os.WriteFile(filepath.Join(dirs[1], "other"), pattern(9, 1_000_000), 0o644))
	var imgs []string
	for _, dir := range dirs {
		imgs = append(imgs, mksquashfs(t, dir, "-comp", "lz4", "-b", "16K"))
	}
	c := heapCache(2)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r, err := Open(imgs[i%2], ReaderOptions{Cache: c})
			if err != nil {
				t.Error(err)
				return
			}
			compareTree(t, r, dirs[i%2])
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	checkCache(t, c)
	must(t, c.Close())
}

// TestConcurrentReads has many read one file, at once and at random.
func TestConcurrentReads(t *testing.T) {
	dir := t.TempDir()
	want := pattern(5, 3_000_000)
	must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o644))
	r := openImage(t, mksquashfs(t, dir, "-comp", "zstd", "-b", "32K"), ReaderOptions{Cache: heapCache(2)})
	i, err := r.Root()
	must(t, err)
	i, err = r.Lookup(i, "f")
	must(t, err)
	f, err := r.OpenFile(i)
	must(t, err)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			if err := readRandomly(f, want, uint64(g)); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			own, err := r.OpenFile(i)
			if err != nil {
				t.Error(err)
				return
			}
			var out bytes.Buffer
			if _, err := io.CopyBuffer(&out, struct{ io.Reader }{own}, make([]byte, 10_000)); err != nil || !bytes.Equal(out.Bytes(), want) {
				t.Errorf("%d bytes, %v", out.Len(), err)
			}
		})
	}
	wg.Wait()
}

func readRandomly(f *File, want []byte, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 0))
	for range 60 {
		off := rnd.IntN(len(want))
		p := make([]byte, rnd.IntN(200_000))
		n, err := f.ReadAt(p, int64(off))
		if (err != nil && err != io.EOF) || !bytes.Equal(p[:n], want[off:off+n]) || (n < len(p) && off+n != len(want)) {
			return fmt.Errorf("%d of %d bytes at %d, %v", n, len(p), off, err)
		}
	}
	return nil
}

// TestCloseWhileReading closes the Reader under those who read.
func TestCloseWhileReading(t *testing.T) {
	dir := t.TempDir()
	want := pattern(5, 2_000_000)
	must(t, os.WriteFile(filepath.Join(dir, "f"), want, 0o644))
	img := mksquashfs(t, dir, "-comp", "zstd", "-b", "32K")
	for round := range 10 {
		r, err := Open(img, ReaderOptions{})
		must(t, err)
		v := r.FS()
		var wg sync.WaitGroup
		begun := make(chan struct{}, 100)
		for range 4 {
			wg.Go(func() {
				for {
					b, err := fs.ReadFile(v, "f")
					if err != nil {
						if !errors.Is(err, fs.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if !bytes.Equal(b, want) {
						t.Error("wrong bytes")
					}
					select {
					case begun <- struct{}{}:
					default:
					}
				}
			})
		}
		for range round {
			<-begun
		}
		must(t, r.Close())
		wg.Wait()
	}
}
