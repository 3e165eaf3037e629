package squashfs

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestCheckFinds changes one thing of an image at a time; Check must name it.
func TestCheckFinds(t *testing.T) {
	r0, b := plainImage(t)
	root, err := r0.Root()
	must(t, err)
	find := func(name string) (Inode, Ref) {
		t.Helper()
		for e, err := range r0.ReadDir(root) {
			must(t, err)
			if e.Name == name {
				i, err := r0.Child(root, e)
				must(t, err)
				return i, e.Ref
			}
		}
		t.Fatalf("no %s", name)
		return Inode{}, 0
	}
	hello, helloRef := find("hello")
	sub, subRef := find("sub")
	_, linkRef := find("link")
	at := func(ref Ref) int64 { return rawAt(r0, &r0.inodeTable, ref) }
	for _, c := range []struct {
		name string
		at   int64
		to   []byte
		want string
	}{
		{"links of a file", at(helloRef) + 40, le.AppendUint32(nil, 9), "says 9"},
		{"links of a directory", at(subRef) + 20, le.AppendUint32(nil, 9), "says 9 links"},
		{"parent", at(subRef) + 28, le.AppendUint32(nil, 1), "lies in 1"},
		{"number", at(linkRef) + 12, le.AppendUint32(nil, hello.Number), "its inode is"},
		{"type", rawAt(r0, &r0.dirTable, makeRef(uint64(root.dirBlock), int(root.dirOffset))) + 12 + 4, []byte{3, 0}, "it names symlink"},
		{"fragment", at(helloRef) + 44, le.AppendUint32(nil, 77), "fragment 77"},
		{"fragment offset", at(helloRef) + 48, le.AppendUint32(nil, 1<<17), "reaches over the end"},
		{"fragment offset within the block", at(helloRef) + 48, le.AppendUint32(nil, 1<<16), "has 5001 bytes, want 70536"},
		{"owner", at(linkRef) + 4, le.AppendUint16(nil, 99), "owner 99"},
		{"target", at(linkRef) + 24, []byte{0}, "zero byte"},
		{"export", rawRecord(r0, &r0.exportTable, hello.Number-1), le.AppendUint64(nil, uint64(subRef)), "export table"},
		{"inodes", 4, le.AppendUint32(nil, r0.sb.Inodes-1), ""},
		{"more inodes", 4, le.AppendUint32(nil, r0.sb.Inodes+1), ""},
		{"size of a listing", at(subRef) + 24, le.AppendUint16(nil, uint16(sub.Size+3-1)), "ends within"},
	} {
		img := patched(b, c.at, c.to)
		r, err := NewReader(readerOf(img), ReaderOptions{})
		if err == nil {
			err = Check(t.Context(), r, CheckOptions{})
			must(t, r.Close())
		}
		if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
	must(t, Check(t.Context(), r0, CheckOptions{}))
}

func TestCheckOfData(t *testing.T) {
	img := mksquashfs(t, richTree(t, 300_000), "-comp", "zstd", "-b", "16K", "-no-fragments")
	b := readAll(t, img)
	r := openImage(t, img, ReaderOptions{})
	must(t, Check(t.Context(), r, CheckOptions{}))
	// The first data block no longer is a zstd frame.
	bad, err := NewReader(readerOf(patched(b, 96+10, make([]byte, 200))), ReaderOptions{})
	must(t, err)
	defer bad.Close()
	if err := Check(t.Context(), bad, CheckOptions{SkipData: true}); err != nil {
		t.Errorf("without data: %v", err)
	}
	if err := Check(t.Context(), bad, CheckOptions{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "data block at") {
		t.Errorf("with data: %v", err)
	}
}

func TestCheckStops(t *testing.T) {
	img := mksquashfs(t, richTree(t, 300_000), "-comp", "zstd", "-b", "4K", "-no-fragments")
	b := readAll(t, img)
	r := openImage(t, img, ReaderOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Check(ctx, r, CheckOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	clear(b[96:r.sb.InodeTable])
	bad, err := NewReader(readerOf(b), ReaderOptions{})
	must(t, err)
	defer bad.Close()
	err = Check(t.Context(), bad, CheckOptions{MaxProblems: 3})
	if !errors.Is(err, ErrCorrupt) || strings.Count(err.Error(), ErrCorrupt.Error()) != 3 {
		t.Errorf("3 problems at most: %v", err)
	}
	broken, err := NewReader(failing{readerOf(b), int64(r.sb.InodeTable) + 1}, ReaderOptions{Size: int64(len(b))})
	if err == nil {
		defer broken.Close()
		err = Check(t.Context(), broken, CheckOptions{})
	}
	if !errors.Is(err, errBroken) || errors.Is(err, ErrCorrupt) {
		t.Errorf("disk fails: %v", err)
	}
}
