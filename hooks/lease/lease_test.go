package lease

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestMain lets this program be a process that takes GPUs: TEST_LEASE=SPACE/N/ID,ID...
func TestMain(m *testing.M) {
	s := os.Getenv("TEST_LEASE")
	if s == "" {
		os.Exit(m.Run())
	}
	var n int
	f := strings.Split(s, "/")
	_, _ = fmt.Sscan(f[1], &n)
	l, err := Take(context.Background(), Options{Space: f[0]}, Want{IDs: strings.Split(f[2], ","), N: n})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(l.IDs())
	time.Sleep(time.Minute)
}

// space is one that no other test has.
func space(t *testing.T) Options {
	t.Helper()
	return Options{Space: fmt.Sprintf("t%d-%d", os.Getpid()%1e6, serial.Add(1)%1e6)}
}

var serial = atomic.Int64{}

func mustTake(t *testing.T, opt Options, n int, ids ...string) *Lease {
	t.Helper()
	l, err := Take(t.Context(), opt, Want{IDs: ids, N: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Release(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestTake: two runs get different GPUs, the best first; a third is told who has them.
func TestTake(t *testing.T) {
	opt := space(t)
	a := mustTake(t, opt, 1, "GPU-a", "GPU-b", "GPU-c")
	b := mustTake(t, opt, 1, "GPU-a", "GPU-b", "GPU-c")
	if fmt.Sprint(a.IDs(), b.IDs()) != "[GPU-a] [GPU-b]" {
		t.Fatalf("%v and %v", a.IDs(), b.IDs())
	}
	_, err := Take(t.Context(), opt, Want{IDs: []string{"GPU-a", "GPU-b", "GPU-c"}, N: 2})
	comm, readErr := os.ReadFile("/proc/self/comm")
	if readErr != nil {
		t.Fatal(readErr)
	}
	me := fmt.Sprintf("(process %d %q of user %d)", os.Getpid(), strings.TrimSpace(string(comm)), os.Getuid())
	want := "gangway: error: take GPUs: 2 wanted, 1 free, in use: GPU-a " + me + ", GPU-b " + me + "\ngangway: hint:  wait for them: --gpu-wait=10m\n"
	var e *BusyError
	if text := fault.Text("gangway", err, false); text != want || !errors.Is(err, ErrBusy) || !errors.As(err, &e) || fmt.Sprint(e.Free) != "[GPU-c]" {
		t.Errorf("%s", text)
	}
	// Nothing is left of what was not enough.
	c := mustTake(t, opt, 0, "GPU-c")
	// Holders that no process file names.
	opt.Proc = t.TempDir()
	if h := Holders(opt, []string{"GPU-x", "GPU-c"}); len(h) != 1 || h[0] != (Holder{ID: "GPU-c", PID: os.Getpid(), UID: os.Getuid()}) {
		t.Errorf("%+v", h)
	}
	for range 2 {
		if err := c.Release(); err != nil {
			t.Error(err)
		}
	}
	if len(c.IDs()) != 0 {
		t.Errorf("%v after Release", c.IDs())
	}
	if h := Holders(opt, []string{"GPU-c"}); len(h) != 0 {
		t.Errorf("%+v", h)
	}
	// Another space knows nothing of it all.
	mustTake(t, space(t), 3, "GPU-a", "GPU-b", "GPU-c")
	// Names may be long, and alike at their begin.
	long := strings.Repeat("x", 200)
	if l := mustTake(t, opt, 2, long+"1", long+"2"); len(l.IDs()) != 2 {
		t.Errorf("%v", l.IDs())
	}
}

// TestBadWants: what can never be.
func TestBadWants(t *testing.T) {
	opt := space(t)
	for _, c := range []struct {
		want Want
		text string
	}{
		{Want{IDs: []string{"a", "b"}, N: 3}, "take GPUs: 3 wanted of 2\ngangway: cause: there are a, b\ngangway: hint:  ask for at most --gpus=2\n"},
		{Want{N: 1}, "take GPUs: 1 wanted of 0\ngangway: cause: there is none"},
		{Want{IDs: []string{"a"}, N: -1}, "-1 wanted of 1"},
		{Want{IDs: []string{"a", "a"}}, "\"a\" is named twice"},
		{Want{IDs: []string{""}}, "empty"},
	} {
		_, err := Take(t.Context(), opt, c.want)
		if err == nil || !strings.Contains(fault.Text("gangway", err, false), c.text) {
			t.Errorf("%+v: %v", c.want, err)
		}
	}
	if l, err := Take(t.Context(), opt, Want{}); err != nil || len(l.IDs()) != 0 {
		t.Errorf("nothing: %v, %v", l, err)
	}
	if _, err := Take(t.Context(), Options{Space: "12345678901234567"}, Want{IDs: []string{"a"}}); err == nil {
		t.Error("a long space")
	}
}

// child starts a process that takes GPUs, and returns what it said.
func child(t *testing.T, opt Options, n int, credential *syscall.Credential, ids ...string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = []string{fmt.Sprintf("TEST_LEASE=%s/%d/%s", opt.Space, n, strings.Join(ids, ","))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	cmd.Dir = "/"
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// TestProcesses: leases are among processes, of other users too, and end with them.
func TestProcesses(t *testing.T) {
	opt := space(t)
	var other *syscall.Credential
	if os.Getuid() == 0 {
		other = &syscall.Credential{Uid: 64321, Gid: 64321}
	}
	a, said := child(t, opt, 2, other, "g0", "g1", "g2")
	if said != "[g0 g1]" {
		t.Fatal(said)
	}
	if _, said := child(t, opt, 2, nil, "g0", "g1", "g2"); !strings.HasPrefix(said, "error: take GPUs: 2 wanted, 1 free, in use: g0 (process "+fmt.Sprint(a.Process.Pid)) {
		t.Error(said)
	}
	mine := mustTake(t, opt, 1, "g0", "g1", "g2")
	if fmt.Sprint(mine.IDs()) != "[g2]" {
		t.Errorf("%v", mine.IDs())
	}
	h := Holders(opt, []string{"g0"})
	if len(h) != 1 || h[0].PID != a.Process.Pid || other != nil && h[0].UID != 64321 {
		t.Errorf("%+v", h)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = a.Process.Kill() })
	opt.Wait = 10 * time.Second
	begin := time.Now()
	if l := mustTake(t, opt, 2, "g0", "g1", "g2"); fmt.Sprint(l.IDs()) != "[g0 g1]" {
		t.Errorf("%v", l.IDs())
	}
	if took := time.Since(begin); took < 40*time.Millisecond || took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestWait: for some time, for ever, until the caller does not want any more.
func TestWait(t *testing.T) {
	opt := space(t)
	l, err := Take(t.Context(), opt, Want{IDs: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	opt.Wait = 30 * time.Millisecond
	var told []string
	opt.Waiting = func(e *BusyError) { told = append(told, e.Error()) }
	begin := time.Now()
	_, err = Take(t.Context(), opt, Want{IDs: []string{"a", "b"}, N: 2})
	var e *BusyError
	if !errors.As(err, &e) || fmt.Sprint(e.Free) != "[b]" || len(e.Held) != 1 || time.Since(begin) < opt.Wait || !strings.Contains(fault.Text("x", err, false), "wait longer than 30ms") {
		t.Errorf("%v", err)
	}
	if len(told) != 1 || !strings.HasPrefix(told[0], "2 wanted, 1 free, in use: a (process ") {
		t.Errorf("%q", told)
	}
	opt.Wait, opt.Waiting = -1, nil
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
	if _, err := Take(ctx, opt, Want{IDs: []string{"a", "b"}, N: 2}); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
	// b was held by who waited, and is free again; who holds nobody's place waits no more.
	released := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { released <- l.Release() })
	defer func() {
		if err := <-released; err != nil {
			t.Error(err)
		}
	}()
	if l := mustTake(t, opt, 2, "b", "a"); fmt.Sprint(l.IDs()) != "[b a]" {
		t.Errorf("%v", l.IDs())
	}
}

// TestCrowd: no GPU is ever given twice, all who wait get theirs, and one that wants all
// is not starved by many that want one.
func TestCrowd(t *testing.T) {
	opt := space(t)
	opt.Wait = 30 * time.Second
	ids := []string{"g0", "g1", "g2", "g3"}
	var mu sync.Mutex
	has := map[string]bool{}
	use := func(n int) {
		l, err := Take(t.Context(), opt, Want{IDs: ids, N: n})
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		for _, id := range l.IDs() {
			if has[id] {
				t.Errorf("%s is given twice", id)
			}
			has[id] = true
		}
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		for _, id := range l.IDs() {
			has[id] = false
		}
		mu.Unlock()
		if err := l.Release(); err != nil {
			t.Error(err)
		}
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					use(1)
				}
			}
		})
	}
	begin := time.Now()
	for _, n := range []int{4, 3, 4} {
		use(n)
	}
	t.Logf("three large ones among twelve small ones took %v", time.Since(begin))
	close(stop)
	wg.Wait()
}

// TestModel compares random takes and releases with a map.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		opt := space(t)
		owner := map[string]*Lease{}
		var leases []*Lease
		defer func() {
			for _, l := range leases {
				_ = l.Release()
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				ids := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), 1, 5, rapid.ID).Draw(rt, "ids")
				n := rapid.IntRange(1, len(ids)).Draw(rt, "n")
				var free []string
				for _, id := range ids {
					if owner[id] == nil {
						free = append(free, id)
					}
				}
				l, err := Take(context.Background(), opt, Want{IDs: ids, N: n})
				if len(free) < n {
					var e *BusyError
					if !errors.As(err, &e) || !slices.Equal(e.Free, free) || len(e.Held) != len(ids)-len(free) {
						rt.Fatalf("%d of %v with %v free: %v", n, ids, free, err)
					}
					return
				}
				if err != nil || !slices.Equal(l.IDs(), free[:n]) {
					rt.Fatalf("%d of %v with %v free: %v, %v", n, ids, free, l, err)
				}
				leases = append(leases, l)
				for _, id := range l.IDs() {
					owner[id] = l
				}
			},
			"release": func(rt *rapid.T) {
				if len(leases) == 0 {
					rt.Skip("there is none")
				}
				i := rapid.IntRange(0, len(leases)-1).Draw(rt, "lease")
				for _, id := range leases[i].IDs() {
					delete(owner, id)
				}
				if err := leases[i].Release(); err != nil {
					rt.Fatal(err)
				}
				leases = slices.Delete(leases, i, i+1)
			},
		})
	})
}

