package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// clientID is how we introduce ourselves to token servers.
const clientID = "gangway"

// Tokens: what the protocol says of one that does not tell its life, and limits.
const (
	tokenLife    = 60 * time.Second
	maxTokenLife = 24 * time.Hour
	maxTokenBody = 1 << 20
)

// session is how one user reads one repository at one endpoint: what to send, and
// since when.
type session struct {
	c    *Client
	e    *endpoint
	name string // of the repository
	user string

	// busy holds a token while someone looks for the credential or fetches a token. It
	// is a channel, since those who wait for that may have less time than it takes.
	busy chan struct{}

	mu            sync.Mutex // never held while anything is waited for
	looked        bool       // for the credential
	credential    credential.Credential
	authorization string // header to send; "" for none
	generation    int    // counts what authorization has been
	expires       time.Time
	bearer        *challenge // that authorization answers; nil for none or Basic
}

type sessionKey struct {
	e          *endpoint
	name, user string
}

// session returns the one session for these; tokens are shared by all who pull.
func (c *Client) session(e *endpoint, name, user string) *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := sessionKey{e, name, user}
	s := c.sessions[key]
	if s == nil {
		s = &session{c: c, e: e, name: name, user: user, busy: make(chan struct{}, 1)}
		c.sessions[key] = s
	}
	return s
}

// send asks the site, with what is known to be needed. If the registry demands more,
// it is fetched and asked again, once: a demand that stays is a refusal.
func (s *session) send(ctx context.Context, q request) (*http.Response, error) {
	for again := false; ; again = true {
		authorization, generation, err := s.current(ctx)
		if err != nil {
			return nil, err
		}
		if authorization != "" {
			q.header = q.header.Clone()
			q.header.Set("Authorization", authorization)
		}
		resp, err := s.c.exchange(ctx, s.e, q)
		if err != nil {
			return nil, err
		}
		// A host that we were redirected to may not ask for credentials.
		if resp.StatusCode != http.StatusUnauthorized || again || !sameOrigin(resp.Request.URL, s.e.base) {
			return resp, nil
		}
		challenges := parseChallenges(resp.Header.Values("WWW-Authenticate"))
		failure := s.c.newStatusError(resp) // closes the body
		if err := s.renew(ctx, challenges, generation, failure); err != nil {
			return nil, err
		}
	}
}

// current returns what to send now. A token at the end of its life is renewed first.
func (s *session) current(ctx context.Context) (authorization string, generation int, err error) {
	authorization, generation, old := s.state()
	if old == nil {
		return authorization, generation, nil
	}
	if err := s.enter(ctx); err != nil {
		return "", 0, err
	}
	defer s.leave()
	if _, _, old = s.state(); old != nil { // no one else did
		err = s.fetch(ctx, *old)
	}
	authorization, generation, _ = s.state()
	return authorization, generation, err
}

// state returns what is sent now, and the challenge to answer anew if that is too old.
func (s *session) state() (authorization string, generation int, old *challenge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bearer != nil && !s.expires.IsZero() && !s.c.now().Before(s.expires) {
		old = s.bearer
	}
	return s.authorization, s.generation, old
}

// enter waits until no one else renews, but no longer than ctx.
func (s *session) enter(ctx context.Context) error {
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for token of %s: %w", s.e.name, context.Cause(ctx))
	}
}

func (s *session) leave() { <-s.busy }

// renew answers the challenges that a request of the given generation met.
func (s *session) renew(ctx context.Context, challenges []challenge, generation int, failure *statusError) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	if _, now, _ := s.state(); now != generation {
		return nil // someone else did
	}
	if err := s.look(ctx); err != nil {
		return err
	}
	find := func(scheme string) int {
		return slices.IndexFunc(challenges, func(c challenge) bool { return c.scheme == scheme })
	}
	cred := s.credential
	if i := find("bearer"); i >= 0 {
		return s.fetch(ctx, challenges[i])
	}
	if find("basic") >= 0 && cred.Username != "" {
		s.set("Basic "+basic(cred), time.Time{}, nil)
		return nil
	}
	return s.denied(failure)
}

// set changes what is sent. Those who call it hold busy.
func (s *session) set(authorization string, expires time.Time, bearer *challenge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.authorization, s.expires, s.bearer = authorization, expires, bearer
	s.generation++
}

func basic(c credential.Credential) string {
	return base64.StdEncoding.EncodeToString([]byte(c.Username + ":" + c.Password))
}

