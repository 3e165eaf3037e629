package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Local is an image on this machine: in a layout or an archive. Its methods may be
// used by any number of goroutines at once, except Close.
type Local struct {
	files files
	root  Descriptor
	// made holds documents that are in no file, and places says where blobs lie
	// that are not under their digest; both are of Docker's archives.
	made   map[Digest][]byte
	places map[Digest]string
}

// files is a directory or an archive. Names are clean and relative.
type files interface {
	// open returns a regular file and its size, or an error that is fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
	io.Closer
}

// Resolve returns the descriptor of the manifest or index that was asked for.
func (l *Local) Resolve(ctx context.Context) (Descriptor, error) {
	return l.root, context.Cause(ctx)
}

// Manifest returns a manifest or an index whose bytes were hashed.
func (l *Local) Manifest(ctx context.Context, d Descriptor) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	raw, ok := l.made[d.Digest]
	if !ok {
		name, err := l.place(d.Digest)
		if err != nil {
			return nil, err
		}
		if raw, err = readFile(l.files, name); err != nil {
			return nil, fmt.Errorf("read manifest %s: %w", d.Digest, err)
		}
	}
	return raw, d.Verify(raw)
}

// Blob opens a configuration or a layer. The caller verifies its digest.
func (l *Local) Blob(ctx context.Context, d Descriptor) (io.ReadCloser, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if raw, ok := l.made[d.Digest]; ok {
		return io.NopCloser(bytes.NewReader(raw)), nil
	}
	name, err := l.place(d.Digest)
	if err != nil {
		return nil, err
	}
	r, size, err := l.files.open(name)
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", d.Digest, err)
	}
	if d.Size != 0 && size != d.Size {
		_ = r.Close()
		return nil, fmt.Errorf("open blob %s: it has %d bytes, not %d", d.Digest, size, d.Size)
	}
	return r, nil
}

// Close frees the image. Open blobs may not be read any more.
func (l *Local) Close() error { return l.files.Close() }

// place returns the name of a blob's file. It is made of a proven digest alone.
func (l *Local) place(d Digest) (string, error) {
	if name, ok := l.places[d]; ok {
		return name, nil
	}
	if _, err := ParseDigest(string(d)); err != nil {
		return "", err
	}
	return path.Join("blobs", d.Algorithm(), d.Hex()), nil
}

// readFile reads a document.
func readFile(f files, name string) ([]byte, error) {
	r, size, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > MaxDocument {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, size, MaxDocument)
	}
	raw, err := io.ReadAll(io.LimitReader(r, MaxDocument+1))
	if err == nil && int64(len(raw)) != size {
		err = fmt.Errorf("%s has %d bytes, not %d: %w", name, len(raw), size, io.ErrUnexpectedEOF)
	}
	return raw, err
}

// openLayout finds an image in the files of an OCI layout. what names them for
// messages; on an error they are closed.
func openLayout(f files, what, tag string, digest Digest) (*Local, error) {
	root, err := findInLayout(f, tag, digest)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", what, err), f.Close())
	}
	return &Local{files: f, root: root}, nil
}

func findInLayout(f files, tag string, digest Digest) (Descriptor, error) {
	if err := checkLayoutVersion(f); err != nil {
		return Descriptor{}, err
	}
	raw, err := readFile(f, "index.json")
	if err != nil {
		return Descriptor{}, err
	}
	index, err := DecodeIndex(raw)
	if err != nil {
		return Descriptor{}, fmt.Errorf("index.json: %w", err)
	}
	if digest != "" {
		return findDigest(f, index, digest)
	}
	return findTag(index, tag)
}

func checkLayoutVersion(f files) error {
	raw, err := readFile(f, "oci-layout")
	if errors.Is(err, fs.ErrNotExist) {
		e := &fault.Error{What: errors.New("it is not an OCI image layout: it has no file oci-layout")}
		if r, _, err := f.open("manifest.json"); err == nil {
			_ = r.Close()
			e.Hint = "it looks like one of docker save; write docker-archive:FILE"
		}
		return e
	}
	if err != nil {
		return err
	}
	var v struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := decodeStrict(raw, &v); err != nil {
		return fmt.Errorf("oci-layout: %w", err)
	}
	if !strings.HasPrefix(v.Version, "1.") {
		return fmt.Errorf("oci-layout: imageLayoutVersion %.100q is not 1.0.0", v.Version)
	}
	return nil
}

