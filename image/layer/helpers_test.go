package layer

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/gangway-hpc/gangway/squashfs"
)

var errTest = errors.New("the test's own error")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memory is an Output in memory.
type memory struct{ b []byte }

func (m *memory) Size() int64 { return int64(len(m.b)) }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if end := off + int64(len(p)); end > int64(len(m.b)) {
		_ = m.Truncate(end)
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(m.b).ReadAt(p, off) }

func (m *memory) Truncate(size int64) error {
	if n := int64(len(m.b)); size > n {
		m.b = append(m.b, make([]byte, size-n)...)
	}
	m.b = m.b[:size]
	return nil
}

// item is an entry of a tar archive.
type item struct {
	tar.Header
	content string
}

func file(name, content string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}, content}
}

func dir(name string) item {
	return item{Header: tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}}
}

func link(typ byte, name, target string) item {
	return item{Header: tar.Header{Name: name, Typeflag: typ, Mode: 0o777, Linkname: target}}
}

func xattr(i item, name, value string) item {
	i.Format = tar.FormatPAX
	if i.PAXRecords == nil {
		i.PAXRecords = map[string]string{}
	}
	i.PAXRecords[schily+name] = value
	return i
}

// archive makes a tar archive.
func archive(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		must(t, w.WriteHeader(&i.Header))
		_, err := io.WriteString(w, i.content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

func zstded(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	must(t, err)
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// noise is what no compressor makes smaller.
func noise(seed uint64, n int) string {
	var key [32]byte
	le.PutUint64(key[:], seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return string(b)
}

func tryConvert(blob []byte, o Options) (*memory, Info, error) {
	out := &memory{}
	info, err := Convert(context.Background(), out, bytes.NewReader(blob), o)
	return out, info, err
}

// converted makes an artefact, and has it checked.
func converted(t testing.TB, blob []byte, o Options) (*memory, Info) {
	t.Helper()
	out, info, err := tryConvert(blob, o)
	must(t, err)
	if info.Size != int64(len(out.b)) {
		t.Fatalf("Info has a size of %d, the artefact %d", info.Size, len(out.b))
	}
	l := opened(t, out)
	must(t, Check(t.Context(), l, CheckOptions{}))
	if l.Info() != info {
		t.Fatalf("read %+v\nwrote %+v", l.Info(), info)
	}
	return out, info
}

func opened(t testing.TB, out *memory) *Layer {
	t.Helper()
	l, err := NewReader(out, squashfs.ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

// got is an entry as it was read, with the content of a file.
type got struct {
	Entry
	content string
}

func (g got) String() string {
	c := g.content
	if len(c) > 40 {
		c = fmt.Sprintf("%s... (%d)", c[:40], len(c))
	}
	return fmt.Sprintf("%+v %q", g.Entry, c)
}

// readAll reads all entries and their content. Inode numbers are left out.
func readAll(l *Layer) ([]got, error) {
	var all []got
	for e, err := range l.Entries() {
		if err != nil {
			return all, err
		}
		g := got{Entry: e}
		if e.Inode != 0 {
			i, err := l.Squashfs().InodeByNumber(e.Inode)
			if err != nil {
				return all, err
			}
			f, err := l.Squashfs().OpenFile(i)
			if err != nil {
				return all, err
			}
			b, err := io.ReadAll(f)
			if err != nil {
				return all, err
			}
			g.content = string(b)
		}
		if (e.Inode != 0) != (e.Type == File && e.Size > 0) || int64(len(g.content)) != e.Size {
			return all, fmt.Errorf("entry %+v has %d bytes", e, len(g.content))
		}
		g.Inode = 0
		all = append(all, g)
	}
	return all, nil
}

func entriesOf(t testing.TB, out *memory) []got {
	t.Helper()
	all, err := readAll(opened(t, out))
	must(t, err)
	return all
}

// names are the entries as one line each.
func names(all []got) []string {
	list := []string{}
	for _, g := range all {
		list = append(list, g.Name)
	}
	return list
}
