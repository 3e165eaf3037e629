package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// blob is one that is being read.
type blob struct {
	r      *Repository
	d      oci.Descriptor
	whole  atomic.Bool // the server does not do ranges
	mu     sync.Mutex
	direct *direct
}

// direct is where a site redirected to: the next range is asked for there, which
// saves the registry a request. Such URLs run out.
type direct struct {
	s   *site
	url *url.URL
}

var (
	errNoRanges = errors.New("the server does not do ranges")
	errRange    = errors.New("the server sent another range than asked for")
)

// Blob opens a blob. The reader goes on by itself where a connection is cut, renews
// tokens and goes to the next mirror; it gives exactly d.Size bytes or an error. The
// caller verifies the digest. The reader is for one goroutine, and must be closed.
func (r *Repository) Blob(ctx context.Context, d oci.Descriptor) (io.ReadCloser, error) {
	if r.invalid != nil {
		return nil, r.invalid
	}
	if _, err := oci.ParseDigest(string(d.Digest)); err != nil {
		return nil, fmt.Errorf("get blob of %s: %w", r, err)
	}
	if d.Size < 0 {
		return nil, fmt.Errorf("get blob %s of %s: its size is %d", d.Digest, r, d.Size)
	}
	b := &blob{r: r, d: d}
	s := b.stream(ctx, 0, d.Size)
	c := r.c
	if d.Size >= c.parallel && d.Size > c.chunk && (c.everyHost || !s.p.site().loopback) {
		return b.openRanges(ctx, s)
	}
	if err := s.open(); err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// answer is an open answer, whose body begins at the offset asked for.
type answer struct {
	body  io.ReadCloser
	whole bool // it goes to the end of the blob, whatever was asked for
	exact bool // the body's length was announced, and fits
}

// ask asks a site for the bytes from, to-1. With strict, one that sends the whole
// instead is errNoRanges; else what stands before is read and dropped.
func (b *blob) ask(ctx context.Context, s *site, from, to int64, strict bool) (*answer, error) {
	header := http.Header{}
	if (from > 0 || to < b.d.Size) && !b.whole.Load() {
		header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(to-1, 10))
	}
	resp, err := b.send(ctx, s, header)
	if err != nil {
		return nil, err
	}
	a, err := b.accept(s, resp, from, strict)
	if err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	if a.whole && from > 0 {
		if n, err := b.drop(ctx, resp.Body, from); err != nil {
			_ = resp.Body.Close()
			return nil, fmt.Errorf("read %d of %d bytes again from %s: %w", n, from, clean(resp.Request.URL.Host, 200), err)
		}
	}
	return a, nil
}

// send asks where the site redirected to before, else the site.
func (b *blob) send(ctx context.Context, s *site, header http.Header) (*http.Response, error) {
	b.mu.Lock()
	known := b.direct
	b.mu.Unlock()
	if known != nil && known.s == s {
		resp, err := b.r.c.exchange(ctx, s.endpoint, request{http.MethodGet, known.url, header, ""})
		if err == nil && (resp.StatusCode < 300 || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable) {
			return resp, nil
		}
		if err == nil {
			_ = resp.Body.Close() // the URL ran out: the registry has another
		}
		b.redirectedTo(nil)
	}
	resp, err := s.session.send(ctx, request{http.MethodGet, s.url("blobs/" + string(b.d.Digest)), header, ""})
	if err != nil {
		return nil, err
	}
	if u := resp.Request.URL; resp.StatusCode < 300 && !sameOrigin(u, s.base) {
		b.redirectedTo(&direct{s, u})
	}
	return resp, nil
}

func (b *blob) redirectedTo(d *direct) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.direct = d
}

// accept checks an answer to the question for the bytes from from on.
func (b *blob) accept(s *site, resp *http.Response, from int64, strict bool) (*answer, error) {
	size := b.d.Size
	switch resp.StatusCode {
	case http.StatusOK:
		if resp.ContentLength > size {
			return nil, b.wrongSize(s, resp.ContentLength)
		}
		if from > 0 && strict {
			return nil, errNoRanges
		}
		return &answer{resp.Body, true, resp.ContentLength == size}, nil
	case http.StatusPartialContent:
		cr, ok := parseContentRange(resp.Header.Get("Content-Range"))
		if ok && cr.size >= 0 && cr.size != size {
			return nil, b.wrongSize(s, cr.size)
		}
		if !ok || cr.first != from || cr.last >= size {
			b.whole.Store(true) // better without
			return nil, errRange
		}
		return &answer{resp.Body, false, true}, nil
	case http.StatusRequestedRangeNotSatisfiable:
		if cr, ok := parseContentRange(resp.Header.Get("Content-Range")); ok && cr.size != size {
			return nil, b.wrongSize(s, cr.size)
		}
		b.whole.Store(true)
		return nil, errRange
	}
	return nil, s.statusError(resp)
}

// wrongSize is the error for a blob of n bytes.
func (b *blob) wrongSize(s *site, n int64) error {
	return &fault.Error{
		What:  fmt.Errorf("%s has a blob of %d bytes, and the manifest says %d", s.base.Host, n, b.d.Size),
		Cause: "the manifest is wrong, or the registry keeps a damaged blob",
		Hint:  "push the image again, or ask who runs " + s.endpoint.name,
	}
}

// drop reads n bytes that are known already.
func (b *blob) drop(ctx context.Context, r io.Reader, n int64) (int64, error) {
	buf := make([]byte, min(n, limitedRead))
	done := int64(0)
	for done < n {
		k, err := r.Read(buf[:min(n-done, int64(len(buf)))])
		done += int64(k)
		if err := b.pay(ctx, k); err != nil {
			return done, err
		}
		if err != nil && done < n {
			return done, unexpected(err)
		}
	}
	return done, nil
}

// pay waits as the limit of bandwidth demands.
func (b *blob) pay(ctx context.Context, n int) error {
	if b.r.c.limit == nil {
		return nil
	}
	return b.r.c.limit.wait(ctx, n)
}

// unexpected is err where bytes are still due.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
