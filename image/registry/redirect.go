package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const maxRedirects = 10

// request is one question to an endpoint, or to a server that the endpoint named.
type request struct {
	method string
	url    *url.URL
	header http.Header
	body   string // of a POST
}

// exchange sends q for the endpoint and follows redirects. The header Authorization
// goes to the origin of q's URL and nowhere else. The answer may have any status; its
// URL is in the answer's Request. The caller closes the body.
func (c *Client) exchange(ctx context.Context, e *endpoint, q request) (*http.Response, error) {
	w := newWatch(ctx, c.stall, c.least)
	header := q.header.Clone()
	header.Set("User-Agent", c.o.UserAgent)
	u := q.url
	for hops := 0; ; hops++ {
		w.begin()
		resp, err := c.hop(w.ctx, e, request{q.method, u, header, q.body})
		w.pause(0)
		w.fresh() // a header is progress, and has a limit of its own
		if err != nil {
			err = w.cause(err)
			w.end()
			return nil, explainConnection(e, u, err)
		}
		e.reached.Store(true)
		location := resp.Header.Get("Location")
		if !isRedirect(resp.StatusCode) || location == "" || q.method == http.MethodPost {
			// What a POST holds is a credential and goes nowhere else.
			resp.Body = &body{resp.Body, w}
			return resp, nil
		}
		// The answer is its header. A short body is read, for the connection's sake.
		w.begin()
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		w.pause(0)
		w.fresh()
		_ = resp.Body.Close()
		next, err := redirected(e, u, location, hops)
		if err != nil {
			w.end()
			return nil, err
		}
		if !sameOrigin(next, q.url) {
			header.Del("Authorization")
		}
		u = next
	}
}

// hop sends one request to u.
func (c *Client) hop(ctx context.Context, e *endpoint, q request) (*http.Response, error) {
	var content io.Reader
	if q.body != "" {
		content = strings.NewReader(q.body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, q.url.String(), content)
	if err != nil {
		return nil, err
	}
	req.Header = q.header
	t := trust{caFile: e.settings.CAFile, skipVerify: e.settings.SkipVerify}
	if !sameOrigin(q.url, e.base) {
		other := c.o.Hosts[canonical(q.url.Host)]
		t.skipVerify = other.SkipVerify
		if other.CAFile != "" {
			t.caFile = other.CAFile
		}
		if proxy, err := c.proxy(req); err != nil || proxy == nil {
			t.guard = e.guard()
		}
	}
	rt, err := c.transport(t)
	if err != nil {
		return nil, err
	}
	// Not by http.Client: that puts whole URLs into errors, and those of redirects
	// are as good as credentials.
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return nil, c.ofProxy(req, err)
	}
	return resp, nil
}

// guard is for hosts that the endpoint names.
func (e *endpoint) guard() guard {
	if e.loopback {
		return guardLocal
	}
	return guardNetwork
}

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// redirected returns where a redirect from u leads, if it may be followed.
func redirected(e *endpoint, u *url.URL, location string, hops int) (*url.URL, error) {
	next, err := u.Parse(location)
	if err != nil {
		return nil, refuse(e, "a URL", "the URL cannot be read")
	}
	where := clean(next.Scheme+"://"+next.Host, 200)
	switch {
	case hops >= maxRedirects:
		return nil, refuse(e, where, fmt.Sprintf("it is the %dth in a row", hops+1))
	case next.Scheme != "https" && next.Scheme != "http":
		return nil, refuse(e, where, "only https and http are followed")
	case next.Scheme == "http" && u.Scheme == "https":
		return nil, refuse(e, where, "it leaves HTTPS")
	case next.Hostname() == "":
		return nil, refuse(e, where, "it names no host")
	case sameOrigin(next, e.base):
		return next, nil
	}
	return next, e.named(next)
}

// named refuses a URL that the endpoint named, by its host alone: where a proxy
// resolves names there is no other place to look.
func (e *endpoint) named(u *url.URL) error {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	where := clean(u.Host, 200)
	if isLoopback(host) && !e.loopback {
		return refuse(e, where, "it is this machine, and the registry is elsewhere")
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil:
		if why := e.guard().refuses(ip); why != "" {
			return refuse(e, where, why)
		}
	case numeric(host):
		return refuse(e, where, "an address in a spelling that hides it")
	case strings.ContainsFunc(host, func(c rune) bool { return c <= ' ' || c >= 0x7f }):
		// Such are mapped before they are looked up, so that what we see is not what
		// is asked for; names of other scripts come as xn--.
		return refuse(e, where, "it is not a name of DNS")
	}
	return nil
}

// numeric says whether resolvers may take a host that is no address as they are
// written today for one: 2852039166, 0x7f.1 and 0177.0.0.1 are addresses to
// inet_aton. No top-level domain is a number.
func numeric(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func refuse(e *endpoint, where, why string) error {
	return &fault.Error{
		What: fmt.Errorf("ask %s: %w", e.name, &refusedError{where, why}),
		Hint: "the registry " + e.name + " is set up wrongly or hostile; ask who runs it",
	}
}

// sameOrigin says whether two URLs have the same scheme, host and port.
func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// body is the body of an answer under watch.
type body struct {
	io.ReadCloser
	w *watch
}

func (b *body) Read(p []byte) (int, error) {
	b.w.begin()
	n, err := b.ReadCloser.Read(p)
	b.w.pause(n)
	if err != nil && err != io.EOF {
		err = b.w.cause(err)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.w.end()
	return err
}
