package oci_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// manifest is a good manifest, to be spoilt by replacing what is in it.
const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
	`"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + digestA + `","size":7},` +
	`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"` + digestB + `","size":8,"annotations":{"k":"v","K":"w"}}],` +
	`"annotations":{"a":"b"}}`

const index = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` +
	`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + digestA + `","size":7,"platform":{"os":"linux","architecture":"amd64"}}]}`

const config = `{"created":"2025-01-02T03:04:05.6Z","author":"me","architecture":"arm64","os":"linux","variant":"v8",` +
	`"config":{"Env":["A=b","B="],"Entrypoint":["/e"],"Cmd":["c","d"],"WorkingDir":"/w","User":"u","StopSignal":"SIGINT","Labels":{"l":"m","L":"n"},"Volumes":{"/v":{}}},` +
	`"rootfs":{"type":"layers","diff_ids":["` + digestB + `"]},"history":[{"created_by":"x"}]}`

// spoil replaces one thing, which must be there.
func spoil(t *testing.T, doc, from, to string) []byte {
	t.Helper()
	if !strings.Contains(doc, from) {
		t.Fatalf("%q is not in %s", from, doc)
	}
	return []byte(strings.Replace(doc, from, to, 1))
}

// wantError checks an error as a person sees it.
func wantError(t *testing.T, what string, err error, wants ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	text := fault.Text("gangway", err, false)
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%s: %slacks %q", what, text, want)
		}
	}
}

