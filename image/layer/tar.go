package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/squashfs"
)

// whiteoutPrefix begins the names that say what a layer removes of those below.
const whiteoutPrefix = ".wh."

// tarReader gives the entries of a tar archive.
type tarReader struct {
	gate   *headerGate
	tar    *tar.Reader
	limits *Limits
	n      int64  // entries
	bytes  int64  // of content, with holes
	last   string // the name of the last header, as it is
}

func newTarReader(src io.Reader, l *Limits) *tarReader {
	g := &headerGate{src: src, left: -1, most: l.HeaderBytes}
	return &tarReader{gate: g, tar: tar.NewReader(g), limits: l}
}

// next returns the next entry; io.EOF is the end of the archive. Its content, if
// any, is then read from t.tar.
func (t *tarReader) next() (e Entry, err error) {
	for {
		// What is left of the content of the last entry is no header.
		if _, err := io.Copy(io.Discard, t.tar); err != nil {
			return e, t.entryError(tarError(err))
		}
		// Before a header lies padding, instead of the last one two blocks.
		t.gate.left = t.limits.HeaderBytes + 3*tarBlock
		h, err := t.tar.Next()
		t.gate.left = -1
		if err == io.EOF {
			return e, io.EOF
		}
		if err != nil {
			if t.last != "" {
				return e, fmt.Errorf("behind entry %s: %w", quote(t.last), tarError(err))
			}
			return e, fmt.Errorf("first entry: %w", tarError(err))
		}
		t.last = h.Name
		if t.n++; t.n > t.limits.Entries {
			return e, &LimitError{"Entries", t.limits.Entries}
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // git archive writes one; it says nothing about files
		}
		e, err := t.entry(h)
		if err != nil {
			return e, t.entryError(err)
		}
		return e, nil
	}
}

func (t *tarReader) entryError(err error) error {
	return fmt.Errorf("entry %s: %w", quote(t.last), err)
}

// quote makes a name fit for a message.
func quote(name string) string { return fmt.Sprintf("%.100q", name) }

// tarError makes the words of package tar clearer.
func tarError(err error) error {
	switch {
	case errors.Is(err, tar.ErrFieldTooLong):
		return &LimitError{"HeaderBytes", 1 << 20} // that of the package
	case err == tar.ErrHeader:
		return errors.New("corrupt tar header")
	case err == io.ErrUnexpectedEOF:
		return fmt.Errorf("the tar archive is cut off: %w", err)
	}
	return err
}

func (t *tarReader) entry(h *tar.Header) (e Entry, err error) {
	if e.Type, err = typeOf(h); err != nil {
		return e, err
	}
	if e.Name, err = cleanName(h.Name, t.limits); err != nil {
		return e, err
	}
	if e.Name == "" && e.Type != Dir {
		return e, errors.New("the root must be a directory")
	}
	if e.UID, err = id("user", h.Uid); err != nil {
		return e, err
	}
	if e.GID, err = id("group", h.Gid); err != nil {
		return e, err
	}
	e.Mode = uint32(h.Mode) & 0o7777
	e.Sec, e.Nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	if e.Xattrs, err = xattrs(h.PAXRecords, t.limits); err != nil {
		return e, err
	}
	switch e.Type {
	case File:
		e.Size = h.Size
		if t.bytes += h.Size; t.bytes > t.limits.Bytes || t.bytes < 0 {
			return e, &LimitError{"Bytes", t.limits.Bytes}
		}
	case Symlink:
		e.Link = h.Linkname
		if e.Link == "" || len(e.Link) > maxPath || strings.IndexByte(e.Link, 0) >= 0 {
			return e, fmt.Errorf("symlink to %s, of %d bytes: want 1 to %d without NUL", quote(e.Link), len(e.Link), maxPath)
		}
	case HardLink:
		if e.Link, err = cleanName(h.Linkname, t.limits); err != nil {
			return e, fmt.Errorf("hard link: %w", err)
		}
		if e.Link == "" {
			return e, errors.New("hard link to the root, or to nothing")
		}
	case CharDevice, BlockDevice:
		if h.Devmajor != int64(uint32(h.Devmajor)) || h.Devminor != int64(uint32(h.Devminor)) {
			return e, fmt.Errorf("device %d:%d: numbers have 32 bits", h.Devmajor, h.Devminor)
		}
		e.Major, e.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	}
	return e, nil
}

