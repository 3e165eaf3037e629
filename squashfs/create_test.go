package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// wCreates are the two ways in which an image begins: without a name, and where
// the file system cannot do that, with a temporary one.
var wCreates = map[string]func(string, WriterOptions) (*FileWriter, error){
	"nameless": Create,
	"named": func(path string, o WriterOptions) (*FileWriter, error) {
		f, temp, err := openNamed(filepath.Dir(path), filepath.Base(path))
		if err != nil {
			return nil, err
		}
		fw := &FileWriter{path: path, f: f, temp: temp}
		fw.Writer, err = NewWriter(f, o)
		return fw, err
	},
}

// eachCreate runs a test for both, with an old file at the path and without.
func eachCreate(t *testing.T, f func(t *testing.T, create func() *FileWriter, path string)) {
	for how, create := range wCreates {
		for _, old := range []string{"", "old"} {
			t.Run(how+old, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "image")
				if old != "" {
					must(t, os.WriteFile(path, []byte(old), 0o600))
				}
				f(t, func() *FileWriter {
					w, err := create(path, WriterOptions{})
					must(t, err)
					return w
				}, path)
			})
		}
	}
}

// wNothingNew proves that the directory holds the old file and no other.
func wNothingNew(t *testing.T, path, before string) {
	t.Helper()
	if after := wListDir(t, filepath.Dir(path)); after != before {
		t.Errorf("the directory had %q, now %q", before, after)
	}
}

// wListDir is a directory's names with the heads of their contents.
func wListDir(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	var s strings.Builder
	for _, e := range list {
		b, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		fmt.Fprintf(&s, "%s:%d:%.8q ", e.Name(), len(b), b)
	}
	return s.String()
}

func TestCreateFails(t *testing.T) {
	ways := map[string]func(*testing.T, *FileWriter) error{
		"content": func(t *testing.T, w *FileWriter) error {
			_ = w.Add(Entry{Path: "g", Size: -1}, &wFailing{5 << 20, errTest})
			_, err := w.Commit(t.Context(), nil)
			return err
		},
		"trailer": func(t *testing.T, w *FileWriter) error {
			_, err := w.Commit(t.Context(), &wFailing{100000, errTest})
			return err
		},
		"closed": func(t *testing.T, w *FileWriter) error {
			must(t, w.Close())
			_, err := w.Commit(t.Context(), nil)
			return err
		},
		"file closed": func(t *testing.T, w *FileWriter) error {
			must(t, w.f.Close())
			_, err := w.Commit(t.Context(), nil)
			return err
		},
	}
	for name, fail := range ways {
		t.Run(name, func(t *testing.T) {
			eachCreate(t, func(t *testing.T, create func() *FileWriter, path string) {
				before := wListDir(t, filepath.Dir(path))
				w := create()
				must(t, w.Add(Entry{Path: "f", Size: 5}, strings.NewReader("12345")))
				if err := fail(t, w); err == nil {
					t.Error("committed")
				}
				must(t, w.Close())
				wNothingNew(t, path, before)
			})
		})
	}
}

// TestCreateCannotName has a directory come in the image's place.
func TestCreateCannotName(t *testing.T) {
	for how, create := range wCreates {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			w, err := create(path, WriterOptions{})
			must(t, err)
			must(t, os.Mkdir(path, 0o755))
			if _, err := w.Commit(t.Context(), nil); err == nil {
				t.Error("an image took a directory's place")
			}
			must(t, w.Close())
			wNothingNew(t, path, "image:0:\"\" ")
		})
	}
	if _, err := Create(filepath.Join(t.TempDir(), "missing", "image"), WriterOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("create in a missing directory: %v", err)
	}
	path := filepath.Join(t.TempDir(), "image")
	if _, err := Create(path, WriterOptions{BlockSize: 1}); err == nil {
		t.Error("bad options were taken")
	}
	wNothingNew(t, path, "")
}

