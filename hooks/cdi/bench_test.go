package cdi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
)

// large is a specification as of a machine with 8 GPUs: 4 nodes each, 60 libraries.
func large(tb testing.TB) (*specs.Spec, string) {
	lib := tb.TempDir()
	spec := &specs.Spec{Version: "0.5.0", Kind: "acme.com/gpu"}
	for i := range 9 {
		d := specs.Device{Name: fmt.Sprint(i)}
		for j := range 4 {
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &specs.DeviceNode{Path: fmt.Sprintf("/dev/acme%d.%d", i, j), HostPath: "/dev/zero"})
		}
		spec.Devices = append(spec.Devices, d)
	}
	for j := range 60 {
		name := filepath.Join(lib, fmt.Sprintf("libnvidia-%d.so.550.54.15", j))
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			tb.Fatal(err)
		}
		spec.ContainerEdits.Mounts = append(spec.ContainerEdits.Mounts, &specs.Mount{HostPath: name, ContainerPath: "/usr/lib/" + filepath.Base(name), Options: []string{"ro", "nosuid", "nodev", "rbind", "rprivate"}})
	}
	return spec, tb.TempDir()
}

// BenchmarkCDI: a run with 8 GPUs, from files and from what a hook has made.
func BenchmarkCDI(b *testing.B) {
	spec, dir := large(b)
	var names []string
	for i := range 8 {
		names = append(names, fmt.Sprintf("acme.com/gpu=%d", i))
	}
	all := func(b *testing.B, o cdi.Options, add bool) {
		for b.Loop() {
			r, err := cdi.Load(b.Context(), o)
			if err == nil && add {
				err = r.Add(spec, "made")
			}
			if err != nil {
				b.Fatal(err)
			}
			e, err := r.Edits(names...)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := cdi.Apply(&oci.Spec{}, e); err != nil {
				b.Fatal(err)
			}
		}
	}
	text, _ := json.Marshal(spec)
	if err := os.WriteFile(filepath.Join(dir, "a.json"), text, 0o644); err != nil {
		b.Fatal(err)
	}
	b.Run("json", func(b *testing.B) { all(b, cdi.Options{Dirs: []string{dir}}, false) })
	b.Run("made", func(b *testing.B) { all(b, cdi.Options{Dirs: []string{"/none", "/nowhere"}}, true) })
	b.Run("apply", func(b *testing.B) {
		r, err := cdi.Load(b.Context(), cdi.Options{Dirs: []string{dir}})
		if err != nil {
			b.Fatal(err)
		}
		e, err := r.Edits(names...)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if _, err := cdi.Apply(&oci.Spec{}, e); err != nil {
				b.Fatal(err)
			}
		}
	})
	text, _ = yaml.Marshal(spec)
	if err := os.Rename(filepath.Join(dir, "a.json"), filepath.Join(dir, "a.yaml")); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), text, 0o644); err != nil {
		b.Fatal(err)
	}
	b.Run("yaml", func(b *testing.B) { all(b, cdi.Options{Dirs: []string{dir}}, false) })
}

// TestAliases: what a file of 1 MiB can cost through aliases is bounded.
func TestAliases(t *testing.T) {
	if testing.Short() {
		t.Skip("needs seconds under the race detector")
	}
	var bomb strings.Builder
	bomb.WriteString("cdiVersion: 0.5.0\nkind: a.b/c\ncontainerEdits: &e\n  env:\n")
	for i := range 20_000 {
		bomb.WriteString(fmt.Sprintf("  - A%d=b\n", i))
	}
	bomb.WriteString("devices:\n")
	for i := range 20_000 {
		bomb.WriteString(fmt.Sprintf("- {name: d%d, containerEdits: *e}\n", i))
	}
	if len(bomb.String()) > cdi.MaxFile {
		t.Fatalf("%d bytes", len(bomb.String()))
	}
	begin := time.Now()
	if _, err := cdi.Parse([]byte(bomb.String())); err == nil {
		t.Error("taken")
	} else {
		t.Logf("%v after %v", err, time.Since(begin))
	}
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}
