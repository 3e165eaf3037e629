package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/gangway-hpc/gangway/image/oci"
)

// member is an entry of an archive that a test makes.
type member struct {
	tar.Header
	content string
}

func tarFile(name, content string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, content}
}

func tarLink(kind byte, name, target string) member {
	return member{tar.Header{Typeflag: kind, Name: name, Linkname: target}, ""}
}

func makeTar(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(m.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// saved makes the parts of an archive of docker save with one layer.
func saved(t testing.TB) (layer string, manifest, config member) {
	layer = string(makeTar(t, tarFile("f", "content")))
	config = tarFile("c.json", fmt.Sprintf(`{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[%q]}}`, oci.DigestOf([]byte(layer))))
	return layer, tarFile("manifest.json", `[{"Config":"c.json","RepoTags":["a:1"],"Layers":["l/layer.tar"]}]`), config
}

func TestDockerArchive(t *testing.T) {
	layer, manifest, config := saved(t)
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	packed := string(z.EncodeAll([]byte(layer), nil))
	path := filepath.Join(t.TempDir(), "a.tar")
	open := func(tag string, members ...member) (*oci.Local, error) {
		if err := os.WriteFile(path, makeTar(t, members...), 0o600); err != nil {
			t.Fatal(err)
		}
		return oci.OpenDockerArchive(t.Context(), path, tag)
	}
	for what, members := range map[string][]member{
		"plain":         {manifest, config, tarFile("l/layer.tar", layer)},
		"layer first":   {tarFile("./l/layer.tar", layer), tarFile("/c.json", config.content), manifest},
		"symbolic link": {manifest, config, tarFile("x.tar", layer), tarLink(tar.TypeSymlink, "l/layer.tar", "../x.tar")},
		"hard link":     {manifest, config, tarFile("l/x.tar", layer), tarLink(tar.TypeLink, "l/layer.tar", "l/x.tar")},
		"link to link":  {manifest, config, tarLink(tar.TypeSymlink, "l/layer.tar", "y"), tarLink(tar.TypeSymlink, "l/y", "../z"), tarFile("z", layer)},
		"last wins":     {tarFile("l/layer.tar", "old"), manifest, config, tarFile("l/layer.tar", layer)},
		"names outside": {tarFile("../c.json", "{}"), tarFile("..", "x"), manifest, config, tarFile("l/layer.tar", layer)},
		"PAX":           {manifest, config, member{tar.Header{Typeflag: tar.TypeReg, Name: "l/layer.tar", Size: int64(len(layer)), Format: tar.FormatPAX, PAXRecords: map[string]string{"X.y": "z"}}, layer}},
		"a twin of it":  {tarFile("manifest.json", `[{"Config":"c.json","RepoTags":null,"Layers":["l/layer.tar"]}]`), config, tarFile("l/layer.tar", layer)},
		"other fields":  {tarFile("manifest.json", `[{"Config":"c.json","Layers":["l/layer.tar"],"LayerSources":{"x":{"size":1}}}]`), config, tarFile("l/layer.tar", layer)},
		"Docker 25": {
			tarFile("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), tarFile("manifest.json", `[{"Config":"blobs/sha256/cc","Layers":["blobs/sha256/dd"]}]`),
			tarFile("blobs/sha256/cc", config.content), tarFile("blobs/sha256/dd", layer),
		},
		"devices inside": {manifest, config, {tar.Header{Typeflag: tar.TypeChar, Name: "dev"}, ""}, tarFile("l/layer.tar", layer)},
	} {
		t.Run(what, func(t *testing.T) {
			l, err := open("", members...)
			wantImage(t, l, err, "f")
		})
	}
	l, err := open("", manifest, config, tarFile("l/layer.tar", packed))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Resolve(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := l.Manifest(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	m, err := oci.DecodeManifest(raw)
	if err != nil || m.Layers[0].MediaType != oci.MediaTypeLayer+"+zstd" || string(blob(t, l, m.Layers[0])) != packed {
		t.Errorf("compressed: %+v, %v", m, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	two := tarFile("manifest.json", `[{"Config":"c.json","RepoTags":["a:1","b:latest"],"Layers":["l/layer.tar"]},{"Config":"d.json","RepoTags":["ghcr.io/c/d:2"],"Layers":[]}]`)
	empty := tarFile("d.json", `{"rootfs":{"type":"layers","diff_ids":[]}}`)
	l, err = open("b", two, config, empty, tarFile("l/layer.tar", layer))
	wantImage(t, l, err, "f")
	l, err = open("ghcr.io/c/d:2", two, config, empty, tarFile("l/layer.tar", layer))
	wantImage(t, l, err)
	_, err = open("", two, config, empty)
	wantError(t, "two", err, "2 images", "a:1, b:latest, ghcr.io/c/d:2", "...:a:1")

	// The exact name wins over one that means the same, wherever it stands.
	alike := tarFile("manifest.json", `[{"Config":"c.json","RepoTags":["docker.io/library/torch:1","x:latest"],"Layers":["l/layer.tar"]},{"Config":"d.json","RepoTags":["localhost/torch:1","docker.io/x:latest"],"Layers":[]}]`)
	for _, c := range []struct {
		tag   string
		names []string
	}{
		{"localhost/torch:1", nil},
		{"docker.io/library/torch:1", []string{"f"}},
		{"docker.io/torch:1", []string{"f"}},
		{"index.docker.io/torch:1", []string{"f"}},
		{"x:latest", []string{"f"}},
		{"docker.io/x:latest", nil},
	} {
		l, err = open(c.tag, alike, config, empty, tarFile("l/layer.tar", layer))
		wantImage(t, l, err, c.names...)
	}
	for _, tag := range []string{"torch:1", "x"} {
		_, err = open(tag, alike, config, empty, tarFile("l/layer.tar", layer))
		wantError(t, tag, err, fmt.Sprintf("2 images %q", tag), "docker.io/library/torch:1", "localhost/torch:1")
	}
	_, err = open("localhost/a:1", manifest, config, tarFile("l/layer.tar", layer))
	if err != nil {
		t.Errorf("a host that is not said: %v", err)
	}
	_, err = open("localhost/x", tarFile("manifest.json", `[{"Config":"c.json","RepoTags":["docker.io/library/x:latest"],"Layers":["l/layer.tar"]}]`), config)
	wantError(t, "another host", err, `no image "localhost/x"`)

	same := tarFile("e.json", strings.Replace(config.content, `["`, `["`+string(oci.DigestOf([]byte(layer)))+`","`, 1))
	both := tarFile("manifest.json", `[{"Config":"e.json","Layers":["l/layer.tar","other.tar"]}]`)
	l, err = open("", both, same, tarFile("l/layer.tar", layer), tarFile("other.tar", layer))
	wantImage(t, l, err, "f", "f")
	_, err = open("", both, same, tarFile("l/layer.tar", layer), tarFile("other.tar", layer+layer))
	wantError(t, "two files of one digest", err, "layers 1 and 2", "both are said to be")
}

func TestBadArchives(t *testing.T) {
	layer, manifest, config := saved(t)
	file := tarFile("l/layer.tar", layer)
	layout := tarFile("oci-layout", `{"imageLayoutVersion":"1.0.0"}`)
	many := make([]member, 0, 100_001)
	for i := range cap(many) {
		many = append(many, member{tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint("d", i)}, ""})
	}
	long := make([]member, 0, 8_500)
	for i := range cap(long) {
		name := fmt.Sprintf("%05d%s", i, strings.Repeat("/n", 2000))
		long = append(long, tarLink(tar.TypeLink, name, name))
	}
	raw := func(s string) []byte { return []byte(s) }
	for _, c := range []struct {
		name    string
		docker  bool
		archive []byte
		wants   []string
	}{
		{"empty file", true, nil, []string{"it is empty"}},
		{"no tar", true, raw(strings.Repeat("x", 2000)), []string{"read entry 1", "invalid tar header"}},
		{"short", true, raw("hello"), []string{"cut off"}},
		{"no entries", true, make([]byte, 10240), []string{"empty archive"}},
		{"many entries", true, makeTar(t, many...), []string{"more than 100000 entries"}},
		{"long names", true, makeTar(t, long...), []string{"names of its entries have more than 67108864 bytes"}},
		{"no manifest.json", true, makeTar(t, config), []string{"not of docker save"}},
		{"bad manifest.json", true, makeTar(t, tarFile("manifest.json", "[")), []string{"manifest.json", "not valid JSON"}},
		{"manifest.json twice", true, makeTar(t, tarFile("manifest.json", `[{"Config":"a","config":"b"}]`)), []string{"manifest.json", "twice"}},
		{"big manifest.json", true, makeTar(t, tarFile("manifest.json", strings.Repeat(" ", 4<<20+1))), []string{"manifest.json has 4194305 bytes"}},
		{"no image", true, makeTar(t, tarFile("manifest.json", "[]")), []string{"it has no image"}},
		{"no config", true, makeTar(t, manifest, file), []string{"read image configuration", "c.json"}},
		{"config outside", true, makeTar(t, tarFile("manifest.json", `[{"Config":"../../etc/passwd"}]`)), []string{"find ../../etc/passwd in the archive"}},
		{"bad config", true, makeTar(t, manifest, tarFile("c.json", "{"), file), []string{"decode image configuration"}},
		{"no layer", true, makeTar(t, manifest, config), []string{"layer 1 of 1", "l/layer.tar"}},
		{"fewer diff_ids", true, makeTar(t, manifest, tarFile("c.json", `{"rootfs":{}}`), file), []string{"0 diff_ids for 1 layers"}},
		{"empty layer", true, makeTar(t, manifest, config, tarFile("l/layer.tar", "")), []string{"layer 1 of 1", "size 0"}},
		{"layer is a directory", true, makeTar(t, manifest, config, member{tar.Header{Typeflag: tar.TypeDir, Name: "l/layer.tar/"}, ""}), []string{"not a regular file"}},
		{"link out", true, makeTar(t, manifest, config, tarLink(tar.TypeSymlink, "l/layer.tar", "../../x")), []string{"link out of the archive"}},
		{"absolute link", true, makeTar(t, manifest, config, tarLink(tar.TypeSymlink, "l/layer.tar", "/etc/passwd")), []string{"link out of the archive"}},
		{"hard link out", true, makeTar(t, manifest, config, tarLink(tar.TypeLink, "l/layer.tar", "../x")), []string{"link out of the archive"}},
		{"link to itself", true, makeTar(t, manifest, config, tarLink(tar.TypeSymlink, "l/layer.tar", "layer.tar")), []string{"more than 8 links"}},
		{"link to nothing", true, makeTar(t, manifest, config, tarLink(tar.TypeSymlink, "l/layer.tar", "x")), []string{"l/layer.tar", "does not exist"}},
		{"layout version", false, makeTar(t, tarFile("oci-layout", `{"imageLayoutVersion":"2.0.0"}`)), []string{`imageLayoutVersion "2.0.0"`}},
		{"bad oci-layout", false, makeTar(t, tarFile("oci-layout", "x")), []string{"oci-layout", "not valid JSON"}},
		{"no index", false, makeTar(t, layout), []string{"index.json"}},
		{"bad index", false, makeTar(t, layout, tarFile("index.json", manifest.content)), []string{"index.json", "decode index"}},
		{"index is a manifest", false, makeTar(t, layout, tarFile("index.json", `{"schemaVersion":2,"layers":[]}`)), []string{"a manifest, not an index"}},
		{"empty index", false, makeTar(t, layout, tarFile("index.json", `{"schemaVersion":2,"manifests":[]}`)), []string{"it has no image"}},
		{"two without names", false, makeTar(t, layout, tarFile("index.json", `{"schemaVersion":2,"manifests":[{"digest":"`+digestA+`","size":1},{"digest":"`+digestB+`","size":1}]}`)), []string{"more than one image", "@" + digestB, "...@" + digestA}},
		{"one name twice", false, makeTar(t, layout, tarFile("index.json", `{"schemaVersion":2,"manifests":[{"digest":"`+digestA+`","size":1,"annotations":{"org.opencontainers.image.ref.name":"x:latest"}},{"digest":"`+digestB+`","size":1,"annotations":{"org.opencontainers.image.ref.name":"latest","io.containerd.image.name":"docker.io/library/x:latest"}}]}`)), []string{`2 images "x"`, "it has: docker.io/library/x:latest, x:latest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.tar")
			if err := os.WriteFile(path, c.archive, 0o600); err != nil {
				t.Fatal(err)
			}
			var err error
			if c.docker {
				_, err = oci.OpenDockerArchive(t.Context(), path, "")
			} else {
				tag := ""
				if c.name == "one name twice" {
					tag = "x"
				}
				_, err = oci.OpenArchive(path, tag, "")
			}
			wantError(t, c.name, err, append(c.wants, path)...)
		})
	}
}

// TestHashCancelled: hashing a compressed layer ends with its context.
func TestHashCancelled(t *testing.T) {
	_, manifest, config := saved(t)
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, makeTar(t, manifest, config, tarFile("l/layer.tar", "\x1f\x8bxx")), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if _, err := oci.OpenDockerArchive(ctx, path, ""); !errors.Is(err, gone) {
		t.Error(err)
	}
}

// FuzzArchive: an archive of unknown origin gives an image or an error.
func FuzzArchive(f *testing.F) {
	layer, manifest, config := saved(f)
	f.Add(makeTar(f, manifest, config, tarFile("x", layer), tarLink(tar.TypeSymlink, "l/layer.tar", "../x")))
	f.Add(makeTar(f, tarFile("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), tarFile("index.json", index), tarFile("blobs/sha256/"+digestA[7:], "{}")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		l1, err1 := oci.OpenDockerArchive(t.Context(), path, "")
		l2, err2 := oci.OpenArchive(path, "", "")
		for _, l := range []*oci.Local{l1, l2} {
			if l == nil {
				continue
			}
			d, err := l.Resolve(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if m, err := l.Manifest(t.Context(), d); err == nil {
				if err := d.Verify(m); err != nil {
					t.Error(err)
				}
			} else if l == l1 {
				t.Errorf("a manifest that was made: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if (l1 == nil) != (err1 != nil) || (l2 == nil) != (err2 != nil) {
			t.Error("neither an image nor an error")
		}
	})
}

// TestExactTag: a layout's exact tag wins over one that means the same.
func TestExactTag(t *testing.T) {
	entry := func(digest, tag string) string {
		return fmt.Sprintf(`{"digest":%q,"size":1,"annotations":{"org.opencontainers.image.ref.name":%q}}`, digest, tag)
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	write := func(entries ...string) {
		t.Helper()
		raw := makeTar(t, tarFile("oci-layout", `{"imageLayoutVersion":"1.0.0"}`), tarFile("index.json", `{"schemaVersion":2,"manifests":[`+strings.Join(entries, ",")+`]}`))
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(tag string, digest oci.Digest) {
		t.Helper()
		l, err := oci.OpenArchive(path, tag, "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if d, err := l.Resolve(t.Context()); err != nil || d.Digest != digest {
			t.Errorf("%s: %s, %v, want %s", tag, d.Digest, err, digest)
		}
	}
	write(entry(digestA, "v1:latest"), entry(digestB, "v1"))
	want("v1", digestB)
	want("v1:latest", digestA)
	write(entry(digestA, "v1"), entry(digestB, "v2"), entry(digestA, "docker.io/library/v1"))
	want("v1:latest", digestA) // two names of one image
}
