package squashfs

import (
	"context"
	"fmt"
	"path"
)

// AddImage adds all of src at a path of the image, "." for the root, with the
// blocks of its files as AddFrom takes them; a trailer is not taken. src must stay
// open until Finish returns.
func (w *Writer) AddImage(ctx context.Context, src *Reader, at string) error {
	root, err := src.Root()
	if err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	a := imageAdder{w: w, src: src, seen: map[Ref]string{}}
	if a.listings, err = src.dirBytes(ctx); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	if err := a.add(ctx, at, root, src.sb.Root); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	return nil
}

type imageAdder struct {
	w        *Writer
	src      *Reader
	seen     map[Ref]string // inodes of several names by their first
	listings uint64         // bytes that listings can yet have
}

func (a *imageAdder) add(ctx context.Context, at string, i Inode, ref Ref) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if i.Links > 1 && i.Type != TypeDir {
		if first, ok := a.seen[ref]; ok {
			return a.w.Link(at, first)
		}
		a.seen[ref] = at
	}
	e, err := a.src.entry(at, i)
	if err != nil {
		return fmt.Errorf("add %q: %w", at, err)
	}
	if i.Type == TypeFile {
		return a.w.AddFrom(e, a.src, i)
	}
	if err := a.w.Add(e, nil); err != nil || i.Type != TypeDir {
		return err
	}
	if i.Size > a.listings {
		return fmt.Errorf("add %q: %w", at, errSharedListing())
	}
	a.listings -= i.Size
	for d, err := range a.src.ReadDir(i) {
		if err != nil {
			return fmt.Errorf("add %q: %w", at, err)
		}
		child, err := a.src.Child(i, d)
		if err != nil {
			return fmt.Errorf("add %q: %w", at, err)
		}
		if err := a.add(ctx, path.Join(at, d.Name), child, d.Ref); err != nil {
			return err
		}
	}
	return nil
}

// entry describes an inode as a Writer takes it.
func (r *Reader) entry(at string, i Inode) (Entry, error) {
	e := Entry{
		Path: at, Mode: i.Mode(), UID: i.UID, GID: i.GID, ModTime: i.ModTime(), Size: int64(i.Size),
		Major: i.Major(), Minor: i.Minor(),
	}
	var err error
	if i.Type == TypeSymlink {
		if e.Target, err = r.ReadLink(i); err != nil {
			return Entry{}, err
		}
	}
	e.Xattrs, err = r.Xattrs(i)
	return e, err
}

// dirBytes returns how many bytes the directory table has, decoded: all listings
// together can have no more, unless directories share them, by which a small image
// would have a tree without end.
func (r *Reader) dirBytes(ctx context.Context) (uint64, error) {
	var n uint64
	for at := r.dirTable.start; at < r.dirTable.end; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		b, err := r.readMeta(at, r.dirTable.end)
		if err != nil {
			return 0, fmt.Errorf("directory table: %w", err)
		}
		n += uint64(len(b.data))
		at += uint64(b.disk)
		b.release()
	}
	return n, nil
}

func errSharedListing() error {
	return corrupt("directories have more entries together than the directory table")
}