func TestCreateCommits(t *testing.T) {
	eachCreate(t, func(t *testing.T, create func() *FileWriter, path string) {
		for _, trailer := range []string{"", "trailer", strings.Repeat("long", 5000)} {
			before := wListDir(t, filepath.Dir(path))
			w := create()
			item := wFile("f", noise(1, 3<<20))
			must(t, item.add(w.Writer))
			if s := wListDir(t, filepath.Dir(path)); w.temp == "" && s != before {
				t.Errorf("before the commit there is %s", s)
			}
			var r io.Reader
			if trailer != "" {
				r = iotestHalf{strings.NewReader(trailer)}
			}
			info, err := w.Commit(t.Context(), r)
			must(t, err)
			must(t, w.Close())
			if _, err := w.Commit(t.Context(), nil); !errors.Is(err, os.ErrClosed) {
				t.Errorf("second commit: %v", err)
			}
			wIsImage(t, path, info, trailer)
			list, err := os.ReadDir(filepath.Dir(path))
			must(t, err)
			if len(list) != 1 {
				t.Errorf("%d files in the directory", len(list))
			}
		}
	})
}

// iotestHalf hides all methods but Read.
type iotestHalf struct{ io.Reader }

func wIsImage(t *testing.T, path string, info Info, trailer string) {
	t.Helper()
	r, err := Open(path, ReaderOptions{})
	must(t, err)
	defer r.Close()
	if r.Superblock() != info.Superblock {
		t.Errorf("superblock %+v, want %+v", r.Superblock(), info.Superblock)
	}
	var got []byte
	if tr := r.Trailer(); tr != nil {
		got, err = io.ReadAll(tr)
		must(t, err)
	}
	if string(got) != trailer {
		t.Errorf("trailer of %d bytes, want %d", len(got), len(trailer))
	}
	if b := wContent(t, r, "f"); !bytes.Equal(b, noise(1, 3<<20)) {
		t.Error("other content")
	}
}

// TestCreateTogether has several writers for one path; the last to commit wins.
func TestCreateTogether(t *testing.T) {
	for how, create := range wCreates {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "image")
			var all []*FileWriter
			for i := range 4 {
				w, err := create(path, WriterOptions{})
				must(t, err)
				must(t, w.Add(Entry{Path: fmt.Sprint("file", i)}, nil))
				all = append(all, w)
			}
			for _, w := range all {
				_, err := w.Commit(t.Context(), nil)
				must(t, err)
			}
			wAt(t, openImage(t, path, ReaderOptions{}), "file3")
			if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
				t.Errorf("%d files in the directory", len(list))
			}
		})
	}
}

// TestCreateLongName has a name that leaves no room for a temporary one made of it.
func TestCreateLongName(t *testing.T) {
	for how, create := range wCreates {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
			for range 2 {
				w, err := create(path, WriterOptions{})
				must(t, err)
				_, err = w.Commit(t.Context(), nil)
				must(t, errors.Join(err, w.Close()))
			}
			openImage(t, path, ReaderOptions{})
		})
	}
}

func TestCreateHonoursUmask(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	eachCreate(t, func(t *testing.T, create func() *FileWriter, path string) {
		_, err := create().Commit(t.Context(), nil)
		must(t, err)
		fi, err := os.Stat(path)
		must(t, err)
		if fi.Mode() != 0o640 {
			t.Errorf("mode %v", fi.Mode())
		}
	})
}

// TestCreateOnFullDisk fills a small file system by content, by tables and by the trailer.
func TestCreateOnFullDisk(t *testing.T) {
	wNeedRoot(t)
	dir := t.TempDir()
	wTool(t, "mount", "-t", "tmpfs", "-o", "size=2m", "none", dir)
	defer wTool(t, "umount", dir)
	path := filepath.Join(dir, "image")
	must(t, os.WriteFile(path, []byte("old"), 0o600))
	before := wListDir(t, dir)
	for how, create := range wCreates {
		for name, size := range map[string]int{"content": 16 << 20, "tables": 2<<20 - 40<<10, "trailer": 1 << 20} {
			t.Run(how+name, func(t *testing.T) {
				w, err := create(path, WriterOptions{})
				must(t, err)
				_ = w.Add(Entry{Path: "f", Size: -1}, bytes.NewReader(noise(1, size)))
				for i := range 5000 {
					_ = w.Add(Entry{Path: fmt.Sprintf("%x", noise(uint64(i), 20))}, nil)
				}
				if _, err := w.Commit(t.Context(), bytes.NewReader(noise(2, 2<<20))); !errors.Is(err, unix.ENOSPC) {
					t.Errorf("full disk: %v", err)
				}
				must(t, w.Close())
				wNothingNew(t, path, before)
			})
		}
	}
}

