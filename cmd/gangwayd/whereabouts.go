package main

import (
	"net"
	"strconv"
	"sync"
)

// whereabouts is where a host is reached: by the address from which it reaches the
// controller, which may be another after a time.
type whereabouts struct {
	fixed string // as the administrator says; empty: see above
	port  int    // of the agent's service

	mu   sync.Mutex
	last string
}

// saw takes the address from a connection to the controller.
func (w *whereabouts) saw(c net.Conn) {
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.last = a.IP.String()
	}
}

// now is the address, and the agent's service.
func (w *whereabouts) now() (address, socket string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	address = w.last
	if w.fixed != "" {
		address = w.fixed
	}
	return address, "tls:" + net.JoinHostPort(address, strconv.Itoa(w.port))
}
