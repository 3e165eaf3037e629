package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	report "github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// canned answers every question alike.
type canned struct {
	result  any
	failure *report.Failure
	hang    bool
	events  []*report.Event
}

func (c canned) ask(string, []string) (any, *report.Failure) {
	if c.hang {
		select {}
	}
	return c.result, c.failure
}

func (c canned) watch(_ []string, _ time.Duration, each func(*report.Event) bool) *report.Failure {
	for _, e := range c.events {
		if !each(e) {
			return nil
		}
	}
	if c.hang {
		select {}
	}
	return c.failure
}

func TestRun(t *testing.T) {
	inv := &report.Inventory{DriverVersion: "1", NVMLVersion: "2", GPUs: []report.GPU{{Name: "<x>", MIG: "enabled", Serial: "7"}}}
	good, hangs := canned{result: inv}, canned{hang: true}
	bad := canned{failure: &report.Failure{Kind: report.Refused, Text: "count GPUs: x", Cause: "why", Hint: "what"}}
	sample := canned{result: &report.Sample{GPUs: []report.Load{}}}
	cases := []struct {
		name   string
		args   string
		ask    canned
		stdin  string
		code   int
		stdout string
		stderr string
	}{
		{"answer", "", good, "", 0, `"name": "<x>"`, ""},
		{"named call", "sample GPU-1", sample, "", 0, `"gpus": []`, ""},
		{"no answer", "-timeout 10ms", hangs, "", 125, "", "no answer in 10ms to: nothing\ngangway-nvml: cause: the NVIDIA driver hangs"},
		{"error", "health", bad, "", 125, "", "gangway-nvml: error: ask NVML for health: count GPUs: x\ngangway-nvml: cause: why\ngangway-nvml: hint:  what\n"},
		{"unknown flag", "-json", good, "", fault.CodeUsage, "", "usage: gangway-nvml"},
		{"unknown call", "x", good, "", fault.CodeUsage, "", `unknown call "x"`},
		{"serve with operand", "serve x", good, "", fault.CodeUsage, "", `unexpected operand "x"`},
		{"no time", "-timeout 0s", good, "", fault.CodeUsage, "", `a time is not positive`},
		{"serve nobody", "serve", good, "", 0, "", ""},
		{"serve", "serve", good, `{"id":7,"call":"inventory"}` + "\n", 0, `{"id":7,"result":{"driver_version":"1"`, ""},
		{"serve a failure", "serve", bad, `{"id":8,"call":"health"}` + "\n", 0, `{"id":8,"error":{"kind":"refused","text":"count GPUs: x"`, ""},
		{"serve and hang", "serve", hangs, `{"id":9,"call":"health","timeout_ms":10}` + "\n", 125, `{"id":9,"error":{"kind":"hung"`, "no answer in 10ms"},
		{"serve garbage", "serve", good, "garbage\n", 125, "", "decode request"},
		{"serve a flood", "serve", good, strings.Repeat("x", 2*maxRequest), 125, "", "read requests"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			// The pipe stays open until the answer is there: its end ends the program.
			in, feed, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			go func() {
				_, _ = feed.WriteString(c.stdin)
				time.Sleep(200 * time.Millisecond)
				_ = feed.Close()
			}()
			code := run(strings.Fields(c.args), in, &stdout, &stderr, func(flags, *step) asker { return c.ask })
			if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("exit %d\n%s%s", code, stdout.String(), stderr.String())
			}
			if (code == 0) != (stderr.Len() == 0) {
				t.Errorf("exit %d with %d bytes of talk", code, stderr.Len())
			}
		})
	}
}

// locked is a buffer for goroutines that are left behind.
type locked struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestEndOfInput: who asked is gone, and so is the program, though the driver hangs.
func TestEndOfInput(t *testing.T) {
	for _, args := range []string{"serve", "watch"} {
		in, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		go func() {
			_, _ = feed.WriteString(`{"id":1,"call":"health","timeout_ms":60000}` + "\n")
			time.Sleep(50 * time.Millisecond)
			_ = feed.Close()
		}()
		var stdout locked // "watch" may write still
		var stderr bytes.Buffer
		events := []*report.Event{nil, {Kind: "xid", Xid: 79, GPU: "GPU-1"}}
		code := run([]string{args}, in, &stdout, &stderr, func(flags, *step) asker { return canned{hang: true, events: events} })
		if code != 0 || stderr.Len() > 0 {
			t.Errorf("%s: exit %d: %s", args, code, stderr.String())
		}
		if args == "watch" && !strings.HasPrefix(stdout.String(), "{}\n{\"event\":{") {
			t.Errorf("events: %s", stdout.String())
		}
	}
}

