package squashfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// FileWriter is a Writer whose image appears under its name only when it is
// complete and on stable storage.
type FileWriter struct {
	*Writer
	path string
	f    *os.File
	temp string // the file's name until then; empty where it has none
	keep bool   // a file that is at the path
	over bool
}

// Create begins an image that Commit will put at path, in the place of a file that
// is there. Until then nothing is at path, or what was there before: through errors,
// a full disk, and the process' sudden end. Where the file system can, the
// unfinished file has no name, so that not even that is left behind.
func Create(path string, o WriterOptions) (*FileWriter, error) {
	if path == "" {
		return nil, fmt.Errorf("create image %q: %w", path, fs.ErrNotExist)
	}
	if st, err := os.Lstat(path); err == nil && st.IsDir() {
		return nil, fmt.Errorf("create image %s: %w", path, syscall.EISDIR)
	}
	f, temp, err := openTemp(filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, fmt.Errorf("create image %s: %w", path, err)
	}
	fw := &FileWriter{path: path, f: f, temp: temp}
	if fw.Writer, err = NewWriter(f, o); err != nil {
		fw.over = true
		fw.discard()
		return nil, err
	}
	fw.replaces = path
	return fw, nil
}

// CreateNew is Create for a path at which nothing is: it gives fs.ErrExist if
// something is there, as does Commit if something came there meanwhile.
func CreateNew(path string, o WriterOptions) (*FileWriter, error) {
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("create image %s: %w", path, fs.ErrExist)
	}
	w, err := Create(path, o)
	if err != nil {
		return nil, err
	}
	w.keep = true
	return w, nil
}

// Commit finishes the image, appends the trailer (nil for none) behind its
// padding, syncs the file to disk and gives it its name. After an error there is
// nothing new at the path, unless the error is of the last step, syncing the
// directory.
func (w *FileWriter) Commit(ctx context.Context, trailer io.Reader) (Info, error) {
	info, err := w.Finish(ctx)
	if err != nil {
		return Info{}, err
	}
	if trailer != nil {
		if _, err := io.Copy(io.NewOffsetWriter(w.f, info.Size), trailer); err != nil {
			return Info{}, fmt.Errorf("write trailer: %w", err)
		}
	}
	if err := w.f.Sync(); err != nil {
		return Info{}, fmt.Errorf("sync image: %w", err)
	}
	if err := w.publish(); err != nil {
		return Info{}, fmt.Errorf("name image %s: %w", w.path, err)
	}
	w.over = true
	if err := w.f.Close(); err != nil {
		return Info{}, fmt.Errorf("close image: %w", err)
	}
	return info, syncDir(filepath.Dir(w.path))
}

// publish gives the finished file its name.
func (w *FileWriter) publish() error {
	if w.temp == "" {
		var err error
		if w.temp, err = linkTemp(w.f, w.path, w.keep); err != nil || w.temp == "" {
			return err
		}
	}
	if w.keep {
		return renameNew(w.temp, w.path)
	}
	return os.Rename(w.temp, w.path)
}

// Close gives up an image that was not committed, and removes what was written.
func (w *FileWriter) Close() error {
	if w.over {
		return nil
	}
	w.over = true
	err := w.Writer.Close()
	w.discard()
	return err
}

func (w *FileWriter) discard() {
	// Nothing is lost by an error here: the file is of no use.
	_ = w.f.Close()
	if w.temp != "" {
		_ = os.Remove(w.temp)
	}
}

// openNamed makes a temporary file beside the image-to-be.
func openNamed(dir, base string) (*os.File, string, error) {
	for i := 0; ; i++ {
		name := tempName(dir, base, i)
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) && i < 10000 {
			continue
		}
		// The caller says which image; the temporary name would only puzzle.
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			err = pe.Err
		}
		return f, name, err
	}
}

func tempName(dir, base string, i int) string {
	base = base[:min(len(base), 200)] // a name has room for 255 bytes
	return filepath.Join(dir, fmt.Sprintf(".%s.%d-%d.tmp", base, os.Getpid(), i))
}

// linkNew renames a file by way of a second name, which must be free.
func linkNew(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	_ = os.Remove(from) // the image is there, which counts
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}
