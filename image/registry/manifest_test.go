package registry

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/image/oci"
)

// TestResolveByTag: a tag costs exactly one request, and a digest none.
func TestResolveByTag(t *testing.T) {
	f := serve(t, nil)
	want, layer, raw := f.push("team/app", "1", []byte("layer"))
	c, _, _ := quick(t, Options{Credentials: ann()})
	r := c.Repository(f.host, "team/app", "", "1")
	defer r.Close()
	d, err := r.Resolve(t.Context())
	if err != nil || d.Digest != want.Digest || d.Size != 0 || d.MediaType != want.MediaType {
		t.Fatalf("got %+v, %v; want %+v", d, err, want)
	}
	if got := f.asked(); !slices.Equal(got, []string{"HEAD /v2/team/app/manifests/1"}) {
		t.Errorf("requests: %q", got)
	}
	got, err := r.Manifest(t.Context(), d)
	if err != nil || string(got) != string(raw) {
		t.Fatalf("manifest %q, %v", got, err)
	}
	if got := f.asked(); !slices.Equal(got, []string{"GET /v2/team/app/manifests/" + string(d.Digest)}) {
		t.Errorf("requests: %q", got)
	}
	mustRead(t, r, layer, []byte("layer"))
	f.asked()

	byDigest := c.Repository(f.host, "team/app", "", string(d.Digest))
	d, err = byDigest.Resolve(t.Context())
	if err != nil || d.Digest != want.Digest || d.Size != 0 || d.MediaType != "" {
		t.Errorf("by digest: %+v, %v", d, err)
	}
	if got := f.asked(); len(got) != 0 {
		t.Errorf("a digest asked %q", got)
	}
	if _, err := byDigest.Manifest(t.Context(), d); err != nil {
		t.Error(err)
	}
}

// TestResolveFallback: registries that do not do HEAD as they should are asked by GET,
// whose bytes are kept.
func TestResolveFallback(t *testing.T) {
	for name, spoil := range map[string]spoiler{
		"405": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
			}
			return r.Method == http.MethodHead
		},
		"404": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusNotFound)
			}
			return r.Method == http.MethodHead
		},
		"no digest": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Length", "12")
				w.WriteHeader(http.StatusOK)
			}
			return r.Method == http.MethodHead
		},
		"bad digest": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodHead {
				w.Header().Set("Content-Length", "12")
				w.Header().Set("Docker-Content-Digest", "sha256:../../etc")
				w.WriteHeader(http.StatusOK)
			}
			return r.Method == http.MethodHead
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, spoil)
			want, _, raw := f.push("app", "1", []byte("layer"))
			c, _, _ := quick(t, Options{})
			r := c.Repository(f.host, "app", "", "1")
			d, err := r.Resolve(t.Context())
			if err != nil || d.Digest != want.Digest || d.Size != want.Size {
				t.Fatalf("%+v, %v", d, err)
			}
			got, err := r.Manifest(t.Context(), d)
			if err != nil || string(got) != string(raw) {
				t.Fatalf("%q, %v", got, err)
			}
			if got := f.asked(); len(got) != 2 {
				t.Errorf("requests: %q", got)
			}
		})
	}
}

// TestResolveSizeWrong: what HEAD says of the size is nothing to fail for.
func TestResolveSizeWrong(t *testing.T) {
	for _, size := range []string{"0", "1", "5000000", ""} {
		var want oci.Descriptor
		var raw []byte
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodHead {
				return false
			}
			w.Header().Set("Docker-Content-Digest", string(want.Digest))
			if size != "" {
				w.Header().Set("Content-Length", size)
			}
			return true
		})
		want, _, raw = f.push("app", "1", []byte("layer"))
		c, _, _ := quick(t, Options{})
		r := c.Repository(f.host, "app", "", "1")
		d, err := r.Resolve(t.Context())
		if err != nil || d.Digest != want.Digest {
			t.Fatalf("size %q: %+v, %v", size, d, err)
		}
		if got, err := r.Manifest(t.Context(), d); err != nil || string(got) != string(raw) {
			t.Errorf("size %q: %q, %v", size, got, err)
		}
	}
}

// TestManifestVerified: what is not what the digest names is not given out.
func TestManifestVerified(t *testing.T) {
	var send string
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		fmt.Fprint(w, send)
		return true
	})
	c, p, _ := quick(t, Options{})
	r := c.Repository(f.host, "app", "", "1")
	good := oci.Descriptor{Digest: oci.DigestOf([]byte("{}")), Size: 2}
	send = "{}"
	if _, err := r.Manifest(t.Context(), good); err != nil {
		t.Error(err)
	}
	send = "{ }"
	_, err := r.Manifest(t.Context(), good)
	wantFault(t, err, "digest", f.host, string(good.Digest))
	send = "{}"
	good.Size = 3
	_, err = r.Manifest(t.Context(), good)
	wantFault(t, err, "2 bytes, not 3")
	send = strings.Repeat("x", maxManifest+1)
	good.Size = 0
	_, err = r.Manifest(t.Context(), good)
	wantFault(t, err, "larger than 4 MiB")
	_, err = r.Manifest(t.Context(), oci.Descriptor{Digest: good.Digest, Size: maxManifest + 1})
	wantFault(t, err, "larger than 4 MiB")
	if _, err := r.Manifest(t.Context(), oci.Descriptor{Digest: "sha256:../x"}); err == nil {
		t.Error("a digest that is none was asked for")
	}
	if got := p.taken(); len(got) != 0 {
		t.Errorf("a wrong manifest was asked for again: %v", got)
	}
	sum := "sha512:27c74670adb75075fad058d5ceaf7b20c4e7786c83bae8a32f626f9782af34c9a33c2046ef60fd2a7878d378e29fec851806bbd9a67878f3a9f1cda4830763fd"
	send = "{}"
	if _, err := r.Manifest(t.Context(), oci.Descriptor{Digest: oci.Digest(sum)}); err != nil {
		t.Errorf("sha512: %v", err)
	}
}

