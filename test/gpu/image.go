package main

import (
	"archive/tar"
	"bytes"
	_ "embed" // the C program
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
)

//go:embed cuda/vectoradd.c
var vectorAdd string

// compile makes the program that adds vectors. It has the libraries that the driver's
// programs and libraries want of the C library.
func (t *test) compile() error {
	to := filepath.Join(t.dir, "vectoradd")
	cmd := exec.CommandContext(t.ctx, t.cc, "-O2", "-x", "c", "-", "-o", to, "-Wl,--no-as-needed", "-ldl", "-lm", "-lpthread", "-lrt")
	cmd.Stdin = strings.NewReader(vectorAdd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile the program that adds vectors: %w: %s", err, out)
	}
	return os.Chmod(to, 0o755)
}

// makeImage makes an image of files of this machine, as an OCI layout.
func (t *test) makeImage() error {
	program := filepath.Join(t.dir, "vectoradd")
	list, err := output(exec.CommandContext(t.ctx, "ldd", program))
	if err != nil {
		return fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	files := map[string]string{"gputest": filepath.Join(t.dir, "gputest"), "vectoradd": program}
	for word := range strings.FieldsSeq(list) {
		if strings.HasPrefix(word, "/") {
			files[word[1:]] = word
		}
	}
	layer, err := tarOf(files)
	if err != nil {
		return err
	}
	dir := filepath.Join(t.dir, "image")
	blobs := filepath.Join(dir, "blobs/sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return err
	}
	blob := func(mediaType string, b []byte) (oci.Descriptor, error) {
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(b), Size: int64(len(b))}
		return d, os.WriteFile(filepath.Join(blobs, d.Digest.Hex()), b, 0o644)
	}
	document := func(mediaType string, v any) (oci.Descriptor, error) {
		b, err := json.Marshal(v)
		if err != nil {
			return oci.Descriptor{}, err
		}
		return blob(mediaType, b)
	}
	l, err := blob(oci.MediaTypeLayer, layer)
	if err != nil {
		return err
	}
	host := oci.HostPlatform()
	config, err := document(oci.MediaTypeConfig, map[string]any{
		"os": host.OS, "architecture": host.Architecture, "config": map[string]any{"Env": []string{"PATH=/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []oci.Digest{l.Digest}},
	})
	if err != nil {
		return err
	}
	m, err := document(oci.MediaTypeManifest, oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaTypeManifest, Config: config, Layers: []oci.Descriptor{l}})
	if err != nil {
		return err
	}
	index, err := json.Marshal(oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{m}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644); err != nil {
		return err
	}
	t.image = "oci:" + dir
	return os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
}

// tarOf is an archive of files, by their names in it.
func tarOf(files map[string]string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		content, err := os.ReadFile(files[name])
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
