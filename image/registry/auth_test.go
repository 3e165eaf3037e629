package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image/credential"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// guarded is a registry that demands tokens, with its token server.
type guarded struct {
	*fake
	tokens *httptest.Server

	mu        sync.Mutex
	issued    int
	valid     map[string]bool
	questions []url.Values // with what was sent besides: basic, method
	needLogin bool
	life      int // s
}

func guard1(t *testing.T, needLogin bool, spoil spoiler) *guarded {
	t.Helper()
	g := &guarded{valid: map[string]bool{}, needLogin: needLogin, life: 300}
	g.tokens = httptest.NewServer(http.HandlerFunc(g.token))
	t.Cleanup(g.tokens.Close)
	g.fake = serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		g.mu.Lock()
		ok := g.valid[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
		g.mu.Unlock()
		if !ok {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="the, registry",scope="repository:app:pull,push"`, g.tokens.URL))
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication \u001b[31mrequired"}]}`)
			return true
		}
		return spoil != nil && spoil(w, r)
	})
	return g
}

func (g *guarded) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm() // an empty one is wrong below
	g.mu.Lock()
	defer g.mu.Unlock()
	user, password, _ := r.BasicAuth()
	q := r.Form
	q.Set("method", r.Method)
	q.Set("basic", user)
	g.questions = append(g.questions, q)
	login := user == "ann" && password == "s3cret-pass" || q.Get("refresh_token") == "s3cret-refresh"
	if g.needLogin && !login {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"details":"incorrect username or password"}`)
		return
	}
	g.issued++
	name := fmt.Sprintf("tok-%d", g.issued)
	g.valid[name] = true
	fmt.Fprintf(w, `{"access_token":%q,"expires_in":%d}`, name, g.life)
}

// expire makes all tokens invalid.
func (g *guarded) expire() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.valid)
}

func (g *guarded) asks() []url.Values {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]url.Values(nil), g.questions...)
}

// TestTokens: each kind of credential gets its token, once for all requests.
func TestTokens(t *testing.T) {
	for name, test := range map[string]struct {
		login bool
		cred  Credentials
		want  map[string]string
	}{
		"anonymous": {false, nil, map[string]string{"method": "GET", "basic": ""}},
		"none":      {false, &known{}, map[string]string{"method": "GET", "basic": ""}},
		"password":  {true, ann(), map[string]string{"method": "GET", "basic": "ann", "account": "ann"}},
		"identity": {
			true, &known{Credential: credential.Credential{IdentityToken: "s3cret-refresh", Source: "f"}},
			map[string]string{"method": "POST", "basic": "", "grant_type": "refresh_token", "client_id": "gangway"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := guard1(t, test.login, nil)
			d, layer, raw := g.push("app", "1", []byte("layer"))
			c, _, logged := quick(t, Options{Credentials: test.cred})
			r := c.Repository(g.host, "app", "", "1")
			if got, err := r.Resolve(t.Context()); err != nil || got.Digest != d.Digest {
				t.Fatalf("%+v, %v", got, err)
			}
			if got, err := r.Manifest(t.Context(), d); err != nil || !bytes.Equal(got, raw) {
				t.Fatalf("%q, %v", got, err)
			}
			mustRead(t, c.Repository(g.host, "app", "", "other"), layer, []byte("layer"))
			asks := g.asks()
			if len(asks) != 1 {
				t.Fatalf("%d tokens were asked for: %v", len(asks), asks)
			}
			test.want["scope"], test.want["service"] = "repository:app:pull", "the, registry"
			for k, v := range test.want {
				if got := asks[0].Get(k); got != v {
					t.Errorf("%s is %q, want %q", k, got, v)
				}
			}
			if got := g.asked(); len(got) != 4 { // HEAD twice, GET, GET
				t.Errorf("requests: %q", got)
			}
			noSecret(t, logged.String())
		})
	}
}

// TestRegistryToken: a token for the registry is sent as it is.
func TestRegistryToken(t *testing.T) {
	g := guard1(t, true, nil)
	g.valid["tok-mine"] = true
	d, _, _ := g.push("app", "1", []byte("layer"))
	c, _, _ := quick(t, Options{Credentials: &known{Credential: credential.Credential{RegistryToken: "tok-mine", Source: "f"}}})
	if got, err := c.Repository(g.host, "app", "", "1").Resolve(t.Context()); err != nil || got.Digest != d.Digest {
		t.Errorf("%+v, %v", got, err)
	}
	if n := len(g.asks()); n != 0 {
		t.Errorf("%d tokens were asked for", n)
	}
}

// TestTokenLife: a token is renewed before the registry would refuse it, and one that
// does not say how long it lives is believed for a minute.
func TestTokenLife(t *testing.T) {
	for life, after := range map[int]time.Duration{300: 291 * time.Second, 0: 55 * time.Second} {
		g := guard1(t, false, nil)
		g.life = life
		d, _, _ := g.push("app", "1", []byte("layer"))
		c, _, _ := quick(t, Options{})
		now := time.Now()
		c.now = func() time.Time { return now }
		r := c.Repository(g.host, "app", "", "1")
		for range 3 {
			if _, err := r.Manifest(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(after)
		if _, err := r.Manifest(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if n, asked := len(g.asks()), g.asked(); n != 2 || len(asked) != 5 {
			t.Errorf("life %d: %d tokens, requests %q", life, n, asked)
		}
	}
}

// TestTokenExpiresInBlob: a pull outlives its token, whichever way the blob comes.
func TestTokenExpiresInBlob(t *testing.T) {
	for _, parallel := range []bool{false, true} {
		var g *guarded
		blobs := 0
		g = guard1(t, true, func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			g.mu.Lock()
			blobs++
			first := blobs == 1
			g.mu.Unlock()
			if !first {
				return false
			}
			g.expire()
			return cutAfter(w, r, noise(1<<20), 300_000)
		})
		blob := noise(1 << 20)
		_, layer, _ := g.push("app", "1", blob)
		c, _, logged := quick(t, Options{Credentials: ann()})
		if parallel {
			c.everyHost, c.parallel, c.chunk = true, 100_000, 100_000
		}
		mustRead(t, c.Repository(g.host, "app", "", "1"), layer, blob)
		if n := len(g.asks()); n != 2 {
			t.Errorf("parallel %v: %d tokens", parallel, n)
		}
		noSecret(t, logged.String())
	}
}

// TestDenied: a refusal says which credential was tried and from where, or that there
// was none and where one was looked for; and it ends.
func TestDenied(t *testing.T) {
	basic := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	forbidden := func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"errors":[{"code":"DENIED","message":"no"}]}`)
		return true
	}
	loop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"token":"tok-x"}`) }))
	defer loop.Close()
	always := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Bearer realm="`+loop.URL+`"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	wrong := &known{Credential: credential.Credential{Username: "ann", Password: "s3cret-wrong", Source: "/home/ann/.docker/config.json"}}
	for name, test := range map[string]struct {
		host func(t *testing.T) string
		cred Credentials
		want []string
	}{
		"basic, none":       {func(t *testing.T) string { return serve(t, basic).host }, nil, []string{"401", "no credential for", "docker login", ".credentials", "machine", "may also not exist"}},
		"basic, looked":     {func(t *testing.T) string { return serve(t, basic).host }, &known{}, []string{"no credential for", "looked in /a, /b"}},
		"basic, refused":    {func(t *testing.T) string { return serve(t, basic).host }, wrong, []string{"401", "refused the credential of ann from /home/ann/.docker/config.json"}},
		"token, none":       {func(t *testing.T) string { return guard1(t, true, nil).host }, nil, []string{"get token", "incorrect username or password", "no credential for"}},
		"token, refused":    {func(t *testing.T) string { return guard1(t, true, nil).host }, wrong, []string{"get token", "refused the credential of ann from /home/ann/.docker/config.json"}},
		"identity, refused": {func(t *testing.T) string { return guard1(t, true, nil).host }, &known{Credential: credential.Credential{IdentityToken: "s3cret-old", Source: "/f"}}, []string{"get token", "refused the credential of", "/f"}},
		"forbidden, none":   {func(t *testing.T) string { return serve(t, forbidden).host }, nil, []string{"403", "DENIED: no", "no credential for"}},
		"token not obeyed":  {func(t *testing.T) string { return serve(t, always).host }, ann(), []string{"401", "refused the credential of ann"}},
		"helper is missing": {func(t *testing.T) string { return serve(t, basic).host }, broken{}, []string{"docker-credential-x is not there"}},
	} {
		t.Run(name, func(t *testing.T) {
			host := test.host(t)
			c, p, logged := quick(t, Options{Credentials: test.cred})
			r := c.Repository(host, "team/app", "", "1")
			_, err := r.Resolve(t.Context())
			wantFault(t, err, append(test.want, host, "team/app")...)
			if !errors.Is(err, ErrDenied) {
				t.Errorf("%v is not ErrDenied", err)
			}
			noSecret(t, err.Error(), logged.String())
			d := oci.Descriptor{Digest: oci.DigestOf(nil), Size: 10}
			_, err = r.Manifest(t.Context(), d)
			wantFault(t, err, test.want...)
			_, err = read(t, r, d)
			wantFault(t, err, test.want...)
			if got := p.taken(); len(got) != 0 {
				t.Errorf("a refusal was met with patience: %v", got)
			}
		})
	}
}

type broken struct{}

func (broken) Looked() []string { return nil }

func (broken) Find(_ context.Context, _, _, _ string) (credential.Credential, error) {
	return credential.Credential{}, errors.New("docker-credential-x is not there")
}

// TestBasic: Basic is answered by user and password.
func TestBasic(t *testing.T) {
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, _ := r.BasicAuth(); user == "ann" && password == "s3cret-pass" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Negotiate abc==, Basic realm="a, \"b\""`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	blob := []byte("layer")
	_, layer, _ := f.push("app", "1", blob)
	k := ann()
	c, _, _ := quick(t, Options{Credentials: k})
	r := c.Repository(f.host, "app", "ann", "1")
	if _, err := r.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustRead(t, r, layer, blob)
	if len(k.asked) != 1 || k.asked[0] != f.host+" app ann" {
		t.Errorf("credentials were asked for %q", k.asked)
	}
	if got := f.asked(); len(got) != 3 {
		t.Errorf("requests: %q", got)
	}
}

