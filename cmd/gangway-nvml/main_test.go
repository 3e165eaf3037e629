package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
)

func TestRun(t *testing.T) {
	inv := &Inventory{DriverVersion: "1", NVMLVersion: "2", GPUs: []GPU{{Name: "x", MIG: "enabled", Serial: "7"}}}
	never := make(chan struct{})
	cases := []struct {
		name   string
		args   string
		ask    func() (*Inventory, error)
		code   int
		stdout string
		stderr string
	}{
		{"answer", "", func() (*Inventory, error) { return inv, nil }, 0, `"serial": "7"`, ""},
		{"no answer", "-timeout 10ms", func() (*Inventory, error) { <-never; return nil, nil }, 125, "", "no answer in 10ms\ngangway-nvml: cause: the NVIDIA driver hangs"},
		{"error", "", func() (*Inventory, error) { return nil, errors.New("count GPUs: x") }, 125, "", "gangway-nvml: error: count GPUs: x\n"},
		{"unknown flag", "-json", nil, fault.CodeUsage, "", "usage: gangway-nvml"},
		{"operand", "x", nil, fault.CodeUsage, "", `unexpected operand "x"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(strings.Fields(c.args), &stdout, &stderr, c.ask)
			if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("exit %d\n%s%s", code, stdout.String(), stderr.String())
			}
			if (code == 0) != (stdout.Len() > 0) || (code == 0) != (stderr.Len() == 0) {
				t.Errorf("exit %d with %d bytes of result and %d of talk", code, stdout.Len(), stderr.Len())
			}
		})
	}
}

// TestLibrary builds the real program and lets it load no NVML, one that answers
// and one that hangs.
func TestLibrary(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "gangway-nvml")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	for _, cmd := range []*exec.Cmd{build, exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/fake.c")} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	call := func(env ...string) (code int, stdout, stderr string) {
		var out, talk bytes.Buffer
		cmd := exec.Command(program, "-timeout", "300ms")
		cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &talk
		_ = cmd.Run() // the code says it
		return cmd.ProcessState.ExitCode(), out.String(), talk.String()
	}

	want := `{
  "driver_version": "570.1",
  "nvml_version": "12.570.1",
  "gpus": [
    {
      "index": 0,
      "uuid": "GPU-0123",
      "name": "Fake 4090",
      "pci_bus_id": "0000:3b:00.0",
      "memory_bytes": 25757220864,
      "mig": "unsupported"
    },
    {
      "index": 1,
      "uuid": "",
      "name": "",
      "pci_bus_id": "",
      "memory_bytes": 0,
      "mig": "",
      "error": "open GPU: GPU is lost"
    }
  ]
}
`
	path := "LD_LIBRARY_PATH=" + dir
	if code, stdout, stderr := call(path); code != 0 || stdout != want || stderr != "" {
		t.Errorf("with the fake: exit %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := call(path, "FAKE_NVML_HANG=1"); code != 125 || stdout != "" || !strings.Contains(stderr, "no answer in 300ms") {
		t.Errorf("with a hung driver: exit %d\n%s%s", code, stdout, stderr)
	}
	// A machine with a driver has a real one; then there is nothing to miss.
	if code, stdout, stderr := call(); code != 0 && (code != 125 || stdout != "" || !strings.Contains(stderr, "load libnvidia-ml.so.1: not found")) {
		t.Errorf("without NVML: exit %d\n%s%s", code, stdout, stderr)
	}
}
