package ldcache

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The layout of the file: elf/cache.c and sysdeps/generic/dl-cache.h of glibc 2.36.
const (
	oldMagic  = "ld.so-1.7.0"
	oldHeader = 16 // magic, padding, count
	oldEntry  = 12 // flags, name, path

	newMagic  = "glibc-ld.so.cache1.1"
	newHeader = 48 // magic, count, length of strings, byte order, padding, extensions, 3 unused
	newEntry  = 24 // flags, name, path, OS version, hardware capabilities

	littleEndian   = 2
	extensionMagic = 0xeaa42174
	sectionSize    = 16 // tag, flags, offset, size
	tagGenerator   = 0
	tagHWCaps      = 1
	maxSections    = 64

	room = 96 // entries that a driver adds

	hwcapExtension = 1 << 30 // in the upper half of the capabilities: the lower is an index of names
	isaMask        = 1<<10 - 1
)

func badFormat(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Parse reads a cache. Every error wraps ErrFormat. An entry whose name or path is
// not in the file makes the whole cache invalid; a glibc-hwcaps entry whose
// subdirectory is not known is left out, as the loader would pass over it.
func Parse(b []byte) (*Cache, error) {
	if len(b) > MaxSize {
		return nil, badFormat("%d bytes, more than %d", len(b), MaxSize)
	}
	text := string(b)
	if strings.HasPrefix(text, newMagic) {
		return parseNew(text, 0)
	}
	if !strings.HasPrefix(text, oldMagic) || len(text) < oldHeader {
		return nil, badFormat("it begins with neither %q nor %q", newMagic, oldMagic)
	}
	count := u32(text, 12)
	if count > MaxEntries || int(count) > (len(text)-oldHeader)/oldEntry {
		return nil, badFormat("%d entries in %d bytes", count, len(text))
	}
	end := oldHeader + int(count)*oldEntry
	if inner := (end + 7) &^ 7; len(text) >= inner+newHeader && strings.HasPrefix(text[inner:], newMagic) {
		return parseNew(text, inner)
	}
	c := &Cache{Entries: make([]Entry, 0, count)}
	for at := oldHeader; at < end; at += oldEntry {
		e := Entry{Flags: int32(u32(text, at))}
		if err := names(&e, text[end:], u32(text, at+4), u32(text, at+8)); err != nil {
			return nil, err
		}
		c.Entries = append(c.Entries, e)
	}
	return c, nil
}

func u32(s string, at int) uint32 {
	return uint32(s[at]) | uint32(s[at+1])<<8 | uint32(s[at+2])<<16 | uint32(s[at+3])<<24
}

// parseNew reads the newer layout, which begins at base. Offsets of strings count
// from there, those of extensions and of the names in them from the beginning of the
// file. (glibc reads the latter so, but writes them the other way: in the combined
// layout the names are wrong, and neither the loader nor we use those entries.)
func parseNew(file string, base int) (*Cache, error) {
	text := file[base:]
	if len(text) < newHeader {
		return nil, badFormat("its header ends after %d bytes", len(text))
	}
	// 0 is of before glibc 2.33, which did not say.
	if order := text[28] & 3; order != 0 && order != littleEndian {
		return nil, badFormat("byte order %d is not this machine's", order)
	}
	count := u32(text, 20)
	if count > MaxEntries || int(count) > (len(text)-newHeader)/newEntry {
		return nil, badFormat("%d entries in %d bytes", count, len(text))
	}
	c := &Cache{Entries: make([]Entry, 0, count+room)}
	hwcaps, err := c.extensions(file, u32(text, 32))
	if err != nil {
		return nil, err
	}
	for i := range int(count) {
		at := newHeader + i*newEntry
		e := Entry{Flags: int32(u32(text, at)), OSVersion: u32(text, at+12)}
		if err := names(&e, text, u32(text, at+4), u32(text, at+8)); err != nil {
			return nil, err
		}
		low, high := u32(text, at+16), u32(text, at+20)
		if high&^isaMask != hwcapExtension {
			e.HWCap = uint64(high)<<32 | uint64(low)
		} else if e.ISALevel = high & isaMask; int(low) < len(hwcaps) && hwcaps[low] != "" {
			e.HWCaps = hwcaps[low]
		} else {
			continue
		}
		c.Entries = append(c.Entries, e)
	}
	return c, nil
}

// names sets the strings of an entry.
func names(e *Entry, text string, name, path uint32) (err error) {
	if e.Name, err = cString(text, name); err == nil {
		e.Path, err = cString(text, path)
	}
	return err
}

func cString(text string, at uint32) (string, error) {
	if uint64(at) >= uint64(len(text)) {
		return "", badFormat("a string at %d of %d bytes", at, len(text))
	}
	rest := text[at:]
	end := strings.IndexByte(rest[:min(len(rest), maxString+1)], 0)
	if end < 0 {
		return "", badFormat("the string at %d does not end within %d bytes", at, maxString)
	}
	return rest[:end], nil
}

// extensions reads what follows the strings: the generator, which it sets, and the
// names of glibc-hwcaps subdirectories, which it returns.
func (c *Cache) extensions(file string, at uint32) (hwcaps []string, err error) {
	if at == 0 {
		return nil, nil
	}
	if at%4 != 0 || uint64(at)+8 > uint64(len(file)) || u32(file, int(at)) != extensionMagic {
		return nil, badFormat("no extensions at %d", at)
	}
	count := u32(file, int(at)+4)
	if count > maxSections || uint64(at)+8+uint64(count)*sectionSize > uint64(len(file)) {
		return nil, badFormat("%d extensions at %d", count, at)
	}
	for i := range int(count) {
		s := int(at) + 8 + i*sectionSize
		tag, offset, size := u32(file, s), u32(file, s+8), u32(file, s+12)
		if uint64(offset)+uint64(size) > uint64(len(file)) {
			return nil, badFormat("extension %d of %d bytes at %d", tag, size, offset)
		}
		switch body := file[offset : offset+size]; {
		case tag == tagGenerator && size <= maxString:
			c.Generator = body
		case tag == tagHWCaps && size%4 == 0 && size/4 <= maxString:
			for j := 0; j < len(body); j += 4 {
				name, err := cString(file, u32(body, j))
				if err != nil {
					return nil, err
				}
				hwcaps = append(hwcaps, name)
			}
		case tag == tagGenerator, tag == tagHWCaps:
			return nil, badFormat("extension %d has %d bytes", tag, size)
		}
	}
	return hwcaps, nil
}

// Bytes returns the cache as a file, in the loader's order. Names, paths and
// subdirectories may not contain NUL; what follows one is lost.
func (c *Cache) Bytes() []byte {
	c.sort()
	size := newHeader + len(c.Entries)*newEntry
	w := &writer{text: make([]byte, size, size+len(c.Entries)*64+512)}
	copy(w.text, newMagic)
	index := c.subdirectories()
	for i, e := range c.Entries {
		path := w.add(e.Path)
		name := path
		if strings.HasSuffix(e.Path, "/"+e.Name) {
			name += uint32(len(e.Path) - len(e.Name)) // the end of the path is the name
		} else {
			name = w.add(e.Name)
		}
		b := w.text[newHeader+i*newEntry:]
		hwcap := e.HWCap
		if e.HWCaps != "" {
			hwcap = uint64(hwcapExtension|e.ISALevel&isaMask)<<32 | uint64(index[e.HWCaps])
		}
		binary.LittleEndian.PutUint32(b, uint32(e.Flags))
		binary.LittleEndian.PutUint32(b[4:], name)
		binary.LittleEndian.PutUint32(b[8:], path)
		binary.LittleEndian.PutUint32(b[12:], e.OSVersion)
		binary.LittleEndian.PutUint64(b[16:], hwcap)
	}
	subdirs := make([]uint32, len(index))
	for name, i := range index {
		subdirs[i] = w.add(name)
	}
	binary.LittleEndian.PutUint32(w.text[20:], uint32(len(c.Entries)))
	binary.LittleEndian.PutUint32(w.text[24:], uint32(len(w.text)-size))
	w.text[28] = littleEndian
	w.extensions(c.Generator, subdirs)
	return w.text
}

// subdirectories numbers the glibc-hwcaps subdirectories in use, by name.
func (c *Cache) subdirectories() map[string]uint32 {
	index := map[string]uint32{}
	for _, e := range c.Entries {
		if e.HWCaps != "" {
			index[e.HWCaps] = 0
		}
	}
	for i, name := range slices.Sorted(maps.Keys(index)) {
		index[name] = uint32(i)
	}
	return index
}

// writer is a file that grows.
type writer struct{ text []byte }

// add appends a string and returns where it is.
func (w *writer) add(s string) uint32 {
	at := len(w.text)
	w.text = append(append(w.text, s...), 0)
	return uint32(at)
}

// extensions appends the extensions and enters their place in the header.
func (w *writer) extensions(generator string, subdirs []uint32) {
	for len(w.text)%4 != 0 {
		w.text = append(w.text, 0)
	}
	at := len(w.text)
	binary.LittleEndian.PutUint32(w.text[32:], uint32(at))
	count := 1
	if len(subdirs) > 0 {
		count = 2
	}
	body := at + 8 + count*sectionSize
	put := func(values ...uint32) {
		for _, v := range values {
			w.text = binary.LittleEndian.AppendUint32(w.text, v)
		}
	}
	put(extensionMagic, uint32(count))
	put(tagGenerator, 0, uint32(body+4*len(subdirs)), uint32(len(generator)))
	if count == 2 {
		put(tagHWCaps, 0, uint32(body), uint32(4*len(subdirs)))
	}
	put(subdirs...)
	w.text = append(w.text, generator...)
}
