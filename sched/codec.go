package sched

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// codec writes values to a snapshot, or reads them from one: what a value consists of is
// said once, for both. The first error stays, and nothing is done after it.
type codec struct {
	to  io.Writer // nil: it reads
	buf []byte    // not yet written, or not yet read
	// strings are those that were read: most come again and again.
	strings map[string]string
	err     error
}

// flushAt is how much is gathered before it is written.
const flushAt = 1 << 16

// errShort is that of a value that is longer than what is there.
var errShort = errors.New("it ends within a value")

func (c *codec) reads() bool { return c.to == nil }

func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// flush writes what was gathered.
func (c *codec) flush() {
	if c.err == nil && len(c.buf) > 0 {
		_, c.err = c.to.Write(c.buf)
	}
	c.buf = c.buf[:0]
}

// bits is a number without a sign, 7 bits a byte.
func (c *codec) bits(v *uint64) {
	if c.err != nil {
		return
	}
	if !c.reads() {
		if c.buf = binary.AppendUvarint(c.buf, *v); len(c.buf) >= flushAt {
			c.flush()
		}
		return
	}
	if len(c.buf) > 0 && c.buf[0] < 0x80 { // most are small
		*v, c.buf = uint64(c.buf[0]), c.buf[1:]
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail(errShort)
		return
	}
	*v, c.buf = x, c.buf[n:]
}

// integer is any type of whole numbers that an int64 holds.
type integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32
}

// number is a number with a sign, 7 bits a byte; the sign is the lowest bit.
func number[T integer](c *codec, v *T) {
	x := int64(*v)
	u := uint64(x<<1) ^ uint64(x>>63)
	c.bits(&u)
	if !c.reads() || c.err != nil {
		return
	}
	x = int64(u>>1) ^ -int64(u&1)
	if *v = T(x); int64(*v) != x {
		c.fail(fmt.Errorf("number %d is too large for its place", x))
	}
}

func (c *codec) bool(v *bool) {
	u := uint64(0)
	if *v {
		u = 1
	}
	c.bits(&u)
	if u > 1 {
		c.fail(fmt.Errorf("%d is neither true nor false", u))
	}
	if c.reads() { // what is written may be shared with another goroutine
		*v = u == 1
	}
}

// count is how many of something follow, each of which takes at least a byte.
func (c *codec) count(have int) int {
	n := uint64(have)
	c.bits(&n)
	if c.reads() && n > uint64(len(c.buf)) {
		c.fail(errShort)
	}
	if c.err != nil {
		return 0
	}
	return int(n)
}

func (c *codec) string(v *string) {
	n := c.count(len(*v))
	if c.err != nil {
		return
	}
	if !c.reads() {
		c.buf = append(c.buf, *v...)
		return
	}
	if n == 0 { // as most are
		*v = ""
		return
	}
	known, ok := c.strings[string(c.buf[:n])]
	if !ok {
		known = string(c.buf[:n])
		c.strings[known] = known
	}
	*v, c.buf = known, c.buf[n:]
}

// list is a number of values, one after the other. Memory is taken as they come, so that
// a count that is wrong takes none.
func list[T any](c *codec, v *[]T, each func(*codec, *T)) {
	n := c.count(len(*v))
	if c.reads() && n > 0 {
		*v = make([]T, 0, min(n, 1024))
	}
	for i := 0; i < n && c.err == nil; i++ {
		if c.reads() {
			*v = append(*v, *new(T))
		}
		each(c, &(*v)[i])
	}
}

// optional is a value that may be missing.
func optional[T any](c *codec, v **T, each func(*codec, *T)) {
	there := *v != nil
	if c.bool(&there); !there || c.err != nil {
		return
	}
	if c.reads() {
		*v = new(T)
	}
	each(c, *v)
}

func stringList(c *codec, v *[]string) { list(c, v, (*codec).string) }

func numberList[T integer](c *codec, v *[]T) { list(c, v, number[T]) }
