package registry

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestRedirect: blobs may lie elsewhere, where no credential goes, and the registry
// is not asked again for each range.
func TestRedirect(t *testing.T) {
	blob := noise(1 << 20)
	var mu sync.Mutex
	stored := 0
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"Authorization", "Cookie", "Referer"} {
			if r.Header.Get(name) != "" {
				t.Errorf("the other host got %s: %s", name, r.Header.Get(name))
			}
		}
		mu.Lock()
		stored++
		old := stored == 3
		mu.Unlock()
		if old {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
			return
		}
		serveBlob(w, r, blob, 300_000)
		panic(http.ErrAbortHandler)
	}))
	defer store.Close()
	store.Config.ErrorLog = quiet()
	g := guard1(t, true, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		http.Redirect(w, r, strings.Replace(store.URL, "://", "://bob:pass@", 1)+"/b?X-Amz-Signature=s3cret#x", http.StatusTemporaryRedirect)
		return true
	})
	_, layer, _ := g.push("app", "1", blob)
	c, _, logged := quick(t, Options{Credentials: ann()})
	mustRead(t, c.Repository(g.host, "app", "", "1"), layer, blob)
	// 300,000, 300,000, then 403 and a new URL, 300,000 and the rest; 1 of the registry's was 401.
	mu.Lock()
	defer mu.Unlock()
	if n := g.count("GET /v2/app/blobs/"); n != 3 || stored != 5 {
		t.Errorf("%d requests to the registry, %d to the store", n, stored)
	}
	noSecret(t, logged.String())
}

