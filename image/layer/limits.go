package layer

import (
	"fmt"
	"io"
)

// Limits bound what a layer may cost. Zero fields mean the defaults, which no
// honest image comes near.
type Limits struct {
	// Bytes is how long the tar archive, and how long the content of all files
	// with their holes, may be; default 1 TiB.
	Bytes int64
	// Ratio is how many times the blob the tar archive may be at any moment, beyond
	// 1 GiB; default 200. Holes of sparse files do not count: they take
	// no disk, and 0.1 s a GiB.
	Ratio int64
	// Entries is how many entries the archive may have; default 2,000,000.
	Entries int64
	// Depth is how many names a path may have; default and maximum 2,048.
	Depth int64
	// NameBytes is how long a path may be; default and maximum 4,095.
	NameBytes int64
	// XattrBytes is how much the names and values of an entry's extended attributes
	// may take; default and maximum 1 MiB.
	XattrBytes int64
	// HeaderBytes is how much an entry's headers may take in the archive, among
	// them those of PAX, of long names and of sparse maps; default 4 MiB.
	HeaderBytes int64
	// TOCBytes is how long the records of all entries may be in the table of
	// contents, a part of which is held in memory; default 512 MiB.
	TOCBytes int64

	ratioFrom int64 // bytes that a blob may give whatever its own length
}

// Linux' PATH_MAX without the NUL, and the most names that fit in it.
const (
	maxPath   = 4095
	maxDepth  = 2048
	maxXattrs = 1 << 20
)

func (l Limits) complete() Limits {
	set := func(field *int64, standard, most int64) {
		if *field <= 0 {
			*field = standard
		}
		*field = min(*field, most)
	}
	const any = 1 << 62
	set(&l.Bytes, 1<<40, any)
	set(&l.Ratio, 200, 1<<20)
	set(&l.Entries, 2_000_000, 1<<31)
	set(&l.Depth, maxDepth, maxDepth)
	set(&l.NameBytes, maxPath, maxPath)
	set(&l.XattrBytes, maxXattrs, maxXattrs)
	set(&l.HeaderBytes, 4<<20, any)
	set(&l.TOCBytes, 512<<20, any)
	set(&l.ratioFrom, 1<<30, any)
	return l
}

// LimitError says that a layer goes beyond one of the Limits.
type LimitError struct {
	What  string // the field of Limits, or "Window", that of zstd, which cannot be raised
	Limit int64
}

// Error names the limit in words.
func (e *LimitError) Error() string {
	text := map[string]string{
		"Bytes":       "unpacks to more than %d bytes",
		"Ratio":       "unpacks to more than %d times its compressed size",
		"Entries":     "has more than %d entries",
		"Depth":       "has a path of more than %d names",
		"NameBytes":   "has a path of more than %d bytes",
		"XattrBytes":  "has more than %d bytes of extended attributes in an entry",
		"HeaderBytes": "has more than %d bytes of headers for an entry",
		"TOCBytes":    "has a table of contents of more than %d bytes",
		"Window":      "wants more than %d bytes of zstd window",
	}[e.What]
	return "the layer " + fmt.Sprintf(text, e.Limit)
}

// meter bounds how much comes out of a decompressor.
type meter struct {
	src    io.Reader
	n      int64
	blob   func() int64 // bytes of the blob that went in
	limits *Limits
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.src.Read(p)
	m.n += int64(n)
	if m.n > m.limits.Bytes {
		return n, &LimitError{"Bytes", m.limits.Bytes}
	}
	if m.n > m.limits.ratioFrom && (m.n-m.limits.ratioFrom)/m.limits.Ratio > m.blob() {
		return n, &LimitError{"Ratio", m.limits.Ratio}
	}
	return n, err
}

// headerGate bounds how much is read for the headers of one entry.
type headerGate struct {
	src    io.Reader
	left   int64 // negative: no bound
	most   int64
	failed bool // src gave an error
}

func (g *headerGate) Read(p []byte) (int, error) {
	if g.left == 0 {
		return 0, &LimitError{"HeaderBytes", g.most}
	}
	if g.left > 0 {
		p = p[:min(int64(len(p)), g.left)]
	}
	n, err := g.src.Read(p)
	if g.left > 0 {
		g.left -= int64(n)
	}
	g.failed = g.failed || err != nil && err != io.EOF
	return n, err
}
