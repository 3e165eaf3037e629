package ldcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// ErrELF is wrapped by every error about bytes that are not a shared object which
// the package knows.
var ErrELF = errors.New("not an ELF shared object of a known machine")

// ELF is what a shared object says of itself.
type ELF struct {
	Soname string // its DT_SONAME; empty if it has none
	Flags  int32  // what a cache says of its machine
}

// Limits of what is read of one object.
const (
	maxSegments = 256
	maxDynamic  = 64 << 10
	maxHeaders  = 4096 // sections
	maxNote     = 64 << 10
)

// The numbers of the ELF format that are used here.
const (
	machine386, machineAMD64, machineARM64 = 3, 62, 183

	segmentLoad, segmentDynamic     = 1, 2
	tagStrtab, tagStrsz, tagSoname  = 5, 10, 14
	sectionNote, headerMax          = 7, 64
	sectionHeader32, sectionHeader6 = 40, 64
)

// object is a shared object that is being read.
type object struct {
	r     io.ReaderAt
	wide  bool
	flags int32
	head  []byte
}

func badELF(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrELF, fmt.Sprintf(format, args...))
}

// open reads the header.
func open(r io.ReaderAt) (*object, error) {
	o := &object{r: r, head: make([]byte, headerMax)}
	n, err := r.ReadAt(o.head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if n < 52 || string(o.head[:4]) != "\x7fELF" || o.head[5] != 1 {
		return nil, badELF("no little-endian ELF header")
	}
	o.wide = o.head[4] == 2
	switch machine := binary.LittleEndian.Uint16(o.head[18:]); {
	case o.wide && n == headerMax && machine == machineAMD64:
		o.flags = FlagsAMD64
	case o.wide && n == headerMax && machine == machineARM64:
		o.flags = FlagsARM64
	case o.head[4] == 1 && machine == machine386:
		o.flags = Flags386
	default:
		return nil, badELF("class %d, machine %d", o.head[4], machine)
	}
	return o, nil
}

// word reads an address-sized number: at offset n of 64-bit structures, m of 32-bit
// ones.
func (o *object) word(b []byte, n, m int) uint64 {
	if o.wide {
		return binary.LittleEndian.Uint64(b[n:])
	}
	return uint64(binary.LittleEndian.Uint32(b[m:]))
}

// half reads a 16-bit number of the header.
func (o *object) half(n, m int) int {
	if o.wide {
		return int(binary.LittleEndian.Uint16(o.head[n:]))
	}
	return int(binary.LittleEndian.Uint16(o.head[m:]))
}

// read returns size bytes at an offset, fewer only where the file ends.
func (o *object) read(at uint64, size int) ([]byte, error) {
	if at > 1<<62 {
		return nil, badELF("an offset of %d", at)
	}
	b := make([]byte, size)
	n, err := o.r.ReadAt(b, int64(at))
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// segment is a program header.
type segment struct {
	kind                   uint32
	offset, address, bytes uint64
}

func (o *object) segments() ([]segment, error) {
	size, count := o.half(54, 42), o.half(56, 44)
	least := 32
	if o.wide {
		least = 56
	}
	if size < least || size > 1024 || count > maxSegments {
		return nil, badELF("%d program headers of %d bytes", count, size)
	}
	b, err := o.read(o.word(o.head, 32, 28), size*count)
	if err != nil {
		return nil, err
	}
	if len(b) < size*count {
		return nil, badELF("the program headers are cut off")
	}
	var all []segment
	for ; len(b) > 0; b = b[size:] {
		all = append(all, segment{binary.LittleEndian.Uint32(b), o.word(b, 8, 4), o.word(b, 16, 8), o.word(b, 32, 16)})
	}
	return all, nil
}

// ReadELF reads a shared object's soname and machine; three small reads. Errors
// wrap ErrELF or are those of r.
func ReadELF(r io.ReaderAt) (ELF, error) {
	o, err := open(r)
	if err != nil {
		return ELF{}, err
	}
	segments, err := o.segments()
	if err != nil {
		return ELF{}, err
	}
	e := ELF{Flags: o.flags}
	for _, s := range segments {
		if s.kind == segmentDynamic {
			e.Soname, err = o.soname(s, segments)
			return e, err
		}
	}
	return e, badELF("it has no dynamic section")
}

// EntriesOf returns the entries of a library that a container has at path: one by
// its file's name and, if it has another soname, one by that. Errors are ReadELF's.
func EntriesOf(path string, r io.ReaderAt) ([]Entry, error) {
	e, err := ReadELF(r)
	if err != nil {
		return nil, err
	}
	entries := []Entry{{Name: filepath.Base(path), Path: path, Flags: e.Flags}}
	if e.Soname != "" && e.Soname != entries[0].Name {
		entries = append(entries, Entry{Name: e.Soname, Path: path, Flags: e.Flags})
	}
	return entries, nil
}

// soname reads the dynamic section s.
func (o *object) soname(s segment, all []segment) (string, error) {
	dynamic, err := o.read(s.offset, int(min(s.bytes, maxDynamic)))
	if err != nil {
		return "", err
	}
	size := 8
	if o.wide {
		size = 16
	}
	var table, length, name uint64
	named := false
	for ; len(dynamic) >= size && o.word(dynamic, 0, 0) != 0; dynamic = dynamic[size:] {
		value := o.word(dynamic, 8, 4)
		switch o.word(dynamic, 0, 0) {
		case tagStrtab:
			table = value
		case tagStrsz:
			length = value
		case tagSoname:
			name, named = value, true
		}
	}
	if !named {
		return "", nil
	}
	if name >= length {
		return "", badELF("its soname is at %d of %d bytes of names", name, length)
	}
	for _, l := range all {
		if l.kind == segmentLoad && table >= l.address && table-l.address < l.bytes {
			return o.text(l.offset+(table-l.address)+name, min(length-name, maxString))
		}
	}
	return "", badELF("its names are in no segment")
}

// text reads a string that ends within limit bytes.
func (o *object) text(at, limit uint64) (string, error) {
	b, err := o.read(at, int(limit))
	if err != nil {
		return "", err
	}
	s, _, ok := bytes.Cut(b, []byte{0})
	if !ok {
		return "", badELF("the string at %d has no end", at)
	}
	return string(s), nil
}

// ReadNote returns the description of the note in the section called name, if its
// owner is owner; "" if there is no such section or it is another's.
func ReadNote(r io.ReaderAt, name, owner string) (string, error) {
	o, err := open(r)
	if err != nil {
		return "", err
	}
	size, count, names := o.half(58, 46), o.half(60, 48), o.half(62, 50)
	least := sectionHeader32
	if o.wide {
		least = sectionHeader6
	}
	if count == 0 {
		return "", nil
	}
	if size < least || size > 1024 || count > maxHeaders || names >= count {
		return "", badELF("%d section headers of %d bytes", count, size)
	}
	headers, err := o.read(o.word(o.head, 40, 32), size*count)
	if err != nil {
		return "", err
	}
	if len(headers) < size*count {
		return "", badELF("the section headers are cut off")
	}
	table := o.word(headers[names*size:], 24, 16)
	for ; len(headers) > 0; headers = headers[size:] {
		if binary.LittleEndian.Uint32(headers[4:]) != sectionNote {
			continue
		}
		if got, err := o.text(table+uint64(binary.LittleEndian.Uint32(headers)), maxString); err != nil || got != name {
			continue // a name that cannot be read is not the one
		}
		return o.note(o.word(headers, 24, 16), o.word(headers, 32, 20), owner)
	}
	return "", nil
}

// note reads one note: sizes of owner and description, type, owner, zeros,
// description. How many zeros depends on the alignment, of which linkers have
// different ideas; the descriptions that we read are text and do not begin with one.
func (o *object) note(at, size uint64, owner string) (string, error) {
	b, err := o.read(at, int(min(size, maxNote)))
	if err != nil {
		return "", err
	}
	if len(b) < 12 {
		return "", badELF("a note of %d bytes", len(b))
	}
	nameSize, textSize := uint64(binary.LittleEndian.Uint32(b)), uint64(binary.LittleEndian.Uint32(b[4:]))
	body := b[12:]
	if nameSize+textSize > uint64(len(body)) {
		return "", badELF("a note of %d and %d bytes in %d", nameSize, textSize, len(body))
	}
	name, text := body[:nameSize], bytes.TrimLeft(body[nameSize:], "\x00")
	if string(bytes.TrimRight(name, "\x00")) != owner {
		return "", nil
	}
	return string(bytes.TrimRight(text[:min(textSize, uint64(len(text)))], "\x00")), nil
}
