package host

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

const (
	registerFile = "register.json"
	lockFile     = "lock"
)

// register is what an authority remembers: which certificates count, which tokens were
// used, and what was revoked. A certificate that is not in it does not count, so that what
// is lost is lost safely. Each change is on stable storage before anybody is told of it;
// several processes may change it, and each sees what the others did.
type register struct {
	dir string

	mu    sync.Mutex
	stamp fs.FileInfo // of the file that data was read from
	data  registerJSON
}

type registerJSON struct {
	Issued  map[string][]issued  // by role/name
	Tokens  map[string]madeToken // by the token's id, until it would have expired anyway
	Revoked map[string]revoked   // by serial, until the certificate would have ended anyway
}

type issued struct {
	Serial string
	Key    string // public
	Joined string // see [Peer]
	Until  time.Time
}

// madeToken is a token that was made. Who has used it may do so once more, in case the
// answer was lost: that is whoever has the key.
type madeToken struct {
	Holder  string
	Key     string // public, of who has used it; empty: nobody has
	Void    bool   // it was revoked, used or not
	Expires time.Time
}

type revoked struct {
	Holder, Why string
	At, Until   time.Time
}

// load is what is in the file.
func (r *register) load() (data registerJSON, err error) {
	err = readSecret(filepath.Join(r.dir, registerFile), &data)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return data, err
}

// read makes data what is in the file, if that has changed. Where it cannot be read, data is
// what it was.
func (r *register) read() error {
	name := filepath.Join(r.dir, registerFile)
	st, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		r.stamp, r.data = nil, registerJSON{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read register: %w", err)
	}
	if r.stamp != nil && os.SameFile(st, r.stamp) && st.ModTime().Equal(r.stamp.ModTime()) && st.Size() == r.stamp.Size() {
		return nil
	}
	data, err := r.load()
	if err == nil {
		r.stamp, r.data = st, data
	}
	return err
}

// update changes the register, unless f returns an error.
func (r *register) update(ctx context.Context, now time.Time, f func(*registerJSON) error) error {
	lock, err := fsx.Acquire(ctx, filepath.Join(r.dir, lockFile), fsx.Exclusive)
	if err != nil {
		return fmt.Errorf("lock register: %w", err)
	}
	defer func() { _ = lock.Release() }() // it ends with the process
	d, err := r.load()
	if err != nil {
		return err
	}
	if d.Issued == nil {
		d.Issued, d.Tokens, d.Revoked = map[string][]issued{}, map[string]madeToken{}, map[string]revoked{}
	}
	if err := f(&d); err != nil {
		return err
	}
	d.prune(now)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.stamp = nil // whatever happened, the file says how it is
	}()
	return writeSecret(ctx, filepath.Join(r.dir, registerFile), d)
}

// prune forgets what has ended by itself. What clocks may differ by is left.
func (d *registerJSON) prune(now time.Time) {
	over := now.Add(-backdated)
	for holder, all := range d.Issued {
		all = slices.DeleteFunc(all, func(c issued) bool { return c.Until.Before(over) })
		if d.Issued[holder] = all; len(all) == 0 {
			delete(d.Issued, holder)
		}
	}
	for id, m := range d.Tokens {
		if m.Expires.Before(over) {
			delete(d.Tokens, id)
		}
	}
	for serial, v := range d.Revoked {
		if v.Until.Before(over) {
			delete(d.Revoked, serial)
		}
	}
}

// revoke takes certificates of a holder back; serial is one, or empty for all. The tokens
// that it joined by are no way back, and if it is all, those that nobody has used are no
// way in.
func (d *registerJSON) revoke(holder, serial, why string, now time.Time) (n, tokens int) {
	d.Issued[holder] = slices.DeleteFunc(d.Issued[holder], func(c issued) bool {
		if serial != "" && c.Serial != serial {
			return false
		}
		n++
		d.Revoked[c.Serial] = revoked{Holder: holder, Why: why, At: now, Until: c.Until}
		return true
	})
	for id, m := range d.Tokens {
		if m.Holder != holder || m.Void || serial != "" && (n == 0 || m.Key == "") {
			continue
		}
		m.Void = true
		d.Tokens[id] = m
		tokens++
	}
	return n, tokens
}

// Alive refuses who holds a certificate that was revoked, or is not known. The Peer that
// it returns says which token it joined by.
func (a *Authority) Alive(p Peer) (Peer, error) {
	r := &a.register
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.read(); err != nil {
		return p, err
	}
	for _, c := range r.data.Issued[p.key()] {
		if c.Serial == p.Serial {
			p.Joined = c.Joined
			return p, nil
		}
	}
	hint := "join again: gangwayd token --" + string(p.Role) + " " + p.Name + " on the controller, then --join TOKEN"
	if v, ok := r.data.Revoked[p.Serial]; ok {
		return p, &fault.Error{What: fmt.Errorf("the certificate of %s %s was revoked at %s: %s", p.Role, p.Name, v.At.UTC().Format(time.DateTime), cmp.Or(v.Why, "no reason given")), Hint: hint}
	}
	return p, &fault.Error{
		What:  fmt.Errorf("the certificate of %s %s is not in the register", p.Role, p.Name),
		Cause: "a newer one was made since, as for a copy of the host's files, or the register is an older one", Hint: hint,
	}
}

// Stays refuses who was revoked since it connected, or has not renewed its certificate in
// time. A connection outlives the certificate that it began with, if its holder has renewed
// that: a host that has joined anew under the name is another one. While the register
// cannot be read, those stay who were there; nobody else gets in.
func (a *Authority) Stays(p Peer, now time.Time) error {
	r := &a.register
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.read() // see above; Alive tells
	if v, ok := r.data.Revoked[p.Serial]; ok {
		return fmt.Errorf("the certificate of %s %s was revoked: %s", p.Role, p.Name, cmp.Or(v.Why, "no reason given"))
	}
	if slices.ContainsFunc(r.data.Issued[p.key()], func(c issued) bool { return c.Joined == p.Joined && c.Until.After(now) }) {
		return nil
	}
	return fmt.Errorf("the certificate of %s %s has ended", p.Role, p.Name)
}