// TestSquatter: a stranger's socket of another kind counts as held, by nobody known.
func TestSquatter(t *testing.T) {
	opt := space(t)
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	// Another type has its own names; a stream socket that does not listen refuses.
	if err := syscall.Bind(fd, address(opt, "a")); err != nil {
		t.Fatal(err)
	}
	stream, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(stream)
	if err := syscall.Bind(stream, address(opt, "b")); err != nil {
		t.Fatal(err)
	}
	if l := mustTake(t, opt, 1, "a", "b"); fmt.Sprint(l.IDs()) != "[a]" {
		t.Errorf("%v", l.IDs())
	}
	var e *BusyError
	if _, err := Take(t.Context(), opt, Want{IDs: []string{"a", "b"}}); !errors.As(err, &e) || len(e.Held) != 2 || e.Held[1] != (Holder{ID: "b", UID: -1}) {
		t.Errorf("%v", err)
	}
}

func BenchmarkTake(b *testing.B) {
	opt := Options{Space: fmt.Sprintf("b%d", os.Getpid())}
	ids := []string{"g0", "g1", "g2", "g3", "g4", "g5", "g6", "g7"}
	for b.Loop() {
		l, err := Take(b.Context(), opt, Want{IDs: ids})
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Release(); err != nil {
			b.Fatal(err)
		}
	}
}
