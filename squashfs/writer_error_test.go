package squashfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

var errTest = errors.New("no more")

// wFailing gives size bytes and then an error.
type wFailing struct {
	size int
	err  error
}

func (r *wFailing) Read(p []byte) (int, error) {
	if r.size == 0 {
		return 0, r.err
	}
	n := min(len(p), r.size)
	for i := range p[:n] {
		p[i] = byte(i * i)
	}
	r.size -= n
	return n, nil
}

// wUnfinished proves that out holds no image.
func wUnfinished(t *testing.T, out *wMem) {
	t.Helper()
	if _, err := NewReader(out, ReaderOptions{}); !errors.Is(err, ErrNotSquashfs) {
		t.Errorf("opening the unfinished image: %v", err)
	}
}

// TestContentFails proves that a content which ends by an error ends the image,
// wherever it strikes and whatever the error, but for io.EOF itself, is called.
func TestContentFails(t *testing.T) {
	for _, failure := range []error{errTest, io.ErrUnexpectedEOF, fmt.Errorf("cut: %w", io.EOF)} {
		for _, n := range []int{0, 1, 4095, 4096, 4097, 1 << 20} {
			for _, size := range []int64{-1, int64(n), 1 << 30} {
				synctest.Test(t, func(t *testing.T) { contentFails(t, &wFailing{n, failure}, size) })
			}
		}
	}
}

func contentFails(t *testing.T, r *wFailing, size int64) {
	n, failure := r.size, r.err
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{BlockSize: 4096, Workers: 2})
	must(t, err)
	must(t, w.Add(Entry{Path: "small", Size: 5}, strings.NewReader("small")))
	err = w.Add(Entry{Path: "f", Size: size}, r)
	if !errors.Is(err, failure) || !strings.Contains(err.Error(), `"f"`) {
		t.Errorf("%v after %d bytes of %d: %v", failure, n, size, err)
	}
	if err := w.Add(Entry{Path: "g"}, nil); !errors.Is(err, failure) {
		t.Errorf("add after %v: %v", failure, err)
	}
	if err := w.Link("h", "small"); !errors.Is(err, failure) {
		t.Errorf("link after %v: %v", failure, err)
	}
	if _, err := w.Finish(t.Context()); !errors.Is(err, failure) {
		t.Errorf("finish after %v: %v", failure, err)
	}
	must(t, w.Close())
	wUnfinished(t, out)
}

// TestContentSize proves that a length that was announced is kept, both ways,
// and that a content without end is not waited for.
func TestContentSize(t *testing.T) {
	for _, c := range []struct {
		size, got int64
		ok        bool
	}{
		{0, 0, true},
		{5, 5, true},
		{4096, 4096, true},
		{8192, 8192, true},
		{0, 1, false},
		{5, 4, false},
		{5, 6, false},
		{4096, 4097, false},
		{4096, 4095, false},
		{4097, 4096, false},
		{5, 1 << 40, false},
		{1 << 20, 1 << 40, false},
		{1 << 40, 100, false},
		{1<<63 - 1, 7, false},
	} {
		r := &wFailing{size: int(c.got), err: io.EOF}
		w, err := NewWriter(&wMem{}, WriterOptions{BlockSize: 4096, Workers: 1})
		must(t, err)
		err = w.Add(Entry{Path: "f", Size: c.size}, r)
		_, ferr := w.Finish(t.Context())
		must(t, w.Close())
		if c.ok && (err != nil || ferr != nil) || !c.ok && (!errors.Is(err, ErrSize) || !errors.Is(ferr, ErrSize)) {
			t.Errorf("size %d, %d bytes: add %v, finish %v", c.size, c.got, err, ferr)
		}
		if used := c.got - int64(r.size); used-1 > c.size {
			t.Errorf("size %d: %d bytes were read", c.size, used)
		}
	}
}

