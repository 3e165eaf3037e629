package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// Admin asks for something about the store itself. Everybody may list, and sees what he
// was handed, and what is anybody's; all else is root's, and the server's own user's.
type Admin struct {
	Do     string           `json:"do"` // AdminList and so on
	Images []image.Image    `json:"images,omitempty"`
	GC     *image.GCOptions `json:"gc,omitempty"`
	Keep   bool             `json:"keep,omitempty"` // as in image.VerifyOptions; all images, if none is named
}

// What an Admin may do.
const (
	AdminList   = "list"
	AdminPin    = "pin"
	AdminUnpin  = "unpin"
	AdminRemove = "remove"
	AdminGC     = "gc"
	AdminVerify = "verify"
)

// Listed is an image of the node's store.
type Listed struct {
	image.Image
	Size image.Size `json:"size"`
	Used time.Time  `json:"used"`
}

// AdminResult is the answer to an Admin.
type AdminResult struct {
	Images []Listed           `json:"images,omitempty"`
	GC     image.GCReport     `json:"gc,omitzero"`
	Verify image.VerifyReport `json:"verify,omitzero"`
}

// maxListed bounds a list, so that it fits into a frame.
const maxListed = 5000

// admin answers one.
func (c *conn) admin(ctx context.Context, q *Admin) error {
	if q.Do != AdminList && c.uid != 0 && int(c.uid) != os.Geteuid() {
		return &fault.Error{
			What: fmt.Errorf("%s in the node's image store: user %d may not", q.Do, c.uid),
			Hint: "ask the administrator; images of your own store: --store DIR",
		}
	}
	store := c.s.o.Store
	r := &AdminResult{}
	var err error
	switch q.Do {
	case AdminList:
		r.Images, err = c.list()
	case AdminPin, AdminUnpin:
		for _, i := range q.Images {
			err = errors.Join(err, store.Pin(ctx, &i, q.Do == AdminPin))
		}
	case AdminRemove:
		for _, i := range q.Images {
			var one image.GCReport
			if one, err = store.Remove(ctx, &i); err != nil {
				break
			}
			r.GC.Images, r.GC.Files, r.GC.Freed, r.GC.Kept = append(r.GC.Images, one.Images...), r.GC.Files+one.Files, r.GC.Freed+one.Freed, one.Kept
		}
	case AdminGC:
		if q.GC == nil {
			return errProtocol
		}
		r.GC, err = store.GC(ctx, *q.GC)
	case AdminVerify:
		if o := (image.VerifyOptions{Keep: q.Keep}); len(q.Images) == 0 {
			r.Verify, err = store.VerifyAll(ctx, o)
		} else {
			r.Verify, err = store.Verify(ctx, q.Images, o)
		}
	default:
		return errProtocol
	}
	if err != nil {
		return err
	}
	return c.reply(&reply{Admin: r})
}

// list returns what the user may see.
func (c *conn) list() ([]Listed, error) {
	images, err := c.s.o.Store.List()
	if c.uid != 0 && int(c.uid) != os.Geteuid() {
		err = nil // what is damaged is the administrator's to mend
		images = slices.DeleteFunc(images, func(i image.Image) bool { return !c.s.seen.has(c.uid, &i) })
	}
	if err != nil && len(images) == 0 {
		return nil, err
	}
	if len(images) > maxListed {
		images = images[:maxListed]
	}
	sizes := c.s.o.Store.Sizes(images)
	all := make([]Listed, len(images))
	for n, i := range images {
		all[n] = Listed{i, sizes[n], i.Used}
	}
	return all, nil
}

// seen is which users were let read which images, since the server started: what they may
// know to be there.
type seen struct {
	mu    sync.Mutex
	users map[string]map[uint32]bool // by seenKey; of anyone: anyoneID
}

// anyoneID stands for all users; it is no user's id (setuid(2) takes it for "as it is").
const anyoneID = 1<<32 - 1

func seenKey(i *image.Image) string {
	return strings.Join([]string{i.Reference, i.Platform, string(i.Manifest)}, "\n")
}

func (s *seen) add(uid uint32, anyone bool, i *image.Image) {
	if anyone {
		uid = anyoneID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.users) >= maxGrants {
		clear(s.users) // they are listed again when they are next used
	}
	key := seenKey(i)
	if s.users[key] == nil {
		s.users[key] = map[uint32]bool{}
	}
	s.users[key][uid] = true
}

func (s *seen) has(uid uint32, i *image.Image) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := s.users[seenKey(i)]
	return users[uid] || users[anyoneID]
}

// Admin has the server do something about its store.
func (c *Client) Admin(ctx context.Context, q *Admin) (*AdminResult, error) {
	call, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	defer call.conn.Close()
	r, err := call.ask(ctx, &request{Version: version, Admin: q}, nil)
	if err == nil && r.Admin == nil {
		err = call.gone(ctx, errUnasked)
	}
	if err != nil {
		return nil, err
	}
	return r.Admin, nil
}
