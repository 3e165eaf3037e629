package squashfs

import (
	"fmt"
	"io"
)

// Output is where a Writer puts its image. *os.File is one. The image is
// written in order, but for the superblock, which goes to the start at the end,
// and for duplicates, which are taken back.
type Output interface {
	io.WriterAt
	Truncate(size int64) error
}

// output appends to an Output through a buffer.
type output struct {
	w   Output
	buf []byte
	at  int64 // where buf belongs
}

func newOutput(w Output) *output {
	return &output{w: w, buf: make([]byte, 0, 1<<20)}
}

func (o *output) pos() int64 { return o.at + int64(len(o.buf)) }

func (o *output) write(p []byte) error {
	if len(o.buf)+len(p) > cap(o.buf) {
		if err := o.flush(); err != nil {
			return err
		}
	}
	if len(p) < cap(o.buf) {
		o.buf = append(o.buf, p...)
		return nil
	}
	if _, err := o.w.WriteAt(p, o.at); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	o.at += int64(len(p))
	return nil
}

func (o *output) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	if _, err := o.w.WriteAt(o.buf, o.at); err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	o.at += int64(len(o.buf))
	o.buf = o.buf[:0]
	return nil
}

// rewind makes pos, which was written already, the place of the next write. What
// is behind it is given up.
func (o *output) rewind(pos int64) {
	if pos >= o.at {
		o.buf = o.buf[:pos-o.at]
		return
	}
	o.buf, o.at = o.buf[:0], pos
}

// cut flushes and ends the file at size bytes, behind the current place.
func (o *output) cut(size int64) error {
	if err := o.flush(); err != nil {
		return err
	}
	// Twice: what a duplicate left behind the end must not show in the padding.
	for _, n := range []int64{o.at, size} {
		if err := o.w.Truncate(n); err != nil {
			return fmt.Errorf("set the image's length to %d: %w", n, err)
		}
	}
	o.at = size
	return nil
}

// metaWriter packs records into metadata blocks (format.adoc section 2.2). A
// record may span two blocks.
type metaWriter struct {
	comp compressor
	emit func([]byte) error
	buf  []byte // the block being filled, always shorter than metaSize
	out  []byte // scratch
	done uint64 // bytes emitted
	err  error
}

func newMetaWriter(c compressor, emit func([]byte) error) *metaWriter {
	return &metaWriter{comp: c, emit: emit, buf: make([]byte, 0, metaSize), out: make([]byte, 0, metaHeaderLen+metaSize+64)}
}

// at returns the place of the next record: its block's offset in the table, and
// its offset in that block.
func (m *metaWriter) at() Ref { return makeRef(m.done, len(m.buf)) }

func (m *metaWriter) write(p []byte) {
	for len(p) > 0 {
		n := copy(m.buf[len(m.buf):metaSize], p)
		m.buf = m.buf[:len(m.buf)+n]
		p = p[n:]
		if len(m.buf) == metaSize {
			m.flushBlock()
		}
	}
}

func (m *metaWriter) flushBlock() {
	head := uint16(len(m.buf)) | metaRaw
	block := m.comp.compress(append(m.out[:0], 0, 0), m.buf)
	if block == nil || len(block)-metaHeaderLen >= len(m.buf) {
		block = append(append(m.out[:0], 0, 0), m.buf...)
	} else {
		head = uint16(len(block) - metaHeaderLen)
	}
	le.PutUint16(block, head)
	m.buf = m.buf[:0]
	m.done += uint64(len(block))
	if m.err == nil {
		m.err = m.emit(block)
	}
}

// flush ends the last block and returns the first error of all.
func (m *metaWriter) flush() error {
	if len(m.buf) > 0 {
		m.flushBlock()
	}
	return m.err
}

// writeLookupTable writes metadata blocks and behind them the list of their
// places, which is what the superblock points at (format.adoc section 2.3).
// fill is called once and writes all entries, whose size must divide 8192. The
// list is preceded by head.
func writeLookupTable(out *output, c compressor, head []byte, fill func(*metaWriter)) (start uint64, err error) {
	list := head
	m := newMetaWriter(c, func(block []byte) error {
		list = le.AppendUint64(list, uint64(out.pos()))
		return out.write(block)
	})
	fill(m)
	if err := m.flush(); err != nil {
		return 0, err
	}
	start = uint64(out.pos())
	return start, out.write(list)
}
