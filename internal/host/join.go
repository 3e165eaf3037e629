package host

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// longestCall bounds requests and answers of this file, in bytes.
const longestCall = 32 << 10

// request asks for a certificate.
type request struct {
	Token string `json:",omitempty"` // of who joins
	CSR   []byte // proves that the key is there; what it says is of no interest
}

// answer is one, or what went wrong.
type answer struct {
	Certificate       []byte `json:",omitempty"`
	ID                string `json:",omitempty"`
	What, Cause, Hint string `json:",omitempty"`
}

// Service answers those who join and those who renew, for as long as their certificates
// shall live then.
type Service struct {
	Authority *Authority
	Life      time.Duration
	Now       func() time.Time
}

// JoinPath and RenewPath are where it is served.
const (
	JoinPath  = "/v1/join"
	RenewPath = "/v1/renew"
)

// Join answers on connections of [JoinProtocol].
func (s *Service) Join(w http.ResponseWriter, r *http.Request) {
	s.answer(w, r, func(q *request, key ed25519.PublicKey) (*x509.Certificate, error) {
		t, err := ParseToken(q.Token)
		if err != nil {
			return nil, err
		}
		return s.Authority.admit(r.Context(), t, key, s.Life, s.Now())
	})
}

// Renew answers a peer on a connection of [APIProtocol].
func (s *Service) Renew(w http.ResponseWriter, r *http.Request, p Peer) {
	s.answer(w, r, func(_ *request, key ed25519.PublicKey) (*x509.Certificate, error) {
		return s.Authority.renew(r.Context(), p, key, s.Life, s.Now())
	})
}

func (s *Service) answer(w http.ResponseWriter, r *http.Request, f func(*request, ed25519.PublicKey) (*x509.Certificate, error)) {
	var a answer
	c, err := func() (*x509.Certificate, error) {
		var q request
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestCall)).Decode(&q); err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		csr, err := x509.ParseCertificateRequest(q.CSR)
		if err == nil {
			err = csr.CheckSignature()
		}
		if err != nil {
			return nil, fmt.Errorf("read the request: %w", err)
		}
		key, ok := csr.PublicKey.(ed25519.PublicKey)
		if !ok {
			return nil, errors.New("read the request: the key is not one of ed25519")
		}
		return f(&q, key)
	}()
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		a.What = err.Error()
		if f, ok := errors.AsType[*fault.Error](err); ok {
			a.Cause, a.Hint = f.Cause, f.Hint
		}
		w.WriteHeader(http.StatusForbidden)
	} else {
		a.Certificate, a.ID = c.Raw, s.Authority.ID
	}
	_ = json.NewEncoder(w).Encode(a) // who asked may be gone: it asks again
}

// ask sends a request for a key.
func ask(ctx context.Context, c *http.Client, path, token string, key ed25519.PrivateKey) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeSpan)
	defer cancel()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	b, err := json.Marshal(request{token, csr})
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://controller"+path, bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	resp, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var a answer
	if err := json.NewDecoder(io.LimitReader(resp.Body, longestCall)).Decode(&a); err != nil {
		return nil, fmt.Errorf("read the controller's answer (%s): %w", resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK || a.What != "" {
		return nil, &fault.Error{What: errors.New("the controller refused: " + a.What), Cause: a.Cause, Hint: a.Hint}
	}
	return &a, nil
}

// present shows a token to the controller, which is known by the token's pin.
func present(ctx context.Context, t *Token, text, controller string, key ed25519.PrivateKey) (*memberJSON, error) {
	var ca *x509.Certificate
	c := HTTP(func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, controller, JoinProtocol, nil, func(shown []*x509.Certificate) (err error) {
			ca, err = t.recognise(shown, time.Now())
			return err
		})
	})
	defer c.CloseIdleConnections()
	a, err := ask(ctx, c, JoinPath, text, key)
	if err != nil {
		return nil, err
	}
	return &memberJSON{a.ID, controller, t.ID(), ca.Raw, a.Certificate, key.Seed()}, nil
}

// recognise finds the token's authority among what was shown, and refuses who is not its
// controller: nobody else is to see the token.
func (t *Token) recognise(shown []*x509.Certificate, now time.Time) (*x509.Certificate, error) {
	for _, c := range shown[1:] {
		if pin(c) != t.pin {
			continue
		}
		trust := Trust{t.Cluster, c}
		p, err := trust.Verify(shown[0], now)
		if err == nil && p.Role != Controller {
			err = fmt.Errorf("%s %s answers, not the controller", p.Role, p.Name)
		}
		return c, err
	}
	return nil, &fault.Error{
		What: fmt.Errorf("who answers is not of the authority that the token names (cluster %s)", t.Cluster),
		Hint: "look at the controller's address; or make a token there: gangwayd token --" + string(t.Role) + " " + t.Name,
	}
}

// renew changes the certificate for a newer one, with a key of its own.
func (m *Member) renew(ctx context.Context) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	c := HTTP(func(ctx context.Context) (net.Conn, error) {
		return m.Dial(ctx, m.Controller, APIProtocol, Controller, ControllerName)
	})
	defer c.CloseIdleConnections()
	a, err := ask(ctx, c, RenewPath, "", key)
	if err != nil {
		return fmt.Errorf("renew certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(a.Certificate)
	if err != nil {
		return fmt.Errorf("renew certificate: %w", err)
	}
	p, err := m.Verify(leaf, time.Now())
	if public, ok := leaf.PublicKey.(ed25519.PublicKey); err == nil && (p.key() != m.Self().key() || !ok || !public.Equal(key.Public())) {
		err = errors.New("the answer is somebody else's")
	}
	if err != nil {
		return fmt.Errorf("renew certificate: %w", err)
	}
	if err := m.save(ctx, leaf, key); err != nil {
		return err
	}
	m.hold(p, leaf, key)
	return nil
}

// ControllerName is the name that the controller has.
const ControllerName = "controller"

// Controller is the identity of the controller itself. It makes its own certificates, and
// Keep has it make new ones.
func (a *Authority) Controller(life time.Duration, now time.Time) (*Identity, error) {
	i := &Identity{Trust: a.Trust, alive: a.Alive}
	return i, a.refresh(i, life, now)
}

func (a *Authority) refresh(i *Identity, life time.Duration, now time.Time) error {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	p := Peer{Cluster: a.Cluster, Role: Controller, Name: ControllerName}
	leaf, err := a.issue(p, public, life, now)
	if err != nil {
		return err
	}
	p.Serial, p.Until = serialOf(leaf), leaf.NotAfter
	i.hold(p, leaf, key)
	return nil
}

// Keep makes the controller's certificate anew whenever it is due, until ctx ends.
func (a *Authority) Keep(ctx context.Context, i *Identity, life time.Duration, log *slog.Logger) {
	for {
		wait := min(time.Until(due(i.current().Leaf)), longestWait)
		if wait <= 0 {
			err := a.refresh(i, life, time.Now())
			if err == nil {
				continue
			}
			log.Error("the controller's certificate is not renewed", "err", err)
			wait = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}