// TestRefused proves that what cannot be added is refused, and that the Writer
// then goes on as if it had not been asked: nothing of it is in the image.
func TestRefused(t *testing.T) {
	good := []wItem{wFile("file", []byte("content")), wDir("dir"), wFile("dir/below", nil)}
	deep := strings.Repeat("d/", 2047)
	out := &wMem{}
	w, err := NewWriter(out, WriterOptions{BlockSize: 4096})
	must(t, err)
	defer w.Close()
	for i := range good {
		must(t, good[i].add(w))
	}
	for name, c := range wRefusals(deep) {
		if err := c.item.add(w); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if err := w.Add(Entry{Path: "new/dir", Mode: os.ModeDir}, strings.NewReader("")); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("content for a directory: %v", err)
	}
	last := wFile(deep+"f", []byte("2048 names are not too many"))
	must(t, last.add(w))
	_, err = w.Finish(t.Context())
	must(t, err)
	wSame(t, out, WriterOptions{BlockSize: 4096}, append(good, last)...)
}

type wRefusal struct {
	item wItem
	want error
}

func wRefusals(deep string) map[string]wRefusal {
	entry := func(e Entry) wItem { return wItem{Entry: e} }
	attr := func(name string, value int) wItem {
		return entry(Entry{Path: "x", Xattrs: []Xattr{{Name: name, Value: make([]byte, value)}}})
	}
	link := func(target string) wItem { return entry(Entry{Path: "l", Mode: os.ModeSymlink, Target: target}) }
	dev := func(major, minor uint32) wItem {
		return entry(Entry{Path: "dev", Mode: os.ModeDevice, Major: major, Minor: minor})
	}
	return map[string]wRefusal{
		"duplicate file":       {wFile("file", nil), fs.ErrExist},
		"other spelling":       {wFile("//./file", nil), fs.ErrExist},
		"file for directory":   {wFile("dir", nil), fs.ErrExist},
		"directory for file":   {wDir("file"), fs.ErrExist},
		"link over file":       {wLink("dir/below", "file"), fs.ErrExist},
		"link over directory":  {wLink("dir", "file"), fs.ErrExist},
		"link to itself":       {wLink("file", "file"), fs.ErrExist},
		"parent is a file":     {wFile("file/below", nil), fs.ErrInvalid},
		"grandparent is one":   {wFile("file/a/b", nil), fs.ErrInvalid},
		"link to nothing":      {wLink("n1/x", "missing"), fs.ErrNotExist},
		"link below a file":    {wLink("n2/x", "file/x"), fs.ErrNotExist},
		"link to a directory":  {wLink("n3/x", "dir"), fs.ErrInvalid},
		"link to the root":     {wLink("n4/x", "."), fs.ErrInvalid},
		"link as the root":     {wLink(".", "file"), fs.ErrInvalid},
		"file as the root":     {wFile("/", nil), fs.ErrInvalid},
		"empty path":           {wFile("", nil), fs.ErrInvalid},
		"dotdot":               {wFile("n5/../x", nil), fs.ErrInvalid},
		"dotdot first":         {wFile("../x", nil), fs.ErrInvalid},
		"dotdot last":          {wFile("n6/..", nil), fs.ErrInvalid},
		"link with dotdot":     {wLink("n7/../x", "file"), fs.ErrInvalid},
		"NUL":                  {wFile("n8/a\x00b", nil), fs.ErrInvalid},
		"NUL in a parent":      {wFile("n9/a\x00b/c", nil), fs.ErrInvalid},
		"256 bytes":            {wFile(strings.Repeat("n", 256), nil), fs.ErrInvalid},
		"256 bytes above":      {wFile("m1/"+strings.Repeat("n", 256)+"/x", nil), fs.ErrInvalid},
		"2049 names":           {wFile(deep+"d/f", nil), fs.ErrInvalid},
		"directory over them":  {wDir(deep + "d/f"), fs.ErrInvalid},
		"xattr of no prefix":   {attr("mime", 1), fs.ErrInvalid},
		"xattr of an ACL":      {attr("system.posix_acl_access", 1), fs.ErrInvalid},
		"xattr prefix only":    {attr("user.", 1), fs.ErrInvalid},
		"xattr of 256 bytes":   {attr("user."+strings.Repeat("x", 251), 1), fs.ErrInvalid},
		"xattr name with NUL":  {attr("user.a\x00", 1), fs.ErrInvalid},
		"xattr over 64 KiB":    {attr("user.a", 65537), fs.ErrInvalid},
		"xattr given twice":    {entry(Entry{Path: "x", Xattrs: []Xattr{{Name: "user.a"}, {Name: "user.a"}}}), fs.ErrInvalid},
		"symlink to nothing":   {link(""), fs.ErrInvalid},
		"symlink too long":     {link(strings.Repeat("t", 4096)), fs.ErrInvalid},
		"symlink with NUL":     {link("a\x00"), fs.ErrInvalid},
		"device major":         {dev(4096, 0), fs.ErrInvalid},
		"device minor":         {dev(0, 1<<20), fs.ErrInvalid},
		"mode without meaning": {entry(Entry{Path: "x", Mode: os.ModeIrregular}), fs.ErrInvalid},
	}
}

