package image_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/squashfs"
)

func openFile(t testing.TB, s *image.Store, file string) *image.Opened {
	t.Helper()
	o, err := s.OpenFile(t.Context(), file, squashfs.ReaderOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, o.Close()) })
	return o
}

// written is a file with what write adds.
func written(t testing.TB, write func(w *squashfs.Writer) error) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "written.sqsh")
	w, err := squashfs.Create(file, squashfs.WriterOptions{})
	must(t, err)
	defer w.Close()
	must(t, write(w.Writer))
	_, err = w.Commit(t.Context(), nil)
	must(t, err)
	return file
}

func exported(t testing.TB, o *image.Opened) string {
	t.Helper()
	return written(t, func(w *squashfs.Writer) error { return o.Export(t.Context(), w, nil) })
}

// indexes returns the indexes of local files.
func indexes(t testing.TB, s *image.Store) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(s.Dir(), "indexes/v1/local/*"))
	must(t, err)
	return names
}

// TestOpenFile: an image in a file has the files of that file, whatever its compression.
func TestOpenFile(t *testing.T) {
	dir := rootfs(t)
	for _, comp := range []string{"gzip", "zstd", "lz4", "xz", "lzo"} {
		t.Run(comp, func(t *testing.T) {
			s := newStore(t)
			file := imageOf(t, dir, "-comp", comp)
			o := openFile(t, s, file)
			mustEqual(t, describe(t, exported(t, o)), describe(t, file))
			must(t, merged.Check(t.Context(), o.Index, func(int) (*squashfs.Reader, error) { return o.Layers[0], nil }))
			l := o.Index.Layers()
			st, err := os.Stat(file)
			must(t, err)
			if len(l) != 1 || l[0].Path != file || l[0].Size != st.Size() || l[0].ModTime != st.ModTime().UnixNano() || l[0].Inode == 0 {
				t.Errorf("layers %+v", l)
			}
			if got := stored(t, s); len(indexes(t, s)) != 1 || len(got) > 3 {
				t.Errorf("the store has %d files, %d of them indexes; the file's content is not to be copied", len(got), len(indexes(t, s)))
			}
		})
	}
}

// TestOpenFileWithoutExports: images in which inodes cannot be found by their numbers,
// which squashfs-tools-ng makes unless told otherwise, are as good as others.
func TestOpenFileWithoutExports(t *testing.T) {
	dir := rootfs(t)
	plain := filepath.Join(t.TempDir(), "gensquashfs.sqsh")
	tool(t, "gensquashfs", "-q", "-D", dir, plain)
	for name, file := range map[string]string{"gensquashfs": plain, "mksquashfs": imageOf(t, dir, "-no-exports")} {
		t.Run(name, func(t *testing.T) {
			o := openFile(t, newStore(t), file)
			if o.Layers[0].Superblock().Flags&squashfs.FlagExportable != 0 {
				t.Fatal("the image has an export table")
			}
			mustEqual(t, describe(t, exported(t, o)), describe(t, file))
		})
	}
}

// TestOpenFileNames: what means something in a layer means nothing in a file; what means
// something to an overlay does not come out.
func TestOpenFileNames(t *testing.T) {
	file := written(t, func(w *squashfs.Writer) error {
		var errs []error
		for _, name := range []string{".wh..wh..opq", ".wh.a", "a", ".wh..wh.plnk/1", "d/.wh.", ".wh.d/x"} {
			errs = append(errs, w.Add(squashfs.Entry{Path: name, Mode: 0o644, Size: 1}, strings.NewReader("x")))
		}
		errs = append(errs, w.Link("link", ".wh.a"), w.Add(squashfs.Entry{Path: "o", Mode: fs.ModeDir | 0o755, Xattrs: []squashfs.Xattr{
			{Name: "user.overlay.opaque", Value: []byte("y")}, {Name: "trusted.overlay.opaque", Value: []byte("y")}, {Name: "user.kept", Value: []byte("v")},
		}}, nil))
		return errors.Join(errs...)
	})
	got, want := describe(t, exported(t, openFile(t, newStore(t), file))), describe(t, file)
	if !strings.Contains(want["o"], "overlay") || strings.Contains(got["o"], "overlay") || !strings.Contains(got["o"], "user.kept") {
		t.Errorf("attributes: %s", got["o"])
	}
	got["o"], want["o"] = "", ""
	mustEqual(t, got, want)
}

