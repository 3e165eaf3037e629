package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// serverDate is what a server took for the time at a moment.
type serverDate struct {
	name string
	off  time.Duration // ahead of this machine's clock
}

// registry asks a server of images for the begin of its API. That it wants a login is an
// answer too.
func (e *examination) registry(ctx context.Context, r Registry) Finding {
	f := Finding{Result: OK}
	u, err := url.Parse(cmp.Or(r.URL, "https://"+r.Name))
	if err != nil {
		f.Result, f.Got = Degraded, err.Error()
		return f
	}
	u.Path = "/v2/"
	f.Tried = "GET " + u.String()
	status, err := e.get(ctx, r, u)
	host := quote(u.Hostname())
	curl := "curl -v " + quote(u.String())
	switch {
	case err == nil && (status == http.StatusOK || status == http.StatusUnauthorized || status == http.StatusForbidden):
		f.Got = fmt.Sprintf("answers (%d)", status)
	case err == nil:
		f.Result, f.Got = Degraded, fmt.Sprintf("HTTP status %d", status)
		f.Cause, f.Remedy = "it speaks HTTP and is no registry, or is out of order", curl
	default:
		f.Result = Degraded
		f.Got, f.Cause, f.Remedy = unreachable(err, host, curl)
	}
	if f.Result != OK {
		f.Consequence = "no image can be pulled from it; those in the store run"
	}
	return f
}

// unreachable explains why a server did not answer.
func unreachable(err error, host, curl string) (got, cause, remedy string) {
	got = err.Error()
	if e, ok := errors.AsType[*url.Error](err); ok {
		got = e.Err.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return got, "its name is not found", "getent hosts " + host
	}
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		if invalid, ok := errors.AsType[x509.CertificateInvalidError](certificate.Err); ok && invalid.Reason == x509.Expired {
			return got, "its certificate or this machine's clock is out of date", "date"
		}
		return got, "its certificate is not known here", curl + `   (if it is your own: ca = "FILE" in [registry."HOST"] of gangway.toml)`
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return got, "nothing listens there", curl
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return got, "a firewall swallows it, or it needs a proxy", "export https_proxy=http://PROXY:PORT"
	case strings.Contains(got, "server gave HTTP response to HTTPS client"):
		return got, "it speaks no TLS", `add plain_http = true to [registry."HOST"] of gangway.toml`
	}
	return got, "", curl
}

func (e *examination) get(ctx context.Context, r Registry, u *url.URL) (status int, err error) {
	conf := &tls.Config{InsecureSkipVerify: r.SkipVerify} // as the configuration says
	if r.CAFile != "" {
		pem, err := os.ReadFile(r.CAFile)
		if err != nil {
			return 0, err
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return 0, fmt.Errorf("read %s: no certificate in it", r.CAFile)
		}
		conf.RootCAs = pool
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: conf, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("User-Agent", "gangway")
	before := e.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 1<<16) // only to be polite
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		e.mu.Lock()
		e.dates = append(e.dates, serverDate{r.Name, date.Sub(before)})
		e.mu.Unlock()
	}
	return response.StatusCode, nil
}

// clock compares this machine's clock with all others there are: of the program's
// builder, of file servers, and of registries. A skew among nodes cannot be seen from
// one.
func (e *examination) clock() Finding {
	f := Finding{Name: "clock", Result: OK, Tried: "compare the time with this program's, with that of new files, and with registries'"}
	const allowed = time.Minute
	now := e.Now()
	f.Got = "nothing disagrees"
	wrong := func(got string) {
		if f.Result == OK {
			f.Result, f.Got = Degraded, got
			f.Cause = "the clock of this machine, or that one, is not set by the network"
			f.Consequence = "certificates and logins are refused, and files look older or newer than they are"
			f.Remedy = "sudo timedatectl set-ntp true"
		}
	}
	if st, err := os.Stat("/proc/self/exe"); err == nil && st.ModTime().Sub(now) > 24*time.Hour {
		wrong(fmt.Sprintf("it is %s, before this program was made", now.Format(time.DateOnly)))
	}
	for _, dir := range []string{e.TempDir, e.Store} {
		if dir == "" {
			continue
		}
		_ = scratch(existing(dir), func(file *os.File) error { // other probes say so if it cannot be written
			st, err := file.Stat()
			if err == nil && away(st.ModTime().Sub(e.Now())) > allowed {
				wrong(fmt.Sprintf("new files in %s are %s", dir, ahead(st.ModTime().Sub(e.Now()))))
			}
			return err
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.dates {
		if away(d.off) > allowed {
			wrong(fmt.Sprintf("the clock of %s is %s", d.name, ahead(d.off)))
		}
	}
	return f
}

func away(d time.Duration) time.Duration { return time.Duration(math.Abs(float64(d))) }

func ahead(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Second).String() + " behind"
	}
	return d.Round(time.Second).String() + " ahead"
}
