package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/internal/socket"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// askerKey is under which a request's context has the uid of who asks, of this machine. A
// request without it comes from the controller, which has seen to it whose the step is.
type askerKey struct{}

// askerOf puts who has connected into the context of a connection's requests.
func askerOf(ctx context.Context, c net.Conn) context.Context {
	if cred, err := socket.Peer(c); err == nil {
		return context.WithValue(ctx, askerKey{}, cred.Uid)
	}
	return ctx
}

// listenAt makes the agent's socket: where steps are all users', everybody may ask.
func (a *Agent) listenAt() (net.Listener, error) {
	if a.Users == nil {
		l, err := socket.Listen(a.Socket)
		if err != nil {
			return nil, err
		}
		return socket.Ours{Listener: l}, nil
	}
	return socket.ListenForAll(a.Socket)
}

// may says whether who makes a request may have the input and output of a user's step. Root
// of this machine may name another for whom it asks, as whoever brings the requests of users does.
func may(r *http.Request, uid uint32) bool {
	asker, ok := r.Context().Value(askerKey{}).(uint32)
	if !ok {
		return true // the controller
	}
	if socket.IsOurs(asker) {
		text := r.Header.Get(api.UIDHeader)
		n, err := strconv.ParseUint(text, 10, 32)
		if text == "" || err == nil && n == 0 {
			return true
		}
		return err == nil && uint32(n) == uid
	}
	return asker == uid
}

// refuseStranger answers who may not have a step.
func refuseStranger(w http.ResponseWriter, key job.StepKey) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusForbidden)
	_ = json.NewEncoder(w).Encode(&api.Error{What: fmt.Sprintf("step %s: it is not yours", key), Kind: api.Denied}) // who asked may be gone
}

// ownedStep is where a step's files are and how it is reached by who asks; an answer was
// given where it is not.
func (a *Agent) ownedStep(w http.ResponseWriter, r *http.Request, key job.StepKey) (s *supervisor, ok bool) {
	s = &supervisor{key: key, dir: filepath.Join(a.stepsDir(), control.DirOf(key)), users: a.Users}
	if a.Users == nil {
		return s, true
	}
	until := time.Now().Add(soonWait)
	for wait := firstLook; s.owner() == nil; wait = min(2*wait, lastLook) {
		if s.findOwner(); s.owner() != nil {
			break
		}
		if time.Now().After(until) || r.Context().Err() != nil {
			http.Error(w, fmt.Sprintf("step %s is not known", key), http.StatusNotFound)
			return nil, false
		}
		time.Sleep(wait) // it was just made
	}
	if !may(r, s.owner().UID) {
		refuseStranger(w, key)
		return nil, false
	}
	return s, true
}

// mayList says whether a step's name is for who asks.
func (a *Agent) mayList(r *http.Request, name string) bool {
	if a.Users == nil {
		return true
	}
	key, err := control.ParseDir(name)
	if err != nil {
		return false
	}
	s := &supervisor{key: key, dir: filepath.Join(a.stepsDir(), name), users: a.Users}
	s.findOwner()
	return s.owner() != nil && may(r, s.owner().UID)
}

// cleanUsers removes what containers of users left whose supervisors were killed: of some
// users, or of all that have a directory here. It is done by a program of each of them, since
// what lies there is theirs.
func (m *machine) cleanUsers(ctx context.Context, uids map[uint32]bool) error {
	entries, err := os.ReadDir(m.Users.Dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	var errs []error
	for _, e := range entries {
		n, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || uids != nil && !uids[uint32(n)] {
			continue
		}
		if err := m.cleanUser(ctx, uint32(n)); err != nil {
			errs = append(errs, fmt.Errorf("remove what containers of user %d left: %w", n, err))
		}
	}
	return errors.Join(errs...)
}

// cleanPatience is how long that may take.
const cleanPatience = 30 * time.Second

func (m *machine) cleanUser(ctx context.Context, uid uint32) error {
	dir := m.Users.node(uid)
	st, err := os.Lstat(filepath.Join(dir, "run"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // there was no step yet
	}
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || sys.Uid != uid {
		return fmt.Errorf("%s is not user %d's", dir, uid)
	}
	o := &owner{UID: uid, GID: sys.Gid, Groups: []uint32{sys.Gid}, Home: "/"}
	if known, err := m.Users.Accounts.ByID(ctx, uid); err == nil {
		o.Name, o.Home, o.Shell = known.Name, known.Home, known.Shell
	}
	ctx, cancel := context.WithTimeout(ctx, cleanPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.Gangway, "step", "--leftovers", dir)
	cmd.Dir = "/"
	var said proc.Excerpt
	cmd.Stderr = &said
	proc.Confine(cmd)
	o.become(cmd, m.Environ)
	if err := m.Orphans.Start(cmd); err != nil {
		return err
	}
	if err := m.Orphans.Wait(cmd); err != nil {
		return fmt.Errorf("%w: %s", err, said.Bytes())
	}
	return nil
}
