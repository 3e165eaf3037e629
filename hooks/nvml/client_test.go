package nvml

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestIll: whatever is wrong with the helper, it costs a named error with a remedy, in
// time, and the next question is asked anew.
func TestIll(t *testing.T) {
	hung := Options{Timeout: 200 * time.Millisecond, StartTimeout: 500 * time.Millisecond}
	for _, c := range []struct {
		mode string
		want error
		text string
	}{
		{"hung", ErrHung, "ask NVML for sample: no answer in 500ms\ngangway: hint:  look for Xid"},
		{"crash", ErrCrashed, "gangway-nvml ended: exit status 2\ngangway: cause: SIGSEGV: segmentation violation"},
		{"killed", ErrCrashed, "gangway-nvml ended: "},
		{"symbol", ErrCrashed, "undefined symbol: nvmlInit"},
		{"garbage", ErrWrong, "the answer makes no sense: invalid character 'N'"},
		{"other", ErrWrong, "it is to question 2, not 1"},
		{"empty", ErrWrong, "it is empty"},
		{"types", ErrWrong, "cannot unmarshal string"},
		{"many", ErrWrong, "1025 GPUs"},
		{"flood", ErrWrong, "longer than 4194304 bytes"},
		{"half", ErrCrashed, "exit status 0"},
		{"closed", ErrCrashed, "it closed its output"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			opt := Options{Timeout: 3 * time.Second} // programs with race detector end slowly
			if errors.Is(c.want, ErrHung) {
				opt = hung
			}
			client := ill(t, c.mode, opt)
			for range 2 {
				begin := time.Now()
				s, err := client.Sample(t.Context())
				if took := time.Since(begin); took > 3*time.Second {
					t.Errorf("took %v", took)
				}
				if text := fault.Text("gangway", err, false); s != nil || !errors.Is(err, c.want) || client.id == 1 && !strings.Contains(text, c.text) {
					t.Errorf("%v: %s", s, text)
				}
			}
			if client.proc != nil {
				t.Error("the helper was kept")
			}
		})
	}
}

// TestFailures: what the helper says about NVML keeps its kind, its cause and its hint.
func TestFailures(t *testing.T) {
	for kind, want := range map[Kind]error{
		NoDriver: ErrNoDriver, Mismatch: ErrMismatch, Permission: ErrPermission, Hung: ErrHung, UnknownGPU: ErrUnknownGPU, Refused: ErrRefused, "new": ErrRefused,
	} {
		client := ill(t, "failure", Options{}, "TEST_KIND="+string(kind))
		_, err := client.Health(t.Context())
		if text := fault.Text("gangway", err, false); !errors.Is(err, want) || !strings.HasSuffix(text, ": text\ngangway: cause: the cause\ngangway: hint:  the hint\n") {
			t.Errorf("%s: %s", kind, text)
		}
	}
}

