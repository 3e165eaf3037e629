package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestReal asks the real helper, which asks a library that answers, hangs or crashes.
func TestReal(t *testing.T) {
	t.Parallel()
	program, library := built(t)
	with := func(env ...string) *Client {
		for i := range env {
			env[i] = "FAKE_NVML_" + env[i]
		}
		c := New(Options{Program: program, Library: library, Env: env, Timeout: 700 * time.Millisecond, StartTimeout: 2 * time.Second, Pause: time.Nanosecond})
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		return c
	}
	good := with()
	inv, err := good.Inventory(t.Context())
	if err != nil || len(inv.GPUs) != 2 || inv.GPUs[0].UUID != "GPU-0123" || inv.GPUs[1].Error == "" {
		t.Fatalf("%+v, %v", inv, err)
	}
	if topo, err := good.Topology(t.Context()); err != nil || fmt.Sprint(topo.Paths) != "[[X ] [ X]]" {
		t.Errorf("%+v, %v", topo, err)
	}
	if h, err := good.Health(t.Context(), "GPU-0123"); err != nil || *h.GPUs[0].TemperatureC != 55 {
		t.Errorf("%+v, %v", h, err)
	}
	if p, err := good.Processes(t.Context()); err != nil || len(p.Processes) != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if uses, err := good.Record(ctx, time.Hour, "GPU-0123"); err != nil || *uses[0].Joules != 1.5 || *uses[0].GPUPercent != 42 {
		t.Errorf("%+v, %v", uses, err)
	}
	if _, err := good.Sample(t.Context(), "GPU-9"); !errors.Is(err, ErrUnknownGPU) {
		t.Errorf("%v", err)
	}

	for _, c := range []struct {
		env  string
		want error
		text string
	}{
		{"HANG=nvmlInit_v2", ErrHung, "to: initialise NVML"},
		{"HANG=nvmlDeviceGetTemperature", ErrHung, "to: read temperature of GPU 0"},
		{"CRASH=nvmlDeviceGetTemperature", ErrCrashed, "cause: SIGABRT: abort"},
		{"INIT=18", ErrMismatch, "Driver/library version mismatch"},
		{"INIT=9", ErrNoDriver, "modprobe nvidia"},
		{"INIT=4", ErrPermission, "/dev/nvidiactl"},
	} {
		t.Run(c.env, func(t *testing.T) {
			t.Parallel()
			client := with(c.env)
			for range 2 {
				begin := time.Now()
				_, err := client.Health(t.Context())
				if text := fault.Text("gangway", err, false); !errors.Is(err, c.want) || !strings.Contains(text, c.text) || time.Since(begin) > 3*time.Second {
					t.Errorf("after %v: %s", time.Since(begin), text)
				}
			}
		})
	}
}

