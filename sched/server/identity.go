package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/account"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// identity is who asks, as the kernel says.
type identity struct {
	uid, gid uint32
	users    *account.Database
	from     host.Peer // who says so; zero: the kernel of this host
	// multiuser: the cluster is not one user's.
	multiuser bool
}

// admin says whether who asks may do everything: nobody may by another host's word.
func (i identity) admin() bool { return isAdmin(i.uid) && i.from == (host.Peer{}) }

// may says whether who asks may do something to a job.
func (i identity) may(spec *job.Spec) bool { return i.admin() || spec.UID == i.uid }

// mayAsk refuses what is for administrators, unless a job has it already.
func (i identity) mayAsk(spec, have *job.Spec) *api.Error {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	switch {
	case i.admin():
	case spec.Nice < 0 && spec.Nice != have.Nice:
		return &api.Error{What: fmt.Sprintf("nice %d: only an administrator may give less than 0", spec.Nice), Kind: "ACCESS_DENIED"}
	case spec.Priority != nil && !same(spec.Priority, have.Priority):
		return &api.Error{What: fmt.Sprintf("priority %d: only an administrator may give one", *spec.Priority), Kind: "ACCESS_DENIED"}
	}
	return nil
}

// name is the user's name, or the number where there is none.
func (i identity) name() string { return nameOf(i.users, i.uid) }

func nameOf(users *account.Database, uid uint32) string {
	if a, err := users.ByID(context.Background(), uid); err == nil {
		return a.Name
	}
	return strconv.FormatUint(uint64(uid), 10)
}

// groups are the names of the user's groups, as this machine knows them.
func (i identity) groups() []string {
	if a, err := i.users.ByID(context.Background(), i.uid); err == nil {
		return a.GroupNames
	}
	return nil // who is not known is in none that counts
}

type peerKey struct{}

// peerOf puts who has connected into the context of a connection's requests.
func peerOf(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(*counted); ok {
		conn = c.Conn
	}
	cred, err := socket.Peer(conn)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

// who is the identity behind a request.
func (s *Server) who(r *http.Request) (identity, *api.Error) {
	cred, ok := r.Context().Value(peerKey{}).(syscall.Ucred)
	if !ok {
		return identity{}, &api.Error{What: "who asks is not known: the connection is not a unix socket", Kind: "ACCESS_DENIED"}
	}
	from, _ := r.Context().Value(hostKey{}).(host.Peer) // else it is this host
	return identity{cred.Uid, cred.Gid, s.opts.Users, from, s.opts.Multiuser}, nil
}
