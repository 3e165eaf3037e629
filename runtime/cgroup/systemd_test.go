package cgroup

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestScopeRefused: what is no manager of systemd's is refused by name, and costs neither
// time nor memory.
func TestScopeRefused(t *testing.T) {
	const session = "/sys/fs/cgroup/user.slice/user-1.slice"
	uid := os.Getuid()
	for name, c := range map[string]struct {
		lay  func(t *testing.T, path string) // what lies in place of the socket
		want string
	}{
		"nothing":           {func(*testing.T, string) {}, "this user has no systemd manager"},
		"a file":            {func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, "is no socket"},
		"a fifo":            {func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) }, "is no socket"},
		"a link":            {func(t *testing.T, path string) { must(t, os.Symlink("/run/other", path)) }, "is no socket"},
		"nobody's":          {func(t *testing.T, path string) { must(t, serve(t, path, func(net.Conn) {}).Close()) }, "start "},
		"one that hangs up": {func(t *testing.T, path string) { serve(t, path, func(c net.Conn) { _ = c.Close() }) }, "start "},
		"one that babbles": {func(t *testing.T, path string) {
			serve(t, path, func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("\xff\r\n", 1000))) })
		}, "start "},
	} {
		t.Run(name, func(t *testing.T) {
			runtime, err := os.MkdirTemp("", "a;b,c=%") // what separates fields of an address
			must(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(runtime) })
			must(t, os.Mkdir(filepath.Join(runtime, "systemd"), 0o700))
			c.lay(t, filepath.Join(runtime, "systemd/private"))
			g := &Group{proc: "/proc", name: "gangway/test/scope", opts: Options{UID: max(uid, 0), Runtime: runtime}}
			if uid == 0 { // root asks for no scope
				g.opts.UID = 12345
				if _, err := os.Lstat(filepath.Join(runtime, "systemd/private")); err == nil {
					must(t, os.Lchown(filepath.Join(runtime, "systemd/private"), g.opts.UID, -1))
				}
			}
			began := time.Now()
			err = g.asScope(t.Context(), []hierarchy{{version: 2, mount: "/sys/fs/cgroup", home: session}})
			refusal, ok := errors.AsType[Refusal](err)
			if !ok || refusal.Rung != Systemd && name != "nothing" || !strings.Contains(refusal.Why, c.want) {
				t.Errorf("got %v, want a refusal: %s", err, c.want)
			}
			if d := time.Since(began); d > systemdPatience/2 {
				t.Errorf("it took %s", d)
			}
		})
	}
}

// serve listens at path.
func serve(t *testing.T, path string, do func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	must(t, err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			do(c)
		}
	}()
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
