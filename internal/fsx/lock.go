package fsx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LockMode says who else may hold a lock at the same time.
type LockMode int

// The two modes of a lock.
const (
	Exclusive LockMode = unix.LOCK_EX // nobody else
	Shared    LockMode = unix.LOCK_SH // others that hold it shared
)

// ErrLocked says that somebody else holds a lock.
var ErrLocked = errors.New("locked by somebody else")

// Lock is a held lock. The kernel drops it when the process ends, however it ends.
type Lock struct{ f *os.File }

// Acquire waits until it holds the lock on the file name, or until ctx is done,
// and then returns ctx's cause. The file is made (mode 0600) if it is not there,
// stays empty and is left in place by Release. Whoever removes it takes the lock
// exclusively first; waiters notice and lock the new file.
//
// The lock belongs to the returned value, not to the process: a second Acquire in
// the same process waits too. There is no queue: a waiter looks again after 1 ms
// and then at growing intervals up to 50 ms.
func Acquire(ctx context.Context, name string, mode LockMode) (*Lock, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if err := context.Cause(ctx); err != nil {
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		l, err := TryAcquire(name, mode)
		if !errors.Is(err, ErrLocked) {
			return l, err
		}
		// A blocking flock could only be ended by a signal to its thread.
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// TryAcquire is Acquire without waiting: it returns ErrLocked if somebody else
// holds the lock.
func TryAcquire(name string, mode LockMode) (*Lock, error) {
	l, err := tryLock(name, mode)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return l, nil
}

// tryLock returns the lock, or EWOULDBLOCK if it is held or its file was replaced
// while it was taken.
func tryLock(name string, mode LockMode) (*Lock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), int(mode)|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err == nil && !sameFile(f, name) {
		err = unix.EWOULDBLOCK
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &Lock{f}, nil
}

// sameFile says whether f is still the file that name leads to.
func sameFile(f *os.File, name string) bool {
	a, errA := f.Stat()
	b, errB := os.Stat(name)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Release gives the lock back. A second call returns os.ErrClosed.
func (l *Lock) Release() error { return l.f.Close() }
