package image

import (
	"errors"
	"fmt"
	"os"

	"github.com/gangway-hpc/gangway/image/merged"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/squashfs"
)

// Files are the open files of an image whose layers nobody has looked into: what root
// hands to a process without rights, which opens the image with them (FilesOf, Open).
// They can be read also when they are removed from the store.
type Files struct {
	// Index is the tree, which a store makes itself, and which holds no data of files.
	Index *merged.Index

	index  *os.File
	layers []*os.File
	config func() (RunConfig, error) // nil where there is none
	hot    string                    // see Opened.HotPath
}

// OpenFiles opens the files of an image, and checks that they are as long as they
// should be. No byte of a layer is read.
func (s *Store) OpenFiles(i *Image) (*Files, error) {
	f := &Files{config: func() (RunConfig, error) { return s.config(i.Reference, i.Config) }}
	if err := f.open(s, s.IndexPath(i.Manifest)); err != nil {
		_ = f.Close() // they were only read
		return nil, incomplete(i, err)
	}
	s.touch(i)
	return f, nil
}

func (f *Files) open(s *Store, index string) error {
	var err error
	if f.index, err = os.Open(index); err != nil {
		return err
	}
	if f.Index, err = merged.OpenFile(f.index); err != nil {
		return err
	}
	for _, l := range f.Index.Layers() {
		file, err := os.Open(s.layerFile(l))
		if err != nil {
			return err
		}
		f.layers = append(f.layers, file)
	}
	return f.checkSizes()
}

// FilesOf returns the Files whose All another process handed on. They belong to it then.
func FilesOf(all []*os.File) (*Files, error) {
	if len(all) == 0 {
		return nil, errors.New("open image: no files were handed on")
	}
	f := &Files{index: all[0], layers: all[1:]}
	var err error
	if f.Index, err = merged.OpenFile(f.index); err != nil {
		return nil, err
	}
	if want := len(f.Index.Layers()); len(f.layers) != want {
		err = fmt.Errorf("open image: %d layers were handed on, want %d", len(f.layers), want)
		return nil, errors.Join(err, f.Index.Close())
	}
	return f, nil
}

// Handed returns the Files that a service hands over, with the bytes of the image's
// configuration. hot names the file that is Opened.HotPath. The files belong to it then.
func Handed(all []*os.File, config []byte, hot string) (*Files, error) {
	f, err := FilesOf(all)
	if err == nil {
		err = f.checkSizes()
	}
	if err == nil {
		var c oci.Config
		c, err = oci.DecodeConfig(config)
		f.hot, f.config = hot, func() (RunConfig, error) { return runConfig(&c), nil }
	}
	if err != nil {
		for _, file := range all {
			_ = file.Close()
		}
		return nil, fmt.Errorf("open image that was handed over: %w", err)
	}
	return f, nil
}

// checkSizes compares the layers with what the index says.
func (f *Files) checkSizes() error {
	for n, l := range f.Index.Layers() {
		st, err := f.layers[n].Stat()
		if err != nil {
			return err
		}
		if st.Size() != l.Size {
			return fmt.Errorf("layer file %s: %w: it has %d bytes, want %d", f.layers[n].Name(), ErrDamaged, st.Size(), l.Size)
		}
	}
	return nil
}

// All returns the files as FilesOf takes them. They must not be closed.
func (f *Files) All() []*os.File { return append([]*os.File{f.index}, f.layers...) }

// Config is Opened.Config.
func (f *Files) Config() (RunConfig, error) { return f.config() }

// Open looks into the layers. What it returns is good until f is closed, and is closed
// before that.
func (f *Files) Open(ro squashfs.ReaderOptions) (*Opened, error) {
	o := &Opened{config: f.config, hot: f.hot}
	var err error
	if o.Index, err = merged.OpenFile(f.index); err != nil {
		return nil, err
	}
	for n, file := range f.layers {
		r, err := squashfs.NewReader(file, ro)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open layer %d: %w", n, err), o.Close())
		}
		o.Layers = append(o.Layers, r)
	}
	return o, nil
}

// Close closes the files.
func (f *Files) Close() error {
	var errs []error
	if f.Index != nil {
		errs = append(errs, f.Index.Close())
	}
	for _, file := range f.All() {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}
