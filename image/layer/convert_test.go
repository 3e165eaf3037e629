package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/squashfs"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// sample has an entry of each kind, and what squashfs has no place for.
func sample(t testing.TB) []byte {
	return archive(t,
		dir("./"),
		dir("etc/"),
		file("/etc/hosts", "127.0.0.1 localhost\n"),
		file("etc//./empty", ""),
		file("etc/hosts", "a second entry of the name\n"),
		file("big", noise(1, 300_000)),
		file("zeros", strings.Repeat("\x00", 300_000)),
		file("big again", noise(1, 300_000)),
		link(tar.TypeSymlink, "link", "../etc/hosts"),
		link(tar.TypeLink, "hard", "./etc/hosts"),
		link(tar.TypeLink, "hard/below", "nowhere"),
		file("link/below a symlink", "lower layers decide where this goes"),
		file("etc/.wh.gone", ""),
		file("etc/.wh.strange", "content that nobody wants"),
		file(".wh..wh..opq", ""),
		file(".wh..wh.plnk/1.2", "of aufs"),
		item{Header: tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}},
		item{Header: tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 1 << 20, Devminor: 1 << 20, Mode: 0o660}},
		item{Header: tar.Header{Name: "fifo", Typeflag: tar.TypeFifo, Mode: 0o1600}},
		xattr(xattr(file("bin/ping", "\x7fELF"), "security.capability", "\x01\x00=\x00"), "system.posix_acl_access", "acl"),
		dir("etc/"),
	)
}

func TestCompressions(t *testing.T) {
	raw := sample(t)
	plain, want := converted(t, raw, Options{})
	at := squashfsSize(plain.b)
	half := len(raw) / 2
	skippable := append(binary.LittleEndian.AppendUint32([]byte("\x50\x2a\x4d\x18"), 5), "hello"...)
	for name, c := range map[string]struct {
		kind string
		blob []byte
	}{
		"none":               {"none", raw},
		"none, zeros behind": {"none", append(slices.Clone(raw), make([]byte, 5000)...)},
		"gzip":               {"gzip", gzipped(t, raw)},
		"gzip members":       {"gzip", slices.Concat(gzipped(t, raw[:half]), gzipped(t, nil), gzipped(t, raw[half:]))},
		"gzip, zeros behind": {"gzip", append(gzipped(t, raw), make([]byte, 100_000)...)},
		"zstd":               {"zstd", zstded(t, raw)},
		"zstd frames":        {"zstd", slices.Concat(skippable, zstded(t, raw[:half]), skippable, zstded(t, raw[half:]), skippable)},
	} {
		t.Run(name, func(t *testing.T) {
			digest := oci.DigestOf(c.blob)
			out, info := converted(t, c.blob, Options{Digest: digest, Size: int64(len(c.blob)), MediaType: "text/lies"})
			if info.Digest != digest || info.Compression != c.kind || info.BlobSize != int64(len(c.blob)) {
				t.Errorf("%+v", info)
			}
			if name != "none, zeros behind" && (info.DiffID != oci.DigestOf(raw) || info.TarSize != int64(len(raw))) {
				t.Errorf("diffID %s of %d bytes, want %s of %d", info.DiffID, info.TarSize, oci.DigestOf(raw), len(raw))
			}
			if info.Entries != want.Entries || info.Files != want.Files || info.ContentBytes != want.ContentBytes {
				t.Errorf("%+v, want %+v", info, want)
			}
			if !bytes.Equal(out.b[:at], plain.b[:at]) || !bytes.Equal(out.b[at+headerSize:], plain.b[at+headerSize:]) {
				t.Error("the compression of the blob shows in squashfs or TOC")
			}
		})
	}
}

func squashfsSize(b []byte) int {
	return (int(binary.LittleEndian.Uint64(b[40:])) + 4095) &^ 4095
}

func TestEmptyLayers(t *testing.T) {
	for name, blob := range map[string][]byte{
		"nothing": nil, "gzip of nothing": gzipped(t, nil), "zstd of nothing": zstded(t, nil),
		"zeros": make([]byte, 1024), "one block": make([]byte, 512), "many zeros": make([]byte, 1<<20),
		"an empty archive": gzipped(t, archive(t)),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "zstd of nothing" {
				blob = []byte("\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00") // EncodeAll makes no frame
			}
			out, info := converted(t, blob, Options{})
			if info.Entries != 0 || len(entriesOf(t, out)) != 0 {
				t.Errorf("%+v", info)
			}
		})
	}
}