// findDigest takes the descriptor from the index, or else from the blob itself.
func findDigest(f files, index Index, digest Digest) (Descriptor, error) {
	if i := slices.IndexFunc(index.Manifests, func(d Descriptor) bool { return d.Digest == digest }); i >= 0 {
		return index.Manifests[i], nil
	}
	l := &Local{files: f}
	name, err := l.place(digest)
	if err != nil {
		return Descriptor{}, err
	}
	raw, err := readFile(f, name)
	if err != nil {
		return Descriptor{}, fmt.Errorf("find %s: %w", digest, err)
	}
	kind, err := KindOf(raw, "")
	if err != nil {
		return Descriptor{}, fmt.Errorf("find %s: %w", digest, err)
	}
	d := Descriptor{MediaType: MediaTypeManifest, Digest: digest, Size: int64(len(raw))}
	if kind == KindIndex {
		d.MediaType = MediaTypeIndex
	}
	var doc struct {
		MediaType string `json:"mediaType"`
	}
	if json.Unmarshal(raw, &doc) == nil && doc.MediaType != "" {
		d.MediaType = doc.MediaType
	}
	return d, d.Verify(raw)
}

// The annotations by which a layout names its images: image-spec's, and
// containerd's with the whole name, which docker save writes too.
const (
	refNameKey       = "org.opencontainers.image.ref.name"
	containerNameKey = "io.containerd.image.name"
)

func findTag(index Index, tag string) (Descriptor, error) {
	var all []Descriptor
	var names []string
	var given [][]string // the names of each image
	for _, d := range index.Manifests {
		if !d.isImage() {
			continue
		}
		ref, full := d.Annotations[refNameKey], d.Annotations[containerNameKey]
		all, given = append(all, d), append(given, []string{ref, full})
		switch {
		case ref != "" && !strings.HasSuffix(full, ":"+ref): // docker save puts the bare tag there
			names = append(names, ref)
		case full != "":
			names = append(names, full)
		default:
			names = append(names, "@"+string(d.Digest))
		}
	}
	var found []Descriptor
	for _, i := range matching(given, tag) {
		if !slices.ContainsFunc(found, func(d Descriptor) bool { return d.Digest == all[i].Digest }) {
			found = append(found, all[i])
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(all) == 0:
		return Descriptor{}, errors.New("it has no image")
	case tag == "":
		return Descriptor{}, choiceError(errors.New("it has more than one image"), names)
	case len(found) == 0:
		return Descriptor{}, choiceError(fmt.Errorf("it has no image %q", tag), names)
	}
	return Descriptor{}, choiceError(fmt.Errorf("it has %d images %q", len(found), tag), names)
}

// choiceError says what could be asked for. What begins with '@' is a digest.
func choiceError(what error, names []string) error {
	slices.Sort(names)
	names = slices.Compact(names)
	example := ":" + names[0]
	if strings.HasPrefix(names[0], "@") {
		example = names[0]
	}
	if more := len(names) - 20; more > 0 {
		names = append(names[:20], fmt.Sprintf("and %d more", more))
	}
	return &fault.Error{
		What:  what,
		Cause: "it has: " + strings.Join(names, ", "),
		Hint:  fmt.Sprintf("add one of them to the reference: ...%s", example),
	}
}

// matching returns which of the images, whose names are given, are meant by tag:
// those that have exactly this name, or else those with one that means the same. An
// empty tag means all.
func matching(given [][]string, tag string) []int {
	var all, exact, loose []int
	for i, names := range given {
		all = append(all, i)
		if slices.Contains(names, tag) {
			exact = append(exact, i)
		}
		if slices.ContainsFunc(names, func(name string) bool { return sameImage(name, tag) }) {
			loose = append(loose, i)
		}
	}
	switch {
	case tag == "":
		return all
	case len(exact) > 0:
		return exact
	}
	return loose
}

// sameImage says whether two names may mean one image: "torch" is Docker's
// "docker.io/library/torch:latest" and Podman's "localhost/torch:latest", which are
// not the same to each other.
func sameImage(a, b string) bool {
	hostA, restA := splitName(a)
	hostB, restB := splitName(b)
	return a != "" && restA == restB && (hostA == hostB || hostA == "" || hostB == "")
}

// splitName returns "" for a host that is not said.
func splitName(s string) (host, rest string) {
	rest = s
	for prefix, name := range map[string]string{"docker.io/": "docker.io", "index.docker.io/": "docker.io", "localhost/": "localhost"} {
		if after, ok := strings.CutPrefix(s, prefix); ok {
			host, rest = name, after
		}
	}
	if host != "localhost" {
		rest = strings.TrimPrefix(rest, "library/")
	}
	if !strings.Contains(rest[strings.LastIndexByte(rest, '/')+1:], ":") {
		rest += ":latest"
	}
	return host, rest
}
