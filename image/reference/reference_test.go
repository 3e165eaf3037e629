package reference_test

import (
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	sha256 = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	hex512 = "cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"
)

func registry(user, host, repository, tag, digest string) reference.Reference {
	return reference.Reference{Kind: reference.Registry, User: user, Host: host, Repository: repository, Tag: tag, Digest: oci.Digest(digest)}
}

func TestParse(t *testing.T) {
	type ref = reference.Reference
	for _, c := range []struct {
		in        string
		want      ref
		canonical string // "" is in
		familiar  string // "" is in
	}{
		// Docker.
		{"debian", registry("", "docker.io", "library/debian", "latest", ""), "docker://docker.io/library/debian:latest", "debian:latest"},
		{"torch:1", registry("", "docker.io", "library/torch", "1", ""), "docker://docker.io/library/torch:1", ""},
		{"nvidia/cuda:12.8-base", registry("", "docker.io", "nvidia/cuda", "12.8-base", ""), "docker://docker.io/nvidia/cuda:12.8-base", ""},
		{"docker.io/debian", registry("", "docker.io", "library/debian", "latest", ""), "docker://docker.io/library/debian:latest", "debian:latest"},
		{"index.docker.io/library/debian:12", registry("", "docker.io", "library/debian", "12", ""), "docker://docker.io/library/debian:12", "debian:12"},
		{"registry-1.docker.io/a/b/c:12", registry("", "docker.io", "a/b/c", "12", ""), "docker://docker.io/a/b/c:12", "a/b/c:12"},
		{"localhost/img", registry("", "localhost", "img", "latest", ""), "docker://localhost/img:latest", "localhost/img:latest"},
		{"localhost:5000/img", registry("", "localhost:5000", "img", "latest", ""), "docker://localhost:5000/img:latest", "localhost:5000/img:latest"},
		{"docker://127.0.0.1:5000/torch:1", registry("", "127.0.0.1:5000", "torch", "1", ""), "", "127.0.0.1:5000/torch:1"},
		{"[::1]:5000/torch:1", registry("", "[::1]:5000", "torch", "1", ""), "docker://[::1]:5000/torch:1", ""},
		{"[fd00::2]/torch:1", registry("", "[fd00::2]", "torch", "1", ""), "docker://[fd00::2]/torch:1", ""},
		{"GHCR.io/a/b__c/d--e.f:X_1", registry("", "ghcr.io", "a/b__c/d--e.f", "X_1", ""), "docker://ghcr.io/a/b__c/d--e.f:X_1", "ghcr.io/a/b__c/d--e.f:X_1"},
		{"host:5000", registry("", "docker.io", "library/host", "5000", ""), "docker://docker.io/library/host:5000", ""},
		{"debian@" + sha256, registry("", "docker.io", "library/debian", "", sha256), "docker://docker.io/library/debian@" + sha256, "debian@sha256:e3b0c44298fc"},
		{"debian:12@" + sha256, registry("", "docker.io", "library/debian", "12", sha256), "docker://docker.io/library/debian:12@" + sha256, "debian:12@sha256:e3b0c44298fc"},
		{"docker://quay.io/a/b@sha512:" + hex512, registry("", "quay.io", "a/b", "", "sha512:"+hex512), "", "quay.io/a/b@sha512:cf83e1357eef"},
		{"FOO/bar", registry("", "foo", "bar", "latest", ""), "docker://foo#bar:latest", "foo#bar:latest"},
		{"Localhost/bar:1", registry("", "localhost", "bar", "1", ""), "docker://localhost/bar:1", "localhost/bar:1"},
		{"docker://oci:latest", registry("", "docker.io", "library/oci", "latest", ""), "docker://docker.io/library/oci:latest", "oci:latest"},
		{"docker://x.sqsh", registry("", "docker.io", "library/x.sqsh", "latest", ""), "docker://docker.io/library/x.sqsh:latest", "x.sqsh:latest"},
		// Enroot's doc/cmd/import.md and Pyxis' README: [docker://][USER@][REGISTRY#]IMAGE[:TAG].
		{"docker://alpine", registry("", "docker.io", "library/alpine", "latest", ""), "docker://docker.io/library/alpine:latest", "alpine:latest"},
		{"nvcr.io#nvidia/pytorch:25.02-py3", registry("", "nvcr.io", "nvidia/pytorch", "25.02-py3", ""), "docker://nvcr.io/nvidia/pytorch:25.02-py3", "nvcr.io/nvidia/pytorch:25.02-py3"},
		{"docker://$oauthtoken@nvcr.io#nvidia/pytorch:25.02-py3", registry("$oauthtoken", "nvcr.io", "nvidia/pytorch", "25.02-py3", ""), "docker://$oauthtoken@nvcr.io/nvidia/pytorch:25.02-py3", "nvcr.io/nvidia/pytorch:25.02-py3"},
		{"docker://$oauthtoken@nvcr.io/nvidia/pytorch:1", registry("$oauthtoken", "nvcr.io", "nvidia/pytorch", "1", ""), "", "nvcr.io/nvidia/pytorch:1"},
		{"me@site.org@docker.io#a/b:1", registry("me@site.org", "docker.io", "a/b", "1", ""), "docker://me@site.org@docker.io/a/b:1", "a/b:1"},
		{"docker://me@alpine:3", registry("me", "docker.io", "library/alpine", "3", ""), "docker://me@docker.io/library/alpine:3", "alpine:3"},
		{"docker://me@a/b", registry("me", "docker.io", "a/b", "latest", ""), "docker://me@docker.io/a/b:latest", "a/b:latest"},
		{"docker://me@alpine:3@" + sha256, registry("me", "docker.io", "library/alpine", "3", sha256), "docker://me@docker.io/library/alpine:3@" + sha256, "alpine:3@sha256:e3b0c44298fc"},
		{"registry-1.docker.io#alpine", registry("", "docker.io", "library/alpine", "latest", ""), "docker://docker.io/library/alpine:latest", "alpine:latest"},
		{"registry.local:5000#a/b/c:1", registry("", "registry.local:5000", "a/b/c", "1", ""), "docker://registry.local:5000/a/b/c:1", "registry.local:5000/a/b/c:1"},
		{"docker://myhost#team/torch:1@" + sha256, registry("", "myhost", "team/torch", "1", sha256), "", "myhost#team/torch:1@sha256:e3b0c44298fc"},
		{"dockerd://debian:12", ref{Kind: reference.Docker, Image: "debian:12"}, "", ""},
		{"dockerd://sha256:e3b0c44298fc", ref{Kind: reference.Docker, Image: "sha256:e3b0c44298fc"}, "", ""},
		{"podman://localhost/Torch:1", ref{Kind: reference.Podman, Image: "localhost/Torch:1"}, "", ""},
		// skopeo.
		{"oci:./layout", ref{Kind: reference.Layout, Path: "./layout"}, "", ""},
		{"oci:layout:v1", ref{Kind: reference.Layout, Path: "layout", Tag: "v1"}, "", ""},
		{"oci:/a/b:docker.io/library/x:1", ref{Kind: reference.Layout, Path: "/a/b", Tag: "docker.io/library/x:1"}, "", ""},
		{"oci:/a@b@" + sha256, ref{Kind: reference.Layout, Path: "/a@b", Digest: sha256}, "", "oci:/a@b@sha256:e3b0c44298fc"},
		{"oci-archive:x.tar:v1@" + sha256, ref{Kind: reference.OCIArchive, Path: "x.tar", Tag: "v1", Digest: sha256}, "", "oci-archive:x.tar:v1@sha256:e3b0c44298fc"},
		{"docker-archive:img.tar", ref{Kind: reference.DockerArchive, Path: "img.tar"}, "", ""},
		{"docker-archive:img.sqsh:a/b:1", ref{Kind: reference.DockerArchive, Path: "img.sqsh", Tag: "a/b:1"}, "", ""},
		// Paths.
		{"/images/a b.img", ref{Kind: reference.Path, Path: "/images/a b.img"}, "", ""},
		{"./rootfs", ref{Kind: reference.Path, Path: "./rootfs"}, "", ""},
		{"../x:y#z@w", ref{Kind: reference.Path, Path: "../x:y#z@w"}, "", ""},
		{"~/t.sqsh", ref{Kind: reference.Path, Path: "~/t.sqsh"}, "", ""},
		{"~", ref{Kind: reference.Path, Path: "~/"}, "~/", "~/"},
		{".", ref{Kind: reference.Path, Path: "."}, "", ""},
		{"nvidia+pytorch.sqsh", ref{Kind: reference.Path, Path: "nvidia+pytorch.sqsh"}, "", ""},
		{"dir/T.squashfs", ref{Kind: reference.Path, Path: "dir/T.squashfs"}, "", ""},
		{"/bin/sh\xff", ref{Kind: reference.Path, Path: "/bin/sh\xff"}, "", ""},
	} {
		got, err := reference.Parse(c.in)
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.in, got, c.want)
		}
		if c.canonical == "" {
			c.canonical = c.in
		}
		if c.familiar == "" {
			c.familiar = c.in
		}
		if got.String() != c.canonical {
			t.Errorf("%s: canonical %s, want %s", c.in, got, c.canonical)
		}
		if got.Familiar() != c.familiar {
			t.Errorf("%s: familiar %s, want %s", c.in, got.Familiar(), c.familiar)
		}
		checkRoundTrip(t, c.in, got)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ in, what, hint string }{
		{"", "it is empty", "debian:12"},
		{strings.Repeat("a", 5000), "5000 bytes", "debian:12"},
		{"a\nb", `control character '\n' at byte 1`, "debian:12"},
		{"/a\x00", `control character '\x00'`, "debian:12"},
		{" debian", "blank", "leave away"},
		{"Debian:12", "upper-case", "write debian"},
		{"nvidia/CUDA", "upper-case", "write nvidia/cuda"},
		{"alpine@3.18", `"3.18" behind the @ is not a digest`, "write alpine@sha256:..."},
		{"debian@latest", "not a digest", "write debian@sha256:... for a digest, IMAGE:TAG for a tag, docker://USER@IMAGE for a user"},
		{"me@a/b", "not a digest", "docker://USER@IMAGE"},
		{"debian:12@latest", `"latest" behind the @`, "write debian:12@sha256:"},
		{"debian@latest@" + sha256, `"latest" behind the @`, "write debian@sha256:"},
		{"nvidia/cuda@12.8", `"12.8" behind the @`, "write nvidia/cuda@sha256:"},
		{"ghcr.io/a/b@main", `"main" behind the @`, "write ghcr.io/a/b@sha256:"},
		{"docker://a/b@1", `"1" behind the @`, "write a/b@sha256:"},
		{"docker://me@ghcr.io#a/b@1", `"1" behind the @`, "write me@ghcr.io#a/b@sha256:"},
		{"me@ghcr.io/a", "needs docker://", "write docker://me@ghcr.io/a"},
		{"a//b", "not the name", "team/torch"},
		{"a/-b", "not the name", "team/torch"},
		{"a/b/", "not the name", "team/torch"},
		{"a___b", "not the name", "team/torch"},
		{"-v", "not the name", "team/torch"},
		{"deb ian", "not the name", "team/torch"},
		{"ghcr.io/" + strings.Repeat("a", 256), "256 bytes", "debian:12"},
		{strings.Repeat("ab", 32), "not a name", "dockerd://abab"},
		{"debian:", "not a tag", "debian:12-slim"},
		{"debian:.1", "not a tag", "debian:12-slim"},
		{"debian:" + strings.Repeat("1", 129), "not a tag", "debian:12-slim"},
		{"debian:1:2", "not a tag", "debian:12-slim"},
		{"debian@sha256:abc", "64 lower-case", "64 hexadecimal"},
		{"debian@sha256:" + strings.ToUpper(sha256[7:]), "64 lower-case", "64 hexadecimal"},
		{"debian@sha512:" + sha256[7:], "128 lower-case", "64 hexadecimal"},
		{"debian@md5:" + strings.Repeat("a", 32), `"md5" is unknown`, "64 hexadecimal"},
		{"debian@" + sha256 + "@" + sha256, "more than one digest", "IMAGE@DIGEST"},
		{"a#b#c", "more than one #", "HOST#REPOSITORY"},
		{"#a", "host is missing", "registry.example.org"},
		{"nvcr.io#", "name of the image is missing", "registry.example.org"},
		{"nvcr.io/", "name of the image is missing", "registry.example.org"},
		{"docker://", "name of the image is missing", "registry.example.org"},
		{"@debian", "user before the @", "USER@HOST"},
		{"me:secret@host.org/a", "password", "docker login"},
		{"a b@host.org/a", "not the name of a user", "USER@HOST"},
		{"ex_ample.org/a", "not a host", "registry.example.org"},
		{"a..b/c", "not a host", "registry.example.org"},
		{"host:0/a", "not a port", "registry.example.org"},
		{"host:/a", "not a port", "registry.example.org"},
		{"host:65536/a", "not a port", "registry.example.org"},
		{"[::1/a:b", "not a host", "registry.example.org"},
		{"[1.2.3.4]:80/a", "not a host", "registry.example.org"},
		{"[::1]80/a", "not a host", "registry.example.org"},
		{"https://nvcr.io/nvidia/cuda", "configuration", "docker://nvcr.io/nvidia/cuda"},
		{"file:///a/b.sqsh", "by its path", "write /a/b.sqsh"},
		{"oras://a/b", `unknown scheme "oras://"`, "docker://"},
		{"DOCKER://a/b", `unknown scheme "DOCKER://"`, "docker://"},
		{"oci://a/b", "not a scheme", "oci:DIR:TAG"},
		{"docker-daemon:a:1", "skopeo", "dockerd://a:1"},
		{"containers-storage:a:1", "skopeo", "podman://"},
		{"dockerd://", "not the name", "dockerd://debian:12"},
		{"podman://-it", "not the name", "podman://debian:12"},
		{"dockerd://a b", "not the name", "dockerd://debian:12"},
		{"oci:", "path is missing", "oci:./images"},
		{"oci::tag", "path is missing", "oci:./images"},
		{"oci:dir:", "not a tag", "oci:./images"},
		{"oci:dir:../..", "not a tag", "oci:./images"},
		{"oci-archive:f:a b", "not a tag", "oci-archive:./images"},
		{"docker-archive:f@" + sha256, "no digests", "docker-archive:FILE:TAG"},
		{"img.tar", "tar file", "docker-archive:img.tar"},
	} {
		r, err := reference.Parse(c.in)
		if err == nil {
			t.Errorf("%q: parsed to %+v", c.in, r)
			continue
		}
		text := fault.Text("gangway", err, false)
		what, hint, _ := strings.Cut(text, "hint:")
		if !strings.Contains(what, c.what) || !strings.Contains(hint, c.hint) || !strings.Contains(what, "parse image reference") || fault.Code(err) != fault.CodeUsage {
			t.Errorf("%q: %s, want %q and hint %q", c.in, text, c.what, c.hint)
		}
	}
}

