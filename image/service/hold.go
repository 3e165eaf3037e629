package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// A named container outlives its runs, and starts again from the image that it was made of.
// A user who was handed an image may therefore hold it, for a container of his: until he
// releases it nobody removes it, and for that container he gets it again without the
// registry being asked. He had it, and what was written over it is of use with it only.

// holding is a request about a container's image.
type holding struct {
	Name     string     `json:"name,omitempty"`
	Dir      string     `json:"dir"`                // of the container, which no other one of the user has
	Manifest oci.Digest `json:"manifest,omitempty"` // to be handed over
	Release  bool       `json:"release,omitempty"`
}

// maxHolds bounds the holds of a user.
const maxHolds = 256

// prefix begins the directories of a user's holds as the store knows them. They are no
// paths of this machine, so that nobody looks there whether the container is gone.
func (c *conn) prefix() string { return fmt.Sprintf("user %d:", c.uid) }

// hold holds the image that was handed over last, releases one, or hands one over.
func (c *conn) hold(ctx context.Context, q *holding) error {
	if q.Dir == "" || len(q.Dir) > 4096 || len(q.Name) > 255 || strings.ContainsAny(q.Name+q.Dir, "\x00\n") {
		return errProtocol
	}
	store, dir := c.s.o.Store, c.prefix()+q.Dir
	switch {
	case q.Release:
		if err := store.Release(q.Name, dir); err != nil {
			return err
		}
	case q.Manifest != "":
		i, err := c.held(dir, q.Manifest)
		if err != nil {
			return err
		}
		lease, err := store.Lease(ctx, i)
		if err != nil {
			return err
		}
		if err := c.keep(lease); err != nil {
			return err
		}
		return c.hand(ctx, i)
	case c.handed == nil:
		return errProtocol
	default:
		if err := c.mayHold(); err != nil {
			return err
		}
		if err := store.Hold(ctx, c.prefix()+" "+q.Name, dir, c.handed); err != nil {
			return err
		}
	}
	return c.reply(&reply{Done: true})
}

// mayHold counts what the user holds already.
func (c *conn) mayHold() error {
	all, err := c.s.o.Store.Holds()
	if err != nil {
		return err
	}
	n := 0
	for _, h := range all {
		if strings.HasPrefix(h.Dir, c.prefix()) {
			n++
		}
	}
	if n < maxHolds || c.uid == 0 {
		return nil
	}
	return &fault.Error{
		What: fmt.Errorf("hold an image of the node's store: %d named containers hold one already", n),
		Hint: "remove containers: gangway container ls, gangway container rm NAME; or use a store of your own: --store DIR",
	}
}

// held finds what one of the user's containers holds. Another container's of his is as good.
func (c *conn) held(dir string, manifest oci.Digest) (*image.Image, error) {
	all, err := c.s.o.Store.Holds()
	for n := range all {
		if h := &all[n]; strings.HasPrefix(h.Dir, c.prefix()) && h.Image.Manifest == manifest {
			return &h.Image, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%w: the container %s holds none there", image.ErrNotFound, strings.TrimPrefix(dir, c.prefix())), err)
}

// keep keeps a lease for as long as the connection, which has one: each costs a descriptor.
func (c *conn) keep(l *image.Lease) error {
	if c.lease != nil {
		return errors.Join(errProtocol, l.Release())
	}
	c.lease = l
	return nil
}
