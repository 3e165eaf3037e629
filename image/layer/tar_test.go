package layer

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/squashfs"
)

// wanted reads an archive with package tar alone, and says what Convert shall make
// of it; ok is false where it shall refuse it.
func wanted(b []byte) (all []got, ok bool) {
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return all, true
		}
		if err != nil {
			return nil, false
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, false
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		g, ok := wantedEntry(h, content)
		if !ok {
			return nil, false
		}
		all = append(all, g)
	}
}

func wantedEntry(h *tar.Header, content []byte) (g got, ok bool) {
	kinds := map[byte]Type{
		tar.TypeReg: File, tar.TypeCont: File, tar.TypeGNUSparse: File, tar.TypeDir: Dir, tar.TypeSymlink: Symlink,
		tar.TypeLink: HardLink, tar.TypeChar: CharDevice, tar.TypeBlock: BlockDevice, tar.TypeFifo: FIFO,
	}
	g.Type = kinds[h.Typeflag]
	g.Name = strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	bad := func(name string) bool {
		return slices.Contains(strings.Split(name, "/"), "..") || strings.Contains(name, "\x00") || len(name) > 4095
	}
	if g.Type == 0 || g.Name == "" && g.Type != Dir || bad(h.Name) || h.Uid < 0 || h.Gid < 0 || h.Uid>>32 != 0 || h.Gid>>32 != 0 {
		return g, false
	}
	g.Mode, g.UID, g.GID = uint32(h.Mode&0o7777), uint32(h.Uid), uint32(h.Gid)
	g.Sec, g.Nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	switch g.Type {
	case File:
		if !strings.HasPrefix(path.Base(g.Name), ".wh.") {
			g.content, g.Size = string(content), int64(len(content))
		}
	case Symlink:
		g.Link = h.Linkname
	case HardLink:
		if bad(h.Linkname) {
			return g, false
		}
		g.Link = strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	case CharDevice, BlockDevice:
		g.Major, g.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	}
	for k, v := range h.PAXRecords {
		k, is := strings.CutPrefix(k, "SCHILY.xattr.")
		space, _, _ := strings.Cut(k, ".")
		if is && slices.Contains([]string{"user", "trusted", "security", "system"}, space) {
			g.Xattrs = append(g.Xattrs, squashfs.Xattr{Name: k, Value: []byte(v)})
		}
	}
	slices.SortFunc(g.Xattrs, func(a, b squashfs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return g, g.Link != "" || g.Type != Symlink && g.Type != HardLink
}

// sameEntries compares, with the readable text of what differs.
func sameEntries(have, want []got) error {
	for i := range max(len(have), len(want)) {
		var a, b string
		if i < len(have) {
			a = fmt.Sprintf("%+v %q", have[i].Entry, have[i].content)
		}
		if i < len(want) {
			b = fmt.Sprintf("%+v %q", want[i].Entry, want[i].content)
		}
		if a != b {
			return fmt.Errorf("entry %d:\nhave %.500s\nwant %.500s", i, a, b)
		}
	}
	return nil
}

// TestGoArchives reads the archives of Go's own tests: V7, ustar, star, PAX, GNU,
// sparse files of all forms, and broken ones.
func TestGoArchives(t *testing.T) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(root)), "src", "archive", "tar", "testdata")
	files, err := filepath.Glob(filepath.Join(dir, "*.tar*"))
	must(t, err)
	if len(files) == 0 {
		t.Skip("needs the sources of Go, archive/tar/testdata")
	}
	taken, refused := 0, 0
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			b, err := os.ReadFile(name)
			must(t, err)
			switch filepath.Ext(name) {
			case ".base64":
				if b, err = base64.StdEncoding.DecodeString(string(b)); err != nil {
					t.Fatal(err)
				}
			case ".bz2":
				return // a refusal, and TestOtherFiles has one
			}
			if strings.Contains(name, "sparse-big") {
				testHuge(t, b)
				return
			}
			want, ok := wanted(b)
			out, _, err := tryConvert(b, Options{})
			if (err == nil) != ok {
				t.Fatalf("%v; package tar: %v", err, ok)
			}
			if err != nil {
				refused++
				t.Log(err)
				return
			}
			taken++
			must(t, sameEntries(entriesOf(t, out), want))
			must(t, Check(t.Context(), opened(t, out), CheckOptions{}))
		})
	}
	if taken < 20 || refused < 5 {
		t.Errorf("%d archives taken and %d refused", taken, refused)
	}
}

