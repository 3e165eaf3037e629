package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gangway-hpc/gangway/image/oci"
)

// Docker Hub has one name in references and another for its API.
const (
	hub    = "docker.io"
	hubAPI = "registry-1.docker.io"
)

// mirrorRest is how long a mirror that failed is passed over.
const mirrorRest = time.Minute

const maxName, maxTag = 1024, 128 // bytes

// validName says whether a repository's name can go into a URL as it is. It is a
// little wider than the grammar of distribution-spec: registries know best.
func validName(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || !alphanumeric(part[0]) || !alphanumeric(part[len(part)-1]) || !wordBytes(part) {
			return false
		}
	}
	return len(name) <= maxName
}

func validTag(tag string) bool {
	return tag != "" && len(tag) <= maxTag && wordBytes(tag) && (tag[0] == '_' || alphanumeric(tag[0]))
}

func wordBytes(s string) bool {
	for i := range len(s) {
		if !alphanumeric(s[i]) && !strings.ContainsRune("._-", rune(s[i])) {
			return false
		}
	}
	return true
}

func alphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// endpoint is a registry or a mirror: one server.
type endpoint struct {
	name     string   // as people write it and credentials know it
	base     *url.URL // scheme and host
	settings Host
	loopback bool

	reached atomic.Bool  // it answered once
	rest    atomic.Int64 // Unix time in ns until which it is passed over, as a mirror
}

// endpointKey tells endpoints apart: a mirror may name a scheme.
type endpointKey struct{ scheme, name string }

// canonical is the one spelling of a host by which settings are found. A port stays as
// it is written.
func canonical(host string) string {
	host = strings.ToLower(host)
	if host == "index."+hub || host == hubAPI {
		return hub
	}
	return host
}

// canonicalHosts returns hosts by their canonical names. Where several keys are one
// host, that in canonical spelling counts, else the first by the alphabet.
func canonicalHosts(hosts map[string]Host) map[string]Host {
	found := make(map[string]Host, len(hosts))
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		key := canonical(name)
		if _, twice := found[key]; !twice || key == name {
			found[key] = hosts[name]
		}
	}
	return found
}

// endpoint returns the endpoint of a host. An empty scheme leaves it to the settings.
func (c *Client) endpoint(scheme, host string) *endpoint {
	settings := canonical(host)
	if settings == hub {
		host = hub
	}
	key := endpointKey{scheme, host}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.endpoints[key]; e != nil {
		return e
	}
	e := &endpoint{name: host, settings: c.o.Hosts[settings], base: &url.URL{Scheme: scheme, Host: host}}
	e.loopback = isLoopback(e.base.Hostname())
	if host == hub {
		e.base.Host = hubAPI
	}
	tls := e.settings.CAFile != "" || e.settings.SkipVerify
	switch {
	case scheme != "":
	case e.settings.PlainHTTP, e.loopback && !tls:
		e.base.Scheme = "http"
	default:
		e.base.Scheme = "https"
	}
	c.endpoints[key] = e
	return e
}

// isLoopback says whether a host is by its name or address this machine.
func isLoopback(hostname string) bool {
	if hostname == "localhost" || strings.HasSuffix(hostname, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(hostname)
	return err == nil && ip.Unmap().IsLoopback()
}

// site is a repository at an endpoint.
type site struct {
	*endpoint
	name    string // of the repository there
	session *session
	mirror  bool
}

func (s *site) url(path string) *url.URL {
	u := *s.base
	u.Path = "/v2/" + s.name + "/" + path
	return &u
}

// Repository is one repository at one registry, and what a tag or digest names in
// it. It is safe for concurrent use.
type Repository struct {
	c                     *Client
	host, name, reference string
	sites                 []*site // mirrors, then the registry itself
	invalid               error   // what was wrong with the names given

	mu   sync.Mutex
	held map[oci.Digest][]byte // manifests that came with the answer to a tag
}

// Repository returns a repository of the registry host ("host[:port]"). The reference
// is a tag or a digest; user chooses between several credentials and may be empty.
// There is no input or output; a name that cannot be is an error of the methods.
func (c *Client) Repository(host, repository, user, reference string) *Repository {
	r := &Repository{c: c, host: host, name: repository, reference: reference, held: map[oci.Digest][]byte{}}
	self := c.endpoint("", host)
	for _, m := range self.settings.Mirrors {
		scheme, rest, ok := strings.Cut(m, "://")
		if !ok {
			scheme, rest = "", m
		}
		mirror, prefix, _ := strings.Cut(rest, "/")
		r.check("mirror", mirror, ok && scheme != "http" && scheme != "https")
		r.add(c.endpoint(scheme, mirror), strings.Trim(prefix, "/"), user, true)
	}
	r.add(self, "", user, false)
	_, err := oci.ParseDigest(reference)
	r.check("reference", reference, err != nil && !validTag(reference))
	return r
}

// check notes the first name that is wrong.
func (r *Repository) check(kind, name string, wrong bool) {
	if wrong && r.invalid == nil {
		r.invalid = fmt.Errorf("read repository %.100q of registry %.100q: %s %.200q is not valid", r.name, r.host, kind, name)
	}
}

// add appends a site.
func (r *Repository) add(e *endpoint, prefix, user string, mirror bool) {
	u, err := url.Parse(e.base.String())
	r.check("host", e.name, err != nil || u.Hostname() == "" || u.Host != e.base.Host || strings.ContainsAny(u.Host, "@?#/ "))
	name := r.name
	if prefix != "" {
		name = prefix + "/" + name
	}
	r.check("name", name, !validName(name))
	r.sites = append(r.sites, &site{endpoint: e, name: name, mirror: mirror, session: r.c.session(e, name, user)})
}

// Close is there for those who close what they read from. Connections stay with the
// Client.
func (r *Repository) Close() error { return nil }

// isDigest says whether the reference is a digest.
func (r *Repository) isDigest() bool { return strings.Contains(r.reference, ":") }

// String is the reference as people write it.
func (r *Repository) String() string {
	if r.isDigest() {
		return r.host + "/" + r.name + "@" + r.reference
	}
	return r.host + "/" + r.name + ":" + r.reference
}
