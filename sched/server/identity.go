package server

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// identity is who asks, as the kernel says.
type identity struct {
	uid, gid uint32
	users    *users
}

// admin says whether who asks may do everything: root, and who the controller runs as.
func (i identity) admin() bool { return i.uid == 0 || int(i.uid) == os.Geteuid() }

// may says whether who asks may do something to a job.
func (i identity) may(spec *job.Spec) bool { return i.admin() || spec.UID == i.uid }

// name is the user's name, or the number where there is none.
func (i identity) name() string { return i.users.name(i.uid) }

// users are names that were looked up.
type users struct {
	mu    sync.Mutex
	names map[uint32]string
}

func (u *users) name(uid uint32) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if name, ok := u.names[uid]; ok {
		return name
	}
	text := strconv.FormatUint(uint64(uid), 10)
	name := text
	if found, err := user.LookupId(text); err == nil {
		name = found.Username
	}
	if u.names == nil {
		u.names = map[uint32]string{}
	}
	u.names[uid] = name
	return name
}

type peerKey struct{}

// peerOf puts who has connected into the context of a connection's requests.
func peerOf(ctx context.Context, conn net.Conn) context.Context {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || failed != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, *cred)
}

// who is the identity behind a request.
func (s *Server) who(r *http.Request) (identity, *api.Error) {
	cred, ok := r.Context().Value(peerKey{}).(syscall.Ucred)
	if !ok {
		return identity{}, &api.Error{What: "who asks is not known: the connection is not a unix socket", Kind: "ACCESS_DENIED"}
	}
	return identity{cred.Uid, cred.Gid, &s.users}, nil
}
