package merged

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
	"github.com/zeebo/blake3"
)

// Index is a merged index that can be read.
type Index struct {
	b      []byte
	mapped bool
	counts [sections]uint32
	parts  [sections][]byte
	image  oci.Digest
	layers []LayerInfo
}

// Open maps the index in the named file. It checks the header with its checksum and
// the layers, not the tree.
func Open(path string) (*Index, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open merged index: %w", err)
	}
	defer f.Close() // the mapping stays
	return OpenFile(f)
}

// OpenFile is Open for a file that is open. The file may be closed afterwards.
func OpenFile(f *os.File) (*Index, error) {
	b, err := mapFile(f)
	if err != nil {
		return nil, fmt.Errorf("open merged index: %w", err)
	}
	ix, err := New(b)
	if err != nil {
		return nil, fmt.Errorf("open merged index %s: %w", f.Name(), errors.Join(err, unmap(b)))
	}
	ix.mapped = true
	return ix, nil
}

func mapFile(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if size := info.Size(); !info.Mode().IsRegular() || size < headerLen || size != int64(int(size)) {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrCorrupt, f.Name(), size)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return b, nil
}

func unmap(b []byte) error { return os.NewSyscallError("munmap", syscall.Munmap(b)) }

// New returns the index in b, which must stay as it is for as long as it is used.
func New(b []byte) (*Index, error) {
	ix := &Index{b: b}
	h, err := ix.readHead()
	if err != nil {
		return nil, err
	}
	image, err := ix.text(h.imageOff, h.imageLen)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	if ix.image = oci.Digest(image); image != "" {
		if _, err := oci.ParseDigest(image); err != nil {
			return nil, corrupt("image: %w", err)
		}
	}
	if ix.counts[secInodes] == 0 || ix.counts[secLayers] > maxLayers {
		return nil, corrupt("%d inodes, %d layers", ix.counts[secInodes], ix.counts[secLayers])
	}
	for i := range ix.counts[secLayers] {
		l, err := ix.readLayer(i)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		ix.layers = append(ix.layers, l)
	}
	return ix, nil
}

// readHead checks the header and finds the sections.
func (ix *Index) readHead() (*head, error) {
	b := ix.b
	if len(b) < headerLen || string(b[:len(magic)]) != magic {
		return nil, corrupt("does not begin like one")
	}
	le := binary.LittleEndian
	// Of another version nothing else is known, not even where its checksum is.
	if v := le.Uint32(b[8:]); v != version {
		return nil, fmt.Errorf("%w: version %d, this program reads %d", ErrVersion, v, version)
	}
	if blake3.Sum256(b[:headerSum]) != [sumLen]byte(b[headerSum:headerLen]) {
		return nil, corrupt("the header's checksum is wrong")
	}
	h := &head{size: le.Uint64(b[16:]), imageOff: le.Uint32(b[24:]), imageLen: le.Uint32(b[28:])}
	for s := range sections {
		n := le.Uint64(b[sectionsAt+16*s+8:])
		if n > none {
			return nil, corrupt("%d records of the %v section", n, s)
		}
		h.counts[s] = uint32(n)
	}
	at, size := h.offsets()
	if size != uint64(len(b)) {
		return nil, corrupt("%d bytes, want %d", len(b), size)
	}
	if string(h.marshal()[:headerSum]) != string(b[:headerSum]) {
		return nil, corrupt("the header disagrees with itself")
	}
	for s := range sections {
		end := at[s] + uint64(h.counts[s])*recordLen(s)
		ix.parts[s] = b[at[s]:end:end]
	}
	ix.counts = h.counts
	return h, nil
}

func (ix *Index) readLayer(i uint32) (LayerInfo, error) {
	le := binary.LittleEndian
	b := ix.parts[secLayers][i*layerLen:][:layerLen]
	l := LayerInfo{
		Size: int64(le.Uint64(b[16:])), ModTime: int64(le.Uint64(b[24:])), Inode: le.Uint64(b[32:]),
		BlockSize: le.Uint32(b[40:]), Compression: squashfs.Compression(le.Uint32(b[44:])),
	}
	digest, err := ix.text(le.Uint32(b), le.Uint32(b[4:]))
	if err != nil {
		return l, err
	}
	l.Digest = oci.Digest(digest)
	if l.Path, err = ix.text(le.Uint32(b[8:]), le.Uint32(b[12:])); err != nil {
		return l, err
	}
	if err := l.check(); err != nil {
		return l, corrupt("%w", err)
	}
	if le.Uint32(b[44:]) > 0xFFFF {
		return l, corrupt("compression %d", le.Uint32(b[44:]))
	}
	return l, nil
}

// Close unmaps the file. After it the Index holds nothing any more.
func (ix *Index) Close() error {
	b, mapped := ix.b, ix.mapped
	*ix = Index{}
	if mapped {
		return unmap(b)
	}
	return nil
}

// Image returns the digest of the manifest that the index was made for, if it has one.
func (ix *Index) Image() oci.Digest { return ix.image }

// Layers returns the layers, lowest first. They must not be changed.
func (ix *Index) Layers() []LayerInfo { return ix.layers }

// NumInodes returns how many inodes there are. Their numbers are 1 to this.
func (ix *Index) NumInodes() uint32 { return ix.counts[secInodes] }

// HasXattrs says whether any inode has extended attributes.
func (ix *Index) HasXattrs() bool { return ix.counts[secXattrSets] > 0 }

// Root is the number of the root directory's inode.
const Root uint32 = 1

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrCorrupt, fmt.Errorf(format, args...))
}

// record returns a record of a section.
func (ix *Index) record(s section, n uint32) ([]byte, error) {
	if n >= ix.counts[s] {
		return nil, corrupt("%v %d of %d", s, n, ix.counts[s])
	}
	size := recordLen(s)
	return ix.parts[s][uint64(n)*size:][:size], nil
}

// span returns count records of a section.
func (ix *Index) span(s section, first, count uint32) ([]byte, error) {
	if first > ix.counts[s] || count > ix.counts[s]-first {
		return nil, corrupt("%v %d and the next %d, of %d", s, first, count, ix.counts[s])
	}
	size := recordLen(s)
	return ix.parts[s][uint64(first)*size:][:uint64(count)*size], nil
}

func (ix *Index) text(off, n uint32) (string, error) {
	b, err := ix.span(secStrings, off, n)
	return string(b), err
}
