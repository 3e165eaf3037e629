// Package forward is the public API on a host where the controller is not: a unix socket
// whose requests go to the controller on a connection of the host, with the user that the
// kernel says has made them.
//
// First use: l, err := socket.Listen(path), then Serve. Requests may come on any number of
// connections at a time.
//
// The package decides nothing about users: how far the host's word goes is the
// controller's to say.
package forward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// Forwarder takes requests of this host's users to the controller.
type Forwarder struct {
	Dial func(context.Context) (net.Conn, error) // to the controller's public API
	// Node is this host's, and Agent the path of its agent's socket: what is asked of that
	// goes there. Empty: there is none.
	Node, Agent string
	// Everybody: the socket is for all users of the host, and not for this one alone.
	Everybody bool
	Log       *slog.Logger
}

// userKey is under which a request's context has who made it.
type userKey struct{}

// Serve answers on a socket, until ctx ends.
func (f *Forwarder) Serve(ctx context.Context, l net.Listener) error {
	web := &http.Server{
		Handler: f.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(f.Log.Handler(), slog.LevelWarn),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if cred, err := socket.Peer(c); err == nil {
				return context.WithValue(ctx, userKey{}, cred)
			}
			return ctx
		},
	}
	stop := context.AfterFunc(ctx, func() { _ = web.Close() })
	defer stop()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// handler sends requests on.
func (f *Forwarder) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", f.proxy(host.Transport(f.dial), func(string) string { return "" }))
	if f.Node != "" {
		var d net.Dialer
		local := host.Transport(func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "unix", f.Agent) })
		prefix := "/v1/nodes/" + f.Node
		mux.Handle("GET "+prefix+"/steps/{key}/io", f.proxy(local, func(path string) string { return "/v1" + strings.TrimPrefix(path, prefix) }))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cred, ok := r.Context().Value(userKey{}).(syscall.Ucred)
		if !ok || !f.Everybody && !socket.IsOurs(cred.Uid) {
			refuse(w, http.StatusForbidden, &api.Error{What: "the socket is for the user of this daemon", Kind: "ACCESS_DENIED"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// dialSpan is how long the controller has to answer a connection: people wait for that.
const dialSpan = 3 * time.Second

// unsent is that there was no connection, and so nobody has heard what was asked.
type unsent struct{ error }

// Unwrap is why.
func (e *unsent) Unwrap() error { return e.error }

func (f *Forwarder) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialSpan)
	defer cancel()
	c, err := f.Dial(ctx)
	if err != nil {
		return nil, &unsent{err}
	}
	return c, nil
}

// proxy sends requests by a transport, with who asks; path is another path than the
// request's, or empty.
func (f *Forwarder) proxy(t http.RoundTripper, path func(string) string) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: t, FlushInterval: -1, // lines of a stream are sent on as they come
		Rewrite: func(p *httputil.ProxyRequest) {
			cred, ok := p.In.Context().Value(userKey{}).(syscall.Ucred)
			if !ok {
				return // the other side refuses
			}
			p.Out.URL = &url.URL{Scheme: "http", Host: "controller", Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
			if other := path(p.In.URL.Path); other != "" {
				p.Out.URL.Path, p.Out.URL.RawPath = other, ""
			}
			p.Out.Host = "controller"
			p.Out.Header.Set(api.UIDHeader, strconv.FormatUint(uint64(cred.Uid), 10))
			p.Out.Header.Set(api.GIDHeader, strconv.FormatUint(uint64(cred.Gid), 10))
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // who asked has gone
			}
			e := &api.Error{What: err.Error(), Code: fault.CodeUnreachable, Kind: api.Left, Hint: "is the controller running?"}
			if _, ok := errors.AsType[*unsent](err); ok {
				e.Kind = api.Away
			}
			if known, ok := errors.AsType[*fault.Error](err); ok {
				e.Cause, e.Hint = known.Cause, cmp.Or(known.Hint, e.Hint)
			}
			refuse(w, http.StatusServiceUnavailable, e)
		},
		ErrorLog: slog.NewLogLogger(f.Log.Handler(), slog.LevelDebug),
	}
}

func refuse(w http.ResponseWriter, code int, e *api.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(e) // who asked may be gone
}
