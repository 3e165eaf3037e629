package step

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"
)

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
