package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// Hosts is how daemons of other hosts and this controller reach each other.
type Hosts struct {
	Listener *host.Listener // of the protocols that HostRules has
	Identity *host.Identity
	Service  *host.Service
}

// HostRules say which roles may have which protocol of the controller.
func HostRules() map[string][]host.Role {
	return map[string][]host.Role{
		host.JoinProtocol:    nil,
		host.SessionProtocol: {host.Node},
		host.APIProtocol:     {host.Node, host.Client},
	}
}

// tlsSocket begins where an agent of another host says that its service is: tls:HOST:PORT.
const tlsSocket = "tls:"

// serveHosts answers daemons of other hosts, until the function is called.
func (s *Server) serveHosts(failed chan<- error) (stop func()) {
	h := s.opts.Hosts
	joins := http.NewServeMux()
	joins.HandleFunc("POST "+host.JoinPath, h.Service.Join)
	join := s.web(joins)
	public := s.web(s.fromHosts(s.Handler()))
	public.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if c, ok := c.(*host.Conn); ok {
			return context.WithValue(ctx, hostKey{}, c.Peer)
		}
		return ctx
	}
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage), grpc.Creds(proved{}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}))
	wire.RegisterControllerServer(calls, &service{server: s})
	go func() { failed <- join.Serve(h.Listener.For(host.JoinProtocol)) }()
	go func() { failed <- public.Serve(h.Listener.For(host.APIProtocol)) }()
	go func() { failed <- calls.Serve(h.Listener.For(host.SessionProtocol)) }()
	return func() {
		_ = h.Listener.Close() // what it had is closed with it
		calls.Stop()
		_ = join.Close()
		_ = public.Close()
	}
}

func (s *Server) web(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleSpan,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog:    slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn),
	}
}

// proved are gRPC's credentials of connections whose other end has proved who it is before.
type proved struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials: there is nothing left to do.
func (proved) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	known, ok := c.(*host.Conn)
	if !ok {
		return nil, nil, errors.New("the connection has no identity")
	}
	return c, caller{known.Peer}, nil
}

// Info implements credentials.TransportCredentials.
func (proved) Info() credentials.ProtocolInfo { return insecure.NewCredentials().Info() }

// Clone implements credentials.TransportCredentials.
func (proved) Clone() credentials.TransportCredentials { return proved{} }

// caller is who has a session.
type caller struct{ host.Peer }

// AuthType implements credentials.AuthInfo.
func (caller) AuthType() string { return "gangway" }

// allowed refuses a session that another host wants for a node that is not its own. Hosts
// that are this one are known by their socket.
func (v *service) allowed(ctx context.Context, node, socket string) error {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	h, ok := p.AuthInfo.(caller)
	switch {
	case !ok:
		return nil
	case h.Name != node:
		v.server.opts.Log.Warn("session is refused", "peer", h.String(), "node", node, "err", "it is not this node")
		return status.Errorf(codes.PermissionDenied, "the certificate is of node %s, the session of node %.80q", h.Name, node)
	case !strings.HasPrefix(socket, tlsSocket):
		return status.Errorf(codes.PermissionDenied, "node %s says that its service is at %.80q, which is not on another host", node, socket)
	}
	return nil
}

// agentOf is where clients find the service of a node's agent: its socket, or, on another
// host, the node's name, which they give to whom they ask already.
func (c *core) agentOf(node string) string {
	socket := c.met[node].Socket
	if strings.HasPrefix(socket, tlsSocket) {
		return api.OnNode + node
	}
	return socket
}

// hostKey is under which a request's context has the host that brings it.
type hostKey struct{}

// fromHosts answers requests that hosts bring for their users. Who the user is, is the
// host's word, which counts as far as the host's role goes.
func (s *Server) fromHosts(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+host.RenewPath, func(w http.ResponseWriter, r *http.Request) {
		if p, ok := r.Context().Value(hostKey{}).(host.Peer); ok {
			s.opts.Hosts.Service.Renew(w, r, p)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p, ok := r.Context().Value(hostKey{}).(host.Peer)
		if !ok {
			refuse(w, &api.Error{What: "who asks is not known", Kind: "ACCESS_DENIED"})
			return
		}
		cred, err := userOf(r.Header)
		if err == nil {
			err = s.speaksFor(r.Context(), p, cred)
		}
		if err != nil {
			s.opts.Log.Warn("request is refused", "peer", p.String(), "uid", cred.Uid, "err", err)
			refuse(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), peerKey{}, cred)))
	})
	return mux
}

// userOf reads for which user a host speaks.
func userOf(h http.Header) (cred syscall.Ucred, err error) {
	id := func(name string) (uint32, error) {
		all := h.Values(name)
		if len(all) != 1 {
			return 0, &api.Error{What: fmt.Sprintf("the host does not say for which user it asks: %s is there %d times", name, len(all)), Kind: "ACCESS_DENIED"}
		}
		n, err := strconv.ParseUint(all[0], 10, 32)
		if err != nil || strconv.FormatUint(n, 10) != all[0] || n == 1<<32-1 {
			return 0, &api.Error{What: fmt.Sprintf("%s is %.80q, which is no id", name, all[0]), Kind: "ACCESS_DENIED"}
		}
		return uint32(n), nil
	}
	if cred.Uid, err = id(api.UIDHeader); err == nil {
		cred.Gid, err = id(api.GIDHeader)
	}
	return cred, err
}