// TestSample proves what the entries are, where squashfs has a place and where not.
func TestSample(t *testing.T) {
	out, info := converted(t, gzipped(t, sample(t)), Options{})
	var text strings.Builder
	for _, g := range entriesOf(t, out) {
		fmt.Fprintln(&text, g)
	}
	golden(t, "sample.golden", text.String())
	if info.Entries != 21 || info.Files != 12 {
		t.Errorf("%+v", info)
	}
	// Real squashfs-tools see the squashfs part, and all content is there.
	path := filepath.Join(t.TempDir(), "artefact")
	must(t, os.WriteFile(path, out.b, 0o600))
	list := unsquashfs(t, "-ll", "-d", "", path)
	for _, want := range []string{"/etc/hosts", "/.wh..gangway/5", "/.wh..gangway/12", "/.wh..gangway/16", "/hard", "/null", "/bin/ping"} {
		if !strings.Contains(list, " "+want+"\n") {
			t.Errorf("unsquashfs shows no %s:\n%s", want, list)
		}
	}
	for _, no := range []string{"/etc/.wh.", "disk", "/hard/below"} {
		if strings.Contains(list, no) {
			t.Errorf("unsquashfs shows %s:\n%s", no, list)
		}
	}
	if got := unsquashfs(t, "-cat", path, "etc/hosts"); got != "127.0.0.1 localhost\n" {
		t.Errorf("unsquashfs -cat: %q", got)
	}
}

