package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// What an error of a Repository may be, for errors.Is.
var (
	// ErrNotFound says that the registry does not have it.
	ErrNotFound = errors.New("not found in registry")
	// ErrDenied says that the registry does not let us.
	ErrDenied = errors.New("denied by registry")
)

// Limits of what an error's body may say.
const (
	maxErrorBody = 64 << 10
	maxErrors    = 3
	maxErrorText = 300
)

// statusError is an answer with a status that was not asked for.
type statusError struct {
	host   string // that answered
	status int
	codes  []string // of the registry: MANIFEST_UNKNOWN
	text   string   // of the registry, fit for a terminal
	wait   string   // Retry-After
	away   bool     // not from the registry, but from where it redirected to
	bare   bool     // the last request carried no credential
}

func (e *statusError) Error() string {
	s := e.host + " answered " + strings.TrimSpace(strconv.Itoa(e.status)+" "+http.StatusText(e.status))
	if e.text != "" {
		s += " (" + e.text + ")"
	}
	return s
}

// temporary says whether the same question may get another answer later.
func (e *statusError) temporary() bool {
	switch e.status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return e.status >= 500
}

// newStatusError reads the error from an answer, and closes it. A body that takes its
// time is not waited for.
func (c *Client) newStatusError(resp *http.Response) *statusError {
	e := &statusError{host: clean(resp.Request.URL.Host, 200), status: resp.StatusCode, wait: resp.Header.Get("Retry-After")}
	e.bare = resp.Request.Header.Get("Authorization") == "" && resp.Request.Method != http.MethodPost
	slow := time.AfterFunc(c.errorBody, func() { _ = resp.Body.Close() })
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came of it is enough
	slow.Stop()
	_ = resp.Body.Close()
	e.codes, e.text = parseErrors(raw)
	return e
}

// parseErrors reads the body of an error: that of registries, or one of those that
// token servers send.
func parseErrors(raw []byte) (codes []string, text string) {
	var answer struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
		Details     string `json:"details"`
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}
	_ = json.Unmarshal(raw, &answer) // fields that fit are set, others stay empty
	var texts []string
	for _, e := range answer.Errors[:min(len(answer.Errors), maxErrors)] {
		codes = append(codes, clean(e.Code, 50))
		texts = append(texts, strings.Trim(clean(e.Code, 50)+": "+clean(e.Message, maxErrorText), ": "))
	}
	for _, s := range []string{answer.Details, answer.Error, answer.Description} {
		if s != "" {
			texts = append(texts, clean(s, maxErrorText))
		}
	}
	return codes, strings.Join(texts, "; ")
}

// clean makes a server's text fit for a terminal and a line.
func clean(s string, limit int) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "..."
	}
	return strings.TrimSpace(s)
}

// deniedError is a refusal and what was tried.
type deniedError struct {
	session whose
	bare    bool // what was refused carried no credential
	err     error
}

func (e *deniedError) Error() string   { return e.err.Error() }
func (e *deniedError) Unwrap() []error { return []error{e.err, ErrDenied} }

// retryable says whether err may go away by itself. What has a remedy does not.
func retryable(err error) bool {
	var status *statusError
	var known *fault.Error
	var denied *deniedError
	switch {
	case errors.As(err, &known), errors.As(err, &denied):
		return false
	case errors.As(err, &status):
		return status.temporary()
	}
	return true
}

// unreached says whether err is that nobody is there.
func unreached(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// proxyError is that there is no connection to the proxy, which is not to be taken for
// one to the registry.
type proxyError struct {
	host string
	err  error
}

func (e *proxyError) Error() string { return "proxy " + e.host + ": " + e.err.Error() }
func (e *proxyError) Unwrap() error { return e.err }

// ofProxy marks the errors of a connection to a proxy.
func (c *Client) ofProxy(req *http.Request, err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "proxyconnect" {
		return err
	}
	proxy, _ := c.proxy(req) // it gave one before
	if proxy == nil {
		return err
	}
	return &proxyError{clean(proxy.Host, 200), err} // the URL may hold a password
}

// explainConnection puts a remedy to errors of a connection to u that waiting does
// not heal. u was named by the endpoint, or is it.
func explainConnection(e *endpoint, u *url.URL, err error) error {
	host := clean(u.Host, 200)
	what := fmt.Errorf("ask %s: %w", host, err)
	if host != e.name && u.Host != e.base.Host {
		what = fmt.Errorf("ask %s for %s: %w", host, e.name, err)
	}
	var known *fault.Error
	var refused *refusedError
	var proxy *proxyError
	var header tls.RecordHeaderError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var verify *tls.CertificateVerificationError
	var dns *net.DNSError
	setting := fmt.Sprintf("in gangway.toml: registry.%q.", e.name)
	if u.Host != e.base.Host {
		setting = fmt.Sprintf("in gangway.toml: registry.%q.", host)
	}
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &refused):
		return refuse(e, host, refused.why)
	case errors.As(err, &proxy):
		return what // whatever it is, it is not the registry's
	case errors.As(err, &header) && string(header.RecordHeader[:]) == "HTTP/":
		return &fault.Error{What: what, Cause: host + " speaks plain HTTP, not HTTPS", Hint: "if that is meant, " + setting + "plain_http = true"}
	case errors.As(err, &unknown):
		return &fault.Error{What: what, Cause: "the certificate of " + host + " is of an authority that this machine does not know", Hint: "name the authority's certificate, " + setting + `ca = "FILE"`}
	case errors.As(err, &name):
		return &fault.Error{What: what, Cause: "the certificate is not for " + host, Hint: "use the name that the certificate is for"}
	case errors.As(err, &verify):
		return &fault.Error{What: what, Cause: "the certificate of " + host + " is not valid", Hint: "check the clock (date), and ask who runs " + host}
	case errors.As(err, &dns) && dns.IsNotFound && !e.reached.Load():
		return &fault.Error{What: what, Cause: "no machine has the name " + clean(u.Hostname(), 200), Hint: "check how the registry is written: docker://HOST/REPOSITORY:TAG, and the network and DNS of this machine"}
	}
	return what
}