// TestAbsent: no helper, or one that cannot be started.
func TestAbsent(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "gangway-nvml")
	if err := os.WriteFile(script, []byte("garbage"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{filepath.Join(dir, "none"), script, dir} {
		client := New(Options{Program: program})
		for range 2 {
			if _, err := client.Inventory(t.Context()); !errors.Is(err, ErrAbsent) || !strings.Contains(fault.Text("gangway", err, false), "make gangway-nvml") {
				t.Errorf("%s: %v", program, err)
			}
		}
		if err := client.Watch(t.Context(), nil, nil); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v", program, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if _, err := client.Inventory(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}

	if file, err := Find(filepath.Join(dir, "gangway"), ""); err != nil || file != script {
		t.Errorf("beside: %q, %v", file, err)
	}
	if file, err := Find("/nowhere/gangway", "relative:"+dir); err != nil || file != script {
		t.Errorf("in PATH: %q, %v", file, err)
	}
	t.Chdir(dir)
	for _, path := range []string{"", ".", ":"} {
		if file, err := Find("gangway", path); !errors.Is(err, ErrAbsent) {
			t.Errorf("in %q: %q, %v", path, file, err)
		}
	}
	if err := os.Chmod(script, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(script, ""); !errors.Is(err, ErrAbsent) {
		t.Errorf("not executable: %v", err)
	}
}

// TestTurns: many goroutines ask one helper, and each gets its own answer.
func TestTurns(t *testing.T) {
	starts := filepath.Join(t.TempDir(), "starts")
	client := ill(t, "good", Options{}, "TEST_STARTS="+starts)
	var wg sync.WaitGroup
	seen := make([]bool, 51)
	var mu sync.Mutex
	for range 50 {
		wg.Go(func() {
			s, err := client.Sample(t.Context(), "GPU-1")
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			seen[*s.GPUs[0].Millijoules/1000] = true
		})
	}
	wg.Wait()
	for i, ok := range seen[1:] {
		if !ok {
			t.Errorf("nobody got answer %d", i+1)
		}
	}
	if b, err := os.ReadFile(starts); err != nil || len(b) != 1 {
		t.Errorf("%d starts, %v", len(b), err)
	}
}

// TestContexts: who does not want to wait any more does not, and the next is not given
// the answer to another's question.
func TestContexts(t *testing.T) {
	client := ill(t, "slow", Options{})
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(gone) })
	if _, err := client.Sample(ctx); !errors.Is(err, gone) || errors.Is(err, ErrHung) {
		t.Errorf("cancelled: %v", err)
	}
	if _, err := client.Sample(ctx); !errors.Is(err, gone) {
		t.Errorf("cancelled before: %v", err)
	}
	short, cancel2 := context.WithTimeout(t.Context(), 60*time.Millisecond)
	defer cancel2()
	if _, err := client.Sample(short); !errors.Is(err, ErrHung) {
		t.Errorf("too slow: %v", err)
	}
	time.Sleep(time.Millisecond) // Options.Pause
	if s, err := client.Sample(t.Context()); err != nil || *s.GPUs[0].Millijoules != 1000 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestPause: a helper that fails is not started again and again.
func TestPause(t *testing.T) {
	starts := filepath.Join(t.TempDir(), "starts")
	client := ill(t, "crash", Options{Pause: 150 * time.Millisecond}, "TEST_STARTS="+starts)
	count := func() int {
		b, _ := os.ReadFile(starts)
		return len(b)
	}
	for range 20 {
		if _, err := client.Sample(t.Context()); !errors.Is(err, ErrCrashed) {
			t.Fatal(err)
		}
	}
	if n := count(); n != 1 {
		t.Errorf("%d starts", n)
	}
	time.Sleep(160 * time.Millisecond)
	for range 20 {
		if _, err := client.Sample(t.Context()); !errors.Is(err, ErrCrashed) {
			t.Fatal(err)
		}
	}
	if n := count(); n != 2 || client.pause != 300*time.Millisecond {
		t.Errorf("%d starts, then %v", n, client.pause)
	}
}

// TestRecord: samples until the end, and with a helper that hangs what there was.
func TestRecord(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
	defer cancel()
	uses, err := ill(t, "good", Options{}).Record(ctx, 50*time.Millisecond)
	if err != nil || len(uses) != 1 {
		t.Fatalf("%+v, %v", uses, err)
	}
	u := uses[0]
	n := float64(u.Samples)
	if u.Samples < 3 || *u.GPUPercent != 10*(1+n)/2 || *u.Joules != n-1 || *u.MemoryPeak != 7 || u.MemoryTotal != nil {
		b, _ := json.Marshal(u)
		t.Errorf("%s", b)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	uses, err = ill(t, "second", Options{Timeout: 200 * time.Millisecond, Pause: time.Hour}).Record(ctx, 10*time.Millisecond)
	if !errors.Is(err, ErrHung) || len(uses) != 1 || uses[0].Samples != 1 || *uses[0].Joules != 0 || time.Since(begin) > time.Second {
		t.Errorf("%+v, %v, after %v", uses, err, time.Since(begin))
	}
}

// FuzzResponse: what the helper says never harms who asked.
func FuzzResponse(f *testing.F) {
	golden, err := os.ReadFile("../../cmd/gangway-nvml/testdata/inventory.golden")
	if err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, golden); err != nil {
		f.Fatal(err)
	}
	f.Add(fmt.Appendf(nil, `{"id":1,"result":%s}`, b.String()))
	f.Add([]byte(`{"id":1,"error":{"kind":"hung","text":"x"}}`))
	f.Add([]byte(`{"event":{"kind":"xid","xid":79,"time":"2026-01-02T03:04:05Z"}}`))
	f.Add([]byte(`{"id":1,"result":{"gpus":[{"uuid":"x","energy_mj":1}],"paths":[["X"]]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		line, err := readLine(bufio.NewReader(bytes.NewReader(append(data, '\n'))))
		if err != nil {
			return
		}
		for _, into := range []any{&Inventory{}, &Topology{}, &Health{}, &Sample{}, &Processes{}} {
			failure, err := decodeResponse(line, 1, into)
			if err != nil && !errors.Is(err, ErrWrong) {
				t.Errorf("%v", err)
			}
			if s, ok := into.(*Sample); ok && err == nil && failure == nil {
				var r Recorder
				r.Add(s)
				r.Add(s)
				r.Uses()
			}
			if failure != nil {
				_ = fault.Text("gangway", told("x", failure), false)
			}
		}
		if _, err := decodeBeat(line); err != nil && !errors.Is(err, ErrWrong) {
			t.Errorf("%v", err)
		}
	})
}
