package squashfs

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// benchImage makes an image of a large file that compresses about as programs do.
func benchImage(b *testing.B, args ...string) *Reader {
	b.Helper()
	dir := b.TempDir()
	f, err := os.Create(filepath.Join(dir, "large"))
	must(b, err)
	exe, err := os.ReadFile("/proc/self/exe")
	must(b, err)
	for n := 0; n < 128<<20; n += len(exe) {
		// Not the same twice, so that no block is.
		for i := 0; i < len(exe); i += 4096 {
			exe[i]++
		}
		_, err := f.Write(exe)
		must(b, err)
	}
	must(b, f.Close())
	if args[1] == "zstd" {
		args = append(args, "-Xcompression-level", "1")
	}
	return openImage(b, mksquashfs(b, dir, args...), ReaderOptions{})
}

func openLarge(b *testing.B, r *Reader) *File {
	b.Helper()
	f, err := r.FS().Open("large")
	must(b, err)
	return f.(*fsFile).File
}

func BenchmarkWriteTo(b *testing.B) {
	for _, comp := range []string{"zstd", "gzip", "lz4"} {
		b.Run(comp, func(b *testing.B) {
			f := openLarge(b, benchImage(b, "-comp", comp))
			b.SetBytes(f.Size())
			b.ResetTimer()
			for range b.N {
				_, err := f.Seek(0, io.SeekStart)
				must(b, err)
				_, err = f.WriteTo(io.Discard)
				must(b, err)
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	r := benchImage(b, "-comp", "zstd")
	for name, size := range map[string]int{"128K": 128 << 10, "1M": 1 << 20, "32K": 32 << 10} {
		b.Run(name, func(b *testing.B) {
			f := openLarge(b, r)
			p := make([]byte, size)
			b.SetBytes(f.Size())
			b.ResetTimer()
			for range b.N {
				for off := int64(0); off < f.Size(); off += int64(size) {
					if _, err := f.ReadAt(p, off); err != nil && err != io.EOF {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkReadAt4K(b *testing.B) {
	f := openLarge(b, benchImage(b, "-comp", "zstd"))
	rnd := rand.New(rand.NewPCG(1, 1))
	p := make([]byte, 4096)
	for b.Loop() {
		if _, err := f.ReadAt(p, rnd.Int64N(f.Size()-4096)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWalk(b *testing.B) {
	root := os.Getenv("SQUASHFS_BENCH_TREE")
	if root == "" {
		root = filepath.Join(os.Getenv("GOROOT"), "src")
		if _, err := os.Stat(root); err != nil || root == "src" {
			root = "/usr/share"
		}
	}
	img := mksquashfs(b, root, "-comp", "zstd", "-Xcompression-level", "1")
	r := openImage(b, img, ReaderOptions{})
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n = 0
		must(b, fs.WalkDir(r.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			n++
			_, err = d.Info()
			return err
		}))
	}
	b.ReportMetric(float64(n), "entries")
}
