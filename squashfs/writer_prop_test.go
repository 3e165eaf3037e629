package squashfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWriteReadEqual writes random trees with random options, reads them back
// and compares; and proves that the bytes depend on neither the number of
// workers nor GOMAXPROCS.
func TestWriteReadEqual(t *testing.T) {
	rounds := 1
	if wLong() {
		rounds = 100
	}
	for range rounds {
		rapid.Check(t, func(rt *rapid.T) {
			o := wOptions(rt)
			g := wGen{T: rt, rnd: rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 3)), bs: o.BlockSize}
			items := g.items()
			if err := wRoundTrip(o, items); err != nil {
				rt.Fatal(err)
			}
		})
	}
}

// wRoundTrip writes the items with several numbers of workers and reads the image back.
func wRoundTrip(o WriterOptions, items []wItem) error {
	var first *wMem
	for _, n := range []struct{ workers, procs int }{{1, 4}, {2, 1}, {7, 4}, {7, 1}} {
		procs := runtime.GOMAXPROCS(n.procs)
		o.Workers = n.workers
		out, err := wTryImage(o, items)
		runtime.GOMAXPROCS(procs)
		if err != nil {
			return err
		}
		if first == nil {
			first = out
		} else if !bytes.Equal(first.b, out.b) {
			return fmt.Errorf("another image with %d workers and GOMAXPROCS %d", n.workers, n.procs)
		}
	}
	r, err := NewReader(first, ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := Check(context.Background(), r, CheckOptions{}); err != nil {
		return err
	}
	got, err := wRead(r)
	if err != nil {
		return err
	}
	if err := wWant(o, items).diff(got); err != nil {
		return err
	}
	return wCopyImage(o, r, got)
}

// wCopyImage joins the image into another, where it must look the same.
func wCopyImage(o WriterOptions, src *Reader, want wTree) error {
	out := &wMem{}
	w, err := NewWriter(out, o)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.AddImage(context.Background(), src, "."); err != nil {
		return err
	}
	if _, err := w.Finish(context.Background()); err != nil {
		return err
	}
	r, err := NewReader(out, ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	if err := Check(context.Background(), r, CheckOptions{}); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	got, err := wRead(r)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return want.diff(got)
}

func wTryImage(o WriterOptions, items []wItem) (*wMem, error) {
	out := &wMem{}
	w, err := NewWriter(out, o)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for i := range items {
		if err := items[i].add(w); err != nil {
			return nil, err
		}
	}
	_, err = w.Finish(context.Background())
	return out, err
}

func wOptions(t *rapid.T) WriterOptions {
	o := WriterOptions{
		Compression:     rapid.SampledFrom([]Compression{Zstd, Gzip, LZ4, Uncompressed}).Draw(t, "compression"),
		NoFragments:     rapid.Bool().Draw(t, "no fragments"),
		AlwaysFragments: rapid.Bool().Draw(t, "always fragments"),
		NoDedup:         rapid.Bool().Draw(t, "no dedup"),
		NoExport:        rapid.Bool().Draw(t, "no export"),
		MakeTime:        time.Unix(rapid.Int64Range(-1, 1<<33).Draw(t, "make time"), 0),
	}
	o.BlockSize = 4096
	if rapid.IntRange(0, 7).Draw(t, "large blocks") == 7 {
		o.BlockSize <<= rapid.IntRange(1, 8).Draw(t, "block log")
	}
	top := map[Compression]int{Zstd: 22, Gzip: 9, LZ4: 1}[o.Compression]
	if o.BlockSize == 4096 && rapid.IntRange(0, 3).Draw(t, "with level") == 3 {
		o.Level = rapid.IntRange(0, top).Draw(t, "level")
	}
	return o
}

// wGen makes random trees.
type wGen struct {
	*rapid.T
	rnd *rand.Rand
	bs  int

	dirs     []string // that are there, "" among them
	others   []string // that links may lead to
	taken    map[string]bool
	isDir    map[string]bool
	contents [][]byte
	xattrs   [][]Xattr
}

func (g *wGen) items() []wItem {
	g.dirs, g.taken, g.isDir = []string{""}, map[string]bool{"": true}, map[string]bool{"": true}
	n := rapid.IntRange(0, 40).Draw(g.T, "items")
	var items []wItem
	for range n {
		if i, ok := g.item(); ok {
			items = append(items, i)
		}
	}
	return items
}

func (g *wGen) item() (wItem, bool) {
	kind := rapid.SampledFrom([]string{"file", "file", "file", "file", "dir", "again", "link", "symlink", "node"}).Draw(g.T, "kind")
	if kind == "again" {
		p := g.dirs[g.rnd.IntN(len(g.dirs))]
		return wItem{Entry: g.entry(g.spell(p), os.ModeDir)}, true
	}
	p := path.Join(g.dirs[g.rnd.IntN(len(g.dirs))], g.name())
	for g.rnd.IntN(6) == 0 {
		p = path.Join(p, g.name())
	}
	if !g.claim(p, kind == "dir") {
		return wItem{}, false
	}
	var i wItem
	switch kind {
	case "dir":
		i.Entry = g.entry(p, os.ModeDir)
	case "link":
		if len(g.others) > 0 {
			return wLink(g.spell(p), g.others[g.rnd.IntN(len(g.others))]), true
		}
		fallthrough
	case "symlink":
		i.Entry = g.entry(p, os.ModeSymlink)
		i.Target = strings.Repeat("t/", g.rnd.IntN(20)) + g.name()
	case "node":
		i.Entry = g.entry(p, []os.FileMode{
			os.ModeDevice, os.ModeDevice | os.ModeCharDevice, os.ModeNamedPipe, os.ModeSocket,
		}[g.rnd.IntN(4)])
		i.Major, i.Minor = g.rnd.Uint32N(1<<12), g.rnd.Uint32N(1<<20)
	default:
		i.Entry = g.entry(p, 0)
		i.content, i.unknown = g.content(), g.rnd.IntN(2) == 0
	}
	i.Path = g.spell(p)
	if kind != "dir" {
		g.others = append(g.others, p)
	}
	return i, true
}

// claim takes a path and those of its parents, if all are free or directories.
func (g *wGen) claim(p string, dir bool) bool {
	if g.taken[p] {
		return false
	}
	var parents []string
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		if g.taken[d] && !g.isDir[d] {
			return false
		}
		if !g.taken[d] {
			parents = append(parents, d)
		}
	}
	if dir {
		parents = append(parents, p)
	}
	for _, d := range parents {
		g.taken[d], g.isDir[d] = true, true
	}
	g.dirs = append(g.dirs, parents...)
	g.taken[p] = true
	return true
}

// spell writes a path in one of its ways.
func (g *wGen) spell(p string) string {
	if p == "" {
		return []string{".", "/", "./", "//."}[g.rnd.IntN(4)]
	}
	switch g.rnd.IntN(8) {
	case 0:
		return "/" + p
	case 1:
		return "./" + p
	case 2:
		return strings.ReplaceAll(p, "/", "/.//")
	}
	return p
}

// name makes a name of any bytes, half of them of a few so that prefixes are shared.
func (g *wGen) name() string {
	n := 1 + g.rnd.IntN(12)
	if g.rnd.IntN(12) == 0 {
		n = 255
	}
	b := make([]byte, n)
	few := g.rnd.IntN(2) == 0
	for i := range b {
		b[i] = byte(g.rnd.IntN(256))
		if few {
			b[i] = "ab.\xff\x7f\x80"[g.rnd.IntN(6)]
		}
		if b[i] == 0 || b[i] == '/' {
			b[i] = '_'
		}
	}
	if s := string(b); s != "." && s != ".." {
		return s
	}
	return "dots"
}

func (g *wGen) entry(p string, typ os.FileMode) Entry {
	e := Entry{Path: p, Mode: typ | os.FileMode(g.rnd.IntN(0o1000)), UID: g.id(), GID: g.id()}
	for _, bit := range []os.FileMode{os.ModeSetuid, os.ModeSetgid, os.ModeSticky} {
		if g.rnd.IntN(4) == 0 {
			e.Mode |= bit
		}
	}
	e.ModTime = time.Unix(g.rnd.Int64N(1<<33)-1<<32, g.rnd.Int64N(1e9))
	e.Xattrs = g.attrs()
	return e
}

func (g *wGen) id() uint32 {
	if g.rnd.IntN(2) == 0 {
		return g.rnd.Uint32N(3)
	}
	return g.rnd.Uint32()
}

// attrs gives none, a set that was given before, or a new one, whose values are
// often those of others.
func (g *wGen) attrs() []Xattr {
	if g.rnd.IntN(3) > 0 {
		return nil
	}
	if len(g.xattrs) > 0 && g.rnd.IntN(2) == 0 {
		return g.xattrs[g.rnd.IntN(len(g.xattrs))]
	}
	var list []Xattr
	for i := range 1 + g.rnd.IntN(4) {
		value := bytes.Repeat([]byte{byte(g.rnd.IntN(3))}, []int{0, 1, 31, 32, 33, 9000}[g.rnd.IntN(6)])
		name := fmt.Sprintf("%s%d-%d", xattrPrefixes[g.rnd.IntN(3)], i, g.rnd.IntN(3))
		list = append(list, Xattr{Name: name, Value: value})
	}
	g.xattrs = append(g.xattrs, list)
	return list
}

// content makes a file's content of whole blocks and a rest, of zeros, noise and
// what compresses, or gives that of an earlier file, or its tail.
func (g *wGen) content() []byte {
	if n := len(g.contents); n > 0 && g.rnd.IntN(4) == 0 {
		old := g.contents[g.rnd.IntN(n)]
		if g.rnd.IntN(2) == 0 {
			return old
		}
		return old[len(old)/g.bs*g.bs:]
	}
	var b []byte
	for range g.rnd.IntN(5) {
		b = append(b, g.block(g.bs)...)
	}
	rest := []int{0, 1, g.bs - 1, 0, 1 + g.rnd.IntN(g.bs-1), 100}[g.rnd.IntN(6)]
	b = append(b, g.block(rest)...)
	g.contents = append(g.contents, b)
	return b
}

func (g *wGen) block(n int) []byte {
	b := make([]byte, n)
	switch g.rnd.IntN(4) {
	case 0: // zeros
	case 1:
		for i := range b {
			b[i] = byte(g.rnd.Uint32())
		}
	case 2: // zeros but for the end
		if n > 0 {
			b[n-1] = 1
		}
	default:
		sum := sha256.Sum256([]byte{byte(g.rnd.IntN(4))})
		for i := range b {
			b[i] = sum[i%len(sum)] & 3
		}
	}
	return b
}
