package squashfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/gangway-hpc/gangway/squashfs"
)

// Write an image and read it with io/fs.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	image := filepath.Join(dir, "image.sqfs")

	w, err := squashfs.Create(image, squashfs.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close() // nothing is left behind if what follows fails
	err = errors.Join(
		w.Add(squashfs.Entry{Path: "etc/motd", Mode: 0o644, Size: -1}, strings.NewReader("Welcome aboard.\n")),
		w.Add(squashfs.Entry{Path: "motd", Mode: fs.ModeSymlink, Target: "etc/motd"}, nil),
		w.Link("etc/issue", "etc/motd"),
	)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := w.Commit(context.Background(), nil); err != nil {
		log.Fatal(err)
	}

	r, err := squashfs.Open(image, squashfs.ReaderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	text, err := fs.ReadFile(r.FS(), "motd")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", text)
	err = fs.WalkDir(r.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		fmt.Println(path)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// Welcome aboard.
	// .
	// etc
	// etc/issue
	// etc/motd
	// motd
}

// memory is an image in memory: a squashfs.Output and an io.ReaderAt.
type memory struct{ data []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if end := off + int64(len(p)); end > int64(len(m.data)) {
		_ = m.Truncate(end)
	}
	return copy(m.data[off:], p), nil
}

func (m *memory) Truncate(size int64) error {
	m.data = append(m.data[:min(size, m.Size())], make([]byte, max(0, size-m.Size()))...)
	return nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.data).ReadAt(p, off)
}

func (m *memory) Size() int64 { return int64(len(m.data)) }

func small(files ...string) *memory {
	m := &memory{}
	w, err := squashfs.NewWriter(m, squashfs.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	for _, name := range files {
		e := squashfs.Entry{Path: name, Mode: 0o644, Size: int64(len(name))}
		if err := w.Add(e, strings.NewReader(name)); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := w.Finish(context.Background()); err != nil {
		log.Fatal(err)
	}
	return m
}

// Take one file of an image into another, without compressing it again.
func ExampleWriter_AddFrom() {
	src, err := squashfs.NewReader(small("bin/tool", "share/manual"), squashfs.ReaderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer src.Close()
	info, err := fs.Stat(src.FS(), "bin/tool")
	if err != nil {
		log.Fatal(err)
	}

	out := &memory{}
	w, err := squashfs.NewWriter(out, squashfs.WriterOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close()
	e := squashfs.Entry{Path: "usr/bin/tool", Mode: 0o755, UID: 1000}
	if err := w.AddFrom(e, src, *info.Sys().(*squashfs.Inode)); err != nil {
		log.Fatal(err)
	}
	if _, err := w.Finish(context.Background()); err != nil {
		log.Fatal(err)
	}

	r, err := squashfs.NewReader(out, squashfs.ReaderOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	text, err := fs.ReadFile(r.FS(), "usr/bin/tool")
	fmt.Println(string(text), err)
	// Output: bin/tool <nil>
}

// Check an image that may be damaged.
func ExampleCheck() {
	image := small("a", "b")
	for range 2 {
		r, err := squashfs.NewReader(image, squashfs.ReaderOptions{})
		if err == nil {
			err = squashfs.Check(context.Background(), r, squashfs.CheckOptions{})
			r.Close()
		}
		fmt.Println("corrupt:", errors.Is(err, squashfs.ErrCorrupt))
		image.data[r.Superblock().InodeTable+10] ^= 0xFF
	}
	// Output:
	// corrupt: false
	// corrupt: true
}
