package step

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

// port is one that ranks will listen on: nobody else has it, and until it is released
// nobody gets it.
type port struct {
	number int
	once   sync.Once
	held   *os.File
	lock   *fsx.Lock
	name   string // of the lock
}

// The ports that steps may have where the kernel gives none of them to others' connections.
const (
	firstPort = 10000
	lastPort  = 32000
)

// portRange is the ports outside those that the kernel gives to connections.
func portRange(ephemeral string) (first, last int) {
	first, last = firstPort, lastPort
	f := strings.Fields(ephemeral)
	if len(f) != 2 {
		return first, last
	}
	low, err := strconv.Atoi(f[0])
	high, err2 := strconv.Atoi(f[1])
	switch {
	case err != nil || err2 != nil || low > last || high < first:
	case low-first >= last-high && low-first > 100:
		last = low - 1
	case high < 65000:
		first, last = high+1, 65535
	}
	return first, last
}

// holdPort takes a port. Those of a user's steps that run are locked by files, for as long
// as this process lives: the port itself is held only until release.
func holdPort(dir string) (*port, error) {
	b, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	first, last := portRange(string(b))
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir))
	locks := filepath.Join(os.TempDir(), fmt.Sprintf("gangway-%d", os.Geteuid()), "ports")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	if err := ours(filepath.Dir(locks)); err != nil { // its name is known to everybody
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	sweepPorts(locks)
	span := last - first + 1
	at := int(h.Sum32()) % span
	for range min(span, 4096) {
		p, err := tryPort(first+at, locks)
		if err != nil {
			return nil, err
		}
		if p != nil {
			return p, nil
		}
		at = (at + 1) % span
	}
	return nil, fmt.Errorf("hold a port: none is free from %d to %d", first, last)
}

// sweepPorts removes the files of steps that were killed: nobody has them locked. One that
// another step takes at the same time looks locked to it, and it takes the next.
func sweepPorts(locks string) {
	entries, err := os.ReadDir(locks)
	if err != nil {
		return // whoever locks is told why
	}
	for _, e := range entries {
		name := filepath.Join(locks, e.Name())
		lock, err := fsx.TryAcquire(name, fsx.Exclusive)
		if err != nil {
			continue // it is in use, or has gone
		}
		_ = errors.Join(os.Remove(name), lock.Release()) // the next step tries again
	}
}

// tryPort returns nil where somebody has the port.
func tryPort(number int, locks string) (*port, error) {
	name := filepath.Join(locks, strconv.Itoa(number))
	lock, err := fsx.TryAcquire(name, fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("hold a port: %w", err)
	}
	held, err := bindPort(number)
	if err != nil {
		return nil, lock.Release() // somebody who does not know our locks
	}
	return &port{number: number, held: held, lock: lock, name: name}, nil
}

// bindPort takes a port of all addresses without listening there: ranks of other nodes
// that start earlier are refused and try again, instead of being connected to nobody.
func bindPort(number int) (*os.File, error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: number} // and of IPv4's
	fd, err := unix.Socket(unix.AF_INET6, kind, 0)
	if err != nil { // this machine has no IPv6
		to = &unix.SockaddrInet4{Port: number}
		fd, err = unix.Socket(unix.AF_INET, kind, 0)
	} else if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("make socket: %w", err), unix.Close(fd))
	}
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	if err := unix.Bind(fd, to); err != nil {
		return nil, errors.Join(fmt.Errorf("bind port %d: %w", number, err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "port"), nil
}

// release lets the ranks have the port. Other steps do not get it before free.
func (p *port) release() { p.once.Do(func() { _ = p.held.Close() }) }

// free lets others have it.
func (p *port) free() error {
	p.release()
	return errors.Join(os.Remove(p.name), p.lock.Release())
}
