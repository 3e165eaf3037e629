package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// trust is what transports differ by: whom they believe and where they may connect.
type trust struct {
	caFile     string
	skipVerify bool
	guard      guard
}

// guard says which addresses a connection may go to.
type guard int

const (
	unguarded    guard = iota // a host that the user named
	guardNetwork              // named by a registry: no link-local and no loopback address
	guardLocal                // named by a registry on loopback: no link-local address
)

// refusedError is an address that a registry may not send us to.
type refusedError struct{ host, why string }

func (e *refusedError) Error() string {
	return fmt.Sprintf("redirect to %s is refused: %s", e.host, e.why)
}

// check refuses addresses by the guard. It sees them after names are resolved.
func (g guard) check(address string) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("connect to %q: %w", address, err)
	}
	if why := g.refuses(ap.Addr()); why != "" {
		return &refusedError{address, why}
	}
	return nil
}

// refuses says why ip may not be connected to; "" if it may.
func (g guard) refuses(ip netip.Addr) string {
	ip = embedded(ip.Unmap().WithZone(""))
	switch {
	case g == unguarded:
	case ip.IsLinkLocalUnicast():
		return "a link-local address, where clouds keep their metadata"
	case isMetadata(ip):
		return "where a cloud keeps its metadata"
	case ip.IsUnspecified(), ip.IsMulticast():
		return "not the address of a server"
	case ip.IsLoopback() && g != guardLocal:
		return "the loopback interface of this machine, and the registry is elsewhere"
	}
	return ""
}

// isMetadata knows the addresses of clouds that are not link-local: of AWS, Alibaba
// and Oracle.
func isMetadata(ip netip.Addr) bool {
	switch ip.String() {
	case "fd00:ec2::254", "100.100.100.200", "192.0.0.192":
		return true
	}
	return false
}

// embedded returns the IPv4 address that ip leads to through NAT64 (RFC 6052), else ip.
func embedded(ip netip.Addr) netip.Addr {
	raw := ip.As16()
	if ip.Is6() && [12]byte(raw[:12]) == [12]byte{0x00, 0x64, 0xff, 0x9b} {
		return netip.AddrFrom4([4]byte(raw[12:]))
	}
	return ip
}

// transport returns the transport for t, which keeps its connections.
//
// HTTP/2 is left out on purpose: it would put all ranges of a blob into one
// connection, so that one lost packet stops them all, and ranges exist to have
// several connections.
func (c *Client) transport(t trust) (*http.Transport, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rt := c.transports[t]; rt != nil {
		return rt, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.skipVerify}
	if t.caFile != "" {
		pool, err := loadCAs(t.caFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = pool
	}
	dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}
	rt := &http.Transport{
		Proxy:                  func(req *http.Request) (*url.URL, error) { return c.proxy(req) },
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    15 * time.Second,
		MaxIdleConnsPerHost:    c.o.Connections + 4, // else each range would dial anew
		IdleConnTimeout:        60 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
		ReadBufferSize:         64 << 10,
		DisableCompression:     true, // digests are of the bytes as they are stored
		Protocols:              new(http.Protocols),
	}
	rt.Protocols.SetHTTP1(true)
	if t.guard != unguarded {
		// A proxy would connect for us, unchecked: hop uses these only without one.
		dialer.Control = func(_, address string, _ syscall.RawConn) error { return t.guard.check(address) }
	}
	rt.DialContext = dialer.DialContext
	c.transports[t] = rt
	return rt, nil
}

// loadCAs returns the system's certificates and those of a file.
func loadCAs(path string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a machine without any has the file's alone
	}
	pem, err := os.ReadFile(path)
	if err == nil && !pool.AppendCertsFromPEM(pem) {
		err = errors.New("no certificate in PEM is in it")
	}
	if err != nil {
		return nil, &fault.Error{
			What: fmt.Errorf("read certificates of registry from %s: %w", path, err),
			Hint: `give the file of the registry's authority: in gangway.toml, registry."HOST".ca = "FILE"`,
		}
	}
	return pool, nil
}

// errStalled says that the other side went silent, or as good as.
var errStalled = errors.New("too little came for too long")

// watch cuts a request that makes no progress: one for which we waited for limit and
// got less than least bytes. A byte now and then would else hold us for ever. It runs
// only while we wait for the other side: a slow reader of ours is no fault of the
// registry, nor is a limit of bandwidth.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
	least  int64

	since  time.Time     // the wait that runs began
	waited time.Duration // before, for the bytes of got
	got    int64
}

func newWatch(ctx context.Context, limit time.Duration, least int64) *watch {
	w := &watch{limit: limit, least: least}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(limit, func() { w.cancel(errStalled) })
	return w
}

// begin waits for the other side.
func (w *watch) begin() {
	w.since = time.Now()
	w.timer.Reset(w.limit - w.waited)
}

// pause ends a wait, in which n bytes came.
func (w *watch) pause(n int) {
	w.timer.Stop()
	w.waited += time.Since(w.since)
	if w.got += int64(n); w.got >= w.least {
		w.fresh()
	}
}

// fresh gives the other side the whole time again.
func (w *watch) fresh() { w.waited, w.got = 0, 0 }

// end lets go of the request, and with it of the connection if the body was not read
// to its end.
func (w *watch) end() {
	w.timer.Stop()
	w.cancel(context.Canceled)
}

// cause is the error that ended the request: of the context if that ended.
func (w *watch) cause(err error) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	return err
}