// typeOf knows the types that POSIX and GNU give to files. Of others nobody
// can tell what they stand for; sockets have none.
func typeOf(h *tar.Header) (Type, error) {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return File, nil
	case tar.TypeDir:
		return Dir, nil
	case tar.TypeSymlink:
		return Symlink, nil
	case tar.TypeLink:
		return HardLink, nil
	case tar.TypeChar:
		return CharDevice, nil
	case tar.TypeBlock:
		return BlockDevice, nil
	case tar.TypeFifo:
		return FIFO, nil
	}
	return 0, fmt.Errorf("unknown type %q of a tar entry; files, directories, links, devices and FIFOs have a place in a layer", h.Typeflag)
}

func id(kind string, n int) (uint32, error) {
	if n < 0 || n > math.MaxUint32 {
		return 0, fmt.Errorf("%s id %d: Linux has 0 to 4294967295", kind, n)
	}
	return uint32(n), nil
}

// cleanName returns a path without what means nothing: slashes at the ends, empty
// names and ".". An absolute path is one from the image's root. ".." is refused: no
// honest archive has it, and where it leads depends on symlinks.
func cleanName(name string, l *Limits) (string, error) {
	if strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("the name %s has a NUL", quote(name))
	}
	if int64(len(name)) > l.NameBytes {
		return "", &LimitError{"NameBytes", l.NameBytes}
	}
	var clean []byte // nil while name itself is clean so far
	depth, kept, rest := int64(0), 0, name
	for rest != "" {
		part, after, _ := strings.Cut(rest, "/")
		switch {
		case part == "" || part == ".":
			if clean == nil {
				clean = append(make([]byte, 0, len(name)), name[:kept]...)
			}
		case part == "..":
			return "", fmt.Errorf("the name %s has \"..\"", quote(name))
		case len(part) > 255:
			return "", fmt.Errorf("the name %s has a part of %d bytes; Linux takes 255", quote(name), len(part))
		default:
			if depth++; depth > l.Depth {
				return "", &LimitError{"Depth", l.Depth}
			}
			if clean != nil {
				if len(clean) > 0 {
					clean = append(clean, '/')
				}
				clean = append(clean, part...)
			} else {
				kept = len(name) - len(rest) + len(part)
			}
		}
		rest = after
	}
	if clean != nil {
		return string(clean), nil
	}
	return name[:kept], nil
}

// schily begins the PAX records of extended attributes. Empty values are only in
// the records, not in tar.Header.Xattrs.
const schily = "SCHILY.xattr."

// xattrs returns the extended attributes that Linux knows, by name. Overlayfs'
// own are dropped: in a layer they would forge what the file system says about
// itself, opaque directories and whiteouts, redirects and copies.
func xattrs(records map[string]string, l *Limits) ([]squashfs.Xattr, error) {
	var list []squashfs.Xattr
	var size int64
	for key, value := range records {
		name, ok := strings.CutPrefix(key, schily)
		if !ok || !knownXattr(name) {
			continue
		}
		if len(name) > 255 || len(value) > 64<<10 {
			return nil, fmt.Errorf("extended attribute %s of %d bytes: Linux takes names of 255 and values of 65536", quote(name), len(value))
		}
		if size += int64(len(name) + len(value)); size > l.XattrBytes {
			return nil, &LimitError{"XattrBytes", l.XattrBytes}
		}
		list = append(list, squashfs.Xattr{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(list, func(a, b squashfs.Xattr) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func knownXattr(name string) bool {
	space, rest, _ := strings.Cut(name, ".")
	switch space {
	case "security", "system":
		return rest != ""
	case "user", "trusted":
		return rest != "" && rest != "overlay" && !strings.HasPrefix(rest, "overlay.")
	}
	return false
}

// hidden says whether a path has a name that begins like a whiteout, and whether
// it is its last.
func hidden(path string) (any, last bool) {
	if !strings.Contains(path, whiteoutPrefix) {
		return false, false
	}
	base := path[strings.LastIndexByte(path, '/')+1:]
	last = strings.HasPrefix(base, whiteoutPrefix)
	return last || strings.HasPrefix(path, whiteoutPrefix) || strings.Contains(path, "/"+whiteoutPrefix), last
}

// commonPrefix is how many bytes a and b begin with alike.
func commonPrefix(a, b string) int {
	n := min(len(a), len(b))
	if a[:n] == b[:n] {
		return n
	}
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
