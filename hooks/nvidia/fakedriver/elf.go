package fakedriver

import (
	"bytes"
	"encoding/binary"
	"runtime"
)

// Library describes a shared object to make with ELF. The zero value is one for
// this machine, without a soname.
type Library struct {
	Soname string // DT_SONAME; empty for none
	Arch   string // "amd64", "arm64" or "386"; empty for this machine's
	ID     uint32 // what its function gangway_fake_id returns
	Note   string // JSON text of a .note.cuda.fwd_compatibility section; empty for none
}

// The numbers of the ELF format that are used here.
const (
	headerSize64, headerSize32 = 64, 52
	segmentLoad, segmentDyn    = 1, 2
	segmentStack               = 0x6474e551
	tagHash, tagStrtab         = 4, 5
	tagSymtab, tagStrsz        = 6, 10
	tagSyment, tagSoname       = 11, 14
)

// ELF returns the bytes of a shared object that the loader accepts (dlopen works)
// and that has one function, "int gangway_fake_id(void)".
func ELF(l Library) []byte {
	if l.Arch == "" {
		l.Arch = runtime.GOARCH
	}
	w := &elfWriter{wide: l.Arch != "386"}
	header, segment := headerSize64, 56
	if !w.wide {
		header, segment = headerSize32, 32
	}
	const segments = 3
	w.align(header + segments*segment)

	code := w.place(machineCode(l.Arch, l.ID))
	name := "gangway_fake_id"
	strings := append([]byte{0}, name...)
	strings = append(strings, 0)
	soname := len(strings)
	strings = append(append(strings, l.Soname...), 0)
	strtab := w.place(strings)
	symtab := w.place(append(w.symbol(0, 0, 0), w.symbol(1, code, 16)...))
	hash := w.place(words(1, 2, 1, 0, 0)) // one bucket, holding symbol 1
	tags := [][2]int{{tagHash, hash}, {tagStrtab, strtab}, {tagSymtab, symtab}, {tagStrsz, len(strings)}, {tagSyment, len(w.symbol(0, 0, 0))}}
	if l.Soname != "" {
		tags = append(tags, [2]int{tagSoname, soname})
	}
	var dynamic []byte
	for _, t := range append(tags, [2]int{0, 0}) {
		dynamic = w.addr(w.addr(dynamic, t[0]), t[1])
	}
	dyn := w.place(dynamic)

	loaded := len(w.b)
	sections, count := w.sections(l.Note)
	head := w.header(l.Arch, header, segment, segments, sections, count)
	// Writable, because the loader adjusts the dynamic section in place.
	head = append(head, w.segment(segmentLoad, 7, 0, loaded, 0x1000)...)
	head = append(head, w.segment(segmentDyn, 6, dyn, len(dynamic), 8)...)
	head = append(head, w.segment(segmentStack, 6, 0, 0, 16)...)
	copy(w.b, head)
	return w.b
}

// machineCode is a function that returns id, 16 bytes long.
func machineCode(arch string, id uint32) []byte {
	if arch == "arm64" {
		return words(0x52800000|id&0xffff<<5, 0x72a00000|id>>16<<5, 0xd65f03c0, 0) // movz, movk, ret
	}
	code := binary.LittleEndian.AppendUint32([]byte{0xb8}, id) // mov eax, id
	return append(code, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)    // ret
}

func words(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// elfWriter is a file that is addressed by its own offsets.
type elfWriter struct {
	b    []byte
	wide bool // 64 bits
}

func (w *elfWriter) align(n int) {
	n = (n + 15) &^ 15
	w.b = append(w.b, make([]byte, n-len(w.b))...)
}

// place appends p, aligned, and returns where it is.
func (w *elfWriter) place(p []byte) int {
	w.align(len(w.b))
	at := len(w.b)
	w.b = append(w.b, p...)
	return at
}

// addr appends an address-sized number.
func (w *elfWriter) addr(b []byte, v int) []byte {
	if w.wide {
		return binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return binary.LittleEndian.AppendUint32(b, uint32(v))
}

// symbol is a symbol table entry: a global function in section 1 if size is not 0.
func (w *elfWriter) symbol(name, value, size int) []byte {
	info, section := byte(0), byte(0)
	if size > 0 {
		info, section = 0x12, 1
	}
	b := words(uint32(name))
	if w.wide {
		return w.addr(w.addr(append(b, info, 0, section, 0), value), size)
	}
	return append(w.addr(w.addr(b, value), size), info, 0, section, 0)
}

func (w *elfWriter) segment(kind, flags uint32, offset, size, align int) []byte {
	b := words(kind)
	if w.wide {
		b = append(b, words(flags)...)
	}
	for _, v := range []int{offset, offset, offset, size, size} {
		b = w.addr(b, v)
	}
	if !w.wide {
		b = append(b, words(flags)...)
	}
	return w.addr(b, align)
}

// sections appends a note and the section headers that lead to it.
func (w *elfWriter) sections(note string) (at, count int) {
	if note == "" {
		return 0, 0
	}
	owner := "NVIDIA Corporation\x00\x00" // padded to 4
	body := append(words(19, uint32(len(note)), 1), owner...)
	body = append(body, note...)
	noteAt := w.place(body)
	names := "\x00.note.cuda.fwd_compatibility\x00.shstrtab\x00"
	namesAt := w.place([]byte(names))
	var b []byte
	section := func(name, kind uint32, offset, size, align int) {
		b = append(b, words(name, kind)...)
		for _, v := range []int{0, 0, offset, size} {
			b = w.addr(b, v)
		}
		b = append(b, words(0, 0)...)
		b = w.addr(w.addr(b, align), 0)
	}
	section(0, 0, 0, 0, 0)
	section(1, 7, noteAt, len(body), 4)
	section(uint32(bytes.Index([]byte(names), []byte(".shstrtab"))), 3, namesAt, len(names), 1)
	return w.place(b), 3
}

func (w *elfWriter) header(arch string, size, segment, segments, sections, count int) []byte {
	class, machine := byte(2), uint16(62)
	switch arch {
	case "386":
		class, machine = 1, 3
	case "arm64":
		machine = 183
	}
	b := append([]byte("\x7fELF"), class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(b, 3) // a shared object
	b = binary.LittleEndian.AppendUint16(b, machine)
	b = append(b, words(1)...)
	for _, v := range []int{0, size, sections} {
		b = w.addr(b, v)
	}
	b = append(b, words(0)...)
	sectionSize, names := 64, max(count-1, 0)
	if !w.wide {
		sectionSize = 40
	}
	for _, v := range []int{size, segment, segments, sectionSize, count, names} {
		b = binary.LittleEndian.AppendUint16(b, uint16(v))
	}
	return b
}