// TestLimits proves that the largest of everything is taken.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 255)
	items := []wItem{
		wFile(long, nil),
		{Entry: Entry{Path: "l", Mode: os.ModeSymlink, Target: strings.Repeat("t", 4095)}},
		{Entry: Entry{Path: "d", Mode: os.ModeDevice, Major: 4095, Minor: 1<<20 - 1}},
		{Entry: Entry{Path: "x", Xattrs: []Xattr{{Name: "user." + long[:250], Value: make([]byte, 65536)}}}},
	}
	wSame(t, wImage(t, WriterOptions{}, items...), WriterOptions{}, items...)
}

func TestWriterEnds(t *testing.T) {
	for _, end := range []func(*Writer) error{
		(*Writer).Close,
		func(w *Writer) error { _, err := w.Finish(t.Context()); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			out := &wMem{}
			w, err := NewWriter(out, WriterOptions{})
			must(t, err)
			must(t, w.Add(Entry{Path: "f", Size: -1}, strings.NewReader("content")))
			must(t, end(w))
			size := len(out.b)
			_, finish := w.Finish(t.Context())
			src := wOpen(t, wImage(t, WriterOptions{}, wFile("g", []byte("x"))))
			for name, err := range map[string]error{
				"add": w.Add(Entry{Path: "g"}, nil), "link": w.Link("h", "f"), "finish": finish,
				"add from": w.AddFrom(Entry{Path: "g"}, src, wAt(t, src, "g")),
			} {
				if !errors.Is(err, fs.ErrClosed) {
					t.Errorf("%s after the end: %v", name, err)
				}
			}
			must(t, w.Close())
			must(t, w.Close())
			if len(out.b) != size {
				t.Errorf("the image grew from %d to %d bytes after its end", size, len(out.b))
			}
			must(t, src.Close())
		})
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []WriterOptions{
		{BlockSize: 1},
		{BlockSize: 2048},
		{BlockSize: 4097},
		{BlockSize: 6144},
		{BlockSize: 2 << 20},
		{BlockSize: -4096},
		{BlockSize: 1 << 31},
		{Compression: XZ},
		{Compression: LZO},
		{Compression: LZMA},
		{Compression: 7},
		{Compression: 0x100},
		{Level: 23},
		{Level: -1},
		{Compression: Gzip, Level: 10},
		{Compression: LZ4, Level: 2},
		{Compression: Uncompressed, Level: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			out := &wMem{}
			if w, err := NewWriter(out, o); err == nil {
				t.Errorf("%+v was taken", o)
				w.Close()
			}
		})
	}
}

// wBadDisk is an Output whose calls fail from one on, each after it wrote a part.
type wBadDisk struct {
	wMem
	left int
}

func (d *wBadDisk) WriteAt(p []byte, off int64) (int, error) {
	if d.left--; d.left < 0 {
		n, _ := d.wMem.WriteAt(p[:len(p)/2], off)
		return n, errTest
	}
	return d.wMem.WriteAt(p, off)
}

func (d *wBadDisk) Truncate(size int64) error {
	if d.left--; d.left < 0 {
		return errTest
	}
	return d.wMem.Truncate(size)
}