// program builds the program and the fake library, or skips.
func program(t *testing.T) (file, dir string) {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	dir = t.TempDir()
	file = filepath.Join(dir, "gangway-nvml")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	for _, cmd := range []*exec.Cmd{build, exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/fake.c")} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	return file, dir
}

// TestLibrary lets the real program load no NVML, one that answers, and others that are ill.
func TestLibrary(t *testing.T) {
	file, dir := program(t)
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	procDir := t.TempDir()
	version := filepath.Join(procDir, "driver/nvidia/version")
	if err := os.MkdirAll(filepath.Dir(version), 0o755); err != nil {
		t.Fatal(err)
	}
	nvrm := "NVRM version: NVIDIA UNIX x86_64 Kernel Module  565.77  Wed Nov 27 23:33:08 UTC 2024\nGCC version:  gcc version 12.2.0\n"
	if err := os.WriteFile(version, []byte(nvrm), 0o644); err != nil {
		t.Fatal(err)
	}
	// One that is a library, but not NVML: the loader ends the program, and says why.
	stub := filepath.Join(dir, "stub.so")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-x", "c", "-o", stub, "/dev/null").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if code, stdout, stderr := call(t, file, stub, procDir, "", "inventory"); code != 127 || stdout != "" || !strings.Contains(stderr, "undefined symbol: nvmlInit") {
		t.Errorf("with a stub: exit %d\n%s%s", code, stdout, stderr)
	}
	notALibrary := filepath.Join(dir, "garbage.so")
	if err := os.WriteFile(notALibrary, []byte("garbage"), 0o755); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/inventory.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		args   string
		env    string
		code   int
		stdout string
		stderr string
	}{
		{"inventory", "inventory", "", 0, string(want), ""},
		{"one GPU", "sample GPU-0123", "", 0, `"energy_mj": 6500`, ""},
		{"an old library", "topology", "", 0, `"uuid": "GPU-0123"`, ""},
		{"no processes", "processes", "", 0, `"processes": []`, ""},
		{"health", "health GPU-0123", "", 0, `"temperature_c": 55`, ""},
		{"unknown GPU", "sample GPU-9", "", 125, "", "ask NVML for sample: \"GPU-9\"\ngangway-nvml: cause: there are GPU-0123 and 1 that does not answer\n"},
		{"hung at the start", "inventory", "HANG=nvmlInit_v2", 125, "", "no answer in 300ms to: initialise NVML"},
		{"hung later", "health", "HANG=nvmlDeviceGetTemperature", 125, "", "to: read temperature of GPU 0"},
		{"crash", "inventory", "CRASH=nvmlDeviceGetName", 2, "", "SIGABRT: abort"},
		{"mismatch", "inventory", "INIT=18", 125, "", "Driver/library version mismatch\ngangway-nvml: cause: the kernel module is of version 565.77, the library 570.1: the driver was upgraded"},
		{"no module", "inventory", "INIT=9", 125, "", "kernel module nvidia is not loaded\ngangway-nvml: hint:  as root: modprobe nvidia"},
		{"no permission", "inventory", "INIT=4", 125, "", "look at the permissions of /dev/nvidiactl"},
		{"nonsense", "inventory", "INIT=999", 125, "", "initialise NVML: [31mUnknown? Error\n"},
		{"too many", "inventory", "COUNT=-5", 125, "", "count GPUs: NVML says"},
		{"no GPU", "inventory", "COUNT=0", 0, `"gpus": []`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := call(t, file, library, procDir, c.env, c.args)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || code != 0 && stdout != "" {
				t.Errorf("exit %d\n%s%s", code, stdout, stderr)
			}
		})
	}
	for _, missing := range []string{notALibrary, filepath.Join(dir, "none.so")} {
		if code, stdout, stderr := call(t, file, missing, procDir, "", "inventory"); code != 125 || stdout != "" || !strings.Contains(stderr, "load libnvidia-ml.so.1: not found") {
			t.Errorf("with %s: exit %d\n%s%s", missing, code, stdout, stderr)
		}
	}
}

func call(t *testing.T, file, library, procDir, env, args string) (code int, stdout, stderr string) {
	t.Helper()
	var out, talk bytes.Buffer
	cmd := exec.CommandContext(t.Context(), file, append([]string{"-timeout", "300ms", "-library", library, "-proc", procDir}, strings.Fields(args)...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, &out, &talk
	if env != "" {
		cmd.Env = []string{"FAKE_NVML_" + env}
	}
	_ = cmd.Run() // the code says it
	return cmd.ProcessState.ExitCode(), out.String(), talk.String()
}

// TestJSON: what is printed is what hooks/nvml reads.
func TestJSON(t *testing.T) {
	b, err := os.ReadFile("testdata/inventory.golden")
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	var inv report.Inventory
	if err := dec.Decode(&inv); err != nil || len(inv.GPUs) != 2 || inv.GPUs[1].Error != "open GPU: GPU is lost" {
		t.Errorf("%+v, %v", inv, err)
	}
}

// FuzzServe: whatever is asked, each line of the answer is a response, and nothing hangs.
func FuzzServe(f *testing.F) {
	f.Add([]byte(`{"id":1,"call":"sample","gpus":["GPU-1"],"timeout_ms":-5}`))
	f.Add([]byte("{}\n{}\n\x00"))
	f.Fuzz(func(t *testing.T, stdin []byte) {
		var stdout bytes.Buffer
		_ = serve(canned{result: &report.Sample{}}, &step{}, bytes.NewReader(stdin), &stdout)
		for line := range bytes.Lines(stdout.Bytes()) {
			var r report.Response
			if err := json.Unmarshal(line, &r); err != nil || r.Result == nil || r.Error != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	})
}
