package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/socket"
)

// identity is who asks, as the kernel says.
type identity struct {
	uid, gid uint32
	users    *users
	from     host.Peer // who says so; zero: the kernel of this host
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

// groups are the names of the user's groups, as this machine knows them.
func (i identity) groups() []string { return i.users.groups(i.uid) }

// name is the user's name, or the number where there is none.
func (i identity) name() string { return i.users.name(i.uid) }

// users are names that were looked up.
type users struct {
	mu    sync.Mutex
	names map[uint32]string
	of    map[uint32]membership
}

// membership is which groups a user was in at a moment.
type membership struct {
	groups []string
	at     time.Time
}

// memberSpan is how long it is taken for true.
const memberSpan = time.Minute

// groups are those of a user; none if it is not known.
func (u *users) groups(uid uint32) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if m, ok := u.of[uid]; ok && time.Since(m.at) < memberSpan {
		return m.groups
	}
	m := membership{at: time.Now()}
	if found, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		ids, _ := found.GroupIds() // without it is in none that counts
		for _, id := range ids {
			if g, err := user.LookupGroupId(id); err == nil {
				m.groups = append(m.groups, g.Name)
			}
		}
	}
	if u.of == nil {
		u.of = map[uint32]membership{}
	}
	u.of[uid] = m
	return m.groups
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
	return identity{cred.Uid, cred.Gid, &s.users, from}, nil
}