// TestOutputFails has every single call of the Output fail, and all after it.
func TestOutputFails(t *testing.T) {
	src := wOpen(t, wImage(t, WriterOptions{BlockSize: 4096}, wFile("spliced", noise(2, 3<<19))))
	inode := wAt(t, src, "spliced")
	calls := 0
	for ok := false; !ok; calls++ {
		synctest.Test(t, func(t *testing.T) {
			out := &wBadDisk{left: calls}
			err := wManyCalls(out, src, inode)
			if ok = err == nil; ok {
				wOpen(t, &out.wMem).Close()
				return
			}
			if !errors.Is(err, errTest) {
				t.Errorf("call %d fails: %v", calls, err)
			}
			// Of a superblock that was written in part the magic number may be there.
			if _, err := NewReader(&out.wMem, ReaderOptions{}); err == nil {
				t.Errorf("call %d fails, and there is an image", calls)
			}
		})
	}
	if calls < 10 {
		t.Errorf("only %d calls", calls)
	}
}

// wManyCalls writes an image with blocks, tails, a duplicate over the buffer's
// length, and a splice, and returns the first error. All later calls must give it too.
func wManyCalls(out Output, src *Reader, spliced Inode) error {
	w, err := NewWriter(out, WriterOptions{BlockSize: 4096, Workers: 3})
	if err != nil {
		return err
	}
	defer w.Close()
	var first error
	note := func(call string, err error) {
		switch {
		case first == nil:
			first = err
		case !errors.Is(err, first) && !errors.Is(first, err) && !errors.Is(err, errTest):
			first = fmt.Errorf("%s after an error: %w", call, err)
		}
	}
	big := noise(1, 3<<19)
	for i := range 3 {
		note("add", w.Add(Entry{Path: fmt.Sprint("big", i), Size: -1}, bytes.NewReader(big[i/2:])))
		note("add", w.Add(Entry{Path: fmt.Sprint("again", i), Size: -1}, bytes.NewReader(big[i/2:])))
		for k := range 40 {
			note("add", w.Add(Entry{Path: fmt.Sprintf("tail%d-%d", i, k), Size: 3000}, bytes.NewReader(big[(i*40+k)*100:][:3000])))
		}
		if i%2 == 0 {
			continue
		}
		note("add from", w.AddFrom(Entry{Path: fmt.Sprint("spliced", i)}, src, spliced))
	}
	_, err = w.Finish(context.Background())
	note("finish", err)
	return first
}

// TestFullDiskUnderEndlessContent proves that the Writer does not read on when
// nothing can be written any more.
func TestFullDiskUnderEndlessContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, err := NewWriter(&wBadDisk{left: 3}, WriterOptions{BlockSize: 4096, Workers: 1})
		must(t, err)
		endless := &wFailing{size: 1 << 30, err: errors.New("a gigabyte was read")}
		if err := w.Add(Entry{Path: "f", Size: -1}, endless); !errors.Is(err, errTest) {
			t.Errorf("endless content on a full disk: %v", err)
		}
		must(t, w.Close())
	})
}

// TestOldImageIsNoImage proves that an Output which held an image holds none
// until the new one is finished, and nothing of the old one then.
func TestOldImageIsNoImage(t *testing.T) {
	items := []wItem{wFile("f", []byte("new"))}
	want := wImage(t, WriterOptions{}, items...)
	out := wImage(t, WriterOptions{}, wFile("old", noise(1, 1<<20)))
	w, err := NewWriter(out, WriterOptions{})
	must(t, err)
	must(t, w.Close())
	wUnfinished(t, out)
	out = wImage(t, WriterOptions{}, wFile("old", noise(1, 1<<20)))
	wImageTo(t, out, WriterOptions{}, items...)
	if !bytes.Equal(out.b, want.b) {
		t.Error("the old image shows in the new one")
	}
}

type wStuck struct{}

func (wStuck) Read([]byte) (int, error) { return 0, nil }

// TestContentStuck: a reader that gives nothing and no error is not waited for.
func TestContentStuck(t *testing.T) {
	w, err := NewWriter(&wMem{}, WriterOptions{})
	must(t, err)
	defer w.Close()
	if err := w.Add(Entry{Path: "f", Size: -1}, wStuck{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("%v", err)
	}
}
