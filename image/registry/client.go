// Package registry reads images from registries: the pull side of the OCI
// distribution protocol, with the token authentication that Docker's registries
// brought.
//
// A [Client] holds what registries have in common: connections, tokens, settings,
// limits. A [Repository] is one repository at one registry and what a reference
// names in it. Requests are optimistic: the first one asks for the thing itself,
// credentials are looked for only when the registry demands them, and a tag costs
// one request. Everything read is limited in size; manifests are verified against
// their digest here, blobs by the caller, who gets exactly as many bytes as the
// descriptor says or an error.
//
// Networks fail. A request is repeated with growing pauses, a blob goes on where it
// was cut, a token that ran out is renewed, a mirror that does not answer is passed
// over. What stays an error says what was tried and, where it is known, what to type.
//
// Nothing a registry sends is trusted with more than it needs: credentials go to the
// registry they are for and to the token server it names over TLS, never along a
// redirect; redirects into the machine or to link-local addresses are refused.
package registry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image/credential"
)

// Credentials finds what proves to a registry who asks.
type Credentials interface {
	// Find returns the credential for a repository of a registry, of the given user
	// if that is not empty. The zero value means that there is none.
	Find(ctx context.Context, host, repository, user string) (credential.Credential, error)
	// Looked lists the files that Find looks into, for people.
	Looked() []string
}

// Host is how to talk to one registry or mirror.
type Host struct {
	// Mirrors are asked before the registry itself, in this order:
	// "host[:port][/prefix]". A prefix goes before the repository's name.
	Mirrors []string
	// CAFile holds certificates in PEM that are trusted besides the system's.
	CAFile string
	// PlainHTTP speaks HTTP without TLS. Registries on the loopback interface get it
	// by themselves, unless CAFile or SkipVerify is set.
	PlainHTTP bool
	// SkipVerify accepts any certificate: whoever sits between can read and change
	// what is not named by digest, and read the credentials.
	SkipVerify bool
}

// Options say how a Client works. The zero value asks anonymously.
type Options struct {
	Credentials Credentials
	Hosts       map[string]Host // by "host[:port]"; upper case and Docker Hub's other names are known
	UserAgent   string
	Log         *slog.Logger // nil: no log

	Connections int   // how many ranges of big blobs are fetched at a time, over all; 0 means 8
	Retries     int   // how often something is tried without progress; 0 means 6
	Bandwidth   int64 // bytes of blobs in a second, over all; 0 means no limit
}

// Client talks to registries. It is safe for concurrent use.
type Client struct {
	o     Options
	log   *slog.Logger
	slots chan struct{} // one taken for each range that is fetched ahead
	limit *limiter      // nil: none
	pool  sync.Pool     // *[]byte of a chunk's length

	// What tests change.
	proxy     func(*http.Request) (*url.URL, error)
	now       func() time.Time
	sleep     func(context.Context, time.Duration) error
	jitter    func() float64 // in [0, 1)
	stall     time.Duration  // with less than least bytes, until a connection is cut
	least     int64          // bytes that are progress
	document  time.Duration  // for a whole manifest or token
	errorBody time.Duration  // for what an error's body says
	chunk     int64          // bytes of a range of a big blob
	parallel  int64          // bytes from which a blob is big
	everyHost bool           // parallel ranges from loopback too, where they are slower

	mu         sync.Mutex
	transports map[trust]*http.Transport
	endpoints  map[endpointKey]*endpoint
	sessions   map[sessionKey]*session
}

// The defaults of Options, and limits that have no option.
const (
	defaultConnections = 8
	defaultRetries     = 6
	mirrorRetries      = 2                // a mirror has someone behind it
	stallTime          = 60 * time.Second // with less than leastBytes
	leastBytes         = 64 << 10
	documentTime       = 2 * time.Minute // for a whole manifest or token
	errorBodyTime      = 15 * time.Second
)

// New returns a Client. It does no input or output.
func New(o Options) *Client {
	if o.Connections <= 0 {
		o.Connections = defaultConnections
	}
	if o.Retries <= 0 {
		o.Retries = defaultRetries
	}
	if o.UserAgent == "" {
		o.UserAgent = "gangway"
	}
	o.Hosts = canonicalHosts(o.Hosts)
	c := &Client{
		o: o, log: o.Log, slots: make(chan struct{}, o.Connections),
		proxy: http.ProxyFromEnvironment, now: time.Now, sleep: sleep, jitter: rand.Float64,
		stall: stallTime, least: leastBytes, document: documentTime, errorBody: errorBodyTime, chunk: chunkSize, parallel: parallelSize,
		transports: map[trust]*http.Transport{}, endpoints: map[endpointKey]*endpoint{}, sessions: map[sessionKey]*session{},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if o.Bandwidth > 0 {
		c.limit = &limiter{rate: o.Bandwidth, now: func() time.Time { return c.now() }, sleep: func(ctx context.Context, d time.Duration) error { return c.sleep(ctx, d) }}
	}
	return c
}

// Close closes connections that idle.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
	return nil
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