// TestWatch: events come, and the end of each kind of helper is noticed.
func TestWatch(t *testing.T) {
	t.Parallel()
	program, library := built(t)
	opt := Options{Program: program, Library: library, Env: []string{"FAKE_NVML_XID=79"}, StartTimeout: 500 * time.Millisecond, Timeout: 100 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var got []Event
	err := New(opt).Watch(ctx, nil, func(e Event) {
		got = append(got, e)
		cancel()
	})
	if err != nil || len(got) != 1 || got[0].Kind != "xid" || got[0].Xid != 79 || got[0].GPU != "GPU-0123" {
		t.Errorf("%+v, %v", got, err)
	}
	if text := XidText(got[0].Xid); text != "Xid 79: GPU has fallen off the bus" || XidText(7000) != "Xid 7000" {
		t.Error(text)
	}
	for env, want := range map[string]error{
		"HANG=nvmlEventSetWait_v2": ErrHung, "CRASH=nvmlEventSetWait_v2": ErrCrashed, "INIT=9": ErrNoDriver,
	} {
		opt.Env = []string{"FAKE_NVML_" + env}
		if err := New(opt).Watch(t.Context(), nil, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v", env, err)
		}
	}
}

// TestStuck: a helper that SIGKILL does not end, because it is in the kernel, is left
// behind with its number, and no second one joins it. A frozen process is such a one.
func TestStuck(t *testing.T) {
	const freezer = "/sys/fs/cgroup/freezer"
	if os.Geteuid() != 0 {
		t.Skip("needs root: it freezes a process")
	}
	if _, err := os.Stat(freezer + "/cgroup.procs"); err != nil {
		t.Skip("needs cgroup v1: it freezes a process so that it cannot be killed")
	}
	group := filepath.Join(freezer, fmt.Sprintf("gangway-nvml-test-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(file, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(group, file), []byte(value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	starts := filepath.Join(t.TempDir(), "starts")
	client := ill(t, "good", Options{Timeout: 300 * time.Millisecond}, "TEST_STARTS="+starts)
	if _, err := client.Sample(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := client.proc.pid()
	set("cgroup.procs", strconv.Itoa(pid))
	set("freezer.state", "FROZEN")
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	thaw := func() { set("freezer.state", "THAWED") }
	for i := range 3 {
		_, err := client.Sample(t.Context())
		want := fmt.Sprintf("process %d", pid)
		if text := fault.Text("gangway", err, false); !errors.Is(err, ErrHung) || !strings.Contains(text, want) || !strings.Contains(text, "is stuck in the kernel and cannot be killed") {
			t.Errorf("question %d: %s", i, text)
		}
	}
	if b, _ := os.ReadFile(starts); len(b) != 1 {
		t.Errorf("%d starts", len(b))
	}
	thaw()
	if !client.left.isGone(5 * time.Second) {
		t.Error("it is still there")
	}
	if _, err := client.Sample(t.Context()); err != nil {
		t.Errorf("after it was gone: %v", err)
	}
}

// TestRecorder compares with sums that are done at the end.
func TestRecorder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Recorder
		type figures struct{ percent, used, energy []uint64 }
		want := map[string]*figures{}
		for range rapid.IntRange(0, 8).Draw(t, "samples") {
			var s Sample
			for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, "gpus") {
				f := want[id]
				if f == nil {
					f = &figures{}
					want[id] = f
				}
				load := Load{UUID: id}
				some := func(name string, top uint64, list *[]uint64) *uint64 {
					if rapid.Bool().Draw(t, name+"?") {
						return nil
					}
					v := rapid.Uint64Range(0, top).Draw(t, name)
					*list = append(*list, v)
					return &v
				}
				if p := some("percent", 100, &f.percent); p != nil {
					load.GPUPercent = new(int(*p))
				}
				load.MemoryUsed = some("used", 1<<40, &f.used)
				load.Millijoules = some("energy", 1<<50, &f.energy)
				s.GPUs = append(s.GPUs, load)
			}
			s.GPUs = append(s.GPUs, Load{Error: "lost"})
			r.Add(&s)
		}
		uses := r.Uses()
		if len(uses) != len(want) {
			t.Fatalf("%d of %d GPUs", len(uses), len(want))
		}
		for _, u := range uses {
			f := want[u.UUID]
			var sum, peak uint64
			for _, p := range f.percent {
				sum += p
			}
			if (u.GPUPercent == nil) != (len(f.percent) == 0) || u.GPUPercent != nil && *u.GPUPercent != float64(sum)/float64(len(f.percent)) {
				t.Errorf("percent of %v", f.percent)
			}
			for _, m := range f.used {
				peak = max(peak, m)
			}
			if (u.MemoryPeak == nil) != (len(f.used) == 0) || u.MemoryPeak != nil && *u.MemoryPeak != peak {
				t.Errorf("peak of %v", f.used)
			}
			falls := false
			for i := range f.energy {
				falls = falls || i > 0 && f.energy[i] < f.energy[i-1]
			}
			if (u.Joules == nil) != (falls || len(f.energy) == 0) || u.Joules != nil && *u.Joules != float64(f.energy[len(f.energy)-1]-f.energy[0])/1000 {
				t.Errorf("joules of %v", f.energy)
			}
		}
	})
}
