package doctor_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/launcher/doctor"
)

// TestRegistry: servers of images that answer, and those that do not.
func TestRegistry(t *testing.T) {
	status := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v2/" {
				code = http.StatusNotFound
			}
			w.WriteHeader(code)
		})
	}
	serve := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	encrypted := httptest.NewTLSServer(status(http.StatusOK))
	t.Cleanup(encrypted.Close)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	closed := httptest.NewServer(status(http.StatusOK))
	closed.Close()
	plain := serve(status(http.StatusOK))
	cases := []struct {
		registry doctor.Registry
		result   doctor.Result
		words    []string
	}{
		{doctor.Registry{Name: "a", URL: plain}, doctor.OK, []string{"answers (200)", plain + "/v2/"}},
		{doctor.Registry{Name: "b", URL: serve(status(http.StatusUnauthorized))}, doctor.OK, []string{"answers (401)"}},
		{doctor.Registry{Name: "c", URL: serve(status(http.StatusBadGateway))}, doctor.Degraded, []string{"HTTP status 502", "curl -v"}},
		{doctor.Registry{Name: "d", URL: closed.URL}, doctor.Degraded, []string{"connection refused", "nothing listens there", "no image can be pulled"}},
		{doctor.Registry{Name: "e", URL: encrypted.URL}, doctor.Degraded, []string{"certificate is not known"}},
		{doctor.Registry{Name: "f", URL: encrypted.URL, SkipVerify: true}, doctor.OK, []string{"answers"}},
		{doctor.Registry{Name: strings.TrimPrefix(plain, "http://")}, doctor.Degraded, []string{"speaks no TLS", "plain_http = true"}},
		{doctor.Registry{Name: "h", URL: "http://" + silent.Addr().String()}, doctor.Degraded, []string{"firewall"}},
		{doctor.Registry{Name: "i", URL: encrypted.URL, CAFile: "/nowhere.pem"}, doctor.Degraded, []string{"nowhere.pem"}},
	}
	o := doctor.Options{Timeout: time.Second}
	for _, c := range cases {
		o.Registries = append(o.Registries, c.registry)
	}
	r := examineHere(t, o)
	for _, c := range cases {
		want(t, r, "registry "+c.registry.Name, c.result, c.words...)
	}
	want(t, r, "clock", doctor.OK)
	if !r.Summary.CanRun {
		t.Errorf("containers are said not to run: %+v", r.Blocking())
	}
}

// TestClock: a clock that disagrees with a server, with files, and with reason.
func TestClock(t *testing.T) {
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(-2*time.Hour).UTC().Format(http.TimeFormat))
	}))
	t.Cleanup(old.Close)
	r := examineHere(t, doctor.Options{Registries: []doctor.Registry{{Name: "old.example", URL: old.URL}}})
	want(t, r, "clock", doctor.Degraded, "old.example", "behind", "timedatectl")

	// This machine's clock is wrong: the kernel, which dates new files, knows better.
	past := func() time.Time { return time.Now().Add(-time.Hour) }
	want(t, examineHere(t, doctor.Options{Now: past}), "clock", doctor.Degraded, "new files in", "1h0m0s ahead")
	want(t, examineHere(t, doctor.Options{Now: func() time.Time { return time.Unix(0, 0) }}), "clock", doctor.Degraded, "before this program was made")
}
