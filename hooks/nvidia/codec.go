package nvidia

import (
	"encoding/binary"
	"math"
)

// codec writes or reads a Driver as bytes, by one description of its fields for
// both ways. Reading the same as JSON takes most of a millisecond in a process that
// has decoded nothing yet.
type codec struct {
	out  []byte // what was written
	in   string // what is still to be read
	read bool
	bad  bool // what was read is no Driver
}

// codecMagic begins what is kept; it changes with the description.
const codecMagic = "gangway nvidia 2\n"

// maxList is how long a list may be that is read.
const maxList = 1 << 14

// encode writes what is kept of a discovery.
func encode(d *Driver, stamp string) []byte {
	c := &codec{out: []byte(codecMagic)}
	c.text(&stamp)
	c.driver(d)
	return c.out
}

// decode reads it; false if it is something else.
func decode(text string) (d *Driver, stamp string, ok bool) {
	if len(text) < len(codecMagic) || text[:len(codecMagic)] != codecMagic {
		return nil, "", false
	}
	c := &codec{in: text[len(codecMagic):], read: true}
	d = &Driver{}
	c.text(&stamp)
	c.driver(d)
	return d, stamp, !c.bad && c.in == ""
}

func (c *codec) driver(d *Driver) {
	c.text(&d.Version)
	c.text(&d.Root)
	c.flag(&d.WSL)
	list(c, &d.GPUs, c.gpu)
	list(c, &d.Nodes, c.node)
	list(c, &d.Libraries, func(l *Library) {
		c.text(&l.Host)
		c.text(&l.Dir)
		list(c, &l.Names, c.text)
		number(c, &l.Flags)
		number(c, &l.Use)
	})
	list(c, &d.Management, func(m *Management) {
		c.text(&m.Name)
		c.node(&m.Node)
	})
	list(c, &d.Files, func(f *File) {
		c.text(&f.Host)
		c.text(&f.Path)
		c.flag(&f.Write)
		number(c, &f.Use)
	})
	c.text(&d.Params)
	list(c, &d.Warnings, c.text)
}

func (c *codec) gpu(g *GPU) {
	number(c, &g.Index)
	c.text(&g.UUID)
	c.text(&g.Model)
	c.text(&g.Bus)
	number(c, &g.Minor)
	number(c, &g.NUMA)
	c.text(&g.Cores)
	c.node(&g.Node)
	list(c, &g.Graphics, c.node)
	list(c, &g.MIGs, func(m *Instance) {
		c.text(&m.UUID)
		number(c, &m.GI)
		number(c, &m.CI)
		list(c, &m.Nodes, c.node)
	})
}

func (c *codec) node(n *Node) {
	c.text(&n.Path)
	c.text(&n.Host)
	number(c, &n.Major)
	number(c, &n.Minor)
	number(c, &n.Use)
}

// number writes or reads a number of any size.
func number[T ~int | ~int32 | ~int64 | ~uint8](c *codec, n *T) {
	v := int64(*n)
	if c.long(&v); c.read {
		*n = T(v)
		c.bad = c.bad || int64(*n) != v
	}
}

func (c *codec) long(v *int64) {
	if !c.read {
		c.out = binary.AppendVarint(c.out, *v)
		return
	}
	n, size := binary.Varint([]byte(c.in[:min(len(c.in), binary.MaxVarintLen64)]))
	if size <= 0 {
		c.bad, c.in = true, ""
		return
	}
	*v, c.in = n, c.in[size:]
}

func (c *codec) flag(b *bool) {
	var n uint8
	if *b {
		n = 1
	}
	number(c, &n)
	*b = n == 1
}

func (c *codec) text(s *string) {
	n := len(*s)
	number(c, &n)
	if !c.read {
		c.out = append(c.out, *s...)
		return
	}
	if n < 0 || n > len(c.in) {
		c.bad, c.in, n = true, "", 0
	}
	*s, c.in = c.in[:n], c.in[n:]
}

// list writes or reads a list; no list and an empty one are the same.
func list[T any](c *codec, s *[]T, each func(*T)) {
	n := len(*s)
	number(c, &n)
	if c.read {
		// An element takes a byte at least.
		if n < 0 || n > min(len(c.in), maxList, math.MaxInt32) {
			c.bad, c.in, n = true, "", 0
		}
		*s = nil
		if n > 0 {
			*s = make([]T, n)
		}
	}
	for i := range *s {
		each(&(*s)[i])
	}
}