// explain returns err as people need it, what being what was done.
func (r *Repository) explain(what string, s *site, tries int, err error) error {
	if tries > 1 {
		err = fmt.Errorf("tried %d times without progress: %w", tries, err)
	}
	err = fmt.Errorf("%s: %w", what, err)
	var known *fault.Error
	var denied *deniedError
	var status *statusError
	var proxy *proxyError
	var dns *net.DNSError
	switch {
	case errors.As(err, &known):
		return err
	case errors.As(err, &proxy):
		return &fault.Error{What: err, Cause: "no connection to the proxy " + proxy.host, Hint: "check HTTPS_PROXY, HTTP_PROXY and NO_PROXY, and the network"}
	case errors.As(err, &denied):
		return explainDenied(denied, err)
	case errors.As(err, &status):
		return r.explainStatus(s, status, err)
	case errors.Is(err, errStalled):
		return &fault.Error{What: err, Cause: fmt.Sprintf("%s is silent, or nearly: less than %d KiB in %v", s.base.Host, leastBytes>>10, r.c.stall), Hint: "try again, or set a mirror nearby"}
	case errors.As(err, &dns):
		return &fault.Error{What: err, Cause: "the name service of this machine does not resolve the name", Hint: "check the registry's name, and the network"}
	case unreached(err):
		return &fault.Error{What: err, Cause: "nothing answers at " + s.base.Host, Hint: "check the registry's name and port, and the network"}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return &fault.Error{What: err, Cause: s.base.Host + " ends its answers too early", Hint: "try again; if it stays, the registry's copy is cut: push the image again"}
	}
	return err
}

func (r *Repository) explainStatus(s *site, status *statusError, err error) error {
	has := func(code string) bool { return strings.Contains(strings.Join(status.codes, " "), code) }
	switch {
	case status.away:
		return &fault.Error{What: err, Cause: status.host + " is where " + s.base.Host + " keeps its blobs", Hint: "try again; if it stays, ask who runs " + s.endpoint.name}
	case status.status == http.StatusUnauthorized, status.status == http.StatusForbidden:
		denied := s.session.denied(err)
		var d *deniedError
		errors.As(denied, &d)
		return explainDenied(d, denied)
	case status.status == http.StatusNotFound && has("NAME_UNKNOWN"):
		return &fault.Error{What: notFound(err), Cause: "the registry has no repository " + r.name, Hint: "check how the repository is written: docker://" + r.host + "/REPOSITORY:TAG"}
	case status.status == http.StatusNotFound && has("BLOB_UNKNOWN"):
		return &fault.Error{What: notFound(err), Cause: "the registry lost a part of the image", Hint: "push the image again, or pull another tag"}
	case status.status == http.StatusNotFound:
		return &fault.Error{
			What: notFound(err), Cause: "the registry has no " + r.reference + " in " + r.name + ", or no such repository",
			Hint: "see what there is: skopeo list-tags docker://" + r.host + "/" + r.name,
		}
	case status.status == http.StatusBadRequest && s.base.Scheme == "http":
		return &fault.Error{What: err, Cause: "we spoke plain HTTP to " + s.base.Host, Hint: fmt.Sprintf(`if it wants HTTPS, in gangway.toml: registry.%q.plain_http = false`, s.endpoint.name)}
	case status.status == http.StatusTooManyRequests:
		return &fault.Error{What: err, Cause: status.host + " limits how often one may ask", Hint: "wait, log in (docker login " + s.endpoint.name + "), or set a mirror"}
	case status.temporary():
		return &fault.Error{What: err, Cause: status.host + " has trouble of its own", Hint: "try again later"}
	}
	return err
}

// notFound marks err.
func notFound(err error) error { return &markedError{err, ErrNotFound} }

// markedError is err, and what errors.Is is to find in it.
type markedError struct{ err, mark error }

func (e *markedError) Error() string   { return e.err.Error() }
func (e *markedError) Unwrap() []error { return []error{e.err, e.mark} }

// explainDenied says which credential was tried, or where one was looked for.
func explainDenied(d *deniedError, err error) error {
	w := d.session
	f := &fault.Error{What: err}
	login := fmt.Sprintf("docker login %s, or a line in Enroot's .credentials: machine %s login USER password PASSWORD", w.host, w.host)
	switch {
	case w.tried != "" && d.bare:
		f.Cause = fmt.Sprintf("%s refused a request without a credential: that of %s answers to Basic and Bearer only, and is not sent after a redirect to another host", w.host, w.tried)
		f.Hint = "ask who runs " + w.host
	case w.tried != "":
		f.Cause = fmt.Sprintf("%s refused the credential of %s: it is wrong, has expired, or may not read this", w.host, w.tried)
		f.Hint = "if it may read " + w.repository + ", renew it: " + login
	default:
		f.Cause = "no credential for " + w.host + " was found"
		if w.user != "" {
			f.Cause = "no credential of " + w.user + " for " + w.host + " was found"
		}
		if w.looked != "" {
			f.Cause += "; looked in " + w.looked
		}
		f.Hint = login
	}
	f.Cause += "; the repository " + w.repository + " may also not exist: registries do not tell the two apart"
	return f
}

// retryAfter reads Retry-After: seconds or a date. Zero means that it says nothing.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// ended says whether it is over because ctx is.
func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
