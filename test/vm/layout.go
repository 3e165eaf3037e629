package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// object is one of JSON's.
type object = map[string]any

// applets are the commands of the image that gangway runs in the machine.
var applets = []string{"sh", "cat", "dd", "echo", "sleep", "head", "nproc", "ls", "true", "id"}

// layout adds an OCI image layout below name, with a shell and a few commands.
func (a *archive) layout(name, busybox string) error {
	layer, diffID, err := shellLayer(busybox)
	if err != nil {
		return err
	}
	errs := []error{a.dir(name), a.dir(name + "/blobs"), a.dir(name + "/blobs/sha256")}
	blob := func(mediaType string, b []byte) object {
		errs = append(errs, a.text(fmt.Sprintf("%s/blobs/sha256/%x", name, sha256.Sum256(b)), string(b), 0o644))
		return object{"mediaType": "application/vnd.oci.image." + mediaType, "digest": digest(b), "size": len(b)}
	}
	document := func(v any) []byte {
		b, err := json.Marshal(v)
		errs = append(errs, err)
		return b
	}
	manifest := object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"layers": []object{blob("layer.v1.tar+gzip", layer)},
		"config": blob("config.v1+json", document(object{
			"os": "linux", "architecture": "amd64", "config": object{"Env": []string{"PATH=/bin"}},
			"rootfs": object{"type": "layers", "diff_ids": []string{diffID}},
		})),
	}
	index := object{"schemaVersion": 2, "manifests": []object{blob("manifest.v1+json", document(manifest))}}
	errs = append(errs, a.text(name+"/index.json", string(document(index)), 0o644), a.text(name+"/oci-layout", `{"imageLayoutVersion":"1.0.0"}`, 0o644))
	return errors.Join(errs...)
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// shellLayer is a layer of busybox, compressed, and the digest of its content.
func shellLayer(busybox string) ([]byte, string, error) {
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
	return zipped.Bytes(), digest(raw.Bytes()), errors.Join(errs...)
}
