package squashfs

import (
	"cmp"
	"fmt"
	"strings"
)

// walkFrame is a directory on the way from the root.
type walkFrame struct {
	name    string
	dir     Inode
	scan    dirScanner
	entries uint32
	subdirs uint32
}

// walk goes through the tree, iteratively, and counts the names of every inode.
func (c *checker) walk() error {
	root, err := c.r.Root()
	if err != nil {
		return c.problem(err)
	}
	var stack []*walkFrame
	push := func(name string, dir Inode) error {
		f := &walkFrame{name: name, dir: dir}
		f.scan = c.r.scanDir(&f.dir)
		stack = append(stack, f)
		c.names[dir.Number-1]++
		if dir.Size > c.listings {
			// What follows could take for ever.
			return cmp.Or(c.at(stack, errSharedListing()), errEnough)
		}
		c.listings -= dir.Size
		return c.at(stack, c.dirIndex(&dir))
	}
	if err := push("", root); err != nil {
		return err
	}
	for len(stack) > 0 {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		f := stack[len(stack)-1]
		err := f.scan.next()
		// Nothing is pinned while the walk is elsewhere.
		f.scan.cur.release()
		if err != nil {
			if err == errDirEnd {
				err = f.finish()
			}
			if err := c.at(stack, err); err != nil {
				return err
			}
			stack = stack[:len(stack)-1]
			continue
		}
		e := f.scan.entry()
		sub, err := c.enter(f, &e)
		if err == nil && sub != nil && len(stack) >= maxPathDepth {
			err = corrupt("entry %q: more than %d directories deep", e.Name, maxPathDepth)
		}
		if err != nil {
			if err := c.at(stack, err); err != nil {
				return err
			}
			continue
		}
		if sub != nil {
			if err := push(e.Name, *sub); err != nil {
				return err
			}
		}
	}
	return nil
}

// at adds the path to a problem.
func (c *checker) at(stack []*walkFrame, err error) error {
	if err == nil {
		return nil
	}
	var path strings.Builder
	for _, f := range stack {
		if f.name != "" {
			path.WriteString("/" + f.name)
		}
	}
	if path.Len() == 0 {
		path.WriteByte('/')
	}
	return c.problem(fmt.Errorf("%q: %w", path.String(), err))
}

// enter checks an entry and counts it. It returns the inode of a directory.
func (c *checker) enter(f *walkFrame, e *DirEntry) (*Inode, error) {
	i, err := c.r.Child(f.dir, *e)
	if err != nil {
		return nil, err
	}
	f.entries++
	if i.Type != TypeDir {
		c.names[i.Number-1]++
		return nil, nil
	}
	f.subdirs++
	if c.names[i.Number-1] > 0 {
		return nil, corrupt("entry %q: another path leads to directory %d", e.Name, i.Number)
	}
	return &i, nil
}

// finish checks a directory whose entries are all known. mksquashfs and this
// package count its subdirectories, as file systems do; tar2sqfs and gensquashfs
// all entries.
func (f *walkFrame) finish() error {
	if n := f.dir.Links; n != f.subdirs+2 && n != f.entries+2 {
		return corrupt("it says %d links, and has %d subdirectories and %d entries", n, f.subdirs, f.entries)
	}
	return nil
}

// dirIndex checks that each entry of a directory's index tells the place and the
// first name of a run.
func (c *checker) dirIndex(dir *Inode) error {
	if dir.dirIndex == 0 {
		return nil
	}
	s := c.r.scanDir(dir)
	defer s.cur.release()
	var bad error
	err := c.r.scanIndex(dir, func(e *dirIndexEntry, first []byte) bool {
		// To the first entry of the run.
		for bad == nil && (s.passed != 1 || s.head < uint64(e.offset)) {
			if bad = c.ctx.Err(); bad == nil {
				bad = s.next()
			}
		}
		switch {
		case bad == errDirEnd || (bad == nil && s.head != uint64(e.offset)):
			bad = corrupt("index: no run begins at %d of the listing", e.offset)
		case bad == nil && s.headAt.block() != uint64(e.block):
			bad = corrupt("index: the run at %d of the listing is in the block at %d, not %d", e.offset, s.headAt.block(), e.block)
		case bad == nil && string(s.name) != string(first):
			bad = corrupt("index: the run at %d of the listing begins with %q, not %q", e.offset, s.name, first)
		}
		return bad == nil
	})
	if bad != nil {
		return bad
	}
	return err
}
