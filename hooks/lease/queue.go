package lease

import (
	"errors"
	"strconv"
	"syscall"
)

// maxQueue is how many places a queue has. Who finds none takes enough at once or waits on.
const maxQueue = 64

// queue is a place among those that wait: each place is a name that one of them holds, and
// who sees the one before his free moves up. The zero value is none; its fd is to be -1.
type queue struct {
	place int
	fd    int
}

func place(n int) string { return "\x01queue" + strconv.Itoa(n) }

// first says whether nobody is before this one.
func (q *queue) first() bool { return q.fd >= 0 && q.place == 0 }

// advance takes the last place, or moves up as far as it can.
func (q *queue) advance(opt Options) error {
	if q.fd < 0 {
		return q.join(opt)
	}
	for q.place > 0 {
		fd, err := hold(opt, place(q.place-1))
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil
		}
		if err != nil {
			return err
		}
		q.leave()
		q.fd, q.place = fd, q.place-1
	}
	return nil
}

// join takes the place after the last: a gap before it belongs to those behind it.
func (q *queue) join(opt Options) error {
	next := 0
	for n := range maxQueue {
		if _, held := holder(opt, place(n)); held {
			next = n + 1
		}
	}
	for n := next; n < maxQueue; n++ {
		fd, err := hold(opt, place(n))
		if err == nil {
			q.fd, q.place = fd, n
			return nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) { // another that joined
			return err
		}
	}
	return nil
}

// leave gives the place back, if there is one.
func (q *queue) leave() {
	if q.fd >= 0 {
		_ = syscall.Close(q.fd) // nothing was written to it
		q.fd = -1
	}
}
