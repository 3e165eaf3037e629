package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/gangway-hpc/gangway/image/oci"
)

// accessTries is how often a registry is asked that does not answer. Who asks has the image
// already, and waits for it to start.
const accessTries = 3

// Access asks whether the manifest or index with a digest may be read now, with what
// Credentials give: one HEAD request. It returns nil, or why not; where the registry or a
// mirror refuses, it is asked with GET, as only that tells why.
func (r *Repository) Access(ctx context.Context, d oci.Digest) error {
	if r.invalid != nil {
		return r.invalid
	}
	if _, err := oci.ParseDigest(string(d)); err != nil {
		return fmt.Errorf("ask for access to %s: %w", r, err)
	}
	p := r.pursue("ask for access to %s of %s", d.Short(), r)
	p.most = accessTries
	return p.do(ctx, func(s *site) error {
		resp, err := r.ask(ctx, s, http.MethodHead, string(d))
		var status *statusError
		if errors.As(err, &status) && !status.temporary() {
			var raw []byte
			if raw, _, err = r.read(ctx, s, string(d)); err == nil {
				err = verify(s, oci.Descriptor{Digest: d}, raw)
			}
			return err
		}
		if err != nil {
			return err
		}
		_ = resp.Body.Close() // it is empty
		return nil
	})
}

// Vouched says whether what answers in the name of a registry host is that host: by TLS, or
// by the word of who wrote the settings. What listens on a port of the loopback interface
// may be any user's program.
func (c *Client) Vouched(host string) bool {
	e := c.endpoint("", host)
	return e.settings.PlainHTTP || e.settings.SkipVerify || e.base.Scheme == "https"
}