// look finds the credential. It is looked for when it is demanded, since finding it
// may start a program.
func (s *session) look(ctx context.Context) error {
	if s.looked || s.c.o.Credentials == nil {
		return nil
	}
	found, err := s.c.o.Credentials.Find(ctx, s.e.name, s.name, s.user)
	if err != nil {
		return s.denied(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked, s.credential = true, found
	return nil
}

// fetch gets a token that answers the challenge.
func (s *session) fetch(ctx context.Context, ch challenge) error {
	cred := s.credential
	if cred.RegistryToken != "" {
		s.set("Bearer "+cred.RegistryToken, time.Time{}, nil)
		return nil
	}
	realm, err := s.realm(ch.params["realm"])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.c.document, errStalled)
	defer cancel()
	resp, err := s.c.exchange(ctx, s.e, s.question(realm, ch))
	if err != nil {
		return fmt.Errorf("get token of %s: %w", s.e.name, err)
	}
	if resp.StatusCode == http.StatusNotFound && cred.IdentityToken != "" && cred.Password != "" {
		_ = resp.Body.Close() // a server from before OAuth2
		cred.IdentityToken = ""
		if resp, err = s.c.exchange(ctx, s.e, s.get(realm, ch, cred)); err != nil {
			return fmt.Errorf("get token of %s: %w", s.e.name, err)
		}
	}
	if resp.StatusCode != http.StatusOK {
		failure := s.c.newStatusError(resp)
		err := fmt.Errorf("get token of %s: %w", s.e.name, failure)
		switch failure.status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest:
			return s.denied(err)
		}
		return err
	}
	defer resp.Body.Close()
	token, life, err := readToken(resp.Body)
	if err != nil {
		return fmt.Errorf("get token of %s from %s: %w", s.e.name, clean(realm.Host, 200), err)
	}
	// Renewed a little early: a request takes time to arrive.
	s.set("Bearer "+token, s.c.now().Add(life-min(life/10, 10*time.Second)), &ch)
	return nil
}

// realm checks where a token is to be fetched. Credentials go there, so that it must
// be HTTPS; only a registry that is plain HTTP itself may name a plain one, itself.
func (s *session) realm(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil, &fault.Error{
			What: fmt.Errorf("get token of %s: the registry names no token server that can be read (WWW-Authenticate, realm)", s.e.name),
			Hint: "is " + s.e.name + " a registry? ask who runs it",
		}
	}
	here := strings.EqualFold(u.Hostname(), s.e.base.Hostname()) || s.e.loopback && isLoopback(u.Hostname())
	plain := u.Scheme == "http" && s.e.base.Scheme == "http" && here
	if u.Scheme != "https" && !plain {
		return nil, &fault.Error{
			What: fmt.Errorf("get token of %s: token server %s is refused: it is not HTTPS", s.e.name, clean(u.Scheme+"://"+u.Host, 200)),
			Hint: "ask who runs " + s.e.name + " to give the token server TLS",
		}
	}
	if !here {
		if err := s.e.named(u); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// question is the request for a token: by OAuth2 for an identity token, else as
// Docker's registries have it from the begin.
func (s *session) question(realm *url.URL, ch challenge) request {
	cred := s.credential
	if cred.IdentityToken == "" {
		return s.get(realm, ch, cred)
	}
	form := url.Values{
		"grant_type": {"refresh_token"}, "refresh_token": {cred.IdentityToken}, "client_id": {clientID},
		"service": {ch.params["service"]}, "scope": {s.scope(ch)},
	}
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	return request{http.MethodPost, realm, header, form.Encode()}
}

func (s *session) get(realm *url.URL, ch challenge, cred credential.Credential) request {
	u := *realm
	query := u.Query()
	query.Set("scope", s.scope(ch))
	if service := ch.params["service"]; service != "" {
		query.Set("service", service)
	}
	header := http.Header{}
	if cred.Username != "" {
		query.Set("account", cred.Username)
		query.Set("client_id", clientID)
		header.Set("Authorization", "Basic "+basic(cred))
	}
	u.RawQuery = query.Encode()
	return request{http.MethodGet, &u, header, ""}
}

// scope asks for pull and no more, on what the registry calls the repository: behind
// a prefix it may have another name.
func (s *session) scope(ch challenge) string {
	name := s.name
	if kind, rest, ok := strings.Cut(ch.params["scope"], ":"); ok && kind == "repository" && !strings.Contains(rest, " ") {
		if i := strings.LastIndexByte(rest, ':'); i > 0 {
			name = rest[:i]
		}
	}
	return "repository:" + name + ":pull"
}

// readToken reads a token server's answer.
func readToken(r io.Reader) (token string, life time.Duration, err error) {
	var answer struct {
		Token       string  `json:"token"`
		AccessToken string  `json:"access_token"`
		ExpiresIn   float64 `json:"expires_in"` // s
	}
	if err := json.NewDecoder(io.LimitReader(r, maxTokenBody)).Decode(&answer); err != nil {
		return "", 0, fmt.Errorf("decode token: %w", err)
	}
	if token = answer.Token; token == "" {
		token = answer.AccessToken
	}
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "", 0, &fault.Error{What: fmt.Errorf("the answer holds no token"), Hint: "ask who runs the registry"}
	}
	if answer.ExpiresIn <= 0 {
		return token, tokenLife, nil
	}
	return token, time.Duration(min(answer.ExpiresIn, maxTokenLife.Seconds()) * float64(time.Second)), nil
}

// whose describes what a session sends, for people. It holds no secret.
type whose struct {
	host, repository string
	user             string // who was asked for, "" for anybody
	tried            string // user and source, "" if there was no credential
	looked           string // where one was looked for, if it is known
}

func (s *session) whose() whose {
	w := whose{host: s.e.name, repository: s.name, user: s.user}
	if s.c.o.Credentials != nil {
		w.looked = strings.Join(s.c.o.Credentials.Looked(), ", ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.credential.IsZero() {
		w.tried = s.credential.String()
	}
	return w
}

// denied returns err as a refusal of what the session sends.
func (s *session) denied(err error) error {
	var status *statusError
	bare := errors.As(err, &status) && status.bare
	return &deniedError{session: s.whose(), bare: bare, err: err}
}
