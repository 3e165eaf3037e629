package image_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/image/registry"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// TestMain makes the test binary a program that pulls one image and prints its
// progress as JSON, or one that does what ordinary users do.
func TestMain(m *testing.M) {
	if arg := os.Getenv("IMAGE_TEST_OVERLAY"); arg != "" {
		if err := overlayChild(arg); err != nil {
			fmt.Fprint(os.Stderr, fault.Text("child", err, false))
			os.Exit(1)
		}
		os.Exit(0)
	}
	if ref := os.Getenv("IMAGE_TEST_PULL"); ref != "" {
		if err := childPull(ref, os.Getenv("IMAGE_TEST_STORE")); err != nil {
			fmt.Fprint(os.Stderr, fault.Text("child", err, false))
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func childPull(name, dir string) error {
	s, err := image.Open(image.Options{Dir: dir})
	if err != nil {
		return err
	}
	r, err := reference.Parse(name)
	if err != nil {
		return err
	}
	client := registry.New(registry.Options{Retries: 3})
	defer client.Close()
	ctx := context.Background()
	src, err := s.OpenSource(ctx, client, r)
	if err != nil {
		return err
	}
	defer src.Close()
	out := json.NewEncoder(os.Stdout)
	_, err = s.Pull(ctx, src, image.PullOptions{Reference: r.String(), Progress: func(p image.Progress) { _ = out.Encode(p) }})
	return err
}

// puller is a process that pulls.
type puller struct {
	cmd    *exec.Cmd
	stderr strings.Builder
	seen   func(image.Progress) // of each event
	read   chan struct{}        // closed when stdout ended
}

// start starts a process that pulls into a store.
func start(t *testing.T, s *image.Store, ref string, seen func(image.Progress)) *puller {
	t.Helper()
	p := &puller{cmd: exec.Command(os.Args[0]), seen: seen, read: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "IMAGE_TEST_PULL="+ref, "IMAGE_TEST_STORE="+s.Dir())
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); _ = p.wait() })
	go func() {
		defer close(p.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e image.Progress
			if json.Unmarshal(lines.Bytes(), &e) == nil && p.seen != nil {
				p.seen(e)
			}
		}
	}()
	return p
}

func (p *puller) kill() { _ = p.cmd.Process.Kill() }

func (p *puller) wait() error {
	<-p.read
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, p.stderr.String())
	}
	return nil
}

// halfway makes the hub send the first half of every large blob, and the rest when
// the channel is closed or the client goes.
func (h *hub) halfway(large int64, release <-chan struct{}) {
	h.spoils(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		half := &halfWriter{ResponseWriter: w, left: large, wait: func() {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}}
		h.memory.ServeHTTP(half, r)
		return true
	})
}

// halfWriter waits once before the byte after so many.
type halfWriter struct {
	http.ResponseWriter
	left int64
	wait func()
}

func (w *halfWriter) Write(p []byte) (int, error) {
	done := 0
	if w.left >= 0 && int64(len(p)) > w.left {
		n, err := w.ResponseWriter.Write(p[:w.left])
		if err != nil {
			return n, err
		}
		done = n
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		w.wait()
		p, w.left = p[n:], -1
	}
	n, err := w.ResponseWriter.Write(p)
	if w.left >= 0 {
		w.left -= int64(n)
	}
	return done + n, err
}

// TestPullTogether starts 16 processes that pull one image: the worker is held in the
// middle of the blob until all others have heard from it how far it is.
func TestPullTogether(t *testing.T) {
	const processes, size = 16, 400_000
	h := newHub(t)
	pic := three(t, size)
	ref := h.push(t, "team/torch:1", pic)
	release := make(chan struct{})
	h.halfway(size/2, release)
	s := newStore(t)

	var mu sync.Mutex
	heard, works := map[int]bool{}, map[int]bool{}
	var all []*puller
	for n := range processes {
		all = append(all, start(t, s, ref, func(p image.Progress) {
			mu.Lock()
			defer mu.Unlock()
			before := len(heard) + len(works)
			switch {
			case p.Layer != 0:
			case p.Phase == image.PhaseFetch && !p.Other:
				works[n] = true
			case p.Other && p.Done > 0 && p.Done < p.Total:
				heard[n] = true
			}
			if before < processes && len(heard)+len(works) == processes {
				close(release)
			}
		}))
	}
	for _, p := range all {
		if err := p.wait(); err != nil {
			t.Error(err)
		}
	}
	if len(works) != 1 || len(heard) != processes-1 {
		t.Errorf("%d processes worked, %d heard of it; want 1 and %d", len(works), len(heard), processes-1)
	}
	requests := h.requests()
	got := downloads(requests)
	if len(got) != 4 {
		t.Errorf("%d blobs fetched, want 3 layers and the configuration", len(got))
	}
	for blob, n := range got {
		if n != 1 {
			t.Errorf("blob %s was fetched %d times", blob, n)
		}
	}
	if n := strings.Count(strings.Join(requests, "\n"), "GET /v2/team/torch/manifests/"); n != 1 {
		t.Errorf("the manifest was fetched %d times; registries count that as pulls", n)
	}
	mustBeGood(t, s, 1)
	i := mustPull(t, s, ref)
	mustHold(t, s, &i, threeTree(size))
}

