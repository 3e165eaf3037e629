package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// RootOptions say what the image of a root file system says of itself.
type RootOptions struct {
	Platform        oci.Platform // zero is this machine's
	Env             []string     // NAME=value
	Entrypoint, Cmd []string
	WorkingDir      string
	OneFileSystem   bool // leaves out what is mounted below a directory, but keeps the mountpoints
	// Limits are those of PullOptions, of which Bytes and Ratio bound the first reading.
	Limits layer.Limits
	// Warn is told of what an image has no place for, such as sockets, which is left
	// out; nil ignores it.
	Warn func(path string, err error)
}

// NewRootSource returns a root file system of this machine as an image of one layer:
// a directory, a squashfs file, or a tar archive, plain or compressed with gzip or
// zstd. Nothing is copied: Resolve reads all of it once to learn its digest, and each
// Blob reads it again. The same tree gives the same image.
//
// A squashfs file and an archive are data of strangers that are decompressed and taken
// apart in this process; root should leave that to an ordinary user. Symlinks in a
// directory are not followed, and lead nowhere.
func NewRootSource(name string, o RootOptions) (Source, error) {
	if o.Platform == (oci.Platform{}) {
		o.Platform = oci.HostPlatform()
	}
	if o.Limits.Bytes <= 0 {
		o.Limits.Bytes = maxRootBytes
	}
	if o.Limits.Ratio <= 0 {
		o.Limits.Ratio = maxRatio
	}
	for _, e := range o.Env {
		if strings.IndexByte(e, '=') < 1 || strings.IndexByte(e, 0) >= 0 {
			return nil, fmt.Errorf("import %s: environment %q is not NAME=VALUE", name, e)
		}
	}
	t, err := openRoot(name, &o)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", name, err)
	}
	return &rootSource{name: name, o: o, root: t}, nil
}

// The defaults of layer.Limits, and what a compressed archive may give whatever its
// own length.
const (
	maxRootBytes = 1 << 40
	maxRatio     = 200
	ratioFrom    = 1 << 30
)

// root is a root file system as the one layer of an image.
type root interface {
	// measure learns the layer's descriptor and diffID.
	measure(ctx context.Context) (oci.Descriptor, oci.Digest, error)
	// open opens the layer, which measure has read before.
	open(ctx context.Context) (io.ReadCloser, error)
	Close() error
}

// openRoot looks at what a file is.
func openRoot(name string, o *RootOptions) (root, error) {
	st, err := os.Stat(name) // first: to open a FIFO waits for its writer
	if err != nil {
		return nil, unreadable(err)
	}
	if st.IsDir() {
		return openDirRoot(name, o)
	}
	if !st.Mode().IsRegular() {
		return nil, &fault.Error{
			What: errors.New("it is neither a directory nor a regular file"),
			Hint: "it is read twice; save what a pipe gives to a file first",
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, unreadable(err)
	}
	t, err := openFileRoot(f, o)
	if err != nil {
		_ = f.Close()
	}
	return t, err
}

func openFileRoot(f *os.File, o *RootOptions) (root, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("hsqs")) {
		return openSquashRoot(f, o)
	}
	for _, m := range []struct{ magic, looks, hint string }{
		{"\xfd7zXZ\x00", "compressed with xz", "decompress it first: xz -dk " + f.Name()},
		{"BZh", "compressed with bzip2", "decompress it first: bzip2 -dk " + f.Name()},
		{"\x04\x22\x4d\x18", "compressed with lz4", "decompress it first: lz4 -d " + f.Name()},
		{"#!/usr/bin/env run-singularity", "a SIF image", "unpack it first: apptainer build --sandbox DIR " + f.Name() + "; then import DIR"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return nil, &fault.Error{What: errors.New("it is " + m.looks), Hint: m.hint}
		}
	}
	return openTarRoot(f, head, o)
}

// rootSource is a Source whose documents are made here.
type rootSource struct {
	name string
	o    RootOptions
	root root

	mu       sync.Mutex
	layer    oci.Descriptor // zero until it is measured
	docs     documents      // manifest and configuration
	manifest oci.Descriptor
}

