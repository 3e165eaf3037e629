package test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/usertest"
)

// hub is Debian's docker-registry with accounts (htpasswd), behind a proxy with TLS that
// counts what is asked for. Ann and Bob have accounts; Bob may not read team/secret.
type hub struct {
	host, ca string // of the proxy; the file of its certificate
	plain    string // the registry itself
	accounts bool
	server   *httptest.Server
	registry *exec.Cmd

	mu     sync.Mutex
	asked  []string // METHOD /path
	down   bool
	revoke bool          // nobody's password counts
	slow   chan struct{} // blobs stop after their first bytes until it is closed; nil: they do not
	begun  chan struct{} // is told of each that stops
}

// passwords of the accounts, with bcrypt.
const (
	htpasswd = "ann:$2b$05$abcdefghijklmnopqrstuujEsz/x4z2AoS1Cwdd7Mb5/wRvaJYibi\nbob:$2b$05$abcdefghijklmnopqrstuuKT/2FvxiTCN3p8q65XBfYH8/GA7idN2\n"
	annPass  = "pw-ann"
	bobPass  = "pw-bob"
)

// newHub starts one, with accounts or for everybody, and pushes images: team/secret:1 and
// team/secret:2, which can be run.
func newHub(t *testing.T, accounts bool) *hub {
	t.Helper()
	dir := publicDir(t)
	h := &hub{accounts: accounts, begun: make(chan struct{}, 1000), ca: filepath.Join(dir, "ca.pem")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.plain = l.Addr().String()
	if err := l.Close(); err != nil { // the registry binds it
		t.Fatal(err)
	}
	auth := ""
	if accounts {
		file := filepath.Join(dir, "htpasswd")
		if err := os.WriteFile(file, []byte(htpasswd), 0o600); err != nil {
			t.Fatal(err)
		}
		auth = fmt.Sprintf("auth: {htpasswd: {realm: test, path: %s}}\n", file)
	}
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n%s", filepath.Join(dir, "data"), h.plain, auth)
	config := filepath.Join(dir, "config.yml")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.registry = exec.Command("docker-registry", "serve", config)
	startDying(t, h.registry)
	target := &url.URL{Scheme: "http", Host: h.plain}
	waitFor(t, func() bool {
		resp, err := http.Get(target.String() + "/v2/")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ModifyResponse = h.stop
	h.server = httptest.NewUnstartedServer(h.watch(proxy))
	h.server.Config.ErrorLog = nil
	h.server.StartTLS()
	t.Cleanup(h.server.Close)
	h.host = strings.TrimPrefix(h.server.URL, "https://")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	if err := os.WriteFile(h.ca, ca, 0o644); err != nil {
		t.Fatal(err)
	}
	base := map[string]string{"etc/os": "debian\n", "tmp/": "", "big": random(2 << 20)}
	h.push(t, "team/secret:1", busybox(t), base, map[string]string{"secret": "of ann\n"})
	h.push(t, "team/secret:2", busybox(t), base, map[string]string{"secret": "of ann too\n"})
	return h
}

// startDying starts a program that ends with the test.
func startDying(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig is of the thread that starts it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		t.Fatalf("%s: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
	})
}

// push pushes an image of layers of files, by the registry itself.
func (h *hub) push(t *testing.T, name string, layers ...map[string]string) {
	t.Helper()
	args := []string{"--insecure-policy", "copy", "-q", "--preserve-digests", "--dest-tls-verify=false", "--dest-no-creds"}
	if h.accounts {
		args[len(args)-1] = "--dest-creds=ann:" + annPass
	}
	out, err := exec.Command("skopeo", append(args, "oci:"+writeLayout(t, layers...), "docker://"+h.plain+"/"+name)...).CombinedOutput()
	if err != nil {
		t.Fatalf("push: %v: %s", err, out)
	}
}

// watch counts requests, and answers some of them itself.
func (h *hub) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		down, revoked := h.down, h.revoke
		h.asked = append(h.asked, r.Method+" "+r.URL.Path)
		h.mu.Unlock()
		user, _, _ := r.BasicAuth()
		switch {
		case down:
			panic(http.ErrAbortHandler)
		case revoked && user != "":
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"the password has expired"}]}`, http.StatusUnauthorized)
		case user == "bob" && strings.HasPrefix(r.URL.Path, "/v2/team/secret/"):
			http.Error(w, `{"errors":[{"code":"DENIED","message":"bob may not read this"}]}`, http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// stop makes the body of a blob wait, where that is wanted.
func (h *hub) stop(resp *http.Response) error {
	h.mu.Lock()
	slow := h.slow
	h.mu.Unlock()
	if slow != nil && strings.Contains(resp.Request.URL.Path, "/blobs/") && resp.Request.Method == http.MethodGet && resp.ContentLength > 1<<20 {
		resp.Body = &stopped{resp.Body, h, slow, 64 << 10}
	}
	return nil
}

type stopped struct {
	body interface {
		Read([]byte) (int, error)
		Close() error
	}
	h    *hub
	slow chan struct{}
	left int
}

// Read implements io.Reader.
func (s *stopped) Read(p []byte) (int, error) {
	if s.left == 0 {
		s.h.begun <- struct{}{}
		<-s.slow
		s.left = 1 << 62
	}
	n, err := s.body.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// Close implements io.Closer.
func (s *stopped) Close() error { return s.body.Close() }

// set changes how the hub answers.
func (h *hub) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

// count returns how many requests since it was last asked match, and forgets all.
func (h *hub) count(pattern string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	match := regexp.MustCompile(pattern)
	for _, line := range h.asked {
		if match.MatchString(line) {
			n++
		}
	}
	h.asked = nil
	return n
}

// shared is a node's image store, and users who share it.
type shared struct {
	t           *testing.T
	bin, dir    string
	socket, log string
	cmd         *exec.Cmd
	ann, bob    *person
}

const storeUID = usertest.ID + 12

// newShared starts the store as a user of its own, with two other users.
func newShared(t *testing.T, hubs []*hub, args ...string) *shared {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the store and each of its users are users of their own")
	}
	s := &shared{t: t, bin: clusterPrograms(t), dir: publicDir(t)}
	var settings strings.Builder
	for _, h := range hubs {
		fmt.Fprintf(&settings, "[registry.%q]\nca = %q\n", h.host, h.ca)
	}
	home := s.mkdir("home", storeUID)
	config := filepath.Join(home, "gangway")
	if err := os.MkdirAll(config, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "gangway.toml"), []byte(settings.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.mkdir("run", storeUID), 0o755); err != nil {
		t.Fatal(err)
	}
	s.socket, s.log = filepath.Join(s.dir, "run", "s"), filepath.Join(s.dir, "log")
	s.ann, s.bob = s.user(usertest.ID+10), s.user(usertest.ID+11)
	s.start(args...)
	t.Cleanup(func() {
		if b, err := os.ReadFile(s.log); err == nil && t.Failed() {
			t.Logf("log of the store:\n%s", b)
		}
	})
	return s
}

// mkdir makes a directory of a user's.
func (s *shared) mkdir(name string, uid int) string {
	s.t.Helper()
	dir := filepath.Join(s.dir, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Chown(dir, uid, uid)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// start starts the store, also again.
func (s *shared) start(args ...string) {
	s.t.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	if err := os.Remove(s.socket); err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	s.cmd = exec.Command(filepath.Join(s.bin, "gangwayd"), append([]string{"store", "--dir", filepath.Join(s.mkdir("store", storeUID), "images"), "--socket", s.socket}, args...)...)
	home := filepath.Join(s.dir, "home")
	s.cmd.Dir, s.cmd.Env = home, []string{"PATH=/usr/bin:/bin", "HOME=" + home, "XDG_CONFIG_HOME=" + home}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: storeUID, Gid: storeUID}}
	startDying(s.t, s.cmd)
	waitFor(s.t, func() bool {
		c, err := net.Dial("unix", s.socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// kill kills the store.
func (s *shared) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	waitFor(s.t, func() bool { _, err := net.Dial("unix", s.socket); return err != nil })
}

// user is one who uses the store, with a home and without credentials.
func (s *shared) user(uid uint32) *person {
	s.t.Helper()
	p := &person{dir: publicDir(s.t), bin: filepath.Join(s.bin, "gangway"), cred: &syscall.Credential{Uid: uid, Gid: uid}}
	p.mkdir(s.t, "home")
	p.mkdir(s.t, "run")
	return p
}

// login gives a user a credential, as docker login does.
func (s *shared) login(p *person, h *hub, name, password string) {
	s.t.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(name + ":" + password))
	dir := p.mkdir(s.t, "home/.docker")
	file := filepath.Join(dir, "config.json")
	err := os.WriteFile(file, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, h.host, auth), 0o600)
	if err == nil {
		err = os.Chown(file, p.uid(), p.uid())
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// command is gangway of a user who uses the store, and no other.
func (s *shared) command(p *person, args ...string) *exec.Cmd {
	cmd := p.command(args...)
	cmd.Env = append(slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "GANGWAY_STORE=") }), "GANGWAY_IMAGE_SERVICE="+s.socket)
	return cmd
}

func (s *shared) do(p *person, args ...string) outcome {
	s.t.Helper()
	return outcomeOf(s.t, s.command(p, args...))
}

// has says whether the store's directory has files of a kind.
func (s *shared) has(pattern string) []string {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir, "store", "images", pattern))
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

// seconds is for what is to end soon.
const seconds = 20 * time.Second

// manifestOf is the digest that a pull printed.
func manifestOf(t *testing.T, out string) string {
	t.Helper()
	digest := regexp.MustCompile(`sha256:[0-9a-f]{64}`).FindString(out)
	if digest == "" {
		t.Fatalf("no digest in %q", out)
	}
	return digest
}
