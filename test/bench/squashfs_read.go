package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/gangway-hpc/gangway/squashfs"
)

const bigSize = 512 << 20

// read measures the reading of one image: ours within the process, squashfuse_ll
// through a fresh FUSE mount, the image itself in the page cache for both. So
// the peer's figures hold the kernel's FUSE as well, and ours do not.
func (b *bench) read() error {
	big := filepath.Join(b.dir, "big")
	if err := os.Mkdir(big, 0o777); err != nil {
		return err
	}
	if err := concatenate(filepath.Join(b.usr, "lib"), filepath.Join(big, "file"), bigSize); err != nil {
		return err
	}
	image := filepath.Join(b.dir, "big.sqsh")
	if _, err := b.command(b.gangway, "squashfs", "create", big, image); err != nil {
		return err
	}
	if err := b.sequential(image); err != nil {
		return err
	}
	if err := b.random(image); err != nil {
		return err
	}
	tree := filepath.Join(b.dir, "usr.sqsh")
	defer os.Remove(tree)
	if _, err := b.command(b.gangway, "squashfs", "create", "--one-file-system", b.usr, tree); err != nil {
		return err
	}
	return b.walk(tree)
}

// mounted runs f with the image mounted afresh by squashfuse_ll.
func (b *bench) mounted(image string, f func(dir string) (sample, error)) (sample, error) {
	dir := filepath.Join(b.dir, "mnt")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return sample{}, err
	}
	if _, err := b.command("squashfuse_ll", image, dir); err != nil {
		return sample{}, err
	}
	s, err := f(dir)
	if _, uerr := b.command("fusermount", "-u", dir); err == nil {
		err = uerr
	}
	return s, err
}

func (b *bench) sequential(image string) error {
	us, them, err := b.pairs(
		func() (sample, error) { return b.command(b.gangway, "squashfs", "cat", image, "file") },
		func() (sample, error) {
			return b.mounted(image, func(dir string) (sample, error) { return b.command("cat", filepath.Join(dir, "file")) })
		})
	if err != nil {
		return err
	}
	rate := func(d time.Duration) string { return fmt.Sprintf("%.0f MB/s", bigSize/1e6/d.Seconds()) }
	b.add("read 512 MiB in order", rate(medianWall(us)), rate(medianWall(them)),
		fmt.Sprintf("%.2f x the rate", 1/ratio(us, them)), ">= 1.5 x squashfuse_ll")
	return nil
}

func (b *bench) walk(image string) error {
	us, them, err := b.pairs(
		func() (sample, error) { return b.command(b.gangway, "squashfs", "ls", "-lR", image) },
		func() (sample, error) {
			return b.mounted(image, func(dir string) (sample, error) {
				return b.command("find", dir, "-printf", `%M %n %U %G %s %t %p %l\n`)
			})
		})
	if err != nil {
		return err
	}
	b.add("walk "+b.usr+" and print all attributes", seconds(medianWall(us)), seconds(medianWall(them)),
		fmt.Sprintf("%.2f x the speed", 1/ratio(us, them)), ">= 2 x squashfuse_ll")
	return nil
}

const randomReads = 4000

func (b *bench) random(image string) error {
	read := func(f io.ReaderAt) (sample, error) {
		rnd := rand.New(rand.NewPCG(3, 4))
		p := make([]byte, 4096)
		start := time.Now()
		for range randomReads {
			if _, err := f.ReadAt(p, rnd.Int64N(bigSize/4096)*4096); err != nil {
				return sample{}, err
			}
		}
		return sample{wall: time.Since(start)}, nil
	}
	us, them, err := b.pairs(
		func() (sample, error) {
			r, err := squashfs.Open(image, squashfs.ReaderOptions{})
			if err != nil {
				return sample{}, err
			}
			defer r.Close()
			f, err := r.FS().Open("file")
			if err != nil {
				return sample{}, err
			}
			defer f.Close()
			return read(f.(io.ReaderAt))
		},
		func() (sample, error) {
			return b.mounted(image, func(dir string) (sample, error) {
				f, err := os.Open(filepath.Join(dir, "file"))
				if err != nil {
					return sample{}, err
				}
				defer f.Close()
				return read(f)
			})
		})
	if err != nil {
		return err
	}
	each := func(d time.Duration) string { return fmt.Sprintf("%d us", d.Microseconds()/randomReads) }
	b.add("read 4 KiB at a random place", each(medianWall(us)), each(medianWall(them)),
		fmt.Sprintf("%.2f x the speed", 1/ratio(us, them)), "")
	return nil
}
