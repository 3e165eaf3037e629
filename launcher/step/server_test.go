package step

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shortOf is a listener of a process that has too few descriptors for a while.
type shortOf struct {
	*net.UnixListener
	errs []error
}

// AcceptUnix implements listener.
func (l *shortOf) AcceptUnix() (*net.UnixConn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
	}
	return l.UnixListener.AcceptUnix()
}

// listening starts a server without a container, and returns the socket's directory.
func listening(t *testing.T, errs ...error) (dir string, ended chan struct{}) {
	t.Helper()
	dir = t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, sockName)})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	s := &server{log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		s.serve(ctx, &shortOf{l, errs})
	}()
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		<-ended
		s.wg.Wait()
	})
	return dir, ended
}

// asked is what a server without a container says to a request without a command.
func asked(dir string) string {
	err := Exec(context.Background(), dir, ExecOptions{Terminal: true})
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestServeGoesOn: what accept lacks for a moment does not end the server.
func TestServeGoesOn(t *testing.T) {
	dir, _ := listening(t, syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED)
	if got := asked(dir); !strings.Contains(got, "no command") {
		t.Error(got)
	}
}

// TestServeGivesUp: a server that ends refuses who asks; nobody hangs.
func TestServeGivesUp(t *testing.T) {
	dir, ended := listening(t, syscall.EBADF)
	<-ended
	if got := asked(dir); !strings.Contains(got, "refused") {
		t.Error(got)
	}
}

// TestServeSilent: connections that say nothing keep neither others nor the end waiting.
func TestServeSilent(t *testing.T) {
	dir, _ := listening(t)
	for range maxUnanswered / 2 {
		c, err := dial(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	start := time.Now()
	if got := asked(dir); !strings.Contains(got, "no command") {
		t.Error(got)
	}
	if took := time.Since(start); took > requestTime/2 {
		t.Errorf("it took %v", took)
	}
}

// TestPeerNamespace: a process of a container, which is in a user namespace of its own,
// is refused where it finds a socket.
func TestPeerNamespace(t *testing.T) {
	if dir := os.Getenv("GANGWAY_TEST_ASK"); dir != "" {
		_, _ = os.Stdout.WriteString("said: " + asked(dir) + "\n")
		return
	}
	dir, _ := listening(t)
	for flags, want := range map[uintptr]string{0: "no command", syscall.CLONE_NEWUSER: "another user namespace"} {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestPeerNamespace$")
		cmd.Env = append(os.Environ(), "GANGWAY_TEST_ASK="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  flags,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		}
		if flags == 0 {
			cmd.SysProcAttr.UidMappings = nil
		}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("namespace %#x: %v: %s", flags, err, out)
		}
	}
}

// TestRequestBytes: what is no text comes through a request as it is.
func TestRequestBytes(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, sockName)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw := "a\xff\xfe\x80z"
	go func() {
		_ = Exec(t.Context(), dir, ExecOptions{Args: []string{raw, ""}, Env: []string{"A=" + raw}, Cwd: "/" + raw, Terminal: true})
	}()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	req, files, err := request(t.Context(), c)
	if err != nil || len(files) != 0 {
		t.Fatal(err, files)
	}
	if a := texts(req.Args); len(a) != 2 || a[0] != raw || a[1] != "" || texts(req.Env)[0] != "A="+raw || string(req.Cwd) != "/"+raw {
		t.Errorf("%q %q %q", req.Args, req.Env, req.Cwd)
	}
}

// TestPeerUnknown: who asks is refused where it cannot be said which process that is.
func TestPeerUnknown(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close()
	c, err := net.FileConn(ours)
	if err := errors.Join(err, ours.Close()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := checkPeer(c.(*net.UnixConn)); err != nil {
		t.Error(err)
	}
	// A pidfd that there is no room for stands for one of a process that has ended, which
	// only some kernels refuse.
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: 0, Max: limit.Max}
	err = unix.Prlimit(0, unix.RLIMIT_NOFILE, &full, nil)
	refused := checkPeer(c.(*net.UnixConn))
	if err := errors.Join(err, unix.Prlimit(0, unix.RLIMIT_NOFILE, &limit, nil)); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(refused, syscall.EMFILE) {
		t.Errorf("got %v", refused)
	}
}
