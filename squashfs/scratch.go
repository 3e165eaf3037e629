package squashfs

import (
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// scratch is what the Readers of a Cache need for the time of one call: they share it,
// so that memory does not grow with their number. What is not used for a while is freed.
type scratch struct {
	bufs     [slotClasses + 1]sync.Pool // *[]byte, by the class of their length
	decoders sync.Pool                  // *zstd.Decoder
}

// buffer returns a buffer of n bytes at least, and decodeSlack behind its length.
func (s *scratch) buffer(n int) *[]byte {
	class := classOf(n)
	if b, ok := s.bufs[class].Get().(*[]byte); ok {
		return b
	}
	size := 1 << (minSlotShift + class)
	b := make([]byte, size, size+decodeSlack)
	return &b
}

func (s *scratch) putBuffer(b *[]byte) { s.bufs[classOf(len(*b))].Put(b) }

// zstd returns a decoder for one goroutine.
func (s *scratch) zstd() (*zstd.Decoder, error) {
	if d, ok := s.decoders.Get().(*zstd.Decoder); ok {
		return d, nil
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(maxBlockSize), zstd.IgnoreChecksum(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return d, nil
}
