package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/socket"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// Whose cluster it is.
const (
	modeUser   = "user"   // of who runs the daemons
	modeSystem = "system" // of all users of the machine
)

// modeFlags say whose cluster a daemon is of, and where its sockets are if it is everybody's.
type modeFlags struct{ mode, runDir string }

func (m *modeFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.mode, "mode", "", "user: the cluster is of who runs this; system: of all users of the machine (default system as root, else user)")
	f.StringVar(&m.runDir, "run-dir", api.SystemDir, "in the mode system, where sockets and the steps of users are; every user can pass it, and only root write to it")
}

// system says whether the cluster is that of all users.
func (m *modeFlags) system() (bool, error) {
	switch m.mode {
	case "":
		return os.Geteuid() == 0, nil
	case modeUser, modeSystem:
		return m.mode == modeSystem, nil
	}
	return false, fault.Usage(fmt.Errorf("--mode %q: it is %s or %s", m.mode, modeUser, modeSystem), "--mode="+modeSystem)
}

// sockets is the directory of a daemon of the mode system, by the names that lead there; it
// is made.
func (m *modeFlags) sockets(names ...string) (string, error) {
	dir, err := filepath.Abs(m.runDir)
	if err != nil {
		return "", err
	}
	hint := func(err error) error {
		return &fault.Error{
			What: fmt.Errorf("make directory of sockets: %w", err),
			Hint: "run it as root, name another directory: --run-dir DIR; or have the cluster be yours alone: --mode=" + modeUser,
		}
	}
	for i := range len(names) + 1 {
		at := filepath.Join(append([]string{dir}, names[:i]...)...)
		err := os.MkdirAll(at, 0o755)
		if err == nil {
			err = public(at)
		}
		if err != nil {
			return "", hint(err)
		}
	}
	return filepath.Join(append([]string{dir}, names...)...), nil
}

// public has a directory of this user's passed by everybody, and changed by nobody else.
func public(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir() || !ok || !socket.IsOurs(sys.Uid):
		return fmt.Errorf("use %s: it is not a directory of root or this user", dir)
	case sys.Uid != uint32(os.Geteuid()) || st.Mode().Perm() == 0o755:
	default:
		if err := os.Chmod(dir, 0o755); err != nil { // whatever the umask
			return err
		}
	}
	if st, err = os.Lstat(dir); err == nil && (st.Mode()&0o022 != 0 || st.Mode()&0o005 != 0o005) {
		err = fmt.Errorf("use %s: its mode is %o, and has to be 755", dir, st.Mode().Perm())
	}
	return err
}

// memberSockets is where a daemon of another host than the controller's has its sockets.
func (m *modeFlags) memberSockets(stateDir, cluster, self string) (dir string, system bool, err error) {
	if system, err = m.system(); err != nil || !system {
		return stateDir, false, err
	}
	dir, err = m.sockets(cluster, self)
	return dir, true, err
}

// users makes an agent that of all users, where the mode is system: its sockets and their
// steps are in the directory of sockets.
func (m *modeFlags) users(o *agent.Options, sockets string) error {
	if os.Geteuid() != 0 {
		return &fault.Error{What: errors.New("run steps of all users of the machine: only root may"), Hint: "run it as root, or for yourself: --mode=" + modeUser}
	}
	o.Socket = filepath.Join(sockets, "agent.sock")
	o.Users = &agent.Users{Dir: filepath.Join(sockets, "users")}
	return nil
}

// listenFor makes a public API's socket: everybody's in the mode system.
func listenFor(system bool, path string) (net.Listener, error) {
	if system {
		return socket.ListenForAll(path)
	}
	return socket.Listen(path)
}

// announce has all users' commands find a cluster at a socket, until the process ends.
func (m *modeFlags) announce(ctx context.Context, cluster, self, path string) (withdraw func(), err error) {
	dir, err := m.sockets("clusters")
	if err != nil {
		return nil, err
	}
	start, err := agent.StartOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	name := cluster
	if self != "" {
		name += "@" + self
	}
	file := filepath.Join(dir, name+".json")
	found := api.Found{Name: cluster, Socket: "unix:" + path, PID: os.Getpid(), Start: start}
	err = fsx.WriteFile(ctx, file, fsx.Options{Mode: 0o644}, func(f *os.File) error { return json.NewEncoder(f).Encode(found) })
	if err != nil {
		return nil, fmt.Errorf("announce the cluster: %w", err)
	}
	return func() {
		b, err := os.ReadFile(file)
		var now api.Found
		if err == nil && json.Unmarshal(b, &now) == nil && now.PID == os.Getpid() && now.Start == start { // and not the next one's
			_ = os.Remove(file) // if it stays, commands find nobody there, and say so
		}
	}, nil
}
