package step

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestPortsOfOthers: a directory of locks that others may write to is not used.
func TestPortsOfOthers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("gangway-%d", os.Geteuid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if p, err := holdPort(t.Name()); err == nil {
		t.Errorf("port %d is held, %v", p.number, p.free())
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := holdPort(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.free(); err != nil {
		t.Error(err)
	}
}

// TestHeldPort: who connects to a port that is held is refused, so that it tries again;
// who wants to listen there cannot, until it is released.
func TestHeldPort(t *testing.T) {
	p, err := holdPort(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number))
	if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connected: %v, %v", c, err)
	}
	if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listened: %v, %v", l, err)
	}
	p.release()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Close(), p.free()); err != nil {
		t.Error(err)
	}
}

// TestPortsOfTheDead: what a step that was killed has left is removed by the next one, and
// what one that lives has is not.
func TestPortsOfTheDead(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	first, err := holdPort(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(filepath.Dir(first.name), "9999")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := holdPort(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that nobody has locked: %v", err)
	}
	if _, err := os.Lstat(first.name); err != nil || first.number == second.number {
		t.Errorf("ports %d and %d: %v", first.number, second.number, err)
	}
	if err := errors.Join(first.free(), second.free()); err != nil {
		t.Error(err)
	}
}
