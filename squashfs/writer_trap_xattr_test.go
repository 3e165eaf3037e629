package squashfs

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wXattrTable takes the xattr table apart (format.adoc section 9).
type wXattrTable struct {
	kv     []byte
	places map[uint64]int
	ids    []byte
}

func (r wRaw) xattrs() wXattrTable {
	r.Helper()
	head := r.img[r.sb.XattrTable:]
	start, n := le.Uint64(head), le.Uint32(head[8:])
	if le.Uint32(head[12:]) != 0 {
		r.Errorf("the unused field is %#x", le.Uint32(head[12:]))
	}
	first := le.Uint64(head[16:])
	var t wXattrTable
	t.kv, t.places = r.meta(start, first)
	t.ids, _ = r.meta(first, r.sb.XattrTable)
	if len(t.ids) != int(n)*16 {
		r.Errorf("%d sets in %d bytes", n, len(t.ids))
	}
	return t
}

// at returns what lies at a reference into the key-value blocks.
func (t wXattrTable) at(ref uint64) []byte { return t.kv[t.places[ref>>16]+int(ref&0xFFFF):] }

// set returns the bytes of a set, its number of attributes and its length on disk.
func (t wXattrTable) set(i int) (b []byte, count, size int) {
	e := t.ids[i*16:]
	return t.at(le.Uint64(e)), int(le.Uint32(e[8:])), int(le.Uint32(e[12:]))
}

func wWithXattrs(path string, attrs ...string) wItem {
	i := wFile(path, nil)
	for k := 0; k < len(attrs); k += 2 {
		i.Xattrs = append(i.Xattrs, Xattr{Name: attrs[k], Value: []byte(attrs[k+1])})
	}
	return i
}

func TestTrapXattrHeaderUnusedIsZero(t *testing.T) {
	r := wRawImage(t, WriterOptions{}, wWithXattrs("f", "user.a", "b"))
	r.xattrs()
	if f := Flags(le.Uint16(r.img[24:])); f&FlagNoXattrs != 0 {
		t.Errorf("flags %#x", f)
	}
}

// TestTrapXattrPrefixes proves the numbers of the name spaces, which squashfuse
// has the wrong way round, and the order and form of entries.
func TestTrapXattrPrefixes(t *testing.T) {
	r := wRawImage(t, WriterOptions{}, wWithXattrs("f", "user.u", "1", "trusted.t", "22", "security.s", ""))
	b, count, size := r.xattrs().set(0)
	want := []byte("\x02\x00\x01\x00s\x00\x00\x00\x00" + "\x01\x00\x01\x00t\x02\x00\x00\x0022" + "\x00\x00\x01\x00u\x01\x00\x00\x001")
	if count != 3 || size != len(want) || !bytes.Equal(b[:size], want) {
		t.Errorf("%d attributes in %d bytes: % x", count, size, b[:size])
	}
}

func TestTrapXattrSetsShared(t *testing.T) {
	r := wRawImage(t, WriterOptions{}, wWithXattrs("a", "user.x", "1", "user.y", "2"), wWithXattrs("b", "user.y", "2", "user.x", "1"),
		wWithXattrs("c", "user.x", "1"), wWithXattrs("d", "user.x", "1", "user.y", "2"))
	if n := len(r.xattrs().ids) / 16; n != 2 {
		t.Errorf("%d sets, want 2", n)
	}
	for name, want := range map[string]uint32{"a": 0, "b": 0, "c": 1, "d": 0} {
		if b, typ := r.inode(name); typ != 9 || le.Uint32(b[52:]) != want {
			t.Errorf("%s: type %d, set %d", name, typ, le.Uint32(b[52:]))
		}
	}
}

// TestTrapXattrOutOfLine proves that a long value of several sets is stored once,
// behind a reference that readers follow.
func TestTrapXattrOutOfLine(t *testing.T) {
	long := strings.Repeat("long value", 900)
	items := []wItem{
		wWithXattrs("a", "user.first", long), wWithXattrs("b", "trusted.second", long, "user.short", "s"),
		wWithXattrs("c", "user.first", long, "user.third", long), wWithXattrs("d", "user.short", "s", "user.z", strings.Repeat("z", 31)),
		wWithXattrs("e", "user.y", strings.Repeat("z", 31)),
	}
	r := wRawImage(t, WriterOptions{}, items...)
	x := r.xattrs()
	if n := bytes.Count(x.kv, []byte(long)); n != 1 {
		t.Errorf("the value is stored %d times", n)
	}
	b, count, size := x.set(1)
	name := len("second")
	if kind := le.Uint16(b); kind != 0x101 || count != 2 || le.Uint32(b[4+name:]) != 8 {
		t.Fatalf("%d attributes, kind %#x, % x", count, kind, b[:size])
	}
	value := x.at(le.Uint64(b[8+name:]))
	if le.Uint32(value) != uint32(len(long)) || string(value[4:4+len(long)]) != long {
		t.Error("the reference does not lead to the value")
	}
	if want := 4 + name + 4 + 8 + 4 + len("short") + 4 + 1; size != want {
		t.Errorf("the set has %d bytes, want %d", size, want)
	}
	if n := bytes.Count(x.kv, bytes.Repeat([]byte("z"), 31)); n != 2 {
		t.Errorf("a short value is stored %d times: a reference would not save anything", n)
	}
	t.Run("kernel", func(t *testing.T) {
		img := filepath.Join(t.TempDir(), "image")
		must(t, os.WriteFile(img, r.img, 0o600))
		dir := wMount(t, img)
		for _, i := range items {
			got, err := wHostXattrs(filepath.Join(dir, i.Path))
			must(t, err)
			if wAttrs(got) != wAttrs(i.Xattrs) {
				t.Errorf("%s: the kernel sees %d attributes", i.Path, len(got))
			}
		}
	})
}

// TestTrapManyXattrSets fills several blocks of the table, and of its index.
func TestTrapManyXattrSets(t *testing.T) {
	var items []wItem
	for i := range 1300 {
		items = append(items, wWithXattrs(strings.Repeat("f", 1+i%200)+string(rune('A'+i/200)), "user.n", strings.Repeat("v", i)))
	}
	r := wRawImage(t, WriterOptions{}, items...)
	if n := len(r.xattrs().ids) / 16; n != 1300 {
		t.Errorf("%d sets", n)
	}
	wSame(t, wImage(t, WriterOptions{}, items...), WriterOptions{}, items...)
}
