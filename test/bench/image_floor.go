package main

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// floor is the work that no converter of this kind can do without: every byte
// decompressed once, hashed as it came and as it unpacks, and compressed once.
// Times are of one processor.
type floor struct {
	gunzip, hashBlobs, hashTars, compress time.Duration

	tars       int64 // bytes of all tar archives
	content    int64 // bytes of the files in them
	compressed int64 // bytes that the blocks have become
	diffIDs    []string
}

func (f *floor) cpu() time.Duration { return f.gunzip + f.hashBlobs + f.hashTars + f.compress }

// wall is the least time if all processors shared the work evenly.
func (f *floor) wall() time.Duration { return f.cpu() / time.Duration(runtime.NumCPU()) }

const blockSize = 128 << 10

// measureFloor does the floor's work in one thread, each kind timed for itself in
// processor time, so that a busy machine counts little.
func (i *imageBench) measureFloor(layout string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var gzip time.Duration
	for _, l := range i.torch.Layers {
		blob := filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(l.Digest, "sha256:"))
		if err := i.floor.layer(blob, l.Digest); err != nil {
			return err
		}
		s, err := i.command("gzip", "-dc", blob)
		if err != nil {
			return err
		}
		gzip += s.cpu
	}
	f := &i.floor
	i.add(fmt.Sprintf("floor: gunzip to %s", mib(f.tars)), seconds(f.gunzip), seconds(gzip)+" (gzip -dc)", "", "")
	i.add(fmt.Sprintf("floor: SHA-256 of %s of blobs", mib(i.total)), seconds(f.hashBlobs), "-", "", "")
	i.add("floor: SHA-256 of the tar archives", seconds(f.hashTars), "-", "", "")
	i.add("floor: zstd fastest, blocks of 128 KiB, to "+mib(f.compressed), seconds(f.compress), "-", "", "")
	i.add(fmt.Sprintf("floor: all, over %d processors", runtime.NumCPU()), seconds(f.wall()), "-", "", "")
	return nil
}

// layer adds the work for one layer.
func (f *floor) layer(name, digest string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	// In pieces, here and below: a process that is started inherits the peak memory
	// of this one as its own least.
	blob := sha256.New()
	timed(&f.hashBlobs, func() { _, err = io.CopyBuffer(struct{ io.Writer }{blob}, file, make([]byte, blockSize)) })
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("sha256:%x", blob.Sum(nil)); got != digest {
		return fmt.Errorf("%s has the digest %s", name, got)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	z, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	// As squashfs.Writer has it.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithWindowSize(blockSize))
	if err != nil {
		return err
	}
	defer enc.Close()
	r := &floorReader{f: f, z: z, enc: enc, hash: sha256.New(), block: make([]byte, blockSize)}
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			f.content += h.Size
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	f.diffIDs = append(f.diffIDs, fmt.Sprintf("sha256:%x", r.hash.Sum(nil)))
	return nil
}

// floorReader reads a tar archive, and does and times the work for each block.
type floorReader struct {
	f          *floor
	z          io.Reader
	enc        *zstd.Encoder
	hash       hash.Hash
	block, out []byte
	rest       []byte // of block
}

// Read implements io.Reader.
func (r *floorReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		var n int
		var err error
		timed(&r.f.gunzip, func() { n, err = io.ReadFull(r.z, r.block) })
		if n == 0 {
			return 0, err
		}
		r.rest = r.block[:n]
		timed(&r.f.hashTars, func() { r.hash.Write(r.rest) })
		timed(&r.f.compress, func() { r.out = r.enc.EncodeAll(r.rest, r.out[:0]) })
		r.f.tars += int64(n)
		r.f.compressed += int64(min(n, len(r.out)))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// timed adds the processor time of this thread that f takes.
func timed(sum *time.Duration, f func()) {
	a := threadTime()
	f()
	*sum += threadTime() - a
}

// threadTime reads the clock of this thread's processor time.
func threadTime() time.Duration {
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	// It fails for no clock that there is.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&t)), 0)
	return time.Duration(t.Nano())
}