// Revoke takes back what a host has: all certificates of a role and name with all tokens,
// or the one certificate with a serial. Both are exact. Sessions that it has end within
// [recheckSpan].
func (a *Authority) Revoke(ctx context.Context, role Role, name, serial, why string, now time.Time) (n, tokens int, err error) {
	err = a.register.update(ctx, now, func(d *registerJSON) error {
		if serial == "" {
			n, tokens = d.revoke(Peer{Role: role, Name: name}.key(), "", why, now)
		} else {
			for holder := range d.Issued {
				one, more := d.revoke(holder, serial, why, now)
				n, tokens = n+one, tokens+more
			}
		}
		if n+tokens == 0 {
			return &fault.Error{What: fmt.Errorf("revoke %s: it has no certificate and no token", cmp.Or(serial, string(role)+" "+name)), Hint: "names and serials are whole ones: gangwayd token --list"}
		}
		return nil
	})
	return n, tokens, err
}

// Held is a certificate that counts, or a token that nobody has used yet.
type Held struct {
	Role   Role
	Name   string
	Serial string // or the token's id
	Token  bool
	Until  time.Time
}

// List returns which certificates and tokens count, by role and name.
func (a *Authority) List(now time.Time) ([]Held, error) {
	r := &a.register
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.read(); err != nil {
		return nil, err
	}
	var all []Held
	for holder, certificates := range r.data.Issued {
		role, name, _ := strings.Cut(holder, "/")
		for _, c := range certificates {
			all = append(all, Held{Role(role), name, c.Serial, false, c.Until})
		}
	}
	for id, m := range r.data.Tokens {
		if role, name, _ := strings.Cut(m.Holder, "/"); m.Key == "" && !m.Void && m.Expires.After(now) {
			all = append(all, Held{Role(role), name, id, true, m.Expires})
		}
	}
	slices.SortFunc(all, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name), a.Until.Compare(b.Until))
	})
	return all, nil
}

// admit changes a token for a certificate.
func (a *Authority) admit(ctx context.Context, t *Token, key ed25519.PublicKey, life time.Duration, now time.Time) (c *x509.Certificate, err error) {
	if err := a.check(t, now); err != nil {
		return nil, err
	}
	p := Peer{Cluster: a.Cluster, Role: t.Role, Name: t.Name}
	public := hex.EncodeToString(key)
	err = a.register.update(ctx, now, func(d *registerJSON) error {
		made, known := d.Tokens[t.ID()]
		again := made.Key != ""
		if why := made.refuses(public, known); why != "" {
			return &fault.Error{What: fmt.Errorf("the join token of %s %s %s", t.Role, t.Name, why), Hint: "make another: gangwayd token --" + string(t.Role) + " " + t.Name}
		}
		for _, other := range slices.Clone(d.Issued[p.key()]) {
			if other.Key == public || again || other.Until.Before(now) {
				continue
			}
			if !t.Replace {
				return &fault.Error{
					What: fmt.Errorf("%s %s is there already: a host holds its certificate until %s", t.Role, t.Name, other.Until.UTC().Format(time.DateTime)),
					Hint: "if that host is gone, make a token that takes its place: gangwayd token --" + string(t.Role) + " " + t.Name + " --replace",
				}
			}
			d.revoke(p.key(), other.Serial, "another host took its name", now)
		}
		d.forget(p.key(), "") // has ended, was revoked, or its answer was lost
		made.Key = public
		d.Tokens[t.ID()] = made
		p.Joined = t.ID()
		c, err = a.enter(d, p, key, life, now)
		return err
	})
	return c, err
}

// refuses says why a token does not count for a key; empty: it does.
func (m *madeToken) refuses(public string, known bool) string {
	switch {
	case !known:
		return "is not in the register"
	case m.Void:
		return "was revoked"
	case m.Key != "" && m.Key != public:
		return "was used already"
	}
	return ""
}

// renew gives who has a certificate another. Those two are all that count from then on: what
// else there was is older, or its answer was lost. Where two have one identity, as by a copy
// of a host's files, one of them is out soon.
func (a *Authority) renew(ctx context.Context, p Peer, key ed25519.PublicKey, life time.Duration, now time.Time) (c *x509.Certificate, err error) {
	err = a.register.update(ctx, now, func(d *registerJSON) error {
		at := slices.IndexFunc(d.Issued[p.key()], func(c issued) bool { return c.Serial == p.Serial })
		if at < 0 {
			return fmt.Errorf("renew certificate of %s %s: it does not count any more", p.Role, p.Name)
		}
		p.Joined = d.Issued[p.key()][at].Joined
		d.forget(p.key(), p.Serial)
		c, err = a.enter(d, p, key, life, now)
		return err
	})
	return c, err
}

// forget drops all certificates of a holder but one.
func (d *registerJSON) forget(holder, but string) {
	d.Issued[holder] = slices.DeleteFunc(d.Issued[holder], func(c issued) bool { return c.Serial != but })
}

// enter makes a certificate that is in the register.
func (a *Authority) enter(d *registerJSON, p Peer, key ed25519.PublicKey, life time.Duration, now time.Time) (*x509.Certificate, error) {
	c, err := a.issue(p, key, life, now)
	if err == nil {
		d.Issued[p.key()] = append(d.Issued[p.key()], issued{serialOf(c), hex.EncodeToString(key), p.Joined, c.NotAfter})
	}
	return c, err
}