// Resolve implements Source. It reads the whole root file system.
func (s *rootSource) Resolve(ctx context.Context) (oci.Descriptor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.docs != nil {
		return s.manifest, nil
	}
	l, diffID, err := s.root.measure(ctx)
	if err != nil {
		return oci.Descriptor{}, fmt.Errorf("import %s: %w", s.name, err)
	}
	config, err := s.config(diffID)
	if err != nil {
		return oci.Descriptor{}, err
	}
	manifest, err := json.Marshal(oci.Manifest{
		SchemaVersion: 2, MediaType: oci.MediaTypeManifest,
		Config: describe(oci.MediaTypeConfig, config), Layers: []oci.Descriptor{l},
	})
	if err != nil {
		return oci.Descriptor{}, fmt.Errorf("write manifest: %w", err)
	}
	s.layer, s.manifest = l, describe(oci.MediaTypeManifest, manifest)
	s.docs = documents{oci.DigestOf(config): config, s.manifest.Digest: manifest}
	return s.manifest, nil
}

func describe(mediaType string, raw []byte) oci.Descriptor {
	return oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(raw), Size: int64(len(raw))}
}

// config writes the configuration. It has no time, so that the same tree gives the
// same image.
func (s *rootSource) config(diffID oci.Digest) ([]byte, error) {
	var c struct {
		oci.Platform
		Config struct {
			Env        []string `json:",omitempty"`
			Entrypoint []string `json:",omitempty"`
			Cmd        []string `json:",omitempty"`
			WorkingDir string   `json:",omitempty"`
		} `json:"config"`
		RootFS struct {
			Type    string       `json:"type"`
			DiffIDs []oci.Digest `json:"diff_ids"`
		} `json:"rootfs"`
	}
	c.Platform = s.o.Platform
	c.Config.Env, c.Config.Entrypoint, c.Config.Cmd = s.o.Env, s.o.Entrypoint, s.o.Cmd
	c.Config.WorkingDir = s.o.WorkingDir
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []oci.Digest{diffID}
	raw, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write image configuration: %w", err)
	}
	// What would be refused when the image is run is refused now.
	_, err = oci.DecodeConfig(raw)
	return raw, err
}

// Manifest implements Source.
func (s *rootSource) Manifest(_ context.Context, d oci.Descriptor) ([]byte, error) {
	return s.document(d)
}

func (s *rootSource) document(d oci.Descriptor) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, ok := s.docs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("import %s: it has no %s", s.name, d.Digest)
	}
	return raw, nil
}

// Blob implements Source. The layer is read anew, and an error if it is not what it
// was.
func (s *rootSource) Blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	s.mu.Lock()
	want := s.layer
	s.mu.Unlock()
	if d.Digest != want.Digest {
		raw, err := s.document(d)
		return io.NopCloser(bytes.NewReader(raw)), err
	}
	r, err := s.root.open(ctx)
	if err != nil {
		return nil, err
	}
	return &provedReader{src: r, name: s.name, want: want, hash: want.Digest.Hash()}, nil
}

// Close implements Source.
func (s *rootSource) Close() error { return s.root.Close() }

// provedReader gives an error of its own where the second reading is not like the
// first: the one about a digest would blame a registry.
type provedReader struct {
	src  io.ReadCloser
	name string
	want oci.Descriptor
	hash hash.Hash
	n    int64
}

func (r *provedReader) Read(p []byte) (int, error) {
	n, err := r.src.Read(p)
	r.n += int64(n)
	r.hash.Write(p[:n])
	if r.n > r.want.Size || err == io.EOF && (r.n < r.want.Size || !r.want.Digest.Is(r.hash.Sum(nil))) {
		return 0, changed(r.name)
	}
	return n, err
}

func (r *provedReader) Close() error { return r.src.Close() }

// changed is for what is not twice the same.
func changed(name string) error {
	return &fault.Error{
		What: fmt.Errorf("%s changed while it was read", name),
		Hint: "import it again while nothing writes to it",
	}
}

// unreadable says what to do about a file that may not be read.
func unreadable(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return &fault.Error{What: err, Hint: "import it as a user who may read all of it"}
	}
	return err
}

// checkRootName refuses a path that would not be a file in an image.
func checkRootName(name string) error {
	if strings.HasPrefix(name, ".wh.") || strings.Contains(name, "/.wh.") {
		return &fault.Error{
			What:  fmt.Errorf("the name %.200q cannot be in an image", name),
			Cause: "names that begin with .wh. say in an image what is removed of the layers below",
			Hint:  "rename or remove that file",
		}
	}
	return nil
}
