package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The benchmarks measure what programs inside a mount see, the kernel and its caches
// included: what it asks for the first time, and what it knows.

// benchInside does something n times, and prints how long it took.
func benchInside(_ context.Context, dir string, args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	do := map[string]func(i int) error{
		"missing": func(i int) error { return wantMissing(fmt.Sprintf("%s/usr/nope%d", dir, i)) },
		"known":   func(int) error { return wantMissing(dir + "/usr/nope") },
		"walk": func(int) error {
			return filepath.WalkDir(dir, func(_ string, _ fs.DirEntry, err error) error { return err })
		},
		"read": func(i int) error {
			f, err := os.Open(fmt.Sprintf("%s/file%d", dir, i%benchFiles))
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, make([]byte, 128<<10))
			return err
		},
	}[args[0]]
	begin := time.Now()
	for i := range n {
		if err := do(i); err != nil {
			return err
		}
	}
	fmt.Println(time.Since(begin).Nanoseconds())
	return nil
}

func wantMissing(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("look for what is missing: %w", err)
	}
	return nil
}

// benchFiles is how many files there are to read, each once from the server, then from
// the kernel's pages.
const benchFiles = 32

// bench returns how many seconds it took.
func bench(b *testing.B, m *img, what string) float64 {
	c := mounted(b, m.Tree, "bench", what, strconv.Itoa(b.N))
	out, err := io.ReadAll(c.stdout)
	must(b, err)
	c.finish(b)
	ns, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(b, err)
	b.ReportMetric(float64(ns)/float64(b.N), "ns/op")
	return float64(ns) / 1e9
}

// BenchmarkMissing: a name that is not there, asked for the first time.
func BenchmarkMissing(b *testing.B) {
	bench(b, makeImage(b, []tar.Header{dir("usr", 0o755)}), "missing")
}

// BenchmarkMissingKnown: the same name again and again.
func BenchmarkMissingKnown(b *testing.B) {
	bench(b, makeImage(b, []tar.Header{dir("usr", 0o755)}), "known")
}

// BenchmarkWalk: all of a tree with 10,000 files; but for the first time the kernel
// knows it.
func BenchmarkWalk(b *testing.B) {
	var list []tar.Header
	for i := range 10_000 {
		list = append(list, file(fmt.Sprintf("dir%d/file%d", i/50, i), 0))
	}
	bench(b, makeImage(b, list), "walk")
}

// BenchmarkRead: files of 16 MiB from front to back.
func BenchmarkRead(b *testing.B) {
	const size = 16 << 20
	var list []tar.Header
	for i := range benchFiles {
		list = append(list, file(fmt.Sprintf("file%d", i), size))
	}
	seconds := bench(b, makeImage(b, list), "read")
	b.ReportMetric(float64(b.N)*size/1e6/seconds, "MB/s")
}