// testHuge converts an archive of a file that is one hole of 60 GB: beyond a limit,
// as reading it takes a minute.
func testHuge(t *testing.T, b []byte) {
	var limit *LimitError
	if _, _, err := tryConvert(b, Options{Limits: Limits{Bytes: 50e9}}); !errors.As(err, &limit) || limit.What != "Bytes" {
		t.Errorf("%v", err)
	}
}

// TestNames: what a path may look like.
func TestNames(t *testing.T) {
	l := Limits{}.complete()
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("d/", 2047) + "d"
	for in, want := range map[string]string{
		"": "", ".": "", "/": "", "./": "", "a": "a", "./a": "a", "/a": "a", "a/": "a", "//a//b//": "a/b", "a/./b": "a/b",
		"a/.": "a", "..a": "..a", "a..": "a..", "...": "...", ".wh.": ".wh.", "\xff\xfe": "\xff\xfe", long: long, deep: deep,
		"a b\n": "a b\n", "././../.": "error", "..": "error", "../a": "error", "a/../b": "error", "/..": "error", "a/..": "error",
		"a\x00b": "error", long + "n": "error", "a/" + long + "n/b": "error", deep + "/d": "error", strings.Repeat("nn/", 1365) + "n": "error",
	} {
		got, err := cleanName(in, &l)
		if err != nil {
			got = "error"
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		}
		if got != want {
			t.Errorf("%.40q: %.40q, want %.40q", in, got, want)
		}
	}
}

