package fsx_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/fsx"
)

func acquire(t *testing.T, name string, mode fsx.LockMode) *fsx.Lock {
	t.Helper()
	l, err := fsx.Acquire(t.Context(), name, mode)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// refused says whether the lock cannot be had within a moment.
func refused(t *testing.T, name string, mode fsx.LockMode) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	l, err := fsx.Acquire(ctx, name, mode)
	if err == nil {
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		return false
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return true
}

func TestLockModes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	a := acquire(t, name, fsx.Shared)
	b := acquire(t, name, fsx.Shared)
	if !refused(t, name, fsx.Exclusive) {
		t.Error("exclusive beside shared")
	}
	if err := errors.Join(a.Release(), b.Release()); err != nil {
		t.Fatal(err)
	}
	c := acquire(t, name, fsx.Exclusive)
	if _, err := fsx.TryAcquire(name, fsx.Shared); !errors.Is(err, fsx.ErrLocked) {
		t.Errorf("try beside an exclusive holder: %v", err)
	}
	if !refused(t, name, fsx.Shared) || !refused(t, name, fsx.Exclusive) {
		t.Error("a second holder beside an exclusive one")
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second release: %v", err)
	}
	if refused(t, name, fsx.Exclusive) {
		t.Error("not free after release")
	}
}

// TestLockExcludes counts under the lock in a way that loses counts without it.
// (Atomics, because the race detector does not know that flock orders memory.)
func TestLockExcludes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	var inside, total atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				l, err := fsx.Acquire(t.Context(), name, fsx.Exclusive)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				before := total.Load()
				runtime.Gosched()
				total.Store(before + 1)
				inside.Add(-1)
				if err := l.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != 40 {
		t.Errorf("counted %d of 40", n)
	}
}

func TestLockCanceled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	held := acquire(t, name, fsx.Exclusive)
	defer func() { _ = held.Release() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gave up")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	if _, err := fsx.Acquire(ctx, name, fsx.Exclusive); !errors.Is(err, why) {
		t.Errorf("error %v, want the cause of the cancellation", err)
	}
	if _, err := fsx.Acquire(t.Context(), filepath.Join(name, "x"), fsx.Shared); err == nil {
		t.Error("locked a file below a file")
	}
}

// TestLockFileReplaced removes the file under a waiter: it must end up with the
// lock on the file that has the name now.
func TestLockFileReplaced(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	old := acquire(t, name, fsx.Exclusive)
	got := make(chan *fsx.Lock)
	go func() {
		l, err := fsx.Acquire(t.Context(), name, fsx.Exclusive)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := old.Release(); err != nil {
		t.Fatal(err)
	}
	l := <-got
	if !refused(t, name, fsx.Shared) {
		t.Error("the waiter holds a lock that nobody else sees")
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
}

func holdForEver(name string) {
	if _, err := fsx.Acquire(context.Background(), name, fsx.Exclusive); err != nil {
		os.Exit(1)
	}
	time.Sleep(time.Hour)
}

// TestLockHolderKilled: the kernel gives back the lock of a dead process.
func TestLockHolderKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	cmd := child(t, "lock", name)
	for deadline := time.Now().Add(10 * time.Second); !refused(t, name, fsx.Exclusive); {
		if time.Now().After(deadline) {
			t.Fatal("the child never took the lock")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if refused(t, name, fsx.Exclusive) {
		t.Error("a dead process holds the lock")
	}
}