// TestOpenFileAgain: an index is used for as long as its file is the same.
func TestOpenFileAgain(t *testing.T) {
	s := newStore(t)
	file := imageOf(t, rootfs(t))
	openFile(t, s, file)
	first := indexes(t, s)
	before, err := os.Stat(first[0])
	must(t, err)
	must(t, os.Symlink(file, file+".link"))
	for _, name := range []string{file, file + ".link", filepath.Dir(file) + "/./" + filepath.Base(file)} {
		openFile(t, s, name)
	}
	if after, err := os.Stat(first[0]); err != nil || !os.SameFile(before, after) || len(indexes(t, s)) != 1 {
		t.Fatalf("the index was made again: %v", err)
	}
	// Same name, length and times: only the inode and its change tell.
	st, err := os.Stat(file)
	must(t, err)
	content, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, content, 0o644))
	must(t, os.Chtimes(file, st.ModTime(), st.ModTime()))
	openFile(t, s, file)
	if n := len(indexes(t, s)); n != 2 {
		t.Errorf("%d indexes after the file was written again, want 2", n)
	}
	begin := time.Now()
	const times = 100
	for range times {
		o, err := s.OpenFile(t.Context(), file, squashfs.ReaderOptions{})
		must(t, err)
		must(t, o.Close())
	}
	t.Logf("opened again in %v", time.Since(begin)/times)
}

// counter counts the messages of a log.
type counter struct {
	slog.Handler
	text string
	n    *atomic.Int32
}

// Handle implements slog.Handler.
func (c counter) Handle(_ context.Context, r slog.Record) error {
	if r.Message == c.text {
		c.n.Add(1)
	}
	return nil
}

// Enabled implements slog.Handler.
func (c counter) Enabled(context.Context, slog.Level) bool { return true }

func counting(t testing.TB, dir, text string) (*image.Store, *atomic.Int32) {
	t.Helper()
	var n atomic.Int32
	s, err := image.Open(image.Options{Dir: dir, Log: slog.New(counter{slog.DiscardHandler, text, &n})})
	must(t, err)
	return s, &n
}

// TestOpenFileAtOnce: of many that want an index one makes it.
func TestOpenFileAtOnce(t *testing.T) {
	s, n := counting(t, filepath.Join(t.TempDir(), "store"), "indexed local image")
	file := imageOf(t, rootfs(t))
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			o, err := s.OpenFile(t.Context(), file, squashfs.ReaderOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := o.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n.Load() != 1 {
		t.Errorf("the index was made %d times", n.Load())
	}
}

// readOnly makes a directory one in which nothing can be written.
func readOnly(t testing.TB, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		must(t, os.Chmod(dir, 0o500))
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		return
	}
	must(t, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_RDONLY, "size=1m,mode=700"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// TestOpenFileReadOnlyStore: where no index can be kept there is one in memory.
func TestOpenFileReadOnlyStore(t *testing.T) {
	dir := t.TempDir()
	readOnly(t, dir)
	s, n := counting(t, dir, "the store cannot be written: the index of a local image is not kept")
	file := imageOf(t, rootfs(t))
	for range 2 {
		mustEqual(t, describe(t, exported(t, openFile(t, s, file))), describe(t, file))
	}
	if n.Load() != 2 {
		t.Errorf("it was said %d times that the index is not kept", n.Load())
	}
}

func TestOpenFileRefused(t *testing.T) {
	s := newStore(t)
	good := imageOf(t, rootfs(t))
	whole, err := os.ReadFile(good)
	must(t, err)
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
		return filepath.Join(dir, name)
	}
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, os.Symlink("loop", dir+"/loop"))
	broken := slices.Clone(whole)
	for i := len(broken) - 3000; i < len(broken)-2000; i++ {
		broken[i] ^= 0x55
	}
	for name, c := range map[string]struct {
		file string
		says []string
	}{
		"no file":     {dir + "/none", []string{"no such file", "this node"}},
		"directory":   {dir, []string{"no regular file"}},
		"FIFO":        {dir + "/fifo", []string{"no regular file"}},
		"loop":        {dir + "/loop", []string{"too many links"}},
		"empty":       {file("empty", nil), []string{"not a squashfs image", "gangway image import"}},
		"text":        {file("text", []byte(strings.Repeat("hello\n", 100))), []string{"not a squashfs image"}},
		"head only":   {file("head", whole[:1000]), []string{"corrupt squashfs image"}},
		"cut off":     {file("cut", whole[:len(whole)/2]), []string{"corrupt squashfs image", "gangway squashfs check"}},
		"broken":      {file("broken", broken), []string{"corrupt squashfs image"}},
		"other magic": {file("magic", append([]byte("sqsh"), whole[4:]...)), []string{"not a squashfs image"}},
		"lzma":        {file("lzma", patched(whole, 20, 2)), []string{"unsupported squashfs image", "mksquashfs"}},
		"version 5":   {file("version", patched(whole, 28, 5)), []string{"unsupported squashfs image"}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := s.OpenFile(t.Context(), c.file, squashfs.ReaderOptions{})
			if err == nil {
				_ = o.Close()
			}
			if name == "loop" {
				if err == nil {
					t.Error("no error")
				}
				return
			}
			mustSay(t, err, append(c.says, "open image "+c.file)...)
		})
	}
	if n := len(indexes(t, s)); n != 0 {
		t.Errorf("%d indexes were kept of files that are none", n)
	}
}