// TestRealm: credentials go to a token server over TLS, or to a plain registry itself.
func TestRealm(t *testing.T) {
	for _, test := range []struct {
		host  string
		plain bool
		realm string
		ok    bool
	}{
		{"registry.example", false, "https://auth.example/token", true},
		{"docker.io", false, "https://auth.docker.io/token", true},
		{"registry.example", false, "http://auth.example/token", false},
		{"registry.example", false, "http://registry.example/token", false},
		{"registry.example:5000", true, "http://registry.example:5001/token", true},
		{"registry.example", true, "http://other.example/token", false},
		{"registry.example", true, "http://127.0.0.1:80/token", false},
		{"registry.example", false, "https://127.0.0.1/token", false},
		{"registry.example", false, "https://169.254.169.254/token", false},
		{"127.0.0.1:5000", false, "http://localhost:5001/token", true},
		{"127.0.0.1:5000", false, "http://other.example/token", false},
		{"registry.example", false, "https://2852039166/token", false},
		{"registry.example", false, "https://0x7f.1/token", false},
		{"registry.example", false, "https://169.254.169.254./token", false},
		{"registry.example", false, "https://[64:ff9b::a9fe:a9fe]/token", false},
		{"registry.example", false, "https://100.100.100.200/token", false},
		{"registry.example", false, "https://1.auth0x.example/token", true},
		{"registry.example", false, "https://192.0.2.1/token", true},
		{"registry.example", false, "", false},
		{"registry.example", false, "/token", false},
		{"registry.example", false, "file:///etc/passwd", false},
		{"registry.example", false, "ftp://registry.example/", false},
	} {
		c, _, _ := quick(t, Options{Hosts: map[string]Host{test.host: {PlainHTTP: test.plain}}})
		s := c.session(c.endpoint("", test.host), "app", "")
		u, err := s.realm(test.realm)
		if (err == nil) != test.ok {
			t.Errorf("%s names %q: %v, %v", test.host, test.realm, u, err)
		}
	}
}

