package service

import (
	"context"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// grant is what a registry allowed: a user reads an image of a repository.
type grant struct {
	uid    uint32
	anyone bool // it asked for no credential
	origin string
	digest oci.Digest
}

// maxGrants bounds how many are remembered. One that is forgotten is asked for again.
const maxGrants = 1 << 16

// grants are what registries allowed a short time ago.
type grants struct {
	now   func() time.Time
	life  time.Duration
	mu    sync.Mutex
	until map[grant]time.Time
}

// has says whether a user may read something, as was found out a short time ago.
func (g *grants) has(uid uint32, origin string, d oci.Digest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	return now.Before(g.until[grant{uid: uid, origin: origin, digest: d}]) ||
		now.Before(g.until[grant{anyone: true, origin: origin, digest: d}])
}

// add notes that a user may, or that anyone may.
func (g *grants) add(uid uint32, anyone bool, origin string, d oci.Digest) {
	if g.life <= 0 {
		return
	}
	k := grant{uid: uid, origin: origin, digest: d}
	if anyone {
		k = grant{anyone: true, origin: origin, digest: d}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if len(g.until) >= maxGrants {
		for k, until := range g.until {
			if !now.Before(until) {
				delete(g.until, k)
			}
		}
	}
	if len(g.until) >= maxGrants {
		clear(g.until)
	}
	g.until[k] = now.Add(g.life)
}

// gate lets so many in at a time, and so many of one user.
type gate struct {
	all  chan struct{}
	user int
	mu   *sync.Mutex
	each map[uint32]chan struct{}
}

func newGate(all, user int) gate {
	return gate{all: make(chan struct{}, all), user: user, mu: &sync.Mutex{}, each: map[uint32]chan struct{}{}}
}

// enter waits until there is room for a user, and returns what makes it again.
func (g *gate) enter(ctx context.Context, uid uint32) (leave func(), err error) {
	g.mu.Lock()
	own := g.each[uid]
	if own == nil {
		own = make(chan struct{}, g.user)
		g.each[uid] = own
	}
	g.mu.Unlock()
	for n, room := range []chan struct{}{own, g.all} {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			if n == 1 {
				<-own
			}
			return nil, context.Cause(ctx)
		}
	}
	return func() { <-g.all; <-own }, nil
}