func TestDecodeManifest(t *testing.T) {
	m, err := oci.DecodeManifest([]byte(manifest))
	if err != nil || m.Config.Digest != digestA || len(m.Layers) != 1 || m.Layers[0].Size != 8 || m.Layers[0].Annotations["K"] != "w" {
		t.Errorf("%+v, %v", m, err)
	}
	for _, change := range [][2]string{
		{`"mediaType":"application/vnd.oci.image.manifest.v1+json",`, ""},
		{`"mediaType":"application/vnd.oci.image.manifest.v1+json",`, `"mediaType":"",`},
		{"vnd.oci.image.manifest.v1", "vnd.docker.distribution.manifest.v2"},
		{"vnd.oci.image.config.v1", "vnd.docker.container.image.v1"},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.oci.image.layer.v1.tar"},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.oci.image.layer.v1.tar+zstd"},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.docker.image.rootfs.diff.tar"},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.docker.image.rootfs.diff.tar.gzip"},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.docker.image.rootfs.diff.tar.zstd"},
		{`"annotations":{"a":"b"}`, `"future":[{"x":1}]`},
		{digestB, "sha512:" + strings.Repeat("b", 128)},
		{`"layers":`, `"artifactType":"example/image","layers":`},
		{`"layers":`, `"manifests":null,"fsLayers":null,"layers":`},
	} {
		if _, err := oci.DecodeManifest(spoil(t, manifest, change[0], change[1])); err != nil {
			t.Errorf("%v: %v", change, err)
		}
	}
	for _, c := range []struct {
		from, to string
		wants    []string
	}{
		{manifest, "", []string{"decode manifest", "empty"}},
		{manifest, "[]", []string{"decode manifest"}},
		{manifest, "null", []string{"neither an index nor a manifest"}},
		{manifest, "{}", []string{"neither an index nor a manifest"}},
		{manifest, index, []string{"an index, not a manifest"}},
		{manifest, manifest + "{}", []string{"data behind its end"}},
		{manifest, manifest[:100], []string{"not valid JSON"}},
		{manifest, manifest + strings.Repeat(" ", 4<<20), []string{"more than 4194304"}},
		{manifest, strings.Repeat("[", 100), []string{"nested more than 64"}},
		{`"a":"b"`, "\"a\":\"\xff\"", []string{"not UTF-8"}},
		{`"layers":`, `"manifests":[],"layers":`, []string{"an index and a manifest at once"}},
		{`"layers":`, `"layers":[],"layers":`, []string{`"layers" is there twice`}},
		{`"layers":`, `"Layers":[],"layers":`, []string{`"layers" is there twice`}},
		{`"layers":`, `"layerſ":[],"layers":`, []string{`"layers" is there twice`}},
		{`"size":8`, `"size":8,"Size":9`, []string{`"Size" is there twice`}},
		{`"k":"v"`, `"k":"v","k":"v"`, []string{`"k" is there twice`}},
		{`"schemaVersion":2`, `"schemaVersion":1`, []string{"schema 1", "push the image again"}},
		{`"schemaVersion":2`, `"schemaVersion":2,"fsLayers":[]`, []string{"schema 1"}},
		{`"schemaVersion":2`, `"schemaVersion":3`, []string{"schemaVersion is 3"}},
		{"vnd.oci.image.manifest.v1+json", "vnd.docker.distribution.manifest.v1+prettyjws", []string{"schema 1"}},
		{"vnd.oci.image.manifest.v1", "vnd.oci.image.index.v1", []string{"does not fit"}},
		{"vnd.oci.image.manifest.v1+json", "x/y", []string{`"application/x/y" does not fit`}},
		{`"size":8`, `"size":0`, []string{"layer 1 of 1", digestB, "size 0"}},
		{`"size":8`, `"size":-8`, []string{"layer 1 of 1", "size -8"}},
		{`"size":8`, `"size":1e3`, []string{"decode manifest"}},
		{`"size":8`, `"size":9000000000000000`, []string{"layer 1 of 1", "9000000000000000"}},
		{`"size":7`, `"size":4194305`, []string{"config", "4194305"}},
		{digestB, "sha256:bb", []string{"layer 1 of 1", "64 lower-case"}},
		{digestB, "sha256:../../../../../etc/passwd", []string{"layer 1 of 1"}},
		{digestA, "md5:bb", []string{"config", `"md5" is unknown`}},
		{"tar+gzip", "tar+bzip2", []string{"layer 1 of 1", "compression", "gzip or zstd"}},
		{"tar+gzip", "tar.gzip", []string{"compression"}},
		{"tar+gzip", "tar+gzip+encrypted", []string{"encrypted", "skopeo copy --decryption-key"}},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.docker.image.rootfs.foreign.diff.tar.gzip", []string{"not distributed", "push it with all"}},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.oci.image.layer.nondistributable.v1.tar+gzip", []string{"not distributed"}},
		{"vnd.oci.image.layer.v1.tar+gzip", "vnd.in-toto+json", []string{`vnd.in-toto+json" is unknown`, "names an image"}},
		{"vnd.oci.image.config.v1+json", "vnd.cncf.helm.config.v1+json", []string{"not a container image", "helm", "oras pull"}},
		{"vnd.oci.image.config.v1+json", `vnd.oci.empty.v1+json"},"artifactType":"example/sbom","x":{"y":"`, []string{"not a container image", "example/sbom"}},
		{"application/vnd.oci.image.config.v1+json", "application/octet-stream", []string{"not a container image", "octet-stream"}},
		{manifest, `{"schemaVersion":2,"config":null,"layers":null}`, []string{"neither an index nor a manifest"}},
		{`"size":8`, `"size":8,"data":"` + base64.StdEncoding.EncodeToString([]byte("12345678")) + `"`, []string{"layer 1 of 1", "embedded data", "its digest is"}},
		{`"size":8`, `"size":8,"data":"MTIz"`, []string{"embedded data", "3 bytes, not 8"}},
		{`"layers":[`, `"layers":[` + strings.Repeat(`{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"`+digestB+`","size":8},`, 1000), []string{"1001 layers"}},
	} {
		_, err := oci.DecodeManifest(spoil(t, manifest, c.from, c.to))
		wantError(t, fmt.Sprintf("%.60q for %.30q", c.to, c.from), err, c.wants...)
	}
}

func TestDecodeIndex(t *testing.T) {
	x, err := oci.DecodeIndex([]byte(index))
	if err != nil || len(x.Manifests) != 1 || x.Manifests[0].Platform.Architecture != "amd64" {
		t.Errorf("%+v, %v", x, err)
	}
	if _, err := oci.DecodeIndex(spoil(t, index, "vnd.oci.image.index.v1", "vnd.docker.distribution.manifest.list.v2")); err != nil {
		t.Error(err)
	}
	for _, s := range []string{`{"schemaVersion":2,"manifests":null}`, `{"schemaVersion":2,"manifests":[],"config":null,"layers":null}`} {
		if x, err := oci.DecodeIndex([]byte(s)); err != nil || len(x.Manifests) != 0 {
			t.Errorf("%s: %+v, %v", s, x, err)
		}
	}
	_, err = oci.DecodeIndex([]byte(manifest))
	wantError(t, "manifest", err, "decode index", "a manifest, not an index")
	_, err = oci.DecodeIndex(spoil(t, index, `"size":7`, `"size":-1`))
	wantError(t, "size", err, "manifest 1 of 1", "size -1")
	entry := `{"digest":"` + digestA + `","size":7},`
	_, err = oci.DecodeIndex(spoil(t, index, `"manifests":[`, `"manifests":[`+strings.Repeat(entry, 1000)))
	wantError(t, "many", err, "1001 manifests")
}