// TestIdentityTokenFallback: a token server from before OAuth2 gets the password.
func TestIdentityTokenFallback(t *testing.T) {
	g := guard1(t, true, nil)
	g.tokens.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		g.token(w, r)
	})
	g.push("app", "1", []byte("layer"))
	k := ann()
	k.IdentityToken = "s3cret-refresh"
	c, _, _ := quick(t, Options{Credentials: k})
	if _, err := c.Repository(g.host, "app", "", "1").Resolve(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHubNames: Docker Hub's names are one registry.
func TestHubNames(t *testing.T) {
	c, _, _ := quick(t, Options{Hosts: map[string]Host{"docker.io": {CAFile: "x"}}})
	for _, name := range []string{"docker.io", "index.docker.io", "registry-1.docker.io"} {
		e := c.endpoint("", name)
		if e.name != "docker.io" || e.base.String() != "https://registry-1.docker.io" || e.settings.CAFile != "x" {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// TestHostKeys: settings are found however their host is written.
func TestHostKeys(t *testing.T) {
	for key, host := range map[string]string{
		"index.docker.io": "docker.io", "registry-1.docker.io": "docker.io", "Docker.IO": "index.docker.io",
		"Reg.Example": "reg.example", "reg.example": "Reg.Example", "REG.example:5000": "reg.example:5000",
	} {
		hosts := map[string]Host{key: {CAFile: "x", Mirrors: []string{"mirror.example"}}}
		c, _, _ := quick(t, Options{Hosts: hosts})
		if e := c.endpoint("", host); e.settings.CAFile != "x" {
			t.Errorf("%s: no settings for %s", key, host)
		}
		if r := c.Repository(host, "app", "", "1"); len(r.sites) != 2 || r.invalid != nil {
			t.Errorf("%s: %d sites for %s, %v", key, len(r.sites), host, r.invalid)
		}
		if _, ok := hosts[key]; !ok || len(hosts) != 1 {
			t.Errorf("the caller's map is now %v", hosts)
		}
	}
	c, _, _ := quick(t, Options{Hosts: map[string]Host{
		"index.docker.io": {CAFile: "index"}, "docker.io": {CAFile: "right"}, "registry-1.docker.io": {CAFile: "api"},
		"A.example": {CAFile: "first"}, "a.Example": {CAFile: "second"}, "B.example": {CAFile: "upper"}, "b.example": {CAFile: "right"}, "reg.example:443": {CAFile: "port"},
	}})
	for host, want := range map[string]string{"docker.io": "right", "a.example": "first", "b.example": "right", "reg.example": "", "reg.example:443": "port"} {
		if got := c.endpoint("", host).settings.CAFile; got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

// TestDeniedAway: a credential that was not sent was not refused.
func TestDeniedAway(t *testing.T) {
	var home string
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, home+"/back", http.StatusFound)
	}))
	defer away.Close()
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		if _, _, ok := r.BasicAuth(); ok {
			http.Redirect(w, r, away.URL+"/x", http.StatusFound)
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	home = f.URL
	c, _, _ := quick(t, Options{Credentials: ann()})
	_, err := read(t, c.Repository(f.host, "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5})
	wantFault(t, err, "401", "refused a request without a credential", "ann", "redirect")
	if text := fault.Text("gangway", err, false); strings.Contains(text, "refused the credential") {
		t.Errorf("text:\n%s", text)
	}
}

// TestTokenRenewedOnce: of several who find the token too old one renews it.
func TestTokenRenewedOnce(t *testing.T) {
	g := guard1(t, false, nil)
	d, _, _ := g.push("app", "1", []byte("layer"))
	c, _, _ := quick(t, Options{})
	begin := time.Now()
	var late atomic.Bool
	c.now = func() time.Time { return begin }
	r := c.Repository(g.host, "app", "", "1")
	if _, err := r.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.now = func() time.Time { return begin.Add(time.Hour) }
	g.tokens.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !late.Swap(true) {
			<-time.After(100 * time.Millisecond) // so that the others come meanwhile
		}
		g.token(w, r)
	})
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			if _, err := r.Manifest(t.Context(), d); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	if n := len(g.asks()); n != 2 {
		t.Errorf("%d tokens were asked for", n)
	}
}

// TestTokenWait: one who waits for another's token waits no longer than it may, and
// what is known can be read meanwhile.
func TestTokenWait(t *testing.T) {
	g := guard1(t, false, nil)
	asked, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	g.tokens.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		<-done
		g.token(w, r)
	})
	want, _, _ := g.push("app", "1", []byte("layer"))
	c, _, _ := quick(t, Options{})
	r := c.Repository(g.host, "app", "", "1")
	first := make(chan error, 1)
	go func() {
		d, err := r.Resolve(context.Background())
		if err == nil && d.Digest != want.Digest {
			err = fmt.Errorf("got %+v", d)
		}
		first <- err
	}()
	<-asked
	stop := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, stop)
	defer cancel()
	second := make(chan error, 1)
	go func() {
		_, err := r.Resolve(ctx)
		second <- err
	}()
	select {
	case err := <-second:
		if !errors.Is(err, stop) {
			t.Errorf("the second got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second waits for the first one's token")
	}
	refused := make(chan error, 1)
	go func() { refused <- r.sites[0].session.denied(errors.New("x")) }()
	select {
	case <-refused:
	case <-time.After(10 * time.Second):
		t.Error("an error waits for a token")
	}
	close(done)
	if err := <-first; err != nil {
		t.Errorf("the first got %v", err)
	}
	if n := len(g.asks()); n != 1 {
		t.Errorf("%d tokens were asked for", n)
	}
}

// TestDeniedOnce: a wrong password is not tried again, which may lock the account.
func TestDeniedOnce(t *testing.T) {
	g := guard1(t, true, nil)
	k := ann()
	k.Password = "s3cret-wrong"
	c, _, _ := quick(t, Options{Credentials: k})
	if _, err := c.Repository(g.host, "app", "", "1").Resolve(t.Context()); !errors.Is(err, ErrDenied) {
		t.Errorf("got %v", err)
	}
	if n := len(g.asks()); n != 1 {
		t.Errorf("the password was sent %d times", n)
	}
}
