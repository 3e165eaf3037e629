package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// asked is a request that was understood.
type asked struct {
	*Request
	ref      reference.Reference
	key      string // the name that the store keeps it under
	platform oci.Platform
	origin   string
	client   *registry.Client
	asker    *asker
	public   bool // the registry said just now that anybody may read it
}

// repository is the one that is asked for, as something names an image in it.
func (a *asked) repository(name string) *registry.Repository {
	return a.client.Repository(a.ref.Host, a.ref.Repository, a.ref.User, name)
}

// name is what the reference names the image by.
func (a *asked) name() string { return cmp.Or(string(a.ref.Digest), a.ref.Tag) }

// image answers a request for an image.
func (c *conn) image(ctx context.Context, q *Request) error {
	a, err := c.understand(q)
	if err != nil {
		return err
	}
	defer a.client.Close()
	i, lease, err := c.have(ctx, a)
	if err != nil {
		return err
	}
	c.s.seen.add(c.uid, a.public && a.client.Vouched(a.ref.Host), &i)
	if !q.Files {
		return errors.Join(lease.Release(), c.reply(&reply{Opened: &opened{Image: i}}))
	}
	if err := c.keep(lease); err != nil {
		return err
	}
	return c.hand(ctx, &i)
}

// understand checks all that a client says.
func (c *conn) understand(q *Request) (*asked, error) {
	a := &asked{Request: q}
	var err error
	if a.ref, err = reference.Parse(q.Reference); err != nil {
		return nil, err
	}
	if a.ref.Kind != reference.Registry {
		return nil, fault.Usage(fmt.Errorf("image %.200q: it is of no registry", q.Reference), "the node's image store has images of registries only; for others: --store DIR")
	}
	a.platform = oci.HostPlatform()
	if q.Platform != "" {
		if a.platform, err = oci.ParsePlatform(q.Platform); err != nil {
			return nil, err
		}
	}
	switch q.Pull {
	case "", "missing", "always", "never":
	default:
		return nil, errProtocol
	}
	if q.Rate > 0 && q.Rate < minRate && c.uid != 0 {
		return nil, &fault.Error{
			What:  fmt.Errorf("limit the rate of a pull to %s/s: the store is the node's", image.FormatBytes(q.Rate)),
			Cause: "others may wait for the same layer",
			Hint:  "leave out --limit-rate, or give at least 10M; or use a store of your own: --store DIR",
		}
	}
	if q.MaxSize < 0 || q.MaxEntries < 0 || q.MaxContent < 0 || q.Rate < 0 {
		return nil, errProtocol
	}
	if err := c.checkLimits(q); err != nil {
		return nil, err
	}
	nameless := a.ref
	nameless.User = ""
	a.key = nameless.String()
	a.asker = &asker{c: c}
	a.client = c.s.o.Registry(a.asker, q.Rate)
	a.origin = a.ref.Host + "/" + a.ref.Repository
	if !a.client.Vouched(a.ref.Host) {
		// Whatever answers there may be the user's own program.
		a.origin += fmt.Sprintf(" for user %d", c.uid)
	}
	return a, nil
}

// checkLimits refuses limits that are the administrator's to raise: what is in the store
// is there for all.
func (c *conn) checkLimits(q *Request) error {
	own := c.s.o.Limits
	if c.uid == 0 || q.MaxEntries <= cmp.Or(own.Entries, 2_000_000) && q.MaxContent <= cmp.Or(own.Bytes, 1<<40) {
		return nil
	}
	return &fault.Error{
		What:  errors.New("raise the limits of a layer: the store is the node's"),
		Cause: "--max-entries and --max-unpacked beyond its own limits are for administrators",
		Hint:  "ask for it: gangwayd store --max-entries N --max-unpacked BYTES; or use a store of your own: --store DIR",
	}
}

