package squashfs

import (
	"fmt"
	"slices"
)

// Xattr is one extended attribute.
type Xattr struct {
	Name  string // with its prefix: user., trusted. or security.
	Value []byte
}

// Limits of extended attributes. Linux has that of a name; the other keeps one
// inode of a hostile image from filling the memory.
const (
	maxXattrName = 255
	maxXattrSet  = 4 << 20

	xattrPrefixMask = 0xFF
)

// openXattrs finds the extent of the xattr table; what lies before ends at first.
func (r *Reader) openXattrs(first uint64) error {
	if r.sb.XattrTable == noTable {
		return nil
	}
	var head [xattrTableHead]byte
	if err := r.readAt(head[:], r.sb.XattrTable); err != nil {
		return fmt.Errorf("xattr table: %w", err)
	}
	start, n := le.Uint64(head[:]), le.Uint32(head[8:])
	list := r.sb.XattrTable + xattrTableHead
	if n == 0 {
		return nil
	}
	if start < first || start >= r.sb.XattrTable || lookupListLen(n, xattrIDSize) > r.sb.BytesUsed-list {
		return corrupt("xattr table: %d sets from %d on, between %d and %d", n, start, first, r.sb.XattrTable)
	}
	r.xattrIDTab = lookupTable{name: "xattr", n: n, size: xattrIDSize, first: start, end: r.sb.XattrTable, list: list}
	if err := r.openLookup(&r.xattrIDTab); err != nil {
		return err
	}
	r.xattrTable = metaTable{"xattr", start, r.xattrIDTab.places[0]}
	return nil
}

// Xattrs returns an inode's extended attributes, in their order on disk; nil where
// it has none.
func (r *Reader) Xattrs(i Inode) ([]Xattr, error) {
	if i.xattr == none32 {
		return nil, nil
	}
	set, err := r.xattrSet(i.xattr)
	if err != nil {
		return nil, fmt.Errorf("read xattrs of inode %d: %w", i.Number, err)
	}
	return set, nil
}

func (r *Reader) xattrSet(n uint32) ([]Xattr, error) {
	var raw [xattrIDSize]byte
	if err := r.record(&r.xattrIDTab, n, raw[:]); err != nil {
		return nil, err
	}
	ref, count := Ref(le.Uint64(raw[:])), le.Uint32(raw[8:])
	// An entry takes 8 bytes at least.
	if uint64(count)*8 > r.xattrTable.capacity() {
		return nil, corrupt("set %d of %d xattrs, for which the table has no room", n, count)
	}
	c := r.cursor(&r.xattrTable, ref.block(), ref.offset())
	defer c.release()
	var set []Xattr
	total := 0
	for range count {
		x, err := r.readXattr(&c)
		if err != nil {
			return nil, err
		}
		if total += len(x.Name) + len(x.Value); total > maxXattrSet {
			return nil, corrupt("set %d: more than %d bytes", n, maxXattrSet)
		}
		set = append(set, x)
	}
	return set, nil
}

func (r *Reader) readXattr(c *metaCursor) (Xattr, error) {
	b, err := c.read(4)
	if err != nil {
		return Xattr{}, err
	}
	kind, size := le.Uint16(b), int(le.Uint16(b[2:]))
	prefix := int(kind & xattrPrefixMask)
	if prefix >= len(xattrPrefixes) || kind&^(xattrPrefixMask|xattrOutOfLine) != 0 {
		return Xattr{}, corrupt("xattr of kind %#x", kind)
	}
	if size == 0 || len(xattrPrefixes[prefix])+size > maxXattrName {
		return Xattr{}, corrupt("xattr name of %d bytes", size)
	}
	if b, err = c.read(size); err != nil {
		return Xattr{}, err
	}
	x := Xattr{Name: xattrPrefixes[prefix] + string(b)}
	if err := checkXattrName(b); err != nil {
		return Xattr{}, err
	}
	value, err := readXattrValue(c)
	if err != nil {
		return Xattr{}, fmt.Errorf("%q: %w", x.Name, err)
	}
	x.Value = value
	if kind&xattrOutOfLine == 0 {
		return x, nil
	}
	if len(value) != 8 {
		return Xattr{}, corrupt("%q: reference of %d bytes", x.Name, len(value))
	}
	ref := Ref(le.Uint64(value))
	out := r.cursor(&r.xattrTable, ref.block(), ref.offset())
	defer out.release()
	if x.Value, err = readXattrValue(&out); err != nil {
		return Xattr{}, fmt.Errorf("%q: %w", x.Name, err)
	}
	return x, nil
}

func checkXattrName(b []byte) error {
	if slices.Contains(b, 0) {
		return corrupt("xattr name %q", b)
	}
	return nil
}

// readXattrValue returns a copy of the value at the cursor.
func readXattrValue(c *metaCursor) ([]byte, error) {
	b, err := c.read(4)
	if err != nil {
		return nil, err
	}
	n := le.Uint32(b)
	if n > maxXattrValue {
		return nil, corrupt("value of %d bytes", n)
	}
	if b, err = c.read(int(n)); err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(b)), b...), nil
}