// TestCreateKilled kills a process that makes one image after the other, at many
// points: there is an image then, the last or the one before, and no more.
func TestCreateKilled(t *testing.T) {
	rounds := 25
	if wLong() {
		rounds = 300
	}
	for how := range wCreates {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			for range rounds {
				wKillCreator(t, how, filepath.Join(dir, "image"), rand.IntN(120))
				litter := wKilled(t, dir, how)
				if how == "nameless" && litter != "" {
					t.Errorf("left behind: %s", litter)
				}
			}
		})
	}
}

// wKillCreator starts this test again as a process of its own, and kills it when
// it has said as many bytes.
func wKillCreator(t *testing.T, how, path string, after int) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^TestCreateForever$")
	cmd.Env = append(os.Environ(), "GANGWAY_TEST_CREATE="+how+":"+path)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	n, err := io.CopyN(io.Discard, out, int64(after))
	if n < int64(after) {
		t.Errorf("the process ended by itself after %d steps: %v", n, err)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
}

// TestCreateForever is the process that TestCreateKilled kills.
func TestCreateForever(t *testing.T) {
	how, path, ok := strings.Cut(os.Getenv("GANGWAY_TEST_CREATE"), ":")
	if !ok {
		return
	}
	for version := uint64(0); ; version++ {
		w, err := wCreates[how](path, WriterOptions{BlockSize: 4096})
		must(t, err)
		body := noise(version%7, 200<<10)
		must(t, w.Add(Entry{Path: "f", Size: -1}, wTelling{bytes.NewReader(body)}))
		_, err = w.Commit(t.Context(), wTelling{bytes.NewReader(body[:10])})
		must(t, err)
		fmt.Print("*")
	}
}

// wTelling says something on standard output for every 8 KiB that are read.
type wTelling struct{ r io.Reader }

func (r wTelling) Read(p []byte) (int, error) {
	fmt.Print(".")
	return r.r.Read(p[:min(len(p), 8192)])
}

// wKilled proves that the image, if there is one, is whole, and returns and
// removes what else there is. In the instant between its temporary name and its
// final one a finished image may have both.
func wKilled(t *testing.T, dir, how string) (litter string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if e.Name() == "image" {
			must(t, wIsWhole(path))
			continue
		}
		if how == "named" || wIsWhole(path) != nil {
			litter += e.Name() + " "
		}
		must(t, os.Remove(path))
	}
	return litter
}

// wIsWhole proves that an image of TestCreateForever has all its content and its trailer.
func wIsWhole(path string) error {
	r, err := Open(path, ReaderOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	body, err := fs.ReadFile(r.FS(), "f")
	if err != nil || r.Trailer() == nil {
		return fmt.Errorf("content of %d bytes, trailer %v: %w", len(body), r.Trailer(), err)
	}
	trailer, err := io.ReadAll(r.Trailer())
	if err != nil || len(body) != 200<<10 || !slices.Equal(trailer, body[:10]) {
		return fmt.Errorf("content of %d bytes, trailer % x: %w", len(body), trailer, err)
	}
	return nil
}

// TestCreateNew keeps what is at the path, also what comes there meanwhile.
func TestCreateNew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(path, []byte("old"), 0o600))
	if _, err := CreateNew(path, WriterOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an old file: %v", err)
	}
	for how, create := range wCreates {
		path := filepath.Join(t.TempDir(), "image")
		w, err := create(path, WriterOptions{})
		must(t, err)
		w.keep = true // as CreateNew does
		must(t, os.WriteFile(path, []byte("precious"), 0o600))
		if _, err := w.Commit(t.Context(), nil); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", how, err)
		}
		must(t, w.Close())
		if got := wListDir(t, filepath.Dir(path)); !strings.Contains(got, "precious") || strings.Contains(got, "tmp") {
			t.Errorf("%s: the directory has %s", how, got)
		}
	}
	w, err := CreateNew(path+"2", WriterOptions{})
	must(t, err)
	defer w.Close()
	_, err = w.Commit(t.Context(), nil)
	must(t, err)
}
