package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// askAs makes a request as somebody else, as far as that goes without being him: with what
// the kernel would say of his connection.
func (w *world) askAs(uid uint32, method, path string, in any) *api.Error {
	w.t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx := context.WithValue(w.t.Context(), peerKey{}, syscall.Ucred{Uid: uid, Gid: uid})
	rec := &deadlines{httptest.NewRecorder()}
	w.server.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(ctx, method, path, bytes.NewReader(b)))
	if rec.Code < 300 {
		return nil
	}
	var e api.Error
	if err := json.Unmarshal(rec.Body.Bytes(), &e); err != nil {
		w.t.Fatalf("%s %s: %s", method, path, rec.Body)
	}
	return &e
}

// deadlines is a recorder that may be told deadlines.
type deadlines struct{ *httptest.ResponseRecorder }

func (*deadlines) SetReadDeadline(time.Time) error { return nil }

// TestWhoMay: a stranger may look, and change nothing of others'.
func TestWhoMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.runFor(0)
	const owner, stranger = 4000000001, 4000000002
	submit := func(edit func(*job.Spec)) *api.Error {
		q := &api.Submit{Spec: job.Spec{Name: "x", Hold: true}, Program: &job.Program{Args: [][]byte{[]byte("x")}, Script: []byte("#!/bin/sh\n")}}
		edit(&q.Spec)
		return w.askAs(owner, "POST", "/v1/jobs", q)
	}
	if e := submit(func(s *job.Spec) { s.UID, s.User, s.Groups = 0, "root", []string{"root"} }); e != nil {
		t.Fatal(e)
	}
	if j := w.job(1); j.UID != owner || j.User == "root" || len(j.Spec.Groups) != 0 {
		t.Errorf("job is of %s (%d), in groups %q", j.User, j.UID, j.Spec.Groups)
	}
	zero := uint32(0)
	for name, edit := range map[string]func(*job.Spec){
		"nice": func(s *job.Spec) { s.Nice = -1 }, "priority": func(s *job.Spec) { s.Priority = &zero },
	} {
		if e := submit(edit); e == nil || e.Kind != "ACCESS_DENIED" || !strings.Contains(e.What, name) {
			t.Errorf("submit with %s: %v", name, e)
		}
		spec := *w.job(1).Spec
		edit(&spec)
		if e := w.askAs(owner, "POST", "/v1/jobs/1", &api.Change{Spec: &spec}); e == nil || e.Kind != "ACCESS_DENIED" {
			t.Errorf("change of %s: %v", name, e)
		}
	}
	w.do("POST", "/v1/jobs/1/hold", nil, nil)
	if e := w.askAs(owner, "POST", "/v1/jobs/1/release", nil); e == nil || e.Kind != "ACCESS_DENIED" {
		t.Errorf("an administrator's hold is released: %v", e)
	}
	step := job.StepID(0)
	for _, c := range []struct {
		method, path string
		in           any
	}{
		{"DELETE", "/v1/jobs/1", nil},
		{"POST", "/v1/jobs/1", &api.Change{Spec: &job.Spec{}}},
		{"POST", "/v1/jobs/1/hold", nil},
		{"POST", "/v1/jobs/1/release", nil},
		{"POST", "/v1/jobs/1/requeue", nil},
		{"POST", "/v1/jobs/1/signal", &api.Change{Signal: "KILL", Step: &step}},
		{"POST", "/v1/jobs/1/end", nil},
		{"POST", "/v1/jobs/1/steps", stepRequest(1, 1)},
		{"DELETE", "/v1/jobs/1/steps/0", nil},
		{"GET", "/v1/jobs/1/hold", nil},
		{"GET", "/v1/jobs/1/script", nil},
		{"GET", "/v1/jobs/1/events", nil},
		{"POST", "/v1/nodes/n1", &api.Change{State: "drain", Reason: "x"}},
		{"POST", "/v1/partitions/main", &api.Change{State: "down"}},
		{"POST", "/v1/precache", &api.Precache{Images: []string{"debian:12"}}},
	} {
		if e := w.askAs(stranger, c.method, c.path, c.in); e == nil || e.Kind != "ACCESS_DENIED" {
			t.Errorf("%s %s by a stranger: %+v", c.method, c.path, e)
		}
	}
	for _, path := range []string{"/v1/jobs", "/v1/jobs/1", "/v1/nodes", "/v1/partitions", "/v1/history"} {
		if e := w.askAs(stranger, "GET", path, nil); e != nil {
			t.Errorf("GET %s by a stranger: %v", path, e)
		}
	}
	if e := w.askAs(owner, "DELETE", "/v1/jobs/1", nil); e != nil {
		t.Errorf("the owner cancels: %v", e)
	}
}

// TestTooLong: what is too long is refused by its size, and the bound.
func TestTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for path, limit := range map[string]int{"/v1/jobs": largeBody, "/v1/jobs/1/hold": smallBody, "/v1/nodes/n1": smallBody, "/v1/plan": smallBody} {
		text := strings.Repeat("x", limit+1)
		resp, err := w.client.Post("http://c"+path, "application/json", strings.NewReader(`{"State":"`+text+`"}`))
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), fmt.Sprintf("is %d bytes long; the most is %d", len(text)+12, limit)) {
			t.Errorf("%s: %s %s %v", path, resp.Status, b, err)
		}
	}
	r, pipe := io.Pipe()
	go func() {
		_, _ = io.WriteString(pipe, `{"Comment":"`)
		block := bytes.Repeat([]byte("x"), 1<<20)
		for n := 0; n <= largeBody; n += len(block) {
			if _, err := pipe.Write(block); err != nil {
				return
			}
		}
		_ = pipe.Close()
	}()
	resp, err := w.client.Post("http://c/v1/submit", "application/json", r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var a api.Submitted
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || a.Error == nil || !strings.Contains(a.Error.What, "longer than") {
		t.Errorf("a job of a stream that is too long: %+v, %v", a.Error, err)
	}
	_ = pipe.CloseWithError(errors.New("over"))
}

// TestTooManyConnections: who has too many gets an answer, and others are served.
func TestTooManyConnections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := limitConnections(listener)
	l.most = 3
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") }), ConnContext: peerOf}
	go func() { _ = web.Serve(l) }()
	defer func() { _ = web.Close() }()
	var open []net.Conn
	for range 3 {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	c := api.Dial("unix:" + path)
	defer c.Close()
	var e *api.Error
	if _, err := c.Ping(t.Context()); !errors.As(err, &e) || e.Kind != "CONTROLLER_BUSY" || !strings.Contains(e.What, "3 connections") {
		t.Errorf("one too many: %v", err)
	}
	_ = open[0].Close()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := c.Ping(t.Context()); !errors.As(err, &e) {
			break // it is no JSON, but an answer
		}
		if time.Now().After(end) {
			t.Fatal("a connection that was closed still counts")
		}
	}
	for _, conn := range open[1:] {
		_ = conn.Close()
	}
	// Users who are no administrators have a bound of their own.
	u := &connections{most: maxConnections, of: map[uint32]int{}}
	for i := range maxOfUser + 1 {
		if why := u.take(4000000001, true); (why != "") != (i == maxOfUser) {
			t.Fatalf("connection %d: %q", i, why)
		}
	}
	if why := u.take(uint32(os.Geteuid()), true); why != "" {
		t.Errorf("the controller's own user: %s", why)
	}
}