// TestPullTakenOver kills the process that works while another waits for it.
func TestPullTakenOver(t *testing.T) {
	const size = 400_000
	h := newHub(t)
	ref := h.push(t, "team/torch:1", three(t, size))
	release := make(chan struct{})
	h.halfway(size/2, release)
	s := newStore(t)
	fetching, waiting := make(chan struct{}), make(chan struct{})
	signal := func(c chan struct{}, when func(image.Progress) bool) func(image.Progress) {
		var once sync.Once
		return func(p image.Progress) {
			if p.Layer == 0 && when(p) {
				once.Do(func() { close(c) })
			}
		}
	}
	first := start(t, s, ref, signal(fetching, func(p image.Progress) bool { return p.Phase == image.PhaseFetch }))
	awaits(t, fetching, first)
	second := start(t, s, ref, signal(waiting, func(p image.Progress) bool { return p.Other }))
	awaits(t, waiting, second)
	first.kill()
	if first.wait() == nil {
		t.Fatal("the first process was not killed")
	}
	close(release)
	if err := second.wait(); err != nil {
		t.Fatal(err)
	}
	mustBeGood(t, s, 1)
}

// awaits waits for a signal of a process, or its early end.
func awaits(t *testing.T, c <-chan struct{}, p *puller) {
	t.Helper()
	select {
	case <-c:
	case <-p.read:
		t.Fatalf("the process ended early: %v", p.wait())
	}
}

// TestPullKilled kills pulling processes at random moments. All that has a final name
// is whole then, and the next pull finishes what is missing.
func TestPullKilled(t *testing.T) {
	kills := 30
	switch {
	case isLong():
		kills = 200
	case testing.Short():
		kills = 9
	}
	const size = 1_500_000
	h := newHub(t)
	ref := h.push(t, "team/torch:1", three(t, size))
	// How long an undisturbed pull takes bounds the moments.
	began := time.Now()
	if err := start(t, newStore(t), ref, nil).wait(); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(began)
	s := newStore(t)
	finished := 0
	for n := range kills {
		// Every third begins anew, the others go on with what is left.
		if n%3 == 0 {
			s = newStore(t)
		}
		p := start(t, s, ref, nil)
		// The moment is the point of the test.
		time.Sleep(time.Duration(rand.Int64N(int64(whole))))
		p.kill()
		if p.wait() == nil {
			finished++
			whole = whole * 9 / 10 // it was measured while the machine had more to do
		}
		checkWhole(t, s, n)
		if n%3 == 2 {
			i := mustPull(t, s, ref)
			mustHold(t, s, &i, threeTree(size))
			mustBeTidy(t, s)
		}
	}
	if finished > kills*2/3 {
		t.Errorf("%d of %d pulls finished before they were killed; the test tests little", finished, kills)
	}
}

// checkWhole proves every file that has a final name, also those of no image yet: an
// image that needs them all is looked for by pulling without a registry later; here
// the digests and checksums count.
func checkWhole(t *testing.T, s *image.Store, round int) {
	t.Helper()
	r, err := s.VerifyAll(t.Context(), image.VerifyOptions{Keep: true})
	if err != nil || len(r.Problems) > 0 {
		t.Fatalf("kill %d: %+v, %v", round, r.Problems, err)
	}
	checkFiles(t, s)
}

// mustBeTidy fails unless garbage collection leaves an image's files only.
func mustBeTidy(t *testing.T, s *image.Store) {
	t.Helper()
	// What was killed lately might just begin: Sweep leaves what is young.
	old := time.Now().Add(-time.Hour)
	for name := range stored(t, s) {
		if strings.HasPrefix(filepath.Base(name), fsx.TempPrefix) {
			if err := os.Chtimes(filepath.Join(s.Dir(), name), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := s.GC(t.Context(), image.GCOptions{}); err != nil {
		t.Fatal(err)
	}
	for name := range maps.Keys(stored(t, s)) {
		dir, _, _ := strings.Cut(name, string(filepath.Separator))
		if base := filepath.Base(name); strings.HasPrefix(base, fsx.TempPrefix) || dir == "leases" || dir == "tmp" ||
			dir == "locks" && base != "gc" {
			t.Errorf("left behind: %s", name)
		}
	}
	mustBeGood(t, s, 1)
}
