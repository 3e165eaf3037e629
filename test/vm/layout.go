package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"

	"github.com/gangway-hpc/gangway/image/oci"
)

// applets are the commands of the image that gangway runs in the machine.
var applets = []string{"sh", "cat", "dd", "echo", "sleep", "head", "nproc", "ls", "true", "id"}

// layout adds an OCI image layout below name, with a shell and a few commands.
func (a *archive) layout(name, busybox string) error {
	layer, diffID, err := shellLayer(busybox)
	if err != nil {
		return err
	}
	errs := []error{a.dir(name), a.dir(name + "/blobs"), a.dir(name + "/blobs/sha256")}
	blob := func(mediaType string, b []byte) oci.Descriptor {
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(b), Size: int64(len(b))}
		errs = append(errs, a.text(name+"/blobs/sha256/"+d.Digest.Hex(), string(b), 0o644))
		return d
	}
	document := func(v any) []byte {
		b, err := json.Marshal(v)
		errs = append(errs, err)
		return b
	}
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaTypeManifest}
	m.Layers = append(m.Layers, blob(oci.MediaTypeLayer+"+gzip", layer))
	m.Config = blob(oci.MediaTypeConfig, document(map[string]any{
		"os": "linux", "architecture": "amd64", "config": map[string]any{"Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []oci.Digest{diffID}},
	}))
	index := oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{blob(oci.MediaTypeManifest, document(m))}}
	errs = append(errs, a.text(name+"/index.json", string(document(index)), 0o644), a.text(name+"/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, 0o644))
	return errors.Join(errs...)
}

// shellLayer is a layer of busybox, compressed, and the digest of its content.
func shellLayer(busybox string) ([]byte, oci.Digest, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, "", err
	}
	var raw, zipped bytes.Buffer
	w := tar.NewWriter(&raw)
	errs := []error{
		w.WriteHeader(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}),
	}
	_, err = w.Write(program)
	errs = append(errs, err)
	for _, applet := range applets {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}))
	}
	errs = append(errs, w.Close())
	z := gzip.NewWriter(&zipped)
	_, err = z.Write(raw.Bytes())
	errs = append(errs, err, z.Close())
	return zipped.Bytes(), oci.DigestOf(raw.Bytes()), errors.Join(errs...)
}
