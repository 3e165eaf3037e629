package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
)

// smallImage makes an OCI layout of Debian's static busybox and the program of examples/iris: a
// shell and a program, without libraries.
func (d *demo) smallImage(ctx context.Context) (layout string, err error) {
	shell, err := exec.LookPath("busybox")
	if err != nil {
		return "", err
	}
	applets, err := exec.CommandContext(ctx, shell, "--list").Output()
	if err != nil {
		return "", fmt.Errorf("ask busybox what it can do: %w", err)
	}
	l := &layer{}
	l.tar = tar.NewWriter(&l.raw)
	l.program("bin/busybox", shell)
	for name := range strings.FieldsSeq(string(applets)) {
		l.add(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	l.program("bin/iris", filepath.Join(d.bin, "iris"))
	l.add(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	layout = filepath.Join(d.dir, "small")
	if err := l.layout(layout); err != nil {
		return "", err
	}
	return layout, nil
}

// layer is one that is being written; the first error stays.
type layer struct {
	raw bytes.Buffer
	tar *tar.Writer
	err error
}

func (l *layer) add(h *tar.Header, content []byte) {
	if l.err == nil && !(h.Typeflag == tar.TypeSymlink && h.Name == "bin/"+h.Linkname) { // busybox lists itself
		h.Size = int64(len(content))
		if l.err = l.tar.WriteHeader(h); l.err == nil {
			_, l.err = l.tar.Write(content)
		}
	}
}

func (l *layer) program(name, path string) {
	b, err := os.ReadFile(path)
	if err != nil && l.err == nil {
		l.err = err
	}
	l.add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755}, b)
}

// layout writes an OCI image layout of this layer (image-spec, image-layout.md).
func (l *layer) layout(dir string) error {
	if l.err == nil {
		l.err = l.tar.Close()
	}
	if l.err != nil {
		return fmt.Errorf("write layer: %w", l.err)
	}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(l.raw.Bytes()); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o700); err != nil {
		return err
	}
	blob := func(mediaType string, v any) oci.Descriptor {
		b, ok := v.([]byte)
		if !ok && l.err == nil {
			b, l.err = json.Marshal(v)
		}
		one := oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(b), Size: int64(len(b))}
		if l.err == nil {
			l.err = os.WriteFile(filepath.Join(dir, "blobs", "sha256", one.Digest.Hex()), b, 0o600)
		}
		return one
	}
	host := oci.HostPlatform()
	config := blob(oci.MediaTypeConfig, map[string]any{
		"os": host.OS, "architecture": host.Architecture, "config": map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"sh"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []oci.Digest{oci.DigestOf(l.raw.Bytes())}},
	})
	m := blob(oci.MediaTypeManifest, oci.Manifest{
		SchemaVersion: 2, MediaType: oci.MediaTypeManifest, Config: config,
		Layers: []oci.Descriptor{blob(oci.MediaTypeLayer+"+gzip", zipped.Bytes())},
	})
	index, err := json.Marshal(oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{m}})
	if err != nil {
		return err
	}
	if l.err != nil {
		return l.err
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), index, 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o600)
}
