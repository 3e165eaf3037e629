package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archive writes a cpio archive in the format that the kernel unpacks as its first root.
type archive struct {
	w     *bufio.Writer
	inode int
	seen  map[string]bool
}

// entry adds one name with its mode as in stat(2) and its content.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) error {
	a.inode++
	fmt.Fprintf(a.w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.pad(110 + int64(len(name)) + 1)
	n, err := io.Copy(a.w, content)
	if err == nil && n != size {
		err = fmt.Errorf("archive %s: %d bytes of %d", name, n, size)
	}
	a.pad(size)
	return err
}

// pad fills up to a multiple of four after n bytes.
func (a *archive) pad(n int64) {
	_, _ = a.w.WriteString("\x00\x00\x00"[:(4-n%4)%4])
}

func (a *archive) dir(name string) error {
	return a.entry(name, 0o040755, 0, strings.NewReader(""))
}

func (a *archive) text(name, content string, perm uint32) error {
	return a.entry(name, 0o100000|perm, int64(len(content)), strings.NewReader(content))
}

func (a *archive) file(name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return a.entry(name, 0o100000|uint32(info.Mode().Perm()), info.Size(), f)
}

// merged are directories that are symlinks to the same ones below usr, as in a Debian
// that is installed; packages still have files in both.
var merged = []string{"bin", "sbin", "lib", "lib64"}

// tree adds what is below root, except what leave says.
func (a *archive) tree(root string, leave func(name string) bool) error {
	if err := a.once("usr", a.dir); err != nil {
		return err
	}
	for _, name := range merged {
		to := "usr/" + name
		if err := errors.Join(a.once(to, a.dir), a.entry(name, 0o120777, int64(len(to)), strings.NewReader(to))); err != nil {
			return err
		}
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
		if first, _, _ := strings.Cut(name, "/"); slices.Contains(merged, first) {
			name = "usr/" + name
		}
		switch {
		case err != nil || name == "":
			return err
		case leave(name) && d.IsDir():
			return fs.SkipDir
		case leave(name):
			return nil
		}
		return a.once(name, func(name string) error { return a.add(name, path, d) })
	})
}

// once calls add for the first of several entries with one name.
func (a *archive) once(name string, add func(name string) error) error {
	if a.seen[name] {
		return nil
	}
	a.seen[name] = true
	return add(name)
}

// add adds one file of any kind that matters.
func (a *archive) add(name, path string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		return a.dir(name)
	case d.Type() == fs.ModeSymlink:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return a.entry(name, 0o120777, int64(len(to)), strings.NewReader(to))
	case d.Type().IsRegular():
		return a.file(name, path)
	}
	return nil
}

// end writes what the kernel recognises the end by.
func (a *archive) end() error {
	if err := a.entry("TRAILER!!!", 0, 0, strings.NewReader("")); err != nil {
		return err
	}
	return a.w.Flush()
}
