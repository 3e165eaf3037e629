package service

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// pair is a connection, both ends.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr)); err != nil {
		t.Fatal(err)
	}
	if b, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// TestFrames: what is sent arrives, with its files; what claims to be too large is refused
// before it is read, and what is cut is an error.
func TestFrames(t *testing.T) {
	a, b := pair(t)
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := send(a, &reply{Rights: 2}, maxReply, f, f); err != nil {
		t.Fatal(err)
	}
	var r reply
	files, err := receive(b, &r)
	if err != nil || len(files) != 2 || r.Rights != 2 {
		t.Fatalf("%d files, %+v, %v", len(files), r, err)
	}
	got := make([]byte, 7)
	if _, err := files[1].ReadAt(got, 0); err != nil || string(got) != "content" {
		t.Errorf("%q, %v", got, err)
	}
	closeAll(files)

	// A server takes no files: they are closed by the kernel, and the frame arrives.
	if err := send(b, &request{Version: 7}, maxRequest, f); err != nil {
		t.Fatal(err)
	}
	var q request
	if err := readFrame(a, &q, maxRequest); err != nil || q.Version != 7 {
		t.Errorf("%+v, %v", q, err)
	}

	if err := send(a, &request{Image: &Request{Reference: strings.Repeat("x", maxRequest)}}, maxRequest); err == nil {
		t.Error("a frame over the limit was sent")
	}
	head := binary.LittleEndian.AppendUint32(nil, maxRequest+1)
	if err := readFrame(bytes.NewReader(head), &q, maxRequest); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("over the limit: %v", err)
	}
	if err := readFrame(bytes.NewReader(append(binary.LittleEndian.AppendUint32(nil, 10), "{}"...)), &q, maxRequest); err == nil {
		t.Error("a frame that was cut was read")
	}
}

// TestFaults: an error is the same at the other end, for people and for callers.
func TestFaults(t *testing.T) {
	for _, kind := range []error{image.ErrNotFound, registry.ErrDenied, registry.ErrNotFound, nil} {
		text := "pull: no"
		err := errors.New(text)
		if kind != nil {
			err = fmt.Errorf("pull: %w", kind)
		}
		b, jerr := json.Marshal(toWire(fmt.Errorf("over: %w", &fault.Error{What: err, Cause: "why", Hint: "do", Code: 2})))
		if jerr != nil {
			t.Fatal(jerr)
		}
		var w wireFault
		if err := json.Unmarshal(b, &w); err != nil {
			t.Fatal(err)
		}
		got := w.fault()
		f, ok := errors.AsType[*fault.Error](got)
		if !ok || f.Cause != "why" || f.Hint != "do" || f.Code != 2 || got.Error() != "over: "+err.Error() {
			t.Errorf("%+v", got)
		}
		for _, k := range known() {
			if errors.Is(got, k) != (k == kind) {
				t.Errorf("%v is %v: %v", got, k, errors.Is(got, k))
			}
		}
	}
}

// FuzzRequest feeds the server's decoder, and what looks at a request before a registry is
// asked, with what anybody may send.
func FuzzRequest(f *testing.F) {
	for _, q := range []request{
		{Version: 1, Image: &Request{Reference: "docker://a.example#b/c:1", Platform: "linux/arm64", Pull: "never", Files: true}},
		{Credential: &credentialAnswer{Username: "u", Password: "p", Looked: []string{"/f"}, Error: &wireFault{What: "no"}}},
		{Taken: true},
	} {
		b, err := json.Marshal(q)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...))
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, '{'})
	s := New(Options{Registry: func(c registry.Credentials, rate int64) *registry.Client {
		return registry.New(registry.Options{Credentials: c, Bandwidth: rate})
	}})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var q request
		if err := readFrame(bytes.NewReader(frame), &q, maxRequest); err != nil {
			return
		}
		if q.Image != nil {
			c := &conn{s: s, uid: 1000}
			if a, err := c.understand(q.Image); err == nil && (a.ref.Host == "" || a.key == "" || a.origin == "") {
				t.Errorf("%+v was understood as %+v", q.Image, a)
			}
		}
		if q.Credential != nil && q.Credential.Error != nil {
			_ = q.Credential.Error.fault().Error()
		}
	})
}

// FuzzReply feeds the client's decoder, with descriptors in every frame.
func FuzzReply(f *testing.F) {
	f.Add([]byte(`{"opened":{"image":{"reference":"docker://a#b:1"},"files":3}}`))
	f.Add([]byte(`{"rights":1}`))
	f.Add([]byte(`{"error":{"what":"no","kind":"denied"}}`))
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = null.Close() })
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 60<<10 { // which a socket holds
			return
		}
		a, b := pair(t)
		if err := send(a, json.RawMessage("{}"), maxReply, null); err != nil {
			t.Fatal(err)
		}
		head := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
		if _, err := a.Write(append(head, body...)); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for {
			var r reply
			files, err := receive(b, &r)
			closeAll(files)
			if err != nil {
				return
			}
			if r.Error != nil {
				_ = r.Error.fault().Error()
			}
		}
	})
}

// TestAdminIsRoots: what changes the store is root's; lists are everybody's, of what he may
// know.
func TestAdminIsRoots(t *testing.T) {
	store, err := image.Open(image.Options{Dir: filepath.Join(t.TempDir(), "store")})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Store: store})
	u, other := pair(t)
	stranger := &conn{s: s, u: u, uid: uint32(os.Geteuid()) + 1000, end: func(error) {}}
	for _, do := range []string{AdminPin, AdminUnpin, AdminRemove, AdminGC, AdminVerify, "else"} {
		err := stranger.admin(t.Context(), &Admin{Do: do, GC: &image.GCOptions{}})
		if err == nil || !strings.Contains(err.Error(), "may not") {
			t.Errorf("%s of a stranger: %v", do, err)
		}
	}
	root := &conn{s: s, u: u, uid: 0, end: func(error) {}}
	for _, c := range []*conn{stranger, root} {
		if err := c.admin(t.Context(), &Admin{Do: AdminList}); err != nil {
			t.Error(err)
		}
		var r reply
		if _, err := receive(other, &r); err != nil || r.Admin == nil {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if err := root.admin(t.Context(), &Admin{Do: "else"}); !errors.Is(err, errProtocol) {
		t.Errorf("something else: %v", err)
	}
}

// TestGrants: a word counts for the user, repository and digest that it was about, until
// its time is over; one about anybody for all.
func TestGrants(t *testing.T) {
	now := time.Unix(1000, 0)
	g := grants{now: func() time.Time { return now }, life: time.Minute, until: map[grant]time.Time{}}
	g.add(1, false, "a/b", "sha256:1")
	g.add(1, true, "a/c", "sha256:2")
	for _, c := range []struct {
		uid    uint32
		origin string
		digest oci.Digest
		want   bool
	}{
		{1, "a/b", "sha256:1", true},
		{2, "a/b", "sha256:1", false},
		{1, "a/x", "sha256:1", false},
		{1, "a/b", "sha256:3", false},
		{1, "a/c", "sha256:2", true},
		{2, "a/c", "sha256:2", true},
		{0, "a/c", "sha256:3", false},
		{0, "a/b", "sha256:1", false},
	} {
		if got := g.has(c.uid, c.origin, c.digest); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	now = now.Add(time.Minute)
	if g.has(1, "a/b", "sha256:1") || g.has(2, "a/c", "sha256:2") {
		t.Error("a word counts after its time")
	}
	g.life = 0
	g.add(1, false, "a/b", "sha256:1")
	if g.has(1, "a/b", "sha256:1") {
		t.Error("without a time a word counts")
	}
}