// speaksFor says whether a host may speak for a user: a client for all of its users but
// root, a node for whose job runs on it.
func (s *Server) speaksFor(ctx context.Context, p host.Peer, cred syscall.Ucred) error {
	denied := &api.Error{What: fmt.Sprintf("%s %s may not speak for user %d", p.Role, p.Name, cred.Uid), Kind: "ACCESS_DENIED"}
	if p.Role == host.Client {
		if cred.Uid == 0 {
			denied.Hint = "administrators type their commands where the controller is"
			return denied
		}
		return nil
	}
	denied.Cause = "no job of this user and group runs on the node"
	denied.Hint = "submit where gangwayd client runs, or where the controller is"
	err := s.do(ctx, func(c *core) {
		if c.runsOn(p.Name, cred) {
			denied = nil
		}
	})
	if err != nil || denied == nil {
		return err
	}
	return denied
}

// runsOn says whether a job of a user has a node.
func (c *core) runsOn(node string, cred syscall.Ucred) bool {
	for id, r := range c.runs {
		if !r.on(node) || r.Facts.GID != cred.Gid {
			continue
		}
		if v, ok := c.sched.Job(id); ok && v.Spec.UID == cred.Uid {
			return true
		}
	}
	return false
}

// reaches says whether a job is within the word of who asks: a node's is as far as jobs that
// it runs, or has run lately, and those which were submitted there. Whoever has taken a node
// has all that runs there, but not what its users have elsewhere.
func (c *core) reaches(who identity, id job.ID) bool {
	if who.from.Role != host.Node || c.submission(id).Facts.Via == who.from.Name {
		return true
	}
	tasks := c.tasksOf(id)
	for _, one := range tasks {
		if r := c.runs[one]; r != nil && r.on(who.from.Name) {
			return true
		}
	}
	return slices.ContainsFunc(c.past, func(r *run) bool {
		return tasks[0] <= r.Of.Job && r.Of.Job <= tasks[len(tasks)-1] && r.on(who.from.Name)
	})
}

// on says whether a run has a node.
func (r *run) on(node string) bool {
	return slices.ContainsFunc(r.Alloc.Nodes, func(n job.NodeShare) bool { return n.Node == node })
}

// nodeIO makes the connection one to a step of who asks, on another host: bytes go both
// ways. The host's agent hears nobody but the controller.
func (s *Server) nodeIO(w http.ResponseWriter, r *http.Request) (any, error) {
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	name, dir := r.PathValue("name"), r.PathValue("key")
	key, err := control.ParseDir(dir)
	if err != nil {
		return nil, &api.Error{What: err.Error(), Kind: "INVALID_JOB_ID"}
	}
	address, err := ask(s, r, func(c *core) (string, error) {
		if _, _, err := c.owned(who, key.Job.String()); err != nil {
			return "", err
		}
		if !c.stepOn(key, name) {
			return "", &api.Error{What: fmt.Sprintf("step %s is not on node %s", dir, name), Kind: "INVALID_JOB_ID"}
		}
		return c.met[name].Socket, nil
	})
	if err != nil {
		return nil, err
	}
	address, ok := strings.CutPrefix(address, tlsSocket)
	if !ok || s.opts.Hosts == nil {
		return nil, &api.Error{What: fmt.Sprintf("node %s is not another host: its agent has a socket of its own", name), Kind: "INVALID_NODE_NAME"}
	}
	transport := host.Transport(func(ctx context.Context) (net.Conn, error) {
		c, err := s.opts.Hosts.Identity.Dial(ctx, address, host.StepProtocol, host.Node, name)
		if err != nil {
			return nil, err
		}
		return c, s.opts.Hosts.Listener.Watch(c)
	})
	transport.DisableKeepAlives = true
	relay := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: name, Path: "/v1/steps/" + dir + "/io"}
			p.Out.Header.Del(api.UIDHeader)
			p.Out.Header.Del(api.GIDHeader)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, &api.Error{What: fmt.Sprintf("reach node %s: %v", name, err), Kind: "CONTROLLER_UNREACHABLE"})
		},
		ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
	relay.ServeHTTP(w, r)
	return nil, errDone
}

// stepOn says whether a step, in just this try, is or was on a node.
func (c *core) stepOn(key job.StepKey, node string) bool {
	for _, r := range []*run{c.runs[key.Job], c.lately(key.Job)} {
		if r == nil {
			continue
		}
		all := slices.Clone(r.Done)
		for _, st := range r.Steps {
			all = append(all, st)
		}
		for _, st := range all {
			if st.Spec.Key == key && st.Gang.node(node) != nil {
				return true
			}
		}
	}
	return false
}