// TestRedirectedDenied: what another host refuses is not met with credentials, and
// the error tells the two hosts apart.
func TestRedirectedDenied(t *testing.T) {
	asked := 0
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.Header().Set("WWW-Authenticate", `Basic realm="give me"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer store.Close()
	f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, store.URL+"/b?X-Amz-Signature=s3cret", http.StatusFound)
		return true
	})
	k := ann()
	c, _, logged := quick(t, Options{Credentials: k})
	_, err := read(t, c.Repository(f.host, "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5})
	wantFault(t, err, "401", strings.TrimPrefix(store.URL, "http://"), "ask who runs "+f.host)
	if len(k.asked) != 0 || asked != 1 {
		t.Errorf("credentials were asked for %q, the store %d times", k.asked, asked)
	}
	noSecret(t, err.Error(), logged.String())
}

// TestRedirectRefused: where no redirect may lead.
func TestRedirectRefused(t *testing.T) {
	here := serve(t, nil)
	_, port, _ := strings.Cut(here.host, ":")
	for _, test := range []struct {
		location string
		loopback bool // is the registry
		want     string
	}{
		{"file:///etc/passwd", true, "only https and http"},
		{"ftp://example.org/x", true, "only https and http"},
		{"http://169.254.169.254/latest/meta-data", true, "169.254.169.254 is refused: a link-local address"},
		{"http://[fe80::1%25eth0]/x", true, "link-local"},
		{"http://[::ffff:169.254.169.254]/x", true, "link-local"},
		{"http://0.0.0.0/x", true, "not the address of a server"},
		{"http://224.0.0.1/x", true, "not the address of a server"},
		{"http:///x", true, "names no host"},
		{"http://127.0.0.1:1/x", false, "127.0.0.1:1 is refused: it is this machine"},
		{"http://localhost:1/x", false, "it is this machine"},
		{"http://[::1]:1/x", false, "it is this machine"},
		{"http://%zz/", true, "cannot be read"},
		{"http://169.254.169.254./x", true, "a link-local address"},
		{"http://2852039166/x", true, "2852039166 is refused: an address in a spelling"},
		{"http://0xa9fea9fe/x", true, "an address in a spelling"},
		{"http://0XA9.0xfe.43518/x", true, "an address in a spelling"},
		{"http://0251.0376.0251.0376/x", true, "an address in a spelling"},
		{"http://0x7f.1./x", true, "an address in a spelling"},
		{"http://127.1/x", false, "an address in a spelling"},
		{"http://0x/x", false, "an address in a spelling"},
		{"http://169.254.169.\uff12\uff15\uff14/x", true, "not a name of DNS"},
		{"http://169\u3002254\u3002169\u3002254/x", true, "not a name of DNS"},
		{"http://LocalHost./x", false, "it is this machine"},
		{"http://[fd00:ec2::254]/x", true, "a cloud keeps its metadata"},
		{"http://100.100.100.200/x", true, "a cloud keeps its metadata"},
		{"http://192.0.0.192/x", true, "a cloud keeps its metadata"},
		{"http://[64:ff9b::169.254.169.254]/x", true, "a link-local address"},
		{"http://[64:ff9b::7f00:1]/x", false, "loopback"},
		{"http://[64:ff9b::100.100.100.200]/x", true, "a cloud keeps its metadata"},
		{"?again", true, "the 11th in a row"},
	} {
		f := serve(t, func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Location", test.location)
			w.WriteHeader(http.StatusFound)
			return true
		})
		c, p, _ := quick(t, Options{})
		c.endpoint("", f.host).loopback = test.loopback
		_, err := read(t, c.Repository(f.host, "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5})
		if err == nil {
			t.Errorf("%s was followed", test.location)
			continue
		}
		wantFault(t, err, test.want, "ask who runs it", f.host)
		if len(p.taken()) != 0 {
			t.Errorf("%s was followed again", test.location)
		}
	}
	// A name that resolves to loopback passes the look at the URL; the dialer sees it.
	c, _, _ := quick(t, Options{})
	e := c.endpoint("", "127.0.0.1:"+port)
	e.loopback = false
	e.base = &url.URL{Scheme: "http", Host: "registry.example"}
	_, err := c.exchange(t.Context(), e, request{http.MethodGet, &url.URL{Scheme: "http", Host: here.host, Path: "/v2/"}, http.Header{}, ""})
	wantFault(t, err, "loopback interface", here.host)
	if got := here.asked(); len(got) != 0 {
		t.Errorf("asked %q", got)
	}
}

// TestRedirectLeavesHTTPS: from HTTPS there is no way to plain HTTP.
func TestRedirectLeavesHTTPS(t *testing.T) {
	plain := serve(t, nil)
	f := serveTLS(t, true, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, plain.URL+r.URL.Path, http.StatusFound)
		return true
	})
	c, _, _ := quick(t, Options{Hosts: map[string]Host{f.host: {SkipVerify: true}}})
	_, err := c.Repository(f.host, "app", "", "1").Resolve(t.Context())
	wantFault(t, err, "it leaves HTTPS", plain.host)
	if got := plain.asked(); len(got) != 0 {
		t.Errorf("asked %q", got)
	}
}

// TestGuard: addresses, after names are resolved.
func TestGuard(t *testing.T) {
	for _, test := range []struct {
		address string
		guard   guard
		ok      bool
	}{
		{"192.0.2.1:443", guardNetwork, true},
		{"10.0.0.1:443", guardNetwork, true},
		{"127.0.0.1:443", guardNetwork, false},
		{"127.8.0.1:443", guardNetwork, false},
		{"127.0.0.1:443", guardLocal, true},
		{"[::1]:443", guardNetwork, false},
		{"[::1]:443", guardLocal, true},
		{"[::ffff:127.0.0.1]:443", guardNetwork, false},
		{"169.254.169.254:80", guardLocal, false},
		{"[fe80::1%eth0]:80", guardLocal, false},
		{"0.0.0.0:80", guardLocal, false},
		{"[::]:80", guardLocal, false},
		{"[ff02::1]:80", guardNetwork, false},
		{"127.0.0.1:443", unguarded, true},
		{"nonsense", guardNetwork, false},
		{"[fd00:ec2::254]:80", guardLocal, false},
		{"100.100.100.200:80", guardLocal, false},
		{"192.0.0.192:80", guardLocal, false},
		{"[::ffff:100.100.100.200]:80", guardLocal, false},
		{"[64:ff9b::169.254.169.254]:80", guardLocal, false},
		{"[64:ff9b::127.0.0.1]:80", guardNetwork, false},
		{"[64:ff9b::0.0.0.0]:80", guardNetwork, false},
		{"[64:ff9b::192.0.2.1]:80", guardNetwork, true},
		{"[fd00:ec2::255]:80", guardNetwork, true},
		{"100.100.100.200:80", unguarded, true},
	} {
		if err := test.guard.check(test.address); (err == nil) != test.ok {
			t.Errorf("%s under %d: %v", test.address, test.guard, err)
		}
	}
	if why := unguarded.refuses(netip.MustParseAddr("169.254.1.1")); why != "" {
		t.Errorf("what the user names is refused: %s", why)
	}
}

// TestProxy: a proxy resolves names itself and may be on loopback; what it is asked
// for is still looked at.
func TestProxy(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	location := "http://store.example/b"
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.URL.Host)
		switch r.URL.Host {
		case "registry.example":
			w.Header().Set("Location", location)
			w.WriteHeader(http.StatusFound)
		default:
			fmt.Fprint(w, "layer")
		}
	}))
	defer proxy.Close()
	at, _ := url.Parse(proxy.URL)
	c, _, _ := quick(t, Options{Hosts: map[string]Host{"registry.example": {PlainHTTP: true}}})
	c.proxy = http.ProxyURL(at)
	mustRead(t, c.Repository("registry.example", "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5}, []byte("layer"))
	if want := []string{"registry.example", "store.example"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	for _, to := range []string{"169.254.169.254", "2852039166", "127.0.0.1:1", "localhost", "[fd00:ec2::254]"} {
		asked, location = nil, "http://"+to+"/b"
		_, err := read(t, c.Repository("registry.example", "app", "", "1"), oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5})
		wantFault(t, err, to+" is refused")
		if want := []string{"registry.example"}; !slices.Equal(asked, want) {
			t.Errorf("asked %q", asked)
		}
	}
}

// TestProxyGone: a proxy that does not answer is not taken for the registry, and its
// password is told no one.
func TestProxyGone(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	at := strings.TrimPrefix(gone.URL, "http://")
	for proxy, host := range map[string]string{"http://bob:s3cret@" + at: at, "http://bob:s3cret@no-such-proxy.invalid:3128": "no-such-proxy.invalid:3128"} {
		for _, plain := range []bool{true, false} {
			u, _ := url.Parse(proxy)
			c, _, logged := quick(t, Options{Hosts: map[string]Host{"registry.example": {PlainHTTP: plain}}})
			c.proxy = http.ProxyURL(u)
			_, err := c.Repository("registry.example", "app", "", "1").Resolve(t.Context())
			wantFault(t, err, "no connection to the proxy "+host, "HTTPS_PROXY")
			text := fault.Text("gangway", err, false)
			for _, wrong := range []string{"nothing answers", "no machine has the name"} {
				if strings.Contains(text, wrong) {
					t.Errorf("text has %q:\n%s", wrong, text)
				}
			}
			noSecret(t, text, logged.String())
		}
	}
}

// TestTLS: private authorities, and what to type where a certificate or the scheme is
// wrong.
func TestTLS(t *testing.T) {
	f := serveTLS(t, true, nil)
	f.push("app", "1", []byte("layer"))
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(f.host, ":")
	other := "localhost:" + port
	resolve := func(host string, h Host) ([]string, error) {
		c, p, _ := quick(t, Options{Hosts: map[string]Host{host: h}})
		_, err := c.Repository(host, "app", "", "1").Resolve(t.Context())
		if err != nil && len(p.taken()) != 0 {
			t.Errorf("%v was met with patience", err)
		}
		return f.asked(), err
	}
	if _, err := resolve(f.host, Host{CAFile: ca}); err != nil {
		t.Errorf("with its authority: %v", err)
	}
	if _, err := resolve(f.host, Host{SkipVerify: true}); err != nil {
		t.Errorf("without verification: %v", err)
	}
	_, err := resolve(f.host, Host{CAFile: empty})
	wantFault(t, err, empty, "no certificate in PEM", `ca = "FILE"`)
	_, err = resolve(f.host, Host{CAFile: filepath.Join(dir, "none")})
	wantFault(t, err, "no such file", `ca = "FILE"`)
	_, err = resolve(other, Host{CAFile: ca})
	wantFault(t, err, "not for "+other)
	_, err = resolve(f.host, Host{})
	wantFault(t, err, "400", "plain_http = false")

	// Not in the file: an authority that is not known.
	c, _, _ := quick(t, Options{})
	e := c.endpoint("https", f.host)
	_, err = c.exchange(t.Context(), e, request{http.MethodGet, e.base, http.Header{}, ""})
	wantFault(t, err, "authority", fmt.Sprintf("registry.%q.ca = ", f.host))

	plain := serve(t, nil)
	e = c.endpoint("https", plain.host)
	_, err = c.exchange(t.Context(), e, request{http.MethodGet, e.base, http.Header{}, ""})
	wantFault(t, err, "speaks plain HTTP", fmt.Sprintf("registry.%q.plain_http = true", plain.host))
}

// TestTLSOldVersion: TLS before 1.2 is not spoken.
func TestTLSOldVersion(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = quiet()
	s.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	s.StartTLS()
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "https://")
	c, _, _ := quick(t, Options{Hosts: map[string]Host{host: {SkipVerify: true}}})
	_, err := c.Repository(host, "app", "", "1").Resolve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("got %v", err)
	}
}

// TestSkipVerifyStays: a registry whose certificate is not looked at vouches for no
// other host.
func TestSkipVerifyStays(t *testing.T) {
	store := serveTLS(t, true, func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(w, "layer")
		return true
	})
	f := serveTLS(t, true, func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, store.URL+"/b", http.StatusFound)
		return true
	})
	d := oci.Descriptor{Digest: oci.DigestOf(nil), Size: 5}
	hosts := map[string]Host{f.host: {SkipVerify: true}}
	c, _, _ := quick(t, Options{Hosts: hosts})
	_, err := read(t, c.Repository(f.host, "app", "", "1"), d)
	wantFault(t, err, "authority", fmt.Sprintf("registry.%q.ca = ", store.host))
	hosts[store.host] = Host{SkipVerify: true}
	c, _, _ = quick(t, Options{Hosts: hosts})
	mustRead(t, c.Repository(f.host, "app", "", "1"), d, []byte("layer"))
	// However the redirect writes the host.
	_, port, _ := strings.Cut(store.host, ":")
	store.URL = "https://LocalHost:" + port
	hosts["localhost:"+port] = Host{SkipVerify: true}
	c, _, _ = quick(t, Options{Hosts: hosts})
	mustRead(t, c.Repository(f.host, "app", "", "1"), d, []byte("layer"))
	if errors.Is(err, ErrNotFound) {
		t.Error("a certificate is not a missing image")
	}
}

// TestScheme: loopback is plain by itself, all else only where it is said.
func TestScheme(t *testing.T) {
	c, _, _ := quick(t, Options{Hosts: map[string]Host{
		"plain.example": {PlainHTTP: true}, "localhost:1": {CAFile: "x"}, "127.0.0.2:5000": {SkipVerify: true}, "127.0.0.3:5000": {Mirrors: []string{"m"}},
	}})
	for host, want := range map[string]string{
		"registry.example": "https", "plain.example": "http", "localhost:5000": "http", "127.0.0.1:5000": "http",
		"[::1]:5000": "http", "localhost:1": "https", "127.0.0.2:5000": "https", "127.0.0.3:5000": "http", "127.example": "https", "10.0.0.1": "https",
	} {
		if got := c.endpoint("", host).base.Scheme; got != want {
			t.Errorf("%s: %s", host, got)
		}
	}
}