// checkRoundTrip proves that the canonical form is one.
func checkRoundTrip(t interface{ Errorf(string, ...any) }, in string, r reference.Reference) {
	again, err := reference.Parse(r.String())
	if err != nil || again != r || again.String() != r.String() {
		t.Errorf("%q: parsed to %+v, that is %q, which parses to %+v, %v", in, r, r.String(), again, err)
	}
	if r.Familiar() == "" {
		t.Errorf("%q: has no familiar form", in)
	}
}

// TestRoundTrip: what the grammar allows is parsed to its parts and back.
func TestRoundTrip(t *testing.T) {
	part := `[a-z0-9]{1,4}((\.|_|__|-|---)[a-z0-9]{1,3}){0,2}`
	rapid.Check(t, func(t *rapid.T) {
		want := registry(
			rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[$A-Za-z0-9_.+-]{1,8}(@[a-z]{1,5}\.org)?`)).Draw(t, "user"),
			rapid.OneOf(rapid.Just("docker.io"), rapid.StringMatching(`[a-z0-9]{1,5}(\.[a-z0-9]{1,5}){0,2}(:[1-9][0-9]{0,3})?`)).Draw(t, "host"),
			rapid.StringMatching(part+`/`+part+`(/`+part+`)?`).Draw(t, "repository"),
			rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}`)).Draw(t, "tag"),
			rapid.SampledFrom([]string{"", sha256, "sha512:" + hex512}).Draw(t, "digest"))
		if want.Tag == "" && want.Digest == "" {
			want.Tag = "latest"
		}
		got, err := reference.Parse(want.String())
		if err != nil || got != want {
			t.Fatalf("%s: parsed to %+v, %v", want, got, err)
		}
		checkRoundTrip(t, want.String(), got)
		checkPeer(t, got)
	})
}

