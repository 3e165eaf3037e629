package merged

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/squashfs"
)

// show writes a tree in short: "path" with "/" behind directories, "@target" behind
// symlinks, "#N" behind files of layer N, "=other" behind further names, the
// permissions where they are not those of the helpers.
func show(tree seenTree) string {
	var out []string
	for _, path := range slices.Sorted(maps.Keys(tree)) {
		s := tree[path]
		perm := s.mode & 0o7777
		text := path
		switch s.mode & syscall.S_IFMT {
		case syscall.S_IFDIR:
			if path == "" && perm == 0o755 {
				continue
			}
			if text += "/"; perm != 0o755 {
				text += fmt.Sprintf("%o", perm)
			}
		case syscall.S_IFLNK:
			text += "@" + s.target
		case syscall.S_IFREG:
			text += "#" + strings.Fields(s.content + " - -")[1]
		default:
			text += fmt.Sprintf("!%o:%d:%d", s.mode>>12, s.major, s.minor)
		}
		if s.links > 1 && s.first != path && s.first != "" {
			text = path + "=" + s.first
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

type stackOf = [][]layer.Entry

func wh(name string) layer.Entry {
	return layer.Entry{Name: join(parentOf(name), ".wh."+baseOf(name)), Type: layer.File}
}

func opq(dir string) layer.Entry {
	return layer.Entry{Name: join(dir, ".wh..wh..opq"), Type: layer.File}
}

// rules are the rules of applying, one or more cases each; reference E.1 and E.2.
func rules() map[string]struct {
	layers stackOf
	want   string
} {
	char := layer.Entry{Name: "a/null", Type: layer.CharDevice, Mode: 0o666}
	zero := file("a/empty")
	zero.Size = 0
	suid := file("su")
	suid.Mode = 0o4755
	return map[string]struct {
		layers stackOf
		want   string
	}{
		// E.1
		"E1.1 an implicit parent keeps the lower directory's attributes": {
			stackOf{list(dir("tmp", 0o1777)), list(file("tmp/x"))}, "tmp/1777 tmp/x#1",
		},
		"E1.2 a parent that is a symlink in a lower layer is followed": {
			stackOf{list(dir("usr/lib", 0o755), file("usr/lib/ld.so"), symlink("lib", "usr/lib")), list(file("lib/foo"))},
			"lib@usr/lib usr/ usr/lib/ usr/lib/foo#1 usr/lib/ld.so#0",
		},
		"E1.2 a directory's own entry replaces the symlink": {
			stackOf{list(file("usr/lib/ld.so"), symlink("lib", "usr/lib")), list(dir("lib", 0o700), file("lib/foo"))},
			"lib/700 lib/foo#1 usr/ usr/lib/ usr/lib/ld.so#0",
		},
		"E1.3 a hard link reaches into a lower layer": {
			stackOf{list(file("a/x")), list(), list(hardlink("b/y", "a/x"))}, "a/ a/x#0 b/ b/y=a/x",
		},
		"E1.4 a hard link group survives the whiteout of one name": {
			stackOf{list(file("x"), hardlink("y", "x"), hardlink("z", "y")), list(wh("x"))}, "y#0 z=y",
		},
		"E1.4 HardLinkDelete of all names but one": {
			stackOf{list(file("x"), hardlink("y", "x")), list(wh("x")), list(file("x"))}, "x#2 y#0",
		},
		// E.2: whiteouts
		"a whiteout before a sibling does not hide this layer's file": {
			stackOf{list(file("a/x"), file("a/y")), list(wh("a"), file("a/z"))}, "a/ a/z#1",
		},
		"a whiteout after a sibling does not hide this layer's file": {
			stackOf{list(dir("a", 0o700), file("a/x"), file("a/y")), list(file("a/z"), wh("a"))}, "a/700 a/z#1",
		},
		"a whiteout after the same name keeps it":         {stackOf{list(file("x")), list(file("x"), wh("x"))}, "x#1"},
		"a whiteout before the same name keeps it":        {stackOf{list(file("x")), list(wh("x"), file("x"))}, "x#1"},
		"a whiteout removes a whole directory":            {stackOf{list(file("a/b/c/x"), file("k")), list(wh("a"))}, "k#0"},
		"a whiteout removes a symlink, not its target":    {stackOf{list(file("t/x"), symlink("s", "t")), list(wh("s"))}, "t/ t/x#0"},
		"a whiteout goes through a symlink as its parent": {stackOf{list(file("t/x"), symlink("s", "t")), list(wh("s/x"))}, "s@t t/"},
		"a whiteout of what is missing is fine and makes no parents": {
			stackOf{list(file("f")), list(wh("no"), wh("no/such/file"), wh("f/x"))}, "f#0",
		},
		"a whiteout below a dangling symlink is fine": {stackOf{list(symlink("s", "no")), list(wh("s/x"), opq("s"))}, "s@no"},
		"a whiteout's type does not matter": {
			stackOf{list(file("x"), file("d/y")), list(layer.Entry{Name: ".wh.x", Type: layer.Dir}, layer.Entry{Name: "d/.wh.y", Type: layer.CharDevice})}, "d/",
		},
		"a whiteout of a name that begins with a dot": {stackOf{list(file(".x")), list(wh(".x"))}, ""},
		// E.2: opaque
		"an opaque directory at the layer's begin": {
			stackOf{list(dir("a", 0o700), file("a/x"), file("a/b/y")), list(opq("a"), file("a/z"))}, "a/700 a/z#1",
		},
		"WhiteoutOpaqueEnd": {
			stackOf{list(file("a/x"), file("a/b/y")), list(file("a/z"), file("a/b/w"), opq("a"))}, "a/ a/b/ a/b/w#1 a/z#1",
		},
		"an opaque directory in the layer's middle": {
			stackOf{list(file("a/x"), file("a/b/y")), list(file("a/b/w"), opq("a"), file("a/x"))}, "a/ a/b/ a/b/w#1 a/x#1",
		},
		"an opaque root":                          {stackOf{list(file("a/x"), file("y")), list(file("z"), opq(""))}, "z#1"},
		"an opaque directory that is missing":     {stackOf{list(file("y")), list(opq("no/such"))}, "y#0"},
		"an opaque directory that is a symlink":   {stackOf{list(file("t/x"), symlink("s", "t")), list(opq("s"))}, "s@t t/"},
		"opaque twice, and once more above":       {stackOf{list(file("a/b/x")), list(file("a/b/y"), opq("a/b"), opq("a/b"), opq("a"))}, "a/ a/b/ a/b/y#1"},
		"opaque does not reach this layer's link": {stackOf{list(file("a/x")), list(hardlink("a/y", "a/x"), opq("a"))}, "a/ a/y#0"},
		"opaque again in the next layer":          {stackOf{list(file("a/x")), list(opq("a"), file("a/y")), list(opq("a"), file("a/z"))}, "a/ a/z#2"},
		"aufs' own files are ignored": {
			stackOf{list(dir(".wh..wh.plnk", 0o700), file(".wh..wh.plnk/1.2"), file(".wh..wh.aufs"), dir(".wh..wh.orph", 0o700), file("a/.wh..wh.x/y"), file("k"))}, "k#0",
		},
		"aufs' pseudo-links are hard links": {
			stackOf{list(file(".wh..wh.plnk/1.2"), hardlink("a", ".wh..wh.plnk/1.2"), hardlink("b", ".wh..wh.plnk/1.2"))}, "a#0 b=a",
		},
		// E.2: type changes
		"directory to file":    {stackOf{list(file("a/b/x")), list(file("a"))}, "a#1"},
		"file to directory":    {stackOf{list(file("a")), list(dir("a", 0o700))}, "a/700"},
		"symlink to directory": {stackOf{list(symlink("a", "b"), file("b/x")), list(dir("a", 0o755))}, "a/ b/ b/x#0"},
		"directory to symlink": {stackOf{list(file("a/x"), file("b/x")), list(symlink("a", "b"))}, "a@b b/ b/x#0"},
		"directory over directory": {
			stackOf{list(dir("a", 0o700), file("a/x")), list(dir("a", 0o2750))}, "a/2750 a/x#0",
		},
		"a file through a symlink's name replaces the symlink": {stackOf{list(file("t"), symlink("s", "t")), list(file("s"))}, "s#1 t#0"},
		"file to hard link":                          {stackOf{list(file("a"), file("b")), list(hardlink("b", "a"))}, "a#0 b=a"},
		"directory to the hard link of a file in it": {stackOf{list(file("a/x")), list(hardlink("a", "a/x"))}, "a#0"},
		// E.2: duplicates
		"the last of two entries wins": {stackOf{list(file("x"), symlink("x", "y"), suid, file("su"))}, "su#0 x@y"},
		"a hard link keeps the earlier of two": {
			stackOf{list(file("x"), hardlink("y", "x"), symlink("x", "q"))}, "x@q y#0",
		},
		"a hard link onto itself":                   {stackOf{list(file("x"), hardlink("x", "x"))}, "x#0"},
		"a hard link onto another name of the same": {stackOf{list(file("x"), hardlink("y", "x"), hardlink("x", "y"))}, "x#0 y=x"},
		"a hard link to a symlink":                  {stackOf{list(symlink("s", "x"), hardlink("t", "s"))}, "s@x t=s"},
		"a hard link through symlinked parents":     {stackOf{list(file("d/x"), symlink("s", "/d")), list(hardlink("s/y", "s/x"))}, "d/ d/x#0 d/y=d/x s@/d"},
		"the same layer twice":                      {stackOf{list(file("x"), hardlink("y", "x")), list(file("x"), hardlink("y", "x"))}, "x#1 y=x"},
		// E.2: names and parents
		"the root's own entry":                         {stackOf{list(dir("", 0o700), file("x")), list(dir("", 0o1777))}, "/1777 x#0"},
		"an absolute symlink begins at the root":       {stackOf{list(symlink("a/b/s", "/t"), dir("t", 0o755)), list(file("a/b/s/x"))}, "a/ a/b/ a/b/s@/t t/ t/x#1"},
		".. ends at the root":                          {stackOf{list(symlink("a/s", "../../../../t"), dir("t", 0o755)), list(file("a/s/x"))}, "a/ a/s@../../../../t t/ t/x#1"},
		"a dangling symlink's target is made":          {stackOf{list(symlink("s", "t/u")), list(file("s/x"))}, "s@t/u t/ t/u/ t/u/x#1"},
		"what .. takes back is not made":               {stackOf{list(symlink("s", "no/../t")), list(file("s/x"))}, "s@no/../t t/ t/x#1"},
		"a symlink in a symlink's target":              {stackOf{list(symlink("s", "r/x"), symlink("r", "."), file("x/k")), list(file("s/y"))}, "r@. s@r/x x/ x/k#0 x/y#1"},
		"a character device 0:0 is data":               {stackOf{list(file("a/null")), list(char)}, "a/ a/null!2:0:0"},
		"names that differ in case only, or not UTF-8": {stackOf{list(file("A"), file("a"), file("\xff\xfe"))}, "A#0 a#0 \xff\xfe#0"},
		"an empty layer, an empty file":                {stackOf{list(), list(zero), list()}, "a/ a/empty#-"},
		"setuid stays":                                 {stackOf{list(suid)}, "su#0"},
		"a name of 255 bytes":                          {stackOf{list(dir(strings.Repeat("n", 255), 0o755))}, strings.Repeat("n", 255) + "/"},
	}
}

func TestRules(t *testing.T) {
	for name, c := range rules() {
		t.Run(name, func(t *testing.T) {
			got, err := merge(c.layers...)
			must(t, err)
			if show(got) != c.want {
				t.Errorf("got %q\nwant %q", show(got), c.want)
			}
			o := newOracle()
			for _, list := range c.layers {
				o.nextLayer()
				for _, e := range list {
					if err := o.apply(e); err != nil && !strings.Contains(name, "aufs") {
						t.Errorf("oracle: %v", err)
					}
				}
			}
			if err := o.see().diff(got); err != nil && !strings.Contains(name, "pseudo-links") {
				t.Errorf("oracle: %v", err)
			}
		})
	}
}

// TestAttributes: what an entry says is what the index says.
func TestAttributes(t *testing.T) {
	x := []squashfs.Xattr{{Name: "user.b"}, {Name: "user.a", Value: []byte{0, '=', 1}}} // to be sorted
	first := layer.Entry{
		Name: "d", Type: layer.Dir, Mode: 0o2750, UID: 1 << 21, GID: 1<<32 - 2, Sec: -5, Nsec: 3, Xattrs: x,
	}
	second := layer.Entry{Name: "d", Type: layer.Dir, Mode: 0o700, Sec: 1 << 40}
	dev := layer.Entry{Name: "n", Type: layer.BlockDevice, Mode: 0o600, Major: 1<<32 - 1, Minor: 1<<32 - 2}
	hard := hardlink("f2", "f")
	hard.UID, hard.Mode, hard.Sec = 9, 0o7777, 99
	got, err := merge(list(first, dev, file("f"), hard))
	must(t, err)
	want := seenTree{
		"":   {mode: syscall.S_IFDIR | 0o755, links: 3},
		"d":  {mode: syscall.S_IFDIR | 0o2750, uid: 1 << 21, gid: 1<<32 - 2, sec: -5, nsec: 3, links: 2, xattrs: "user.a=003d01 user.b="},
		"n":  {mode: syscall.S_IFBLK | 0o600, major: 1<<32 - 1, minor: 1<<32 - 2, links: 1, first: "n"},
		"f":  {mode: syscall.S_IFREG | 0o644, size: 20, sec: 8, content: contentOf(0, 3), links: 2, first: "f"},
		"f2": {mode: syscall.S_IFREG | 0o644, size: 20, sec: 8, content: contentOf(0, 3), links: 2, first: "f"},
	}
	must(t, want.diff(got))
	got, err = merge(list(first, dev, file("f"), hard), list(second, wh("f")))
	must(t, err)
	want["d"] = seen{mode: syscall.S_IFDIR | 0o700, sec: 1 << 40, links: 2}
	delete(want, "f")
	want["f2"] = seen{mode: syscall.S_IFREG | 0o644, size: 20, sec: 8, content: contentOf(0, 3), links: 1, first: "f2"}
	must(t, want.diff(got))
}

// TestBadStacks: each error names the entry and what is wrong.
func TestBadStacks(t *testing.T) {
	deep := []layer.Entry{symlink("s", ".")}
	for i := range 100 {
		deep = append(deep, dir(fmt.Sprintf("s%s/d", strings.Repeat("/d", 20*i)), 0o755))
	}
	tooDeep := strings.Repeat("d/", 1500) + "d"
	far := list(symlink("l", tooDeep), dir("l/"+tooDeep, 0o755))
	bad := func(change func(e *layer.Entry)) []layer.Entry {
		e := file("x")
		e.Inode = 1
		change(&e)
		return []layer.Entry{e}
	}
	for name, c := range map[string]struct {
		layers stackOf
		is     error
		text   []string
	}{
		"a symlink loop in the parents":         {stackOf{list(symlink("a", "b"), symlink("b", "a"), file("a/x"))}, syscall.ELOOP, []string{`"a/x"`}},
		"a whiteout in a symlink loop":          {stackOf{list(symlink("a", "a"), wh("a/x"))}, syscall.ELOOP, []string{`"a/.wh.x"`}},
		"a parent that is a file":               {stackOf{list(file("d/f"), file("d/f/x"))}, syscall.ENOTDIR, []string{`"d/f/x"`, `"d/f" is not a directory`}},
		"a parent that is a symlink to a file":  {stackOf{list(file("f"), symlink("s", "f"), file("s/x"))}, syscall.ENOTDIR, []string{`"s/x"`, `"f" is not`}},
		"a hard link to what is missing":        {stackOf{list(hardlink("a", "no/x"))}, syscall.ENOENT, []string{`"a"`, `"no/x"`}},
		"a hard link to what this layer hid":    {stackOf{list(file("x")), list(wh("x"), hardlink("a", "x"))}, syscall.ENOENT, []string{`"a"`, `"x"`}},
		"a hard link to a directory":            {stackOf{list(dir("d", 0o755), hardlink("a", "d"))}, syscall.EISDIR, []string{`"a"`, `"d"`}},
		"a hard link to the root":               {stackOf{list(hardlink("a", ""))}, syscall.EISDIR, []string{`"a"`}},
		"a hard link to the last layer's plnk":  {stackOf{list(file(".wh..wh.plnk/1")), list(hardlink("a", ".wh..wh.plnk/1"))}, syscall.ENOENT, []string{`"a"`}},
		"the root as a file":                    {stackOf{list(file(""))}, nil, []string{"the root is not a directory"}},
		"the root as a hard link":               {stackOf{list(hardlink("", "a"))}, nil, []string{"the root is not a directory"}},
		"a bare whiteout":                       {stackOf{list(file("a/.wh."))}, nil, []string{`"a/.wh."`, "no name"}},
		"a whiteout of .":                       {stackOf{list(file(".wh.."))}, nil, []string{`"."`}},
		"a whiteout of ..":                      {stackOf{list(file(".wh..."))}, nil, []string{`".."`}},
		"a name of 256 bytes":                   {stackOf{list(file(strings.Repeat("n", 256)))}, syscall.ENAMETOOLONG, nil},
		"a path of 4,096 bytes":                 {stackOf{list(file(strings.Repeat("n/", 2047) + "nn"))}, syscall.ENAMETOOLONG, nil},
		"a long name in a symlink":              {stackOf{list(symlink("s", strings.Repeat("n", 256)), file("s/x"))}, syscall.ENAMETOOLONG, nil},
		"a name with ..":                        {stackOf{list(file("a/../b"))}, syscall.EINVAL, nil},
		"an absolute name":                      {stackOf{list(file("/a"))}, syscall.EINVAL, nil},
		"a name with NUL":                       {stackOf{list(file("a\x00b"))}, syscall.EINVAL, nil},
		"an empty symlink":                      {stackOf{list(symlink("s", ""))}, syscall.EINVAL, nil},
		"a symlink with NUL":                    {stackOf{list(symlink("s", "a\x00"))}, syscall.EINVAL, nil},
		"a symlink of 4,096 bytes":              {stackOf{list(symlink("s", strings.Repeat("a", 4096)))}, syscall.EINVAL, nil},
		"directories deeper than a path can be": {stackOf{far}, ErrLimit, nil},
		"a type that is none":                   {stackOf{bad(func(e *layer.Entry) { e.Type = 99 })}, syscall.EINVAL, nil},
		"a negative size":                       {stackOf{bad(func(e *layer.Entry) { e.Size = -1 })}, syscall.EINVAL, nil},
		"content without an inode":              {stackOf{bad(func(e *layer.Entry) { e.Inode = 0 })}, nil, []string{"no inode"}},
		"an xattr twice":                        {stackOf{bad(func(e *layer.Entry) { e.Xattrs = []squashfs.Xattr{{Name: "user.a"}, {Name: "user.a"}} })}, syscall.EINVAL, []string{"user.a"}},
		"an xattr of 65,537 bytes":              {stackOf{bad(func(e *layer.Entry) { e.Xattrs = []squashfs.Xattr{{Name: "user.a", Value: make([]byte, 65537)}} })}, syscall.EINVAL, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := image(c.layers...)
			if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("error %v, want %v", err, c.is)
			}
			for _, text := range append(c.text, "apply layer sha256:") {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
		})
	}
	_, err := image(deep)
	must(t, err)
}

// TestLinkCap: 255 symlinks are followed on the way to an entry, and no more.
func TestLinkCap(t *testing.T) {
	chain := []layer.Entry{dir("s0", 0o755)}
	for i := range 256 {
		chain = append(chain, symlink(fmt.Sprintf("s%d", i+1), fmt.Sprintf("s%d", i)))
	}
	if _, err := image(append(chain, dir("s255/x", 0o755))); err != nil {
		t.Error(err)
	}
	if _, err := image(append(chain, dir("s256/x", 0o755))); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("256 links: %v", err)
	}
}

// TestFollowed: what resolving symlinks may cost is bounded for an image as a whole.
func TestFollowed(t *testing.T) {
	loop := []layer.Entry{symlink("l", strings.Repeat("./", 2000))}
	path := strings.Repeat("l/", 255) + "x"
	for range 140 {
		loop = append(loop, wh(path))
	}
	if _, err := image(loop); !errors.Is(err, ErrLimit) {
		t.Errorf("error %v", err)
	}
}

// TestBadInput: what comes with the entries is refused too, and ends the Builder.
func TestBadInput(t *testing.T) {
	boom := errors.New("boom")
	info := infoOf(0)
	one := each(list(file("x")))
	fine := func(inode uint32) (squashfs.Layout, error) { return layoutOf(inode, 20), nil }
	lying := func(change func(*squashfs.Layout)) func(uint32) (squashfs.Layout, error) {
		return func(uint32) (squashfs.Layout, error) {
			l := layoutOf(1, 20)
			change(&l)
			return l, nil
		}
	}
	changed := func(change func(*LayerInfo)) LayerInfo {
		i := infoOf(0)
		change(&i)
		return i
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	type layoutFunc = func(uint32) (squashfs.Layout, error)
	for name, c := range map[string]struct {
		ctx     context.Context
		o       Options
		info    LayerInfo
		entries iter.Seq2[layer.Entry, error]
		layout  layoutFunc
		is      error
	}{
		"a layer that cannot be read":   {info: info, entries: func(yield func(layer.Entry, error) bool) { yield(layer.Entry{}, boom) }, is: boom},
		"a layout that cannot be read":  {info: info, entries: one, layout: func(uint32) (squashfs.Layout, error) { return squashfs.Layout{}, boom }, is: boom},
		"cancelled":                     {ctx: cancelled, info: info, entries: one, is: context.Canceled},
		"no digest, no path":            {info: changed(func(l *LayerInfo) { l.Digest = "" }), entries: one},
		"a bad digest":                  {info: changed(func(l *LayerInfo) { l.Digest = "sha256:00" }), entries: one},
		"a bad path":                    {info: changed(func(l *LayerInfo) { l.Path = "a\x00" }), entries: one},
		"a bad block size":              {info: changed(func(l *LayerInfo) { l.BlockSize = 5000 }), entries: one},
		"too many entries":              {o: Options{Limits: Limits{Entries: 1}}, info: info, entries: each(list(file("x"), file("x"))), is: ErrLimit},
		"too many implicit directories": {o: Options{Limits: Limits{Entries: 3}}, info: info, entries: each(list(file("a/b/c/d"))), is: ErrLimit},
		"too many bytes of names":       {o: Options{Limits: Limits{Bytes: 5}}, info: info, entries: each(list(dir("long name", 0))), is: ErrLimit},
		"too many bytes of targets":     {o: Options{Limits: Limits{Bytes: 5}}, info: info, entries: each(list(symlink("s", "long name"))), is: ErrLimit},
		"too many bytes of blocks":      {o: Options{Limits: Limits{Bytes: 4}}, info: info, entries: one, is: ErrLimit},
		"too few blocks":                {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Blocks = nil })},
		"too many blocks":               {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Blocks = append(l.Blocks, 1) })},
		"a block that is too large":     {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Blocks[0] = testBlock + 1 })},
		"blocks before the layer":       {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Start = -1 })},
		"blocks behind the layer":       {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Start = 1<<30 - 19 })},
		"a fragment behind the layer":   {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { *l = squashfs.Layout{Fragment: squashfs.Fragment{Start: 1 << 30, Size: 9}} })},
		"a piece behind its fragment block": {info: info, entries: one, layout: lying(func(l *squashfs.Layout) {
			*l = squashfs.Layout{Fragment: squashfs.Fragment{Size: 9, Offset: testBlock}}
		})},
		"a fragment of no size": {info: info, entries: one, layout: lying(func(l *squashfs.Layout) { l.Fragment.Offset = 1 })},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBuilder(c.o)
			ctx, layout := c.ctx, c.layout
			if ctx == nil {
				ctx = t.Context()
			}
			if layout == nil {
				layout = fine
			}
			err := b.Apply(ctx, c.info, c.entries, layout)
			if err == nil || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("error %v, want %v", err, c.is)
			}
			if err2 := b.Apply(t.Context(), infoOf(1), each(nil), fine); err2 == nil || err2.Error() != err.Error() {
				t.Errorf("the next Apply gives %v", err2)
			}
			if n, err2 := b.WriteTo(nil); n != 0 || err2 == nil {
				t.Errorf("WriteTo gives %d, %v", n, err2)
			}
		})
	}
	b := NewBuilder(Options{})
	for i := range maxLayers {
		must(t, apply(b, i, nil))
	}
	if err := apply(b, maxLayers, nil); !errors.Is(err, ErrLimit) {
		t.Errorf("layer %d gives %v", maxLayers+1, err)
	}
}
