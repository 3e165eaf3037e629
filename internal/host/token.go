package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Token lets one host join, once. It says by which authority the host is to know the
// controller, which role and name the host gets, and until when it counts; the authority
// has signed all of that. Whoever has it can join in the host's place, so it is a secret
// until it is used.
type Token struct {
	Cluster string
	Role    Role
	Name    string
	Expires time.Time // to the second
	// Replace lets it take a name that another key has: that one is revoked.
	Replace bool

	id        [16]byte
	pin       [sha256.Size]byte
	signed    []byte // what the signature is about
	signature []byte
}

const (
	tokenPrefix  = "gangway1-"
	longestToken = 512
	// tokenDomain keeps the signature from being one of anything else, as a certificate.
	tokenDomain = "gangway join token 1\x00"
)

// ID names the token, without being of use to anybody.
func (t *Token) ID() string { return hex.EncodeToString(t.id[:]) }

// NewToken makes a token for a node or a client, and enters it in the register: it counts
// while it is there.
func (a *Authority) NewToken(ctx context.Context, role Role, name string, life time.Duration, replace bool, now time.Time) (string, error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	if role != Node && role != Client {
		return "", fmt.Errorf("make token: role %q cannot join", role)
	}
	if life <= 0 || life > 30*24*time.Hour {
		return "", fault.Usage(fmt.Errorf("make token: it cannot live for %s", life), "up to 30 days: --life 1h")
	}
	flags := byte(0)
	if replace {
		flags = 1
	}
	p := pin(a.CA)
	b := append([]byte{}, p[:]...)
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	b = append(b, id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(now.Add(life).Unix()))
	b = append(b, flags)
	for _, text := range []string{string(role), name, a.Cluster} {
		b = append(append(b, byte(len(text))), text...)
	}
	b = append(b, ed25519.Sign(a.key, append([]byte(tokenDomain), b...))...)
	err := a.register.update(ctx, now, func(d *registerJSON) error {
		holder := Peer{Role: role, Name: name}.key()
		d.Tokens[hex.EncodeToString(id[:])] = madeToken{Holder: holder, Expires: now.Add(life)}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make token: %w", err)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// errToken is that a text is no token.
var errToken = errors.New("it is damaged, or not one")

// ParseToken reads a token, as far as this can be done without the authority: its signature
// is looked at by who made it.
func ParseToken(text string) (*Token, error) {
	bad := func(err error) error {
		return &fault.Error{What: fmt.Errorf("read join token: %w", err), Hint: "copy it whole, or make another on the controller: gangwayd token --node NAME", Code: fault.CodeUsage}
	}
	text = strings.TrimSpace(text)
	if len(text) > longestToken {
		return nil, bad(fmt.Errorf("it has %d bytes; the most is %d", len(text), longestToken))
	}
	rest, ok := strings.CutPrefix(text, tokenPrefix)
	if !ok {
		return nil, bad(fmt.Errorf("it does not begin with %s", tokenPrefix))
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil || strings.ContainsAny(rest, "\r\n") || len(b) < sha256.Size+16+8+1+3+ed25519.SignatureSize {
		return nil, bad(errToken)
	}
	t := &Token{}
	t.signed, t.signature = b[:len(b)-ed25519.SignatureSize], b[len(b)-ed25519.SignatureSize:]
	b = t.signed
	b = b[copy(t.pin[:], b):]
	b = b[copy(t.id[:], b):]
	t.Expires = time.Unix(int64(binary.BigEndian.Uint64(b)), 0)
	if b[8] > 1 {
		return nil, bad(errToken)
	}
	t.Replace = b[8] == 1
	b = b[9:]
	texts := [3]string{}
	for i := range texts {
		if len(b) == 0 || int(b[0]) >= len(b) {
			return nil, bad(errToken)
		}
		texts[i], b = string(b[1:1+b[0]]), b[1+b[0]:]
	}
	t.Role, t.Name, t.Cluster = Role(texts[0]), texts[1], texts[2]
	if len(b) > 0 || t.Role != Node && t.Role != Client || CheckName(t.Name) != nil || CheckName(t.Cluster) != nil {
		return nil, bad(errToken)
	}
	return t, nil
}

// check refuses a token that is not ours, or does not count any more. Whether it was used
// is for the register.
func (a *Authority) check(t *Token, now time.Time) error {
	again := "make another: gangwayd token --" + string(t.Role) + " " + t.Name
	switch {
	case t.pin != pin(a.CA) || t.Cluster != a.Cluster:
		return &fault.Error{What: fmt.Errorf("the join token is of another cluster (%s)", t.Cluster), Hint: again}
	case !ed25519.Verify(a.key.Public().(ed25519.PublicKey), append([]byte(tokenDomain), t.signed...), t.signature):
		return &fault.Error{What: errors.New("the join token was altered: its signature is not the authority's"), Hint: again}
	case now.After(t.Expires):
		return &fault.Error{
			What: fmt.Errorf("the join token expired at %s: the controller's clock says %s", t.Expires.UTC().Format(time.DateTime), now.UTC().Format(time.DateTime)), Hint: again,
		}
	}
	return nil
}