func patched(b []byte, at int, v byte) []byte {
	b = slices.Clone(b)
	b[at] = v
	return b
}

// TestOpenFileCanceled: nothing is left of an index that was given up.
func TestOpenFileCanceled(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.OpenFile(ctx, imageOf(t, rootfs(t)), squashfs.ReaderOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n := len(indexes(t, s)); n != 0 {
		t.Errorf("%d indexes", n)
	}
}

// TestLocalIndexDamaged: a damaged index is made again where its head tells, and found
// by verify where only its checksum does.
func TestLocalIndexDamaged(t *testing.T) {
	for at, want := range map[int64]int{0: 0, 100: 0, 1000: 1} {
		s := newStore(t)
		file := imageOf(t, rootfs(t))
		openFile(t, s, file)
		name := indexes(t, s)[0]
		b, err := os.ReadFile(name)
		must(t, err)
		b[at] ^= 1
		must(t, os.Remove(name)) // the one that is mapped stays as it is
		must(t, os.WriteFile(name, b, 0o600))
		if want == 0 {
			mustEqual(t, describe(t, exported(t, openFile(t, s, file))), describe(t, file))
		}
		r, err := s.VerifyAll(t.Context(), image.VerifyOptions{})
		must(t, err)
		if len(r.Problems) != want || want > 0 && (r.Problems[0].File != name || !r.Problems[0].Removed) {
			t.Errorf("byte %d: %+v", at, r.Problems)
		}
	}
}

// TestLocalIndexGC: an index goes with its file, when that changes, and by age.
func TestLocalIndexGC(t *testing.T) {
	f := newFamily(t)
	dir := rootfs(t)
	var files []string
	for range 4 {
		file := imageOf(t, dir)
		openFile(t, f.s, file)
		files = append(files, file)
	}
	all := indexes(t, f.s)
	r := f.gc(t, image.GCOptions{})
	if r.Files != 0 || len(indexes(t, f.s)) != 4 {
		t.Fatalf("%+v with %d indexes left: nothing is garbage", r, len(indexes(t, f.s)))
	}
	must(t, os.Remove(files[0]))
	changed, err := os.OpenFile(files[1], os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	_, err = changed.WriteString("more")
	must(t, errors.Join(err, changed.Close()))
	if r := f.gc(t, image.GCOptions{DryRun: true}); r.Files != 2 || len(indexes(t, f.s)) != 4 {
		t.Errorf("dry run: %+v", r)
	}
	if r := f.gc(t, image.GCOptions{}); r.Files != 2 || len(indexes(t, f.s)) != 2 {
		t.Errorf("%+v of %v, left %v", r, all, indexes(t, f.s))
	}
	f.has(t, 0, 1, 2)
	// One is used now, the other was some days ago.
	old := f.now.Add(-40 * time.Hour)
	for _, name := range indexes(t, f.s) {
		must(t, os.Chtimes(name, old, old))
	}
	openFile(t, f.s, files[2])
	r = f.gc(t, image.GCOptions{OlderThan: 36 * time.Hour})
	if len(indexes(t, f.s)) != 1 || r.Files != 1 {
		t.Errorf("%+v, left %v", r, indexes(t, f.s))
	}
	openFile(t, f.s, files[2])
	openFile(t, f.s, files[3]) // made again
	zero := int64(0)
	if r := f.gc(t, image.GCOptions{KeepBytes: &zero}); r.Kept != 0 || len(indexes(t, f.s)) != 0 {
		t.Errorf("%+v, left %v", r, indexes(t, f.s))
	}
	mustEqual(t, describe(t, exported(t, openFile(t, f.s, files[3]))), describe(t, files[3]))
}

// TestRunConfig: an image says how it is run, wherever it comes from.
func TestRunConfig(t *testing.T) {
	h := newHub(t)
	s := newStore(t)
	i := mustPull(t, s, h.push(t, "a/b:1", three(t, 100)))
	o, err := s.OpenImage(&i, squashfs.ReaderOptions{})
	must(t, err)
	defer o.Close()
	if c, err := o.Config(); err != nil || fmt.Sprint(c) != "{[PATH=/bin] [] [sh]    map[]}" {
		t.Errorf("of the store: %v %v", c, err)
	}
	want := image.RunConfig{
		Env: []string{"A=b c", "E=", "U=ü\n"}, Entrypoint: []string{"/bin/x", "-y"}, Cmd: []string{""}, WorkingDir: "/w",
		User: "1:2", StopSignal: "SIGINT", Labels: map[string]string{"k": "v"},
	}
	with := func(c image.RunConfig, damage func([]byte) []byte) string {
		trailer, err := c.Trailer()
		must(t, err)
		file := filepath.Join(t.TempDir(), "x.sqsh")
		w, err := squashfs.Create(file, squashfs.WriterOptions{})
		must(t, err)
		defer w.Close()
		must(t, o.Export(t.Context(), w.Writer, nil))
		must(t, w.Add(squashfs.Entry{Path: "etc/environment", Mode: 0o644, Size: 4}, strings.NewReader("A=no")))
		_, err = w.Commit(t.Context(), trailer)
		must(t, err)
		b, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, damage(b), 0o644))
		return file
	}
	file := with(want, func(b []byte) []byte { return b })
	tool(t, "unsquashfs", "-q", "-no-progress", "-user-xattrs", "-d", t.TempDir()+"/x", file)
	if c, err := openFile(t, s, file).Config(); err != nil || fmt.Sprint(c) != fmt.Sprint(want) {
		t.Errorf("of a file: %v %v, want %v", c, err, want)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"cut off": func(b []byte) []byte { return b[:len(b)-1] },
		"flipped": func(b []byte) []byte { b[len(b)-5] ^= 1; return b },
	} {
		_, err := openFile(t, s, with(want, damage)).Config()
		if mustSay(t, err, "read image configuration"); !errors.Is(err, image.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []image.RunConfig{{User: "a\x00b"}, {Env: []string{"A=\x00"}}, {WorkingDir: strings.Repeat("x", 5<<20)}} {
		if _, err := bad.Trailer(); err == nil {
			t.Error("a configuration that could not be read is written")
		}
	}
}

// TestEnvironmentFile: what Enroot keeps in /etc/environment is data.
func TestEnvironmentFile(t *testing.T) {
	s := newStore(t)
	text := "PATH=/usr/bin:/bin\n# comment=1\n\nQUOTED=\"a b\"\nSINGLE='x'\nexport E=f\n  INDENT=1\nEMPTY=\nNOVALUE\n=x\n" +
		"CMD=$(touch /x) `y` ${HOME}\nHALF=\"x\nA B=c\nNUL=a\x00b\nCR=1\r\n$X=1\nLAST=end"
	want := []string{
		"PATH=/usr/bin:/bin", "QUOTED=a b", "SINGLE=x", "E=f", "INDENT=1", "EMPTY=", "CMD=$(touch /x) `y` ${HOME}",
		"HALF=\"x", "CR=1", "LAST=end",
	}
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/etc", 0o755))
	check := func(what string, want []string, wantErr string) {
		t.Helper()
		ofFile, err := openFile(t, s, imageOf(t, dir)).Config()
		ofDir, err2 := image.DirConfig(dir)
		for _, err := range []error{err, err2} {
			if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
				t.Errorf("%s: %v, want %q", what, err, wantErr)
			}
		}
		if !slices.Equal(ofFile.Env, want) || !slices.Equal(ofDir.Env, want) {
			t.Errorf("%s:\nfile %q\n dir %q\nwant %q", what, ofFile.Env, ofDir.Env, want)
		}
	}
	check("none", nil, "")
	must(t, os.WriteFile(dir+"/etc/environment", []byte(text), 0o644))
	check("text", want, "")
	must(t, os.Rename(dir+"/etc/environment", dir+"/etc/other"))
	must(t, os.Symlink("other", dir+"/etc/environment"))
	check("symlink", want, "")
	must(t, os.Remove(dir+"/etc/environment"))
	must(t, os.Mkdir(dir+"/etc/environment", 0o755))
	check("directory", nil, "")
	must(t, os.Remove(dir+"/etc/environment"))
	must(t, os.WriteFile(dir+"/etc/environment", []byte(strings.Repeat("A=b\n", 300_000)), 0o644))
	check("large", nil, "more than")
	must(t, os.Remove(dir+"/etc/environment"))
	must(t, os.Symlink("/proc/self/environ", dir+"/etc/environment"))
	check("symlink out", nil, "")
}