// have returns the image, once the registry has said that the user may have it, with a
// lease that keeps it from garbage collection.
func (c *conn) have(ctx context.Context, a *asked) (image.Image, *image.Lease, error) {
	s := c.s
	i, err := s.o.Store.Get(a.key, a.platform)
	if err != nil && !errors.Is(err, image.ErrNotFound) {
		s.log.Warn("a record is damaged, the image is fetched again", "image", a.key, "err", err)
	}
	cached := err == nil && s.o.Store.Shown(a.origin, &i)
	if cached && a.Pull != "always" {
		err := c.mayRead(ctx, a, i.Digest)
		if err == nil {
			if lease, err := s.o.Store.Lease(ctx, &i); err == nil {
				if _, whole := s.o.Store.Cached(a.key, a.platform, i.Digest); whole {
					return i, lease, nil
				}
				_ = lease.Release()
			}
		}
		// What the registry has no more may have a new meaning.
		if err != nil && (!errors.Is(err, registry.ErrNotFound) || a.Pull == "never") {
			return i, nil, err
		}
	}
	if a.Pull == "never" {
		return i, nil, &fault.Error{What: fmt.Errorf("%w: %s", image.ErrNotFound, a.ref.Familiar()), Hint: "leave out --pull=never, or fetch it: gangway image pull " + a.ref.Familiar()}
	}
	return c.pull(ctx, a)
}

// mayRead asks whether the user may read an image now. A word that the registry gave a
// short time ago counts.
func (c *conn) mayRead(ctx context.Context, a *asked, d oci.Digest) error {
	if c.s.grants.has(c.uid, a.origin, d) {
		return nil
	}
	err := a.repository(a.name()).Access(ctx, d)
	switch {
	case err == nil:
		c.granted(a, d)
		return nil
	case errors.Is(err, registry.ErrDenied), errors.Is(err, registry.ErrNotFound), ctx.Err() != nil:
		return err
	}
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		return err
	}
	return &fault.Error{
		What: err, Cause: "the image is on this node, but whether this user may read it only " + a.ref.Host + " can say, and that does not answer",
		Hint: "try again when it does; a store of your own (--store DIR) is used without asking",
	}
}

// granted notes what the registry has allowed just now.
func (c *conn) granted(a *asked, d oci.Digest) {
	a.public = a.asker.anonymous()
	c.s.grants.add(c.uid, a.public, a.origin, d)
}

// pull makes the store have an image: what it has of this origin already is not fetched.
func (c *conn) pull(ctx context.Context, a *asked) (image.Image, *image.Lease, error) {
	s := c.s
	leave, err := s.pulls.enter(ctx, c.uid)
	if err != nil {
		return image.Image{}, nil, err
	}
	defer leave()
	o := image.PullOptions{Reference: a.key, Platform: a.platform, Origin: a.origin, Progress: c.progress(), MaxSize: s.o.MaxSize, Limits: c.limits(a.Request)}
	if a.MaxSize > 0 && (o.MaxSize == 0 || a.MaxSize < o.MaxSize) {
		o.MaxSize = a.MaxSize
	}
	i, err := s.o.Store.Pull(ctx, a.repository(a.name()), o)
	if err != nil {
		return i, nil, err
	}
	if a.ref.Digest == "" { // the registry said just now what the tag means
		c.granted(a, i.Digest)
	} else if err := c.mayRead(ctx, a, i.Digest); err != nil {
		return i, nil, err
	}
	lease, err := s.o.Store.Lease(ctx, &i)
	return i, lease, err
}

// limits are those of layers: of the server, or lower ones, or root's. How much a layer may
// be compressed only root says.
func (c *conn) limits(q *Request) layer.Limits {
	l := c.s.o.Limits
	if q.MaxEntries > 0 {
		l.Entries = q.MaxEntries
	}
	if q.MaxContent > 0 {
		l.Bytes = q.MaxContent
		if c.uid == 0 {
			l.Ratio = 1<<31 - 1
		}
	}
	return l
}

// progressEvery is how often a client hears of a layer in the same phase.
const progressEvery = 100 * time.Millisecond

// progress tells the client how far a pull is. One that does not read is not waited for:
// others may want the layer.
func (c *conn) progress() func(image.Progress) {
	last := map[int]image.Progress{}
	at := map[int]time.Time{}
	return func(p image.Progress) {
		now := time.Now()
		if old, ok := last[p.Layer]; ok && old.Phase == p.Phase && old.Other == p.Other && now.Sub(at[p.Layer]) < progressEvery {
			return
		}
		last[p.Layer], at[p.Layer] = p, now
		_ = c.replyWithin(&reply{Progress: &p}, progressTime) // what fails ends the connection
	}
}