func unsquashfs(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("unsquashfs"); err != nil {
		t.Skip("needs unsquashfs of squashfs-tools")
	}
	b, err := exec.Command("unsquashfs", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("unsquashfs %q: %v\n%s", args, err, b)
	}
	return string(b)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestGolden tells when the same blob gives other bytes than before: then raise
// encoderVersion, and run with -update.
func TestGolden(t *testing.T) {
	out, _ := converted(t, sample(t), Options{})
	sum := sha256.Sum256(out.b)
	golden(t, "artefact.golden", fmt.Sprintf("version %d: %x\n", encoderVersion, sum))
}

func TestDeterministic(t *testing.T) {
	items := []item{dir("d")}
	for i := range 300 {
		items = append(items, file(fmt.Sprint("d/f", i%250), noise(uint64(i%40), i*97)))
	}
	items = append(items, file("large", noise(7, 3<<20)), file("large again", noise(7, 3<<20)))
	blob := gzipped(t, archive(t, items...))
	first, _ := converted(t, blob, Options{Workers: 1})
	for _, n := range []struct{ workers, procs int }{{1, 1}, {2, 4}, {7, 1}, {7, 4}, {0, 2}} {
		procs := runtime.GOMAXPROCS(n.procs)
		out, _, err := tryConvert(blob, Options{Workers: n.workers})
		runtime.GOMAXPROCS(procs)
		must(t, err)
		if !bytes.Equal(out.b, first.b) {
			t.Errorf("other bytes with %d workers and GOMAXPROCS %d", n.workers, n.procs)
		}
	}
}

func TestDigests(t *testing.T) {
	raw := sample(t)
	blob := gzipped(t, raw)
	sum := sha512.Sum512(blob)
	rawSum := sha512.Sum512(raw)
	long := oci.Digest("sha512:" + hex.EncodeToString(sum[:]))
	rawLong := oci.Digest("sha512:" + hex.EncodeToString(rawSum[:]))
	good := Options{Digest: oci.DigestOf(blob), Size: int64(len(blob)), DiffID: oci.DigestOf(raw)}
	for name, c := range map[string]struct {
		change func(*Options)
		want   error
	}{
		"all right":       {func(*Options) {}, nil},
		"sha512":          {func(o *Options) { o.Digest, o.DiffID = long, rawLong }, nil},
		"sha512, learn":   {func(o *Options) { o.Digest, o.DiffID = long, "" }, nil},
		"wrong digest":    {func(o *Options) { o.Digest = oci.DigestOf(raw) }, ErrDigest},
		"wrong diffID":    {func(o *Options) { o.DiffID = oci.DigestOf(blob) }, ErrDiffID},
		"wrong sha512":    {func(o *Options) { o.Digest = rawLong }, ErrDigest},
		"size too small":  {func(o *Options) { o.Size-- }, ErrDigest},
		"size too large":  {func(o *Options) { o.Size++ }, ErrDigest},
		"much too small":  {func(o *Options) { o.Size = 10 }, ErrDigest},
		"unknown size":    {func(o *Options) { o.Size = -1 }, nil},
		"no digest known": {func(o *Options) { o.Digest = "" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			c.change(&o)
			_, info, err := tryConvert(blob, o)
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err != nil {
				if !strings.Contains(err.Error(), o.Digest.Short()) {
					t.Errorf("%v does not name the layer", err)
				}
				if f, ok := errors.AsType[*fault.Error](err); !ok || f.Hint == "" {
					t.Errorf("%v gives no hint", err)
				}
				return
			}
			if o.DiffID != "" && info.DiffID != o.DiffID || o.Digest != "" && info.Digest != o.Digest {
				t.Errorf("%+v", info)
			}
		})
	}
	// An uncompressed layer has one hash for both.
	if _, info := converted(t, raw, Options{DiffID: rawLong}); info.DiffID != rawLong || info.Digest != oci.DigestOf(raw) {
		t.Errorf("%+v", info)
	}
	if _, _, err := tryConvert(blob, Options{Digest: "md5:00"}); err == nil {
		t.Error("a digest of md5 was taken")
	}
}

// TestReadErrors: what the blob's reader says comes through, whatever the decoder
// made of it.
func TestReadErrors(t *testing.T) {
	for _, blob := range [][]byte{sample(t), gzipped(t, sample(t)), zstded(t, sample(t))} {
		for _, at := range []int{0, 1, 100, len(blob) / 2, len(blob)} {
			r := io.MultiReader(bytes.NewReader(blob[:at]), failing{errTest})
			if _, err := Convert(t.Context(), &memory{}, r, Options{}); !errors.Is(err, errTest) {
				t.Errorf("a blob that fails at %d: %v", at, err)
			}
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// TestCancel cancels at many moments; synctest proves that no goroutine stays.
func TestCancel(t *testing.T) {
	blob := gzipped(t, archive(t, file("a", noise(1, 4<<20)), file("b", noise(2, 1<<20))))
	for _, at := range []int{0, 1, 1000, len(blob) / 2, len(blob) - 1} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := io.MultiReader(bytes.NewReader(blob[:at]), call(func() { cancel(errTest) }), bytes.NewReader(blob[at:]))
			if _, err := Convert(ctx, &memory{}, r, Options{Workers: 2}); !errors.Is(err, errTest) {
				t.Errorf("cancelled at %d: %v", at, err)
			}
		})
	}
}

// TestCancelHole cancels the reading of a hole that would take many minutes.
func TestCancelHole(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(dir, "f"), 15<<40))
	tar, err := exec.Command("tar", "--format=posix", "-S", "-C", dir, "-cf", "-", "f").Output()
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Convert(ctx, &memory{}, bytes.NewReader(tar), Options{Limits: Limits{Bytes: 1 << 50}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// call is a reader that only calls something.
type call func()

func (c call) Read([]byte) (int, error) {
	c()
	return 0, io.EOF
}

// badDisk fails from one call on.
type badDisk struct {
	memory
	left int
}

func (d *badDisk) fails() bool { d.left--; return d.left < 0 }

func (d *badDisk) WriteAt(p []byte, off int64) (int, error) {
	if d.fails() {
		n, _ := d.memory.WriteAt(p[:len(p)/2], off)
		return n, errTest
	}
	return d.memory.WriteAt(p, off)
}

func (d *badDisk) Truncate(size int64) error {
	if d.fails() {
		return errTest
	}
	return d.memory.Truncate(size)
}

func (d *badDisk) ReadAt(p []byte, off int64) (int, error) {
	if d.fails() {
		return 0, errTest
	}
	return d.memory.ReadAt(p, off)
}

// TestOutputFails has each call of the output fail, and all after it.
func TestOutputFails(t *testing.T) {
	blob := gzipped(t, sample(t))
	calls := 0
	for ok := false; !ok; calls++ {
		synctest.Test(t, func(t *testing.T) {
			out := &badDisk{left: calls}
			_, err := Convert(t.Context(), out, bytes.NewReader(blob), Options{Workers: 2, Digest: oci.DigestOf(blob), Size: int64(len(blob))})
			if ok = err == nil; ok {
				return
			}
			if !errors.Is(err, errTest) {
				t.Errorf("call %d fails: %v", calls, err)
			}
			if l, err := NewReader(&out.memory, squashfs.ReaderOptions{}); err == nil {
				if err := Check(t.Context(), l, CheckOptions{}); err == nil {
					t.Errorf("call %d fails, and there is an artefact", calls)
				}
				l.Close()
			}
		})
	}
	if calls < 8 {
		t.Errorf("only %d calls", calls)
	}
}

func TestEStargz(t *testing.T) {
	toc := file("stargz.index.json", `{"version":1}`)
	a, b := file("a", "aaa"), file(".prefetch.landmark", "\x0f")
	for name, c := range map[string]struct {
		items []item
		want  []string
		is    bool
	}{
		"eStargz":               {[]item{a, b, file("c", "c"), toc}, []string{"a", "c"}, true},
		"without prefetching":   {[]item{file("./.no.prefetch.landmark", "\x0f"), a, toc}, []string{"a"}, true},
		"not the last":          {[]item{b, toc, a}, []string{".prefetch.landmark", "stargz.index.json", "a"}, false},
		"not at the root":       {[]item{a, file("d/stargz.index.json", "x")}, []string{"a", "d/stargz.index.json"}, false},
		"landmark below":        {[]item{file("d/.prefetch.landmark", "x"), toc}, []string{"d/.prefetch.landmark"}, true},
		"a link of the name":    {[]item{a, link(tar.TypeSymlink, "stargz.index.json", "a")}, []string{"a", "stargz.index.json"}, false},
		"nothing but the index": {[]item{toc}, []string{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			out, info := converted(t, gzipped(t, archive(t, c.items...)), Options{})
			if got := names(entriesOf(t, out)); !slices.Equal(got, c.want) || info.EStargz != c.is || int(info.Entries) != len(c.want) {
				t.Errorf("%q, %+v", got, info)
			}
		})
	}
}
