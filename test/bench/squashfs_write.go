package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// write measures the making of images against mksquashfs at the same settings.
func (b *bench) write() error {
	small := filepath.Join(b.dir, "small")
	if err := smallFiles(small, 50_000, 150); err != nil {
		return err
	}
	defer os.RemoveAll(small)
	for _, tree := range []struct{ name, dir string }{{"50,000 small files", small}, {b.usr, b.usr}} {
		if err := b.writeTree(tree.name, tree.dir); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) writeTree(name, dir string) error {
	mine, other := filepath.Join(b.dir, "ours.sqsh"), filepath.Join(b.dir, "peer.sqsh")
	defer os.Remove(mine)
	defer os.Remove(other)
	us, them, err := b.pairs(
		func() (sample, error) {
			return b.command(b.gangway, "squashfs", "create", "--force", "--one-file-system", dir, mine)
		},
		func() (sample, error) {
			_ = os.Remove(other) // mksquashfs would append
			return b.command("mksquashfs", dir, other, "-one-file-system", "-comp", "zstd",
				"-Xcompression-level", "1", "-no-progress", "-quiet")
		})
	if err != nil {
		return err
	}
	b.add("write "+name+", wall", seconds(medianWall(us)), seconds(medianWall(them)),
		fmt.Sprintf("%.2f", ratio(us, them)), "<= 2 x mksquashfs zstd 1")
	b.add("write "+name+", peak memory", mib(peak(us)), mib(peak(them)), "", "<= 128 MiB")
	if err := b.sizes(name, mine, other); err != nil {
		return err
	}
	return b.libraryShare(name, dir, mine, medianCPU(us), medianCPU(them))
}

func (b *bench) sizes(name, mine, other string) error {
	a, err := os.Stat(mine)
	if err != nil {
		return err
	}
	p, err := os.Stat(other)
	if err != nil {
		return err
	}
	b.add("write "+name+", size", mib(a.Size()), mib(p.Size()),
		fmt.Sprintf("%.3f", float64(a.Size())/float64(p.Size())), "<= 1.05")
	return nil
}

// libraryShare tells what the zstd library costs: the processor time that goes
// when nothing is compressed.
func (b *bench) libraryShare(name, dir, image string, cpu, peer time.Duration) error {
	plain, err := b.command(b.gangway, "squashfs", "create", "--force", "--one-file-system", "-c", "none", dir, image)
	if err != nil {
		return err
	}
	b.add("write "+name+", processor time", seconds(cpu), seconds(peer),
		fmt.Sprintf("%.2f", cpu.Seconds()/peer.Seconds()),
		fmt.Sprintf("(zstd library: %s of ours)", seconds(cpu-plain.cpu)))
	return nil
}

// memory measures the peak with half a million entries. The peer is left out:
// with so many small files of like lengths mksquashfs 4.5 compares for many minutes.
func (b *bench) memory() error {
	tree := filepath.Join(b.dir, "many")
	if err := smallFiles(tree, 500_000, 30); err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	mine := filepath.Join(b.dir, "ours.sqsh")
	defer os.Remove(mine)
	us, err := b.command(b.gangway, "squashfs", "create", tree, mine)
	if err != nil {
		return err
	}
	b.add("write 500,000 small files, peak memory", mib(us.peak), "-", "", "<= 128 MiB")
	b.add("write 500,000 small files, wall", seconds(us.wall), "-", "", "")
	return nil
}

// splice measures the joining of an image's blocks against making it again.
func (b *bench) splice() error {
	mine, other := filepath.Join(b.dir, "ours.sqsh"), filepath.Join(b.dir, "peer.sqsh")
	defer os.Remove(mine)
	defer os.Remove(other)
	made, err := b.command(b.gangway, "squashfs", "create", "--force", "--one-file-system", b.usr, mine)
	if err != nil {
		return err
	}
	joined, err := b.command(b.gangway, "squashfs", "convert", "--force", mine, other)
	if err != nil {
		return err
	}
	b.add("rewrite an image of "+b.usr+" by copying blocks, wall", seconds(joined.wall), seconds(made.wall)+" (made anew)",
		fmt.Sprintf("%.2f", joined.wall.Seconds()/made.wall.Seconds()), "")
	return nil
}
