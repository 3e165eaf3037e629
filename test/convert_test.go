package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/image/oci"
)

// slowLayout serves an OCI image layout as a registry does. In the middle of a layer
// it waits until it is released.
func slowLayout(t *testing.T, dir string, release <-chan struct{}) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index oci.Index
	if err := json.Unmarshal(raw, &index); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := oci.Digest(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		if !strings.HasPrefix(string(d), "sha256:") {
			d = index.Manifests[0].Digest
		}
		b, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", d.Hex()))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", oci.MediaTypeManifest)
			w.Header().Set("Docker-Content-Digest", string(d))
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		half := len(b) / 2
		_, _ = w.Write(b[:half])
		if len(b) > 100_000 {
			_ = http.NewResponseController(w).Flush()
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		_, _ = w.Write(b[half:])
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestRootConvertsAsNobody looks at the processes of a pull by root: what takes the
// image apart has another user id, no capability, no way to more, and no open file but
// the layer's, which has no name.
func TestRootConvertsAsNobody(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives its rights away")
	}
	watchSources(t)
	gangway := build(t)
	release := make(chan struct{})
	host := slowLayout(t, writeLayout(t, map[string]string{"big": random(400_000)}), release)
	store := filepath.Join(publicDir(t), "store")
	var out strings.Builder
	pull := exec.Command(gangway, "image", "pull", "--store", store, host+"/team/big:1")
	pull.Stdout, pull.Stderr = &out, &out
	pull.Env = []string{"HOME=/nonexistent"}
	secret, err := os.Open("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	pull.ExtraFiles = []*os.File{secret, secret} // as a shell may leave them open
	if err := pull.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pull.Process.Kill() })

	child, status := waitForChild(t, pull.Process.Pid, regexp.MustCompile(`NoNewPrivs:\t1`))
	for _, want := range []string{
		"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
		"CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapInh:\t0000000000000000\n",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("the converting process has not %q:\n%s", want, status)
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", child))
	if err != nil {
		t.Fatal(err)
	}
	// A process that cannot be dumped cannot be traced, and its files in /proc are root's.
	for deadline := time.Now().Add(10 * time.Second); ; {
		st, err := os.Stat(fmt.Sprintf("/proc/%d/fd", child))
		if err == nil && st.Sys().(*syscall.Stat_t).Uid == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it can be traced: %v", err)
		}
	}
	if session, err := unix.Getsid(child); err != nil || session != child {
		t.Errorf("it is in session %d, %v, and may have its terminal", session, err)
	}
	inStore := 0
	for _, fd := range fds {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", child, fd.Name()))
		switch {
		case err != nil: // closed meanwhile
		case strings.HasPrefix(to, store):
			if inStore++; !strings.HasSuffix(to, " (deleted)") && !strings.Contains(to, ".gangway-tmp-") {
				t.Errorf("it has %s open", to)
			}
		case !strings.HasPrefix(to, "pipe:") && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/") && to != "/dev/null":
			t.Errorf("it has %s open", to)
		}
	}
	if inStore != 1 {
		t.Errorf("it has %d files of the store open, want 1", inStore)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
	if err != nil || len(env) != 0 {
		t.Errorf("its environment is %q, %v", env, err)
	}
	close(release)
	if err := pull.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if b, err := exec.Command(gangway, "image", "verify", "--store", store).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, b)
	}
	// That id may not even look into the store.
	as := exec.Command("ls", store)
	as.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if b, err := as.CombinedOutput(); err == nil {
		t.Errorf("user 65534 may list the store: %s", b)
	}
}

// TestUserConverts pulls as an ordinary user, who needs no other process and no other
// right, and whose store root does not touch.
func TestUserConverts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it becomes another user")
	}
	watchSources(t)
	gangway := build(t)
	release := make(chan struct{})
	host := slowLayout(t, writeLayout(t, map[string]string{"big": random(400_000)}), release)
	home := publicDir(t)
	if err := os.Chown(home, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, uid uint32, args ...string) (*exec.Cmd, *strings.Builder) {
		out := &strings.Builder{}
		cmd := exec.CommandContext(ctx, gangway, args...)
		cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = out, out, []string{"HOME=" + home}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		return cmd, out
	}
	pull, out := run(t.Context(), 12345, "image", "pull", host+"/team/big:1")
	if err := pull.Start(); err != nil {
		t.Fatal(err)
	}
	// Its layer is being written when there is a note of progress.
	waitFor(t, func() bool {
		notes, err := filepath.Glob(filepath.Join(home, ".cache/gangway/locks/*.progress"))
		return err == nil && len(notes) > 0
	})
	if c := children(pull.Process.Pid); len(c) > 0 {
		t.Errorf("it has processes %v", c)
	}
	close(release)
	if err := pull.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for uid, want := range map[uint32]string{12345: "1 image good", 0: "it belongs to user 12345", 12346: "user 12346 may not use"} {
		verify, out := run(t.Context(), uid, "image", "verify")
		_ = verify.Run() // what it says counts
		if !strings.Contains(out.String(), want) {
			t.Errorf("user %d is told %s", uid, out)
		}
	}
}

// build builds gangway and returns its path.
func build(t *testing.T) string {
	t.Helper()
	file := filepath.Join(publicDir(t), "gangway")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "../cmd/gangway")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return file
}

// random is text that does not compress.
func random(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// waitForChild waits for a child of a process whose status matches.
func waitForChild(t *testing.T, pid int, match *regexp.Regexp) (child int, status string) {
	t.Helper()
	waitFor(t, func() bool {
		for _, child = range children(pid) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child))
			if status = string(b); err == nil && match.MatchString(status) {
				return true
			}
		}
		return false
	})
	return child, status
}

// children returns the processes that a process started.
func children(pid int) []int {
	var all []int
	lists, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return nil
	}
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the process may have ended
		var id int
		if _, err := fmt.Sscanf(list, "/proc/%d/", &id); err == nil && strings.Contains(string(b), fmt.Sprintf("\nPPid:\t%d\n", pid)) {
			all = append(all, id)
		}
	}
	return all
}

// publicDir is a directory that other users reach.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// waitFor waits until something is so.
func waitFor(t *testing.T, so func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute) // of a machine with too much to do
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited for two minutes")
		}
	}
}
