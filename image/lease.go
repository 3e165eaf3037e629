package image

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Lease keeps garbage collection from what somebody is about to use. The kernel
// ends it with the process that holds it.
type Lease struct{ f *os.File }

// Release ends the lease.
func (l *Lease) Release() error {
	return errors.Join(os.Remove(l.f.Name()), l.f.Close())
}

// Lease keeps the files of an image, that are there or to come, until it is
// released. Without a lease they may go at any moment; who has opened them keeps
// what he has.
func (s *Store) Lease(ctx context.Context, i *Image) (*Lease, error) {
	return s.lease(ctx, append(layerDigests(i.Layers), i.Digest, i.Manifest, i.Config))
}

func (s *Store) lease(ctx context.Context, digests []oci.Digest) (*Lease, error) {
	// Not while somebody decides what is garbage.
	gc, err := s.lock(ctx, s.gcLock(), fsx.Shared)
	if err != nil {
		return nil, err
	}
	defer func() { _ = gc.Release() }()
	b, err := json.Marshal(digests)
	if err != nil {
		return nil, err
	}
	if err := s.mkdir(s.path("leases")); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.path("leases", strconv.Itoa(os.Getpid())+"-"+rand.Text()), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, s.fault(fmt.Errorf("lease: %w", err))
	}
	l := &Lease{f}
	if _, err = f.Write(b); err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		_ = l.Release()
		return nil, s.fault(fmt.Errorf("lease: %w", err))
	}
	return l, nil
}

// leased returns all that is leased, and removes leases that ended with their
// holder. The caller holds the lock of the garbage collection.
func (s *Store) leased() (map[oci.Digest]bool, error) {
	all := map[oci.Digest]bool{}
	for _, name := range s.glob("leases/*") {
		digests, err := readLease(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read lease: %w", err)
		}
		for _, d := range digests {
			all[d] = true
		}
	}
	return all, nil
}

func readLease(name string) ([]oci.Digest, error) {
	l, err := fsx.TryAcquire(name, fsx.Exclusive)
	if err == nil {
		return nil, errors.Join(os.Remove(name), l.Release())
	}
	if !errors.Is(err, fsx.ErrLocked) {
		return nil, err
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var digests []oci.Digest
	return digests, json.Unmarshal(b, &digests)
}
