package squashfs

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wLong says whether the tests that take minutes shall run.
func wLong() bool { return os.Getenv("GANGWAY_TEST_LONG") != "" }

// wNeedRoot skips the test where what it does is root's alone.
func wNeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// wMem is an Output in memory.
type wMem struct{ b []byte }

func (m *wMem) Size() int64 { return int64(len(m.b)) }

func (m *wMem) WriteAt(p []byte, off int64) (int, error) {
	if end := off + int64(len(p)); end > int64(len(m.b)) {
		if err := m.Truncate(end); err != nil {
			return 0, err
		}
	}
	return copy(m.b[off:], p), nil
}

func (m *wMem) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.b).ReadAt(p, off)
}

func (m *wMem) Truncate(size int64) error {
	if n := int64(len(m.b)); size > n {
		m.b = append(m.b, make([]byte, size-n)...)
	}
	m.b = m.b[:size]
	return nil
}

// wItem is one call of a Writer: an entry with its content, or a link.
type wItem struct {
	Entry
	content []byte
	unknown bool   // the Entry says a Size of -1
	link    string // of a hard link, the path it leads to
}

func wFile(path string, content []byte) wItem {
	return wItem{Entry: Entry{Path: path, Mode: 0o644}, content: content}
}

func wDir(path string) wItem {
	return wItem{Entry: Entry{Path: path, Mode: os.ModeDir | 0o755}}
}

func wLink(path, target string) wItem {
	return wItem{Entry: Entry{Path: path}, link: target}
}

func (i *wItem) add(w *Writer) error {
	if i.link != "" {
		return w.Link(i.Path, i.link)
	}
	if i.Mode.Type() != 0 {
		return w.Add(i.Entry, nil)
	}
	e := i.Entry
	if e.Size = int64(len(i.content)); i.unknown {
		e.Size = -1
	}
	// A reader that gives what it has in odd pieces, as pipes do.
	return w.Add(e, &wPieces{b: i.content, n: 1 + len(i.content)/3})
}

// wPieces is a reader that gives at most n bytes at a time, and io.EOF with the last.
type wPieces struct {
	b []byte
	n int
}

func (r *wPieces) Read(p []byte) (int, error) {
	n := copy(p, r.b[:min(len(r.b), r.n)])
	r.b = r.b[n:]
	if len(r.b) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// wImage writes an image in memory.
func wImage(t testing.TB, o WriterOptions, items ...wItem) *wMem {
	t.Helper()
	out := &wMem{}
	wImageTo(t, out, o, items...)
	return out
}

func wImageTo(t testing.TB, out Output, o WriterOptions, items ...wItem) Info {
	t.Helper()
	w, err := NewWriter(out, o)
	must(t, err)
	defer w.Close()
	for i := range items {
		must(t, items[i].add(w))
	}
	info, err := w.Finish(t.Context())
	must(t, err)
	return info
}

// wFileImage writes an image file and returns its path.
func wFileImage(t testing.TB, o WriterOptions, items ...wItem) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "image.sqfs")
	f, err := os.Create(name)
	must(t, err)
	wImageTo(t, f, o, items...)
	must(t, f.Close())
	return name
}

// wOpen opens an image and has it checked.
func wOpen(t testing.TB, src io.ReaderAt) *Reader {
	t.Helper()
	r, err := NewReader(src, ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { r.Close() })
	if err := Check(context.Background(), r, CheckOptions{}); err != nil {
		t.Fatalf("check: %v", err)
	}
	return r
}

func wAt(t testing.TB, r *Reader, name string) Inode {
	t.Helper()
	i, err := r.Root()
	must(t, err)
	for part := range strings.SplitSeq(name, "/") {
		i, err = r.Lookup(i, part)
		must(t, err)
	}
	return i
}

func wContent(t testing.TB, r *Reader, name string) []byte {
	t.Helper()
	f, err := r.OpenFile(wAt(t, r, name))
	must(t, err)
	b, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	return b
}

// wSame proves that the image in src holds what the items make.
func wSame(t testing.TB, src io.ReaderAt, o WriterOptions, items ...wItem) *Reader {
	t.Helper()
	r := wOpen(t, src)
	got, err := wRead(r)
	must(t, err)
	must(t, wWant(o, items).diff(got))
	return r
}

// wTool runs a program and returns what it printed.
func wTool(t testing.TB, name string, args ...string) string {
	t.Helper()
	needTool(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// wMount mounts an image by the kernel and returns the directory.
func wMount(t testing.TB, img string) string {
	t.Helper()
	wNeedRoot(t)
	dir := t.TempDir()
	out, err := exec.Command("mount", "-t", "squashfs", "-o", "loop,ro", img, dir).CombinedOutput()
	if err != nil {
		wNeedLoopMounts(t, img)
		t.Fatalf("mount %s: %v\n%s", img, err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v\n%s", err, out)
		}
	})
	return dir
}

// wNeedLoopMounts skips the test where the kernel does not mount an image of
// mksquashfs of the same compression either.
func wNeedLoopMounts(t testing.TB, img string) {
	t.Helper()
	f, err := Open(img, ReaderOptions{})
	must(t, err)
	defer f.Close()
	dir := t.TempDir()
	probe := mksquashfs(t, dir, "-comp", f.Superblock().Compression.String())
	if exec.Command("mount", "-t", "squashfs", "-o", "loop,ro", probe, dir).Run() != nil {
		t.Skipf("needs a kernel that loop-mounts %s squashfs", f.Superblock().Compression)
	}
	_ = exec.Command("umount", dir).Run()
}
