package socket

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// short is a directory with a name short enough for sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestListen: a name that is too long is refused, and what a dead process left replaced;
// a file is not. The socket is its owner's.
func TestListen(t *testing.T) {
	t.Parallel()
	if _, err := Listen("/tmp/" + strings.Repeat("x", 108)); err == nil || !strings.Contains(err.Error(), "longer than 107 bytes") {
		t.Errorf("long: %v", err)
	}
	dir := short(t)
	for range 2 {
		l, err := Listen(filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		if st, err := os.Stat(filepath.Join(dir, "s")); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the socket is for %v, %v", st.Mode(), err)
		}
		_ = l.Close()
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(filepath.Join(dir, "f")); err == nil {
		t.Error("a file was replaced")
	}
}

// TestPeer: both ends know each other, and nobody is known at the end of anything but a
// unix socket.
func TestPeer(t *testing.T) {
	t.Parallel()
	l, err := Listen(filepath.Join(short(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	served, err := Ours{l}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	for _, c := range []net.Conn{client, served} {
		if cred, err := Peer(c); err != nil || int(cred.Uid) != os.Geteuid() || int(cred.Gid) != os.Getegid() || int(cred.Pid) != os.Getpid() {
			t.Errorf("peer %+v, %v", cred, err)
		}
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, err := Peer(a); err == nil {
		t.Error("a pipe has a peer")
	}
}
