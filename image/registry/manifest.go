package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// maxManifest is what registries accept at least, and most accept at most
// (distribution-spec, "Pushing Manifests").
const maxManifest = 4 << 20

// accepted lists the manifests that we ask for. Old ones are left out: a registry that
// could convert to them would.
const accepted = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, " +
	"application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"

// Resolve returns the descriptor of what the reference names. A tag costs one HEAD
// request; the size that it tells is not handed on, since servers get it wrong (that of
// a compressed answer, 0) and the digest says enough. A digest costs none: its
// descriptor has neither media type nor size.
func (r *Repository) Resolve(ctx context.Context) (oci.Descriptor, error) {
	if r.invalid != nil {
		return oci.Descriptor{}, r.invalid
	}
	if r.isDigest() {
		return oci.Descriptor{Digest: oci.Digest(r.reference)}, nil
	}
	var d oci.Descriptor
	err := r.pursue("resolve %s", r).do(ctx, func(s *site) (err error) {
		d, err = r.head(ctx, s)
		return err
	})
	return d, err
}

// head resolves the tag at a site. A registry that does not answer HEAD as it should
// is asked with GET; so is one that refuses, as only that tells why.
func (r *Repository) head(ctx context.Context, s *site) (oci.Descriptor, error) {
	resp, err := r.ask(ctx, s, http.MethodHead, r.reference)
	var status *statusError
	if errors.As(err, &status) && !status.temporary() && status.status != http.StatusUnauthorized {
		return r.get(ctx, s)
	}
	if err != nil {
		return oci.Descriptor{}, err
	}
	_ = resp.Body.Close() // it is empty
	digest, err := oci.ParseDigest(resp.Header.Get("Docker-Content-Digest"))
	if err != nil {
		return r.get(ctx, s)
	}
	return oci.Descriptor{MediaType: mediaType(resp), Digest: digest}, nil
}

// get resolves the tag at a site by reading what it names, and keeps that.
func (r *Repository) get(ctx context.Context, s *site) (oci.Descriptor, error) {
	raw, kind, err := r.read(ctx, s, r.reference)
	if err != nil {
		return oci.Descriptor{}, err
	}
	d := oci.Descriptor{MediaType: kind, Digest: oci.DigestOf(raw), Size: int64(len(raw))}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[d.Digest] = raw
	return d, nil
}

// Manifest returns the bytes of a manifest or index of the repository, verified
// against the descriptor's digest and, unless it is 0, its size.
func (r *Repository) Manifest(ctx context.Context, d oci.Descriptor) ([]byte, error) {
	if r.invalid != nil {
		return nil, r.invalid
	}
	if _, err := oci.ParseDigest(string(d.Digest)); err != nil {
		return nil, fmt.Errorf("get manifest of %s: %w", r, err)
	}
	if err := r.checkSize(d.Size); err != nil {
		return nil, err
	}
	r.mu.Lock()
	raw := r.held[d.Digest]
	r.mu.Unlock()
	if raw != nil && (d.Size == 0 || d.Size == int64(len(raw))) {
		return raw, nil
	}
	err := r.pursue("get manifest %s of %s", d.Digest, r).do(ctx, func(s *site) (err error) {
		if raw, _, err = r.read(ctx, s, string(d.Digest)); err != nil {
			return err
		}
		return verify(s, d, raw)
	})
	return raw, err
}

// verify compares a manifest with what names it.
func verify(s *site, d oci.Descriptor, raw []byte) error {
	h := d.Digest.Hash()
	_, _ = h.Write(raw) // a hash never fails
	var found string
	switch {
	case !d.Digest.Is(h.Sum(nil)):
		found = "its bytes have another digest"
	case d.Size != 0 && d.Size != int64(len(raw)):
		found = fmt.Sprintf("it has %d bytes, not %d", len(raw), d.Size)
	default:
		return nil
	}
	return &fault.Error{
		What:  fmt.Errorf("verify manifest: %s sent another one than asked for: %s", s.base.Host, found),
		Cause: "the registry, a mirror or a proxy in between changed it",
		Hint:  "ask who runs " + s.endpoint.name + "; nothing of it was used",
	}
}

// read gets a whole manifest from a site.
func (r *Repository) read(ctx context.Context, s *site, reference string) (raw []byte, kind string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.c.document, errStalled)
	defer cancel()
	resp, err := r.ask(ctx, s, http.MethodGet, reference)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if err := r.checkSize(resp.ContentLength); err != nil {
		return nil, "", err
	}
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	if err != nil {
		return nil, "", fmt.Errorf("read manifest from %s: %w", s.base.Host, err)
	}
	return raw, mediaType(resp), r.checkSize(int64(len(raw)))
}

// ask sends a request for a manifest; an answer is one.
func (r *Repository) ask(ctx context.Context, s *site, method, reference string) (*http.Response, error) {
	resp, err := s.session.send(ctx, request{method, s.url("manifests/" + reference), http.Header{"Accept": {accepted}}, ""})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, s.statusError(resp)
	}
	if kind := mediaType(resp); isSchema1(kind) {
		_ = resp.Body.Close()
		return nil, &fault.Error{
			What:  fmt.Errorf("%s has the manifest as schema 1, which nothing supports any more", r),
			Cause: "its media type is " + kind,
			Hint:  "push the image again with a present-day tool (docker, podman, skopeo copy)",
		}
	}
	return resp, nil
}

// statusError reads the error from an answer to a question to the site.
func (s *site) statusError(resp *http.Response) *statusError {
	e := s.session.c.newStatusError(resp)
	e.away = !sameOrigin(resp.Request.URL, s.base)
	return e
}

func (r *Repository) checkSize(n int64) error {
	if n <= maxManifest {
		return nil
	}
	return &fault.Error{
		What: fmt.Errorf("get manifest of %s: it is larger than %d MiB", r, maxManifest>>20),
		Hint: "is it an image? no registry has to keep manifests of that size",
	}
}

// mediaType is the answer's, without parameters.
func mediaType(resp *http.Response) string {
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return clean(kind, 200)
}

func isSchema1(kind string) bool {
	return strings.HasPrefix(kind, "application/vnd.docker.distribution.manifest.v1+")
}