func TestKindOf(t *testing.T) {
	for _, c := range []struct {
		raw, mediaType string
		want           oci.Kind
	}{
		{index, "", oci.KindIndex},
		{manifest, "", oci.KindManifest},
		{index, "application/json", oci.KindIndex},
		{manifest, "text/plain; charset=utf-8", oci.KindManifest},
		{manifest, "Application/vnd.docker.distribution.manifest.v2+json; charset=utf-8", oci.KindManifest},
		{index, oci.MediaTypeDockerList, oci.KindIndex},
	} {
		if got, err := oci.KindOf([]byte(c.raw), c.mediaType); got != c.want || err != nil {
			t.Errorf("%s: %d, %v, want %d", c.mediaType, got, err, c.want)
		}
	}
	_, err := oci.KindOf([]byte(manifest), oci.MediaTypeIndex)
	wantError(t, "index", err, "does not fit")
	_, err = oci.KindOf([]byte("x"), "application/vnd.docker.distribution.manifest.v1+prettyjws")
	wantError(t, "schema 1", err, "schema 1", "push the image again")
	_, err = oci.KindOf([]byte("<html>"), "")
	wantError(t, "HTML", err, "not valid JSON")
}

func TestDecodeConfig(t *testing.T) {
	c, err := oci.DecodeConfig([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(c.Platform, c.Created.Format(time.RFC3339Nano), c.Author, c.Env, c.Entrypoint, c.Cmd, c.WorkingDir, c.User, c.StopSignal, c.Labels, c.DiffIDs)
	want := "linux/arm64/v8 2025-01-02T03:04:05.6Z me [A=b B=] [/e] [c d] /w u SIGINT map[L:n l:m] [" + digestB + "]\n"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	m, err := oci.DecodeManifest([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	if err := oci.CheckConfig(m, c); err != nil {
		t.Error(err)
	}
	c.DiffIDs = nil
	wantError(t, "diff_ids", oci.CheckConfig(m, c), digestA, "0 diff_ids for 1 layers")

	for _, doc := range []string{`{}`, `{"config":null,"rootfs":{"diff_ids":null},"created":null}`, `{"config":{"Env":null,"Cmd":null,"Entrypoint":null,"Labels":null},"created":"odd"}`, `{"created":1735787045}`, `{"created":{}}`} {
		if c, err := oci.DecodeConfig([]byte(doc)); err != nil || c.Env != nil || c.Cmd != nil || !c.Created.IsZero() {
			t.Errorf("%s: %+v, %v", doc, c, err)
		}
	}
	if c, err := oci.DecodeConfig([]byte(`{"config":{"Cmd":"one word"}}`)); err != nil || len(c.Cmd) != 1 || c.Cmd[0] != "one word" {
		t.Errorf("one word: %q, %v", c.Cmd, err)
	}
	if c, err := oci.DecodeConfig([]byte(`{"config":{"Env":["A=b","UNSET","","=x",null,"C="]}}`)); err != nil || fmt.Sprintf("%q", c.Env) != `["A=b" "C="]` {
		t.Errorf("odd environment: %q, %v", c.Env, err)
	}
	for _, s := range []struct {
		from, to string
		want     string
	}{
		{"A=b", `A=\u0000`, "has a NUL"},
		{"A=b", `A\u0000`, "has a NUL"},
		{`"c","d"`, `"c\u0000"`, "has a NUL"},
		{`"/w"`, `"/\u0000"`, "has a NUL"},
		{`["c","d"]`, `{"c":1}`, "decode image configuration"},
		{`["c","d"]`, `[1]`, "decode image configuration"},
		{`"layers"`, `"tree"`, `rootfs type "tree"`},
		{digestB, "sha256:x", "diff_id 1"},
		{`"os":"linux"`, `"os":"linux","OS":"windows"`, "twice"},
		{`"diff_ids":[`, `"diff_ids":[` + strings.Repeat(`"`+digestB+`",`, 1000), "1001 layers"},
	} {
		_, err := oci.DecodeConfig(spoil(t, config, s.from, s.to))
		wantError(t, s.to, err, s.want, "decode image configuration")
	}
}

func TestVerify(t *testing.T) {
	d := oci.Descriptor{Digest: oci.DigestOf([]byte("abc")), Size: 3}
	if err := d.Verify([]byte("abc")); err != nil {
		t.Error(err)
	}
	wantError(t, "content", d.Verify([]byte("abd")), "verify "+string(d.Digest), "its digest is sha256:a52d")
	wantError(t, "size", d.Verify([]byte("ab")), "2 bytes, not 3")
	d.Size = 0
	wantError(t, "no size", d.Verify([]byte("ab")), "its digest is")
}

// descriptor makes an entry of an index: "linux/amd64" or "" for no platform.
func descriptor(i int, platform string) oci.Descriptor {
	d := oci.Descriptor{MediaType: oci.MediaTypeManifest, Digest: oci.DigestOf(fmt.Append(nil, i)), Size: 1}
	if platform != "" {
		parts := strings.Split(platform, "/")
		d.Platform = &oci.Platform{OS: parts[0], Architecture: parts[1]}
		if len(parts) > 2 {
			d.Platform.Variant = parts[2]
		}
	}
	return d
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		have string // platforms; "att" is an attestation, "-" has none, "sig" and "other" are artefacts, "typed" is said to be an image, "index" is one
		want string
		i    int // -1 for none
	}{
		{"linux/amd64 linux/arm64", "linux/arm64", 1},
		{"windows/amd64 linux/amd64", "linux/amd64", 1},
		{"windows/amd64", "linux/amd64", -1},
		{"linux/arm64/v8", "arm64", 0},
		{"linux/arm64", "linux/arm64/v8", 0},
		{"linux/arm64/v9 linux/arm64/v8", "aarch64", 1},
		{"linux/arm64/v9", "arm64", -1},
		{"linux/arm64/v8.2", "linux/arm64/v9", 0},
		{"linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/arm64", "linux/arm/v7", 2},
		{"linux/arm/v5 linux/arm/v6", "arm/v7", 1},
		{"linux/arm/v5 linux/arm/v6", "armhf", 1},
		{"linux/arm/v7", "arm/v6", -1},
		{"linux/arm", "armv7l", 0},
		{"linux/amd64/v3 linux/amd64", "x86_64", 1},
		{"linux/amd64/v3", "amd64", -1},
		{"linux/amd64 linux/amd64/v2 linux/amd64/v4", "linux/amd64/v3", 1},
		{"linux/ppc64le", "ppc64le", 0},
		{"linux/mips/odd", "linux/mips/odd", 0},
		{"linux/mips/odd", "linux/mips", -1},
		{"linux/amd64 linux/amd64", "amd64", 0},
		{"att linux/amd64", "amd64", 1},
		{"unknown/unknown linux/amd64", "amd64", 1},
		{"- unknown/unknown sig", "amd64", 0},
		{"sig typed", "amd64", 1},
		{"other", "amd64", -1},
		{"-", "amd64", 0},
		{"- -", "amd64", -1},
		{"- linux/arm64", "amd64", -1},
		{"index att", "amd64", 0},
		{"sig", "amd64", -1},
		{"", "amd64", -1},
	} {
		var x oci.Index
		for i, p := range strings.Fields(c.have) {
			d := descriptor(i, "")
			switch p {
			case "-":
			case "att":
				d = descriptor(i, "linux/amd64")
				d.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
			case "sig":
				d.MediaType = "application/example"
			case "typed":
				d.ArtifactType = oci.MediaTypeConfig
			case "other":
				d.ArtifactType = "example/sbom"
			case "index":
				d.MediaType = oci.MediaTypeIndex
			default:
				d = descriptor(i, p)
			}
			x.Manifests = append(x.Manifests, d)
		}
		want, err := oci.ParsePlatform(c.want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Choose(want)
		if c.i < 0 {
			wantError(t, c.have, err, "choose manifest for "+want.String())
		} else if err != nil || got.Digest != x.Manifests[c.i].Digest {
			t.Errorf("%s of %s: %s, %v", c.want, c.have, got.Digest, err)
		}
	}
	x := oci.Index{Manifests: []oci.Descriptor{descriptor(0, "linux/s390x"), descriptor(1, ""), descriptor(2, "linux/arm64/v8")}}
	_, err := x.Choose(oci.Platform{OS: "linux", Architecture: "amd64"})
	wantError(t, "list", err, "not made for it", "linux/arm64/v8, linux/s390x", "one without a platform", "--platform")
	x.Manifests[0].Size = 5 << 20
	_, err = x.Choose(oci.Platform{OS: "linux", Architecture: "s390x"})
	wantError(t, "size", err, "5242880 bytes")
	for i := range 30 {
		x.Manifests = append(x.Manifests, descriptor(i, fmt.Sprintf("plan%d/9", i)))
	}
	_, err = x.Choose(oci.HostPlatform())
	wantError(t, "many", err, "and 13 more")
}

func TestParsePlatform(t *testing.T) {
	for in, want := range map[string]string{
		"linux/amd64": "linux/amd64", "amd64": "linux/amd64", "X86_64": "linux/amd64", "aarch64": "linux/arm64", "linux/arm64/v8": "linux/arm64",
		"linux/arm64/v9": "linux/arm64/v9", "arm/7": "linux/arm", "arm/6": "linux/arm/v6", "armhf": "linux/arm", "armel": "linux/arm/v6", "i686": "linux/386",
		"ppc64le": "linux/ppc64le", "windows/amd64": "windows/amd64", "linux/new": "linux/new",
	} {
		got, err := oci.ParsePlatform(in)
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v, want %s", in, got, err, want)
		}
		if again, err := oci.ParsePlatform(got.String()); again != got || err != nil {
			t.Errorf("%s: parses to %s, %v", got, again, err)
		}
	}
	for _, in := range []string{"", "linux", "linux/", "a/b/c/d", "linux/amd 64", "nonsense", "linux/amd64/"} {
		_, err := oci.ParsePlatform(in)
		wantError(t, in, err, "parse platform", "linux/arm64")
		if fault.Code(err) != fault.CodeUsage {
			t.Errorf("%s: code %d", in, fault.Code(err))
		}
	}
}

// FuzzDecode: what is decoded keeps its promises, and decodes again from what it is
// written as.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{manifest, index, config} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		kind, err := oci.KindOf(raw, "")
		m, errM := oci.DecodeManifest(raw)
		x, errX := oci.DecodeIndex(raw)
		c, errC := oci.DecodeConfig(raw)
		if errM == nil && errX == nil || errM == nil && kind != oci.KindManifest || errX == nil && kind != oci.KindIndex || err != nil && (errM == nil || errX == nil) {
			t.Fatalf("kind %d, %v; as manifest %v, as index %v", kind, err, errM, errX)
		}
		if errM == nil {
			for _, d := range append(m.Layers, m.Config) {
				if _, err := oci.ParseDigest(string(d.Digest)); err != nil || d.Size <= 0 {
					t.Errorf("took %+v", d)
				}
			}
			again, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := oci.DecodeManifest(again); err != nil {
				t.Errorf("again: %v: %s", err, again)
			}
		}
		if errX == nil {
			if d, err := x.Choose(oci.HostPlatform()); err == nil && d.Size <= 0 {
				t.Errorf("chose %+v", d)
			}
		}
		if errC == nil {
			for _, e := range c.Env {
				if i := strings.IndexByte(e, '='); i < 1 || strings.Contains(e, "\x00") {
					t.Errorf("took environment %q", e)
				}
			}
		}
	})
}

func FuzzParsePlatform(f *testing.F) {
	f.Add("linux/arm64/v8")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := oci.ParsePlatform(s)
		if err != nil {
			return
		}
		if again, err := oci.ParsePlatform(p.String()); err != nil || again != p {
			t.Errorf("%q: %s, which parses to %s, %v", s, p, again, err)
		}
	})
}