// checkPeer proves that go-containerregistry understands the same by it.
func checkPeer(t interface{ Errorf(string, ...any) }, r reference.Reference) {
	host := r.Host
	if !strings.ContainsAny(host, ".:") && host != "localhost" || r.Digest.Algorithm() == "sha512" {
		return // cannot be said there
	}
	if host == reference.DockerHub {
		host = name.DefaultRegistry
	}
	s := r.Host + "/" + r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + string(r.Digest)
	}
	peer, err := name.ParseReference(s)
	if err != nil {
		t.Errorf("%s: go-containerregistry: %v", s, err)
		return
	}
	want := r.Tag
	if r.Digest != "" {
		want = string(r.Digest)
	}
	if c := peer.Context(); c.RegistryStr() != host || c.RepositoryStr() != r.Repository || peer.Identifier() != want {
		t.Errorf("%s: go-containerregistry has %s, %s, %s", s, c.RegistryStr(), c.RepositoryStr(), peer.Identifier())
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"debian:12", "a@b#c/d:1@" + sha256, "oci:a:b@" + sha256, "[::1]:5/a", "me@x/y", "/a", "docker-archive:a:b", "dockerd://a", "a@a@a.b/c", "myhost#a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := reference.Parse(s)
		if err != nil {
			return
		}
		checkRoundTrip(t, s, r)
		if r.Kind == reference.Registry {
			checkPeer(t, r)
		}
	})
}
