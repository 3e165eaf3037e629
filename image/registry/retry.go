package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Pauses between tries.
const (
	firstPause = 500 * time.Millisecond
	maxPause   = 30 * time.Second
	maxAsked   = 60 * time.Second // by Retry-After
)

// pursuit is the patience with which one thing is fetched: which site is asked, and
// how often it failed since there was progress.
type pursuit struct {
	r       *Repository
	what    string // "get manifest sha256:... of HOST/NAME"
	at      int    // sites
	tries   int
	most    int      // tries, where there are to be fewer than usual; 0: there are not
	gained  int64    // bytes since tries was 0
	mirrors []string // what became of them
}

// pursue begins with the first mirror that is not passed over.
func (r *Repository) pursue(format string, args ...any) *pursuit {
	p := &pursuit{r: r, what: fmt.Sprintf(format, args...)}
	now := r.c.now().UnixNano()
	for p.site().mirror && p.site().rest.Load() > now {
		p.at++
	}
	return p
}

func (p *pursuit) site() *site { return p.r.sites[p.at] }

// do tries f until it succeeds.
func (p *pursuit) do(ctx context.Context, f func(*site) error) error {
	for {
		err := f(p.site())
		if err == nil {
			return nil
		}
		if err := p.failed(ctx, err); err != nil {
			return err
		}
	}
}

// progressed takes n bytes. Few of them are no progress: a server that gives one byte
// for each request would keep us for ever.
func (p *pursuit) progressed(n int) {
	if p.gained += int64(n); p.gained >= p.r.c.least {
		p.tries, p.gained = 0, 0
	}
}

// failed takes the error of a try. It returns nil when it is time for another one,
// maybe of another site, or the error that it all ends with.
func (p *pursuit) failed(ctx context.Context, err error) error {
	if err := ended(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.what, err)
	}
	p.tries++
	c, s := p.r.c, p.site()
	if p.tries < p.limit(err) && retryable(err) {
		pause := c.pause(p.tries, err)
		c.log.DebugContext(ctx, "registry request is repeated", "host", s.endpoint.name, "try", p.tries, "pause", pause, "err", err)
		c.logPause(ctx, s.endpoint.name, pause, err)
		if err := c.sleep(ctx, pause); err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
		return nil
	}
	if s.mirror {
		c.log.DebugContext(ctx, "registry mirror is passed over", "host", s.endpoint.name, "err", err)
		if retryable(err) { // a mirror that lacks this one thing may have others
			s.rest.Store(c.now().Add(mirrorRest).UnixNano())
		}
		p.mirrors = append(p.mirrors, fmt.Sprintf("mirror %s: %v", s.endpoint.name, err))
		p.at++
		p.tries, p.gained = 0, 0
		return nil
	}
	if len(p.mirrors) > 0 {
		err = fmt.Errorf("%w; before that, %s", err, strings.Join(p.mirrors, "; "))
	}
	return p.r.explain(p.what, s, p.tries, err)
}

// limit is how often the site is tried. Where nobody ever answered, the name is more
// likely wrong than the registry just starting.
func (p *pursuit) limit(err error) int {
	n := p.r.c.o.Retries
	if p.most > 0 {
		n = min(n, p.most)
	}
	if p.site().mirror || unreached(err) && !p.site().reached.Load() {
		n = min(n, mirrorRetries)
	}
	return n
}

// pause is how long to wait after the given number of tries: twice as long each time,
// less a random part so that many nodes do not come back at once, or what the server
// asks for.
func (c *Client) pause(tries int, err error) time.Duration {
	d := min(firstPause<<min(tries-1, 10), maxPause)
	d -= time.Duration(c.jitter() * float64(d) / 2)
	var status *statusError
	if errors.As(err, &status) {
		if asked := min(retryAfter(status.wait, c.now()), maxAsked); asked > 0 {
			d = asked + time.Duration(c.jitter()*float64(time.Second))
		}
	}
	return d
}

// longPause is one that people wonder at.
const longPause = 5 * time.Second

// logPause tells people why nothing happens.
func (c *Client) logPause(ctx context.Context, host string, pause time.Duration, err error) {
	var status *statusError
	asked := errors.As(err, &status) && retryAfter(status.wait, c.now()) > 0
	switch {
	case asked && (status.status == http.StatusTooManyRequests || pause > longPause):
		c.log.WarnContext(ctx, "registry asks to wait", "host", host, "dur", pause, "err", err)
	case pause > longPause:
		c.log.WarnContext(ctx, "registry is asked again after a pause", "host", host, "dur", pause, "err", err)
	}
}

// limiter spreads bytes over time, for all who share it.
type limiter struct {
	rate  int64 // bytes a second
	now   func() time.Time
	sleep func(context.Context, time.Duration) error

	mu   sync.Mutex
	free time.Time // when all bytes so far are paid for
}

// limitedRead is the most that is read at once under a limit: a rate is to look like
// one.
const limitedRead = 64 << 10

// wait pays for n bytes that were read.
func (l *limiter) wait(ctx context.Context, n int) error {
	l.mu.Lock()
	now := l.now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(float64(n) / float64(l.rate) * float64(time.Second)))
	d := l.free.Sub(now)
	l.mu.Unlock()
	if d < time.Millisecond {
		return nil
	}
	return l.sleep(ctx, d)
}