// TestManifestCut: a manifest that does not arrive whole is asked for again.
func TestManifestCut(t *testing.T) {
	cut := 2
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if cut == 0 {
			return false
		}
		cut--
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"schema`)
		return true
	})
	d, _, raw := f.push("app", "1", []byte("layer"))
	c, p, _ := quick(t, Options{})
	got, err := c.Repository(f.host, "app", "", "1").Manifest(t.Context(), d)
	if err != nil || string(got) != string(raw) || len(p.taken()) != 2 {
		t.Errorf("%q, %v after %v", got, err, p.taken())
	}
}

// TestSchema1: manifests of before 2016 are refused by name.
func TestSchema1(t *testing.T) {
	for _, kind := range []string{"prettyjws", "json"} {
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v1+"+kind+"; charset=utf-8")
			w.Header().Set("Docker-Content-Digest", string(oci.DigestOf([]byte("{}"))))
			fmt.Fprint(w, "{}")
			return true
		})
		c, _, _ := quick(t, Options{})
		_, err := c.Repository(f.host, "app", "", "1").Resolve(t.Context())
		wantFault(t, err, "schema 1", "app:1", "push the image again")
	}
}

// TestUnknown: what does not exist is named, with what to type.
func TestUnknown(t *testing.T) {
	f := serve(t, nil)
	f.push("app", "1", []byte("layer"))
	c, p, _ := quick(t, Options{})
	_, err := c.Repository(f.host, "app", "", "2").Resolve(t.Context())
	wantFault(t, err, f.host+"/app:2", "MANIFEST_UNKNOWN", "has no 2 in app", "list-tags docker://"+f.host+"/app")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
	_, err = c.Repository(f.host, "nothing", "", "1").Resolve(t.Context())
	wantFault(t, err, f.host+"/nothing:1", "NAME_UNKNOWN", "no repository nothing")
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("%v is not ErrNotFound", err)
	}
	absent := oci.Descriptor{Digest: oci.DigestOf([]byte("absent")), Size: 6}
	_, err = read(t, c.Repository(f.host, "app", "", "1"), absent)
	wantFault(t, err, string(absent.Digest), "BLOB_UNKNOWN", "push the image again")
	if got := p.taken(); len(got) != 0 {
		t.Errorf("what does not exist was asked for again: %v", got)
	}
	_, err = c.Repository("no-such-host.invalid", "app", "", "1").Resolve(t.Context())
	wantFault(t, err, "no-such-host.invalid", "docker://HOST/REPOSITORY:TAG")
	if n := len(p.taken()); n > defaultRetries-1 {
		t.Errorf("%d pauses for an unknown host", n)
	}

	gone := serve(t, nil)
	gone.Close()
	_, err = c.Repository(gone.host, "app", "", "1").Resolve(t.Context())
	wantFault(t, err, "tried 2 times", "nothing answers at "+gone.host)
}

// TestInvalidNames: names that would change the URL never get into one.
func TestInvalidNames(t *testing.T) {
	c, _, _ := quick(t, Options{Hosts: map[string]Host{"m.example": {Mirrors: []string{"ftp://x"}}}})
	for _, r := range []*Repository{
		c.Repository("", "app", "", "1"),
		c.Repository("u@host", "app", "", "1"),
		c.Repository("host/x", "app", "", "1"),
		c.Repository("host", "../app", "", "1"),
		c.Repository("host", "a//b", "", "1"),
		c.Repository("host", "a?b", "", "1"),
		c.Repository("host", "app", "", ""),
		c.Repository("host", "app", "", "../x"),
		c.Repository("host", "app", "", "sha256:00"),
		c.Repository("m.example", "app", "", "1"),
	} {
		if _, err := r.Resolve(t.Context()); err == nil || !strings.Contains(err.Error(), "not valid") {
			t.Errorf("%s: %v", r, err)
		}
		if _, err := r.Manifest(t.Context(), oci.Descriptor{}); err == nil {
			t.Errorf("%s: no error", r)
		}
		if _, err := r.Blob(t.Context(), oci.Descriptor{}); err == nil {
			t.Errorf("%s: no error", r)
		}
	}
}
