package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// systemdPatience is how long the user manager may take to make a scope. A machine that is
// merely busy shall not cost the rung.
const systemdPatience = 10 * time.Second

// asScope asks the user's systemd for a scope of its own with the caller in it.
func (g *Group) asScope(ctx context.Context, found []hierarchy) error {
	if g.opts.UID == 0 || len(found) == 0 || found[0].version != 2 {
		return Refusal{}
	}
	socket := filepath.Join(g.opts.Runtime, "systemd/private")
	var st unix.Stat_t
	if err := unix.Lstat(socket, &st); g.opts.Runtime == "" || err != nil {
		return Refusal{Systemd, "this user has no systemd manager (XDG_RUNTIME_DIR, " + socket + ")", "log in through ssh, or: loginctl enable-linger"}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != g.opts.UID {
		return Refusal{Systemd, socket + " is no socket of this user's", "XDG_RUNTIME_DIR has to be the user's own"}
	}
	if h := &found[0]; outside(h.home) {
		// A scope elsewhere would escape the limits that hold for what is here.
		return Refusal{Systemd, "this process is in " + h.home + ", which is not systemd's user session", ""}
	}
	g.rung = Systemd
	g.scope = strings.ReplaceAll(g.name, "/", "-") + ".scope"
	limited, cancel := context.WithTimeout(ctx, systemdPatience)
	defer cancel()
	if err := startScope(limited, socket, g.scope, os.Getpid()); err != nil {
		var refusal dbus.Error
		if errors.As(err, &refusal) && refusal.Name == "org.freedesktop.systemd1.UnitExists" {
			return fmt.Errorf("start %s: %w", g.scope, os.ErrExist)
		}
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer from %s in %s", socket, systemdPatience)
		}
		return Refusal{Systemd, fmt.Sprintf("start %s: %v", g.scope, err), ""}
	}
	moved, err := hierarchies(g.proc)
	if err != nil {
		return err
	}
	h := &moved[0]
	if filepath.Base(h.home) != g.scope {
		return Refusal{Systemd, "systemd started " + g.scope + " and did not move this process into it", "this process has to be in a session of the user's"}
	}
	g.trees = []*tree{{hierarchy: h, base: h.home, dir: h.home}}
	return g.begin()
}

// outside says whether home is in what something other than systemd's login sessions gave
// this process, such as a batch system or a pod.
func outside(home string) bool {
	return home == "" || !strings.Contains(home+"/", "/user.slice/") && !strings.Contains(home, "/user@")
}

// startScope starts the scope through the manager's own socket, which needs no message bus.
func startScope(ctx context.Context, socket, unit string, pid int) error {
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(fmt.Sprint(os.Getuid()))}); err != nil {
		return err
	}
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	const name, path = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
	manager := conn.Object(name, path)
	if err := wake(ctx, manager); err != nil {
		return err
	}
	if err := manager.CallWithContext(ctx, name+".Manager.Subscribe", 0).Err; err != nil {
		return err
	}
	type property struct {
		Name  string
		Value dbus.Variant
	}
	type auxiliary struct {
		Name       string
		Properties []property
	}
	properties := []property{
		{"Description", dbus.MakeVariant("Gangway container")},
		{"PIDs", dbus.MakeVariant([]uint32{uint32(pid)})},
		{"Delegate", dbus.MakeVariant(true)},
		{"CollectMode", dbus.MakeVariant("inactive-or-failed")},
	}
	var job dbus.ObjectPath
	if err := manager.CallWithContext(ctx, name+".Manager.StartTransientUnit", 0, unit, "fail", properties, []auxiliary{}).Store(&job); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", ctx.Err())
		case s, ok := <-signals:
			if !ok {
				return errors.New("systemd closed the connection")
			}
			if s.Name != name+".Manager.JobRemoved" || len(s.Body) != 4 || s.Body[1] != job {
				continue
			}
			if result := s.Body[3]; result != "done" {
				return fmt.Errorf("systemd says %v", result)
			}
			return nil
		}
	}
}

// wake speaks to the manager until it answers. Its library (systemd 252 and others) forgets
// what it received together with the last word of the authentication, until more comes.
func wake(ctx context.Context, manager dbus.BusObject) error {
	const ping = "org.freedesktop.DBus.Peer.Ping"
	first := manager.GoWithContext(ctx, ping, 0, make(chan *dbus.Call, 1))
	for {
		select {
		case call := <-first.Done:
			return call.Err
		case <-time.After(5 * time.Millisecond):
			manager.Go(ping, dbus.FlagNoReplyExpected, nil)
		}
	}
}
