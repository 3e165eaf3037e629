package merged

import (
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/squashfs"
	"pgregory.net/rapid"
)

// stackGen draws layers of few names, so that they collide all the time.
type stackGen struct {
	*rapid.T
	inode uint32
}

func (g *stackGen) name() string {
	return rapid.SampledFrom([]string{"a", "a", "a", "b", "b", "c", "d\xff", ".x", "A"}).Draw(g.T, "name")
}

func (g *stackGen) path() string {
	var path strings.Builder
	path.WriteString(g.name())
	for range rapid.IntRange(0, 3).Draw(g.T, "depth") {
		path.WriteString("/" + g.name())
	}
	return path.String()
}

func (g *stackGen) target() string {
	path := g.path()
	return rapid.SampledFrom([]string{
		path, path, "/" + path, "../" + path, "../../../" + path, "./" + path + "/", path + "/..", "missing/../" + path, "..", ".", "/", "a//" + path,
	}).Draw(g.T, "target")
}

func (g *stackGen) attributes(e *layer.Entry) {
	e.Mode = rapid.SampledFrom([]uint32{0o644, 0o755, 0o4755, 0o1777, 0}).Draw(g.T, "mode")
	e.UID = rapid.SampledFrom([]uint32{0, 0, 1000, 65536, 1<<32 - 2}).Draw(g.T, "uid")
	e.GID = rapid.SampledFrom([]uint32{0, 0, 7, 1 << 21}).Draw(g.T, "gid")
	e.Sec = rapid.SampledFrom([]int64{0, 1, -1, 1 << 33, 1_600_000_000}).Draw(g.T, "mtime")
	e.Nsec = rapid.SampledFrom([]uint32{0, 999_999_999}).Draw(g.T, "nsec")
	if rapid.IntRange(0, 7).Draw(g.T, "with xattrs") == 7 && e.Type != layer.Symlink {
		e.Xattrs = append(e.Xattrs, squashfs.Xattr{Name: "user.k" + g.name(), Value: []byte(g.name())})
		if rapid.Bool().Draw(g.T, "two") {
			e.Xattrs = append(e.Xattrs, squashfs.Xattr{Name: "user.z", Value: []byte{0, '='}})
		}
	}
}

func (g *stackGen) entry() layer.Entry {
	e := layer.Entry{Name: g.path()}
	kind := rapid.SampledFrom([]string{
		"dir", "dir", "dir", "file", "file", "file", "file", "symlink", "symlink", "hardlink", "hardlink",
		"whiteout", "whiteout", "opaque", "node", "odd",
	}).Draw(g.T, "kind")
	switch kind {
	case "dir":
		e.Type = layer.Dir
	case "file":
		e.Type = layer.File
		if e.Size = rapid.SampledFrom([]int64{0, 30, 4096, 10_000}).Draw(g.T, "size"); e.Size > 0 {
			g.inode++
			e.Inode = g.inode
		}
	case "symlink":
		e.Type, e.Link = layer.Symlink, g.target()
	case "hardlink":
		e.Type, e.Link = layer.HardLink, g.path()
	case "whiteout":
		dir, base := parentOf(e.Name), baseOf(e.Name)
		e.Name, e.Type = join(dir, ".wh."+base), layer.File
		return e
	case "opaque":
		e.Name, e.Type = join(parentOf(e.Name), ".wh..wh..opq"), layer.File
		return e
	case "node":
		e.Type = rapid.SampledFrom([]layer.Type{layer.CharDevice, layer.BlockDevice, layer.FIFO}).Draw(g.T, "type")
		if e.Type != layer.FIFO && rapid.Bool().Draw(g.T, "numbered") {
			e.Major, e.Minor = 195, 255
		}
	case "odd":
		e.Type = layer.Dir
		switch rapid.IntRange(0, 3).Draw(g.T, "odd") {
		case 0:
			e.Name = ""
		case 1:
			e.Name = join(e.Name, ".wh..wh.aufs")
		case 2:
			e.Name += "/.wh."
		case 3:
			e.Name, e.Type, e.Link = "", layer.Symlink, "a"
		}
	}
	g.attributes(&e)
	return e
}

// stack draws a stack of layers.
func stack(t *rapid.T, layers, entries int) [][]layer.Entry {
	var all [][]layer.Entry
	for range rapid.IntRange(1, layers).Draw(t, "layers") {
		g := &stackGen{T: t}
		var list []layer.Entry
		for range rapid.IntRange(0, entries).Draw(t, "entries") {
			list = append(list, g.entry())
		}
		all = append(all, list)
	}
	return all
}

// checks runs do with n random draws.
func checks(t *testing.T, n int, do func(*rapid.T)) {
	t.Helper()
	const each = 100 // rapid's default
	for range (n + each - 1) / each {
		if rapid.Check(t, do); t.Failed() {
			return
		}
	}
}

// applied is what the oracle makes of a stack: the entries that can be applied, and
// the tree.
func applied(o *oracle, layers [][]layer.Entry, refused func(layer, entry int)) (good [][]layer.Entry) {
	for i, list := range layers {
		o.nextLayer()
		var fine []layer.Entry
		for j, e := range list {
			if err := o.apply(e); err != nil {
				refused(i, j)
				continue
			}
			fine = append(fine, e)
		}
		good = append(good, fine)
	}
	return good
}

// TestStacks: a random stack gives the tree that the oracle makes of it, and the
// first entry that the oracle refuses is refused.
func TestStacks(t *testing.T) {
	n := 2000
	switch {
	case long():
		n = 10_000
	case testing.Short():
		n = 300
	}
	checks(t, n, func(rt *rapid.T) {
		layers := stack(rt, 5, 14)
		o := newOracle()
		badLayer, badEntry := -1, -1
		good := applied(o, layers, func(i, j int) {
			if badLayer < 0 {
				badLayer, badEntry = i, j
			}
		})
		if badLayer >= 0 {
			b := NewBuilder(Options{})
			for i, list := range layers[:badLayer] {
				if err := apply(b, i, list); err != nil {
					rt.Fatal(err)
				}
			}
			seen := 0
			counted := func(yield func(layer.Entry, error) bool) {
				for _, e := range layers[badLayer] {
					if seen++; !yield(e, nil) {
						return
					}
				}
			}
			err := b.Apply(t.Context(), infoOf(badLayer), counted, sizesOf(layers[badLayer]))
			if err == nil || seen != badEntry+1 {
				rt.Fatalf("layer %d: entry %d is refused, not entry %d: %v\n%+v", badLayer, seen-1, badEntry, err, layers)
			}
		}
		got, err := merge(good...)
		if err != nil {
			rt.Fatalf("%v\n%+v", err, good)
		}
		if err := o.see().diff(got); err != nil {
			rt.Fatalf("%v\nlayers %+v", err, good)
		}
	})
}