// TestBadEntries: an entry that is refused is named, with the reason.
func TestBadEntries(t *testing.T) {
	long := strings.Repeat("n", 256)
	for name, c := range map[string]struct {
		item item
		want string // in the error
	}{
		"dotdot":              {file("a/../../etc/passwd", ""), `"a/../../etc/passwd"`},
		"256 bytes":           {file("a/"+long, ""), "256 bytes"},
		"a path too long":     {file(strings.Repeat("n/", 2100)+"n", ""), "4095 bytes"},
		"file as root":        {file(".", "x"), "root must be a directory"},
		"hard link up":        {link(tar.TypeLink, "h", "../x"), `".."`},
		"hard link to root":   {link(tar.TypeLink, "h", "./"), "root"},
		"symlink to nothing":  {link(tar.TypeSymlink, "s", ""), "symlink"},
		"symlink too long":    {link(tar.TypeSymlink, "s", strings.Repeat("t", 4096)), "4096 bytes"},
		"uid too large":       {item{Header: tar.Header{Name: "u", Typeflag: tar.TypeReg, Uid: 1 << 32}}, "user id 4294967296"},
		"gid negative":        {item{Header: tar.Header{Name: "u", Typeflag: tar.TypeReg, Gid: -1, Format: tar.FormatGNU}}, "group id -1"},
		"device too large":    {item{Header: tar.Header{Name: "d", Typeflag: tar.TypeChar, Devmajor: 1 << 32, Format: tar.FormatGNU}}, "4294967296"},
		"device negative":     {item{Header: tar.Header{Name: "d", Typeflag: tar.TypeBlock, Devminor: -1, Format: tar.FormatGNU}}, "-1"},
		"a volume's label":    {item{Header: tar.Header{Name: "v", Typeflag: 'V'}}, "unknown type 'V'"},
		"a name of nothing":   {item{Header: tar.Header{Name: "", Typeflag: tar.TypeReg}}, "root must be a directory"},
		"xattr over 64 KiB":   {xattr(file("x", ""), "user.a", strings.Repeat("v", 65537)), "65536"},
		"xattr name too long": {xattr(file("x", ""), "user."+long, ""), "255"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := tryConvert(gzipped(t, archive(t, file("before", "x"), c.item)), Options{Digest: ""})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), fmt.Sprintf("entry %.100q", c.item.Name)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	huge := time.Unix(1<<40, 0)
	items := []item{
		{Header: tar.Header{Name: "largest ids", Typeflag: tar.TypeReg, Uid: 1<<32 - 1, Gid: 1<<32 - 1, Mode: 0o7777}},
		{Header: tar.Header{Name: "ids over 2^21", Typeflag: tar.TypeReg, Uid: 1<<21 + 1, Gid: 1 << 31, Format: tar.FormatGNU}},
		{Header: tar.Header{Name: "before 1970", Typeflag: tar.TypeReg, ModTime: time.Unix(-5, 250_000_000), Format: tar.FormatPAX}},
		{Header: tar.Header{Name: "in 36000 years", Typeflag: tar.TypeReg, ModTime: huge, Format: tar.FormatGNU}},
		{Header: tar.Header{Name: "contiguous", Typeflag: tar.TypeCont, Size: 1}, content: "c"},
		{Header: tar.Header{Name: "0:0", Typeflag: tar.TypeChar}},
		file("\xff not UTF-8", "x"),
		xattr(xattr(file("xattrs", ""), "user.empty", ""), "user.equals", "a=b\x00\n=c"),
	}
	b := archive(t, items...)
	want, ok := wanted(b)
	if !ok || len(want) != len(items) {
		t.Fatal("the test's own archive is bad")
	}
	want[7].Xattrs = []squashfs.Xattr{{Name: "user.empty", Value: []byte{}}, {Name: "user.equals", Value: []byte("a=b\x00\n=c")}}
	out, _ := converted(t, b, Options{})
	must(t, sameEntries(entriesOf(t, out), want))
}

// TestForgedXattrs: what overlayfs would believe does not come in.
func TestForgedXattrs(t *testing.T) {
	i := file("f", "")
	for _, name := range []string{
		"trusted.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect", "trusted.overlay.", "com.apple.quarantine",
		"user.", "mime", "user.overlayx", "trusted.over", "security.ima",
	} {
		i = xattr(i, name, "y")
	}
	out, _ := converted(t, archive(t, i), Options{})
	var names []string
	for _, x := range entriesOf(t, out)[0].Xattrs {
		names = append(names, x.Name)
	}
	if want := []string{"security.ima", "trusted.over", "user.overlayx"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

func TestTooManyIDs(t *testing.T) {
	var items []item
	for i := range 65_600 {
		items = append(items, item{Header: tar.Header{Name: fmt.Sprint("f", i), Typeflag: tar.TypeReg, Uid: i}})
	}
	_, _, err := tryConvert(archive(t, items...), Options{})
	if !errors.Is(err, squashfs.ErrTooManyIDs) || !strings.Contains(err.Error(), "f65535") {
		t.Errorf("%v", err)
	}
}

// TestGNUTar reads what GNU tar writes: sparse files in all its forms, long names.
func TestGNUTar(t *testing.T) {
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip("needs tar")
	}
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	for _, at := range []int64{1 << 20, 3 << 20, 5<<20 - 3} {
		_, err = f.WriteAt([]byte("data"), at)
		must(t, err)
	}
	must(t, f.Truncate(8<<20))
	must(t, f.Close())
	long := strings.Repeat("long", 40)
	must(t, os.WriteFile(filepath.Join(dir, long), []byte("x"), 0o644))
	must(t, os.Symlink(long+long, filepath.Join(dir, "link")))
	for _, args := range [][]string{
		{"--format=gnu"},
		{"--format=posix", "--sparse-version=0.0"},
		{"--format=posix", "--sparse-version=0.1"},
		{"--format=posix", "--sparse-version=1.0"},
		{"--format=gnu", "--hole-detection=raw"},
	} {
		b, err := exec.Command("tar", append(args, "-S", "-C", dir, "-cf", "-", ".")...).Output()
		if err != nil {
			t.Skipf("needs GNU tar: %v", err)
		}
		if len(b) > 1<<20 {
			t.Errorf("%q: the archive is not sparse", args)
		}
		want, _ := wanted(b)
		out, info := converted(t, b, Options{})
		must(t, sameEntries(entriesOf(t, out), want))
		if len(want) != 4 || info.ContentBytes != 8<<20+1 {
			t.Errorf("%d entries, %+v", len(want), info)
		}
	}
}
