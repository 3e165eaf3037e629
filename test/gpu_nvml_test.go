package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestGPUWithoutNVML: the program that asks the driver's library, absent or sick, costs a
// warning and seconds, and no run that does not need it.
func TestGPUWithoutNVML(t *testing.T) {
	p := newPerson(t)
	whole := newGPUMachine(t, p, fakedriver.Options{GPUs: 6}) // one for each
	image := p.image(t, nil)
	// Beside the program it is found first, also by one that runs from a copy of itself, as
	// here, where containers see the host's processes.
	beside := filepath.Join(filepath.Dir(p.bin), "gangway-nvml")
	if err := os.WriteFile(beside, []byte("#!/bin/sh\nkill -SEGV $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	whole.run(t, image, "PATH="+sickNVML(t, "exit 0")+":/usr/bin:/bin", "--gpus=1", "--stats", "--", "true").want(t, 0, "", "gangway-nvml ended: signal: segmentation fault")
	if err := os.Remove(beside); err != nil {
		t.Fatal(err)
	}
	t.Run("an instance", func(t *testing.T) {
		t.Parallel()
		instanceWithoutNVML(t, p, image)
	})
	for name, text := range map[string]string{
		"absent":  "",
		"hangs":   "exec sleep 1000",
		"crashes": "kill -SEGV $$",
		"garbage": "while read line; do echo '{\"x\": [1,'; done",
		"floods":  "exec yes",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some wait for seconds
			path := "PATH=/usr/bin:/bin"
			if text != "" {
				path = "PATH=" + sickNVML(t, text) + ":/usr/bin:/bin"
			}
			start := time.Now()
			o := whole.run(t, image, path, "--gpus=1", "--", "sh", "-c", "ls /dev | grep -c nvidia[0-9]")
			o.want(t, 0, "^1\n$", "")
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("a run that needs no NVML took %v", d)
			}
			start = time.Now()
			o = whole.run(t, image, path, "--gpus=1", "--stats", "--", "sh", "-c", "echo ran")
			if o.code != 0 || o.out != "ran\n" || !strings.Contains(o.err, "gangway: used: ") || !matches("(?i)what the GPUs (do|did).*not.*known", o.err) {
				t.Errorf("exit %d: %s%s", o.code, o.out, o.err)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("with --stats it took %v", d)
			}
			t.Logf("%v: %s", time.Since(start), o.err)
		})
	}
}

// sickNVML is a directory with a gangway-nvml that does something else.
func sickNVML(t *testing.T, text string) string {
	t.Helper()
	dir := publicDir(t)
	if err := os.WriteFile(filepath.Join(dir, "gangway-nvml"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// instanceWithoutNVML: a MIG instance by its UUID, which NVML alone knows, is refused with
// why.
func instanceWithoutNVML(t *testing.T, p *person, image string) {
	t.Helper()
	m := newGPUMachine(t, p, fakedriver.Options{GPUs: 1, MIG: 2})
	const refused = `(?s)which MIG instance has which UUID is not known.*no such GPU, or NVML has not told the names of MIG instances.*this run may have 0:1:0`
	m.run(t, image, "--gpus=MIG-3eb87630-93d5-5b6c-8a7d-000000000000", "--", "true").want(t, 125, "", refused)
	path := "PATH=" + sickNVML(t, "exec sleep 1000") + ":/usr/bin:/bin"
	start := time.Now()
	m.run(t, image, path, "--gpus=MIG-3eb87630-93d5-5b6c-8a7d-000000000000", "--", "true").want(t, 125, "", refused)
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
}
