package squashfs

import (
	"context"
	"fmt"
	"path"
)

// AddImage adds all of src at a path of the image, "." for the root, with the
// blocks of its files as AddFrom takes them. src must stay open until Finish
// returns.
func (w *Writer) AddImage(ctx context.Context, src *Reader, at string) error {
	root, err := src.Root()
	if err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	a := imageAdder{w: w, src: src, seen: map[uint32]string{}}
	if err := a.add(ctx, at, root); err != nil {
		return fmt.Errorf("add image: %w", err)
	}
	return nil
}

type imageAdder struct {
	w    *Writer
	src  *Reader
	seen map[uint32]string // inodes of several names by their first
}

func (a *imageAdder) add(ctx context.Context, at string, i Inode) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if i.Links > 1 && i.Type != TypeDir {
		if first, ok := a.seen[i.Number]; ok {
			return a.w.Link(at, first)
		}
		a.seen[i.Number] = at
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
	for d, err := range a.src.ReadDir(i) {
		if err != nil {
			return fmt.Errorf("add %q: %w", at, err)
		}
		child, err := a.src.Child(i, d)
		if err != nil {
			return fmt.Errorf("add %q: %w", at, err)
		}
		if err := a.add(ctx, path.Join(at, d.Name), child); err != nil {
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
