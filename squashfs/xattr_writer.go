package squashfs

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// outOfLineFrom is the length in bytes from which a value that came before is
// referred to instead of stored again: a reference costs 8 bytes and a seek.
const outOfLineFrom = 32

// xattrWriter gathers the xattr table: equal sets are stored once, and equal
// long values of different sets too (format.adoc section 9).
type xattrWriter struct {
	kv     *metaWriter
	blocks []byte // the compressed key-value blocks so far
	// Sets and long values by their hash: a set may have megabytes, an image many sets.
	sets   map[contentKey]uint32
	values map[contentKey]Ref
	ids    []xattrID
	buf    []byte
}

// xattrID is an entry of the xattr id table.
type xattrID struct {
	ref   Ref
	count uint32
	size  uint32 // bytes of the set on disk, uncompressed
}

func newXattrWriter(c compressor) *xattrWriter {
	x := &xattrWriter{sets: map[contentKey]uint32{}, values: map[contentKey]Ref{}}
	x.kv = newMetaWriter(c, func(block []byte) error {
		x.blocks = append(x.blocks, block...)
		return nil
	})
	return x
}

// checkXattrs proves that the format has room for a set of attributes.
func checkXattrs(attrs []Xattr) error {
	if len(attrs) == 0 {
		return nil
	}
	names := make(map[string]bool, len(attrs))
	for _, a := range attrs {
		if _, _, err := splitXattr(a); err != nil {
			return err
		}
		if names[a.Name] {
			return fmt.Errorf("%w: xattr %q is given twice", fs.ErrInvalid, a.Name)
		}
		names[a.Name] = true
	}
	return nil
}

// add returns the index of a checked set of attributes; that of none is none32.
func (x *xattrWriter) add(attrs []Xattr) uint32 {
	if len(attrs) == 0 {
		return none32
	}
	attrs = slices.Clone(attrs)
	slices.SortFunc(attrs, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	x.buf = x.buf[:0]
	for _, a := range attrs {
		x.buf = le.AppendUint32(append(append(x.buf, a.Name...), 0), uint32(len(a.Value)))
		x.buf = append(x.buf, a.Value...)
	}
	key := keyOf(x.buf)
	if cap(x.buf) > maxXattrValue {
		x.buf = nil
	}
	if id, ok := x.sets[key]; ok {
		return id
	}
	id := uint32(len(x.ids))
	x.sets[key] = id
	x.ids = append(x.ids, x.store(attrs))
	return id
}

// splitXattr checks an attribute and returns its prefix's number and the rest of its name.
func splitXattr(a Xattr) (prefix uint16, name string, err error) {
	for i, p := range xattrPrefixes {
		name, ok := strings.CutPrefix(a.Name, p)
		if !ok {
			continue
		}
		if name == "" || len(a.Name) > maxName || strings.IndexByte(name, 0) >= 0 {
			return 0, "", fmt.Errorf("%w: xattr %q; want a name of up to %d bytes", fs.ErrInvalid, shorten(a.Name), maxName)
		}
		if len(a.Value) > maxXattrValue {
			return 0, "", fmt.Errorf("%w: xattr %q of %d bytes; Linux has room for %d", fs.ErrInvalid, a.Name, len(a.Value), maxXattrValue)
		}
		return uint16(i), name, nil
	}
	return 0, "", fmt.Errorf("%w: xattr %q; squashfs stores user., trusted. and security. ones only", fs.ErrInvalid, shorten(a.Name))
}

// store writes a checked set.
func (x *xattrWriter) store(attrs []Xattr) xattrID {
	id := xattrID{ref: x.kv.at(), count: uint32(len(attrs))}
	for _, a := range attrs {
		prefix, name, _ := splitXattr(a)
		var key contentKey
		long := len(a.Value) >= outOfLineFrom
		if long {
			key = keyOf(a.Value)
		}
		ref, again := x.values[key]
		if again = again && long; again {
			prefix |= xattrOutOfLine
		}
		b := le.AppendUint16(nil, prefix)
		b = le.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
		if again {
			b = le.AppendUint32(b, 8)
			b = le.AppendUint64(b, uint64(ref))
			x.kv.write(b)
			id.size += uint32(len(b))
			continue
		}
		x.kv.write(b)
		if long {
			x.values[key] = x.kv.at()
		}
		x.kv.write(le.AppendUint32(nil, uint32(len(a.Value))))
		x.kv.write(a.Value)
		id.size += uint32(len(b) + 4 + len(a.Value))
	}
	return id
}

// writeTo writes the table and returns its place, or noTable where there are no attributes.
func (x *xattrWriter) writeTo(out *output, c compressor) (uint64, error) {
	if len(x.ids) == 0 {
		return noTable, nil
	}
	if err := x.kv.flush(); err != nil {
		return 0, err
	}
	start := out.pos()
	if err := out.write(x.blocks); err != nil {
		return 0, err
	}
	head := le.AppendUint64(nil, uint64(start))
	head = le.AppendUint32(head, uint32(len(x.ids)))
	head = le.AppendUint32(head, 0)
	return writeLookupTable(out, c, head, func(m *metaWriter) {
		var b []byte
		for _, id := range x.ids {
			b = le.AppendUint64(b[:0], uint64(id.ref))
			b = le.AppendUint32(b, id.count)
			b = le.AppendUint32(b, id.size)
			m.write(b)
		}
	})
}