// hand sends the image's configuration and its open files, and waits until they arrived:
// what lies in a socket counts against what this user may have on its way.
func (c *conn) hand(ctx context.Context, i *image.Image) error {
	s := c.s
	if err := s.refusesUntaken(c.uid); err != nil {
		return err
	}
	leave, err := s.hands.enter(ctx, c.uid)
	if err != nil {
		return err
	}
	defer leave()
	config, err := s.o.Store.Configuration(i)
	if err != nil {
		return err
	}
	f, err := s.o.Store.OpenFiles(i)
	if err != nil {
		return err
	}
	defer f.Close()
	files := f.All()
	if len(files) > maxFiles {
		return fmt.Errorf("hand over image %s: it has %d files, more than %d", i.Reference, len(files), maxFiles)
	}
	if err := c.reply(&reply{Opened: &opened{Image: *i, Config: config, Files: len(files)}}); err != nil {
		return err
	}
	if err := c.sendFiles(files); err != nil {
		return err
	}
	if err := c.taken(ctx); err != nil {
		return err
	}
	c.handed = i
	return nil
}

func (c *conn) sendFiles(files []*os.File) error {
	for len(files) > 0 {
		n := min(len(files), maxRights)
		if err := c.replyWithin(&reply{Rights: n}, writeTime, files[:n]...); err != nil {
			return err
		}
		files = files[n:]
	}
	return nil
}

// taken waits for the client's word that it has all files.
func (c *conn) taken(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	q, err := c.next(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.s.mu.Lock()
		c.s.untaken[c.uid]++
		c.s.mu.Unlock()
		return fmt.Errorf("%w: files that were handed over were not taken", errProtocol)
	case err != nil:
		return err
	case !q.Taken:
		return errProtocol
	}
	return nil
}

// refusesUntaken refuses a user who leaves files lying in sockets: the kernel limits how
// many may be on their way, for all users together.
func (s *Server) refusesUntaken(uid uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.untaken[uid] < maxUntaken {
		return nil
	}
	return &fault.Error{
		What:  fmt.Errorf("hand over files to user %d: %d times they were not taken", uid, s.untaken[uid]),
		Cause: "what is not taken uses up what all users share",
		Hint:  "use a store of your own: --store DIR; the administrator's restart of the service ends this",
	}
}

// asker asks the client for credentials. It implements registry.Credentials, for one
// request.
type asker struct {
	c *conn

	mu     sync.Mutex
	looked []string
	found  bool
}

var errNoCredential = errors.New("the client does not say which credential it has")

// Find implements registry.Credentials.
func (a *asker) Find(ctx context.Context, host, repository, user string) (credential.Credential, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, findTime, errNoCredential)
	defer cancel()
	if err := a.c.reply(&reply{Find: &find{host, repository, user}}); err != nil {
		return credential.Credential{}, err
	}
	q, err := a.c.next(ctx)
	if err != nil {
		return credential.Credential{}, err
	}
	w := q.Credential
	if w == nil {
		return credential.Credential{}, errProtocol
	}
	a.looked = w.Looked
	if w.Error != nil {
		return credential.Credential{}, w.Error.fault()
	}
	found := credential.Credential{
		Username: w.Username, Password: w.Password, IdentityToken: w.IdentityToken, RegistryToken: w.RegistryToken, Source: w.Source,
	}
	a.found = a.found || !found.IsZero()
	return found, nil
}

// Looked implements registry.Credentials.
func (a *asker) Looked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.looked
}

// anonymous says whether the registry answered without a credential of the user.
func (a *asker) anonymous() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.found
}

// explain puts remedies for users to errors of the store: neither its disk nor its limits
// are theirs.
func explain(err error) error {
	hint := ""
	if f, ok := errors.AsType[*fault.Error](err); ok {
		hint = f.Hint
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), strings.HasPrefix(hint, "free some:"):
		return &fault.Error{
			What: err, Cause: "no space is left for the node's image store",
			Hint: "ask the administrator to free some: gangway image gc --keep-bytes 100G; or use a store of your own: --store DIR",
		}
	case strings.HasPrefix(hint, "raise the limit:"):
		return &fault.Error{
			What: err, Cause: "it is the lower one of --max-size and of the node's image store",
			Hint: hint + "; the store's own is the administrator's (gangwayd store --max-size); or use a store of your own: --store DIR",
		}
	}
	return err
}
