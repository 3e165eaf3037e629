package rootfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// HotSuffix makes the name of an index that of its hot file; see Tree.UseHot.
const HotSuffix = ".hot"

// hotFor is how long it is noted what is read.
const hotFor = 5 * time.Second

// trace notes which blocks are read in the first seconds.
type trace struct {
	on    atomic.Bool
	until time.Time

	mu     sync.Mutex
	blocks map[uint64]bool
}

// note notes a read that was answered from the layers.
func (t *trace) note(inode uint32, off int64, n int) {
	if n == 0 || !t.on.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.blocks) >= hotCount || time.Now().After(t.until) {
		t.on.Store(false)
		return
	}
	for b := off / hotBlock; b <= (off+int64(n)-1)/hotBlock; b++ {
		t.blocks[hotKey(inode, uint32(b))] = true
	}
}

// UseHot has the Tree read what is in the named file from there, and note what is not.
// It must be called before the Tree is served, once. A file that is not there, or is of
// no use, is no error: CloseHot makes it.
func (t *Tree) UseHot(name string) {
	t.hotName = name
	h, err := openHot(name, t.ix)
	if errors.Is(err, errHot) {
		h = &hot{} // it has to go
		h.info, _ = os.Stat(name)
		h.bad.Store(true)
	}
	t.hot = h
	t.trace.blocks = map[uint64]bool{}
	t.trace.until = time.Now().Add(hotFor)
	t.trace.on.Store(true)
}

// CloseHot ends the use of the file, and writes it anew if much was read that is not in
// it, or if it is damaged. The Tree may not be served any more. A file whose name is that
// of an index and HotSuffix is only written while the index is there.
func (t *Tree) CloseHot(ctx context.Context) error {
	if t.hotName == "" {
		return nil
	}
	t.trace.on.Store(false)
	err := t.keepHot(ctx)
	if h := t.hot; h != nil {
		if err != nil && h.bad.Load() {
			err = errors.Join(err, t.removeHot())
		}
		err = errors.Join(err, h.close())
		t.hot = nil
	}
	if err != nil {
		return fmt.Errorf("keep what containers read when they start: %w", err)
	}
	return nil
}

// keepHot writes the file anew if that is worth it.
func (t *Tree) keepHot(ctx context.Context) (err error) {
	defer caught(debug.SetPanicOnFault(true), &err)
	if index, ok := strings.CutSuffix(t.hotName, HotSuffix); ok {
		if _, err := os.Stat(index); errors.Is(err, fs.ErrNotExist) {
			return nil // the image was removed
		}
	}
	had, bad := 0, false
	if t.hot != nil {
		had, bad = len(t.hot.entries), t.hot.bad.Load()
	}
	fresh := len(t.trace.blocks)
	switch {
	case bad && had+fresh == 0:
		return t.removeHot()
	case bad || fresh > had/8 && had < hotCount:
		return fsx.WriteFile(ctx, t.hotName, fsx.Options{Mode: 0o600}, func(f *os.File) error { return t.writeHot(ctx, f) })
	}
	return nil
}

// removeHot removes a damaged file, unless another has its name by now.
func (t *Tree) removeHot() error {
	now, err := os.Stat(t.hotName)
	if err == nil && t.hot.info != nil && os.SameFile(now, t.hot.info) {
		err = os.Remove(t.hotName)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// writeHot writes what the file had and what was noted.
func (t *Tree) writeHot(ctx context.Context, w io.Writer) error {
	var keys []uint64
	if t.hot != nil {
		for _, p := range t.hot.entries {
			keys = append(keys, p.key)
		}
	}
	for k := range t.trace.blocks {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	keys = keys[:min(len(keys), hotCount)]

	top := make([]byte, hotHead, hotHead+len(keys)*hotEntry)
	var data bytes.Buffer
	buffer := make([]byte, hotBlock)
	le := binary.LittleEndian
	for _, k := range keys {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		inode, block := uint32(k>>32), uint32(k)
		n, err := t.readAt(inode, buffer, int64(block)*hotBlock)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("%w: inode %d has no block %d", errHot, inode, block)
		}
		top = le.AppendUint32(le.AppendUint32(top, inode), block)
		top = le.AppendUint32(top, uint32(hotHead+len(keys)*hotEntry+data.Len()))
		top = le.AppendUint32(le.AppendUint32(top, uint32(n)), hotCRC(buffer[:n]))
		data.Write(buffer[:n])
	}
	copy(top, hotMagic)
	le.PutUint32(top[8:], uint32(len(keys)))
	id := hotOf(t.ix)
	copy(top[hotID:], id[:])
	le.PutUint32(top[hotSum:], hotCRC(top))
	for _, b := range [][]byte{top, data.Bytes()} {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return nil
}
