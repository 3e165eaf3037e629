package nvml

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// realLibrary is this machine's NVML, in the ways that drivers are installed; "" leaves it
// to the loader.
func realLibrary(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/proc/driver/nvidia/version"); err != nil {
		t.Skip("needs an NVIDIA GPU: there is no /proc/driver/nvidia/version")
	}
	for _, dir := range []string{"/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/nvidia/driver/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"} {
		file := filepath.Join(dir, "libnvidia-ml.so.1")
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// TestGPU compares what a real driver says with what nvidia-smi makes of it.
func TestGPU(t *testing.T) {
	library := realLibrary(t)
	program, _ := built(t)
	c := New(Options{Program: program, Library: library, StartTimeout: time.Minute})
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	begin := time.Now()
	inv, err := c.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first answer after %v: %+v", time.Since(begin), *inv)
	smi, err := exec.LookPath("nvidia-smi")
	if err != nil {
		smi = "/usr/local/nvidia/bin/nvidia-smi"
	}
	out, err := exec.CommandContext(t.Context(), smi, "--query-gpu=index,uuid,name,memory.total,driver_version", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatalf("nvidia-smi: %v", err)
	}
	var mine strings.Builder
	for _, g := range inv.GPUs {
		fmt.Fprintf(&mine, "%d, %s, %s, %d, %s\n", g.Index, g.UUID, g.Name, g.MemoryBytes>>20, inv.DriverVersion)
		if g.Error != "" {
			t.Errorf("%s: %s", g.UUID, g.Error)
		}
	}
	if mine.String() != string(out) {
		t.Errorf("nvidia-smi says\n%swe say\n%s", out, mine.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	uses, err := c.Record(ctx, 100*time.Millisecond, inv.GPUs[0].UUID)
	if err != nil || len(uses) != 1 || uses[0].Samples < 5 {
		t.Fatalf("%+v, %v", uses, err)
	}
	if j := uses[0].Joules; j == nil || *j < 2 || *j > 3000 { // an idle GPU takes 20 W and more
		t.Errorf("joules: %s", number(j))
	}
	for name, ask := range map[string]func() (any, error){
		"topology":  func() (any, error) { return c.Topology(t.Context()) },
		"health":    func() (any, error) { return c.Health(t.Context()) },
		"processes": func() (any, error) { return c.Processes(t.Context()) },
	} {
		begin := time.Now()
		answer, err := ask()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s after %v: %+v", name, time.Since(begin), answer)
	}
}

func number(f *float64) string {
	if f == nil {
		return "none"
	}
	return strconv.FormatFloat(*f, 'g', 4, 64)
}
