package fakedriver_test

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestELF: what we make is what Go's reader, the loader and a program see.
func TestELF(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "386"} {
		b := fakedriver.ELF(fakedriver.Library{Soname: "libx.so.1", Arch: arch, ID: 7, Note: `{"Format":1}`})
		f, err := elf.NewFile(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		dyn := f.Section(".note.cuda.fwd_compatibility")
		if dyn == nil {
			t.Errorf("%s: no note", arch)
		} else if data, err := dyn.Data(); err != nil || !strings.HasSuffix(string(data), `{"Format":1}`) {
			t.Errorf("%s: note %q, %v", arch, data, err)
		}
		if len(f.Progs) != 3 {
			t.Errorf("%s: %d segments", arch, len(f.Progs))
		}
	}
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc to load the library with a C program")
	}
	dir := t.TempDir()
	lib := filepath.Join(dir, "libx.so.1")
	if err := os.WriteFile(lib, fakedriver.ELF(fakedriver.Library{Soname: "libx.so.1", ID: 4711}), 0o644); err != nil {
		t.Fatal(err)
	}
	c := `#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **a) { void *h = dlopen(a[1], RTLD_NOW); if (!h) { puts(dlerror()); return 1; }
int (*f)(void) = dlsym(h, "gangway_fake_id"); printf("%d\n", f ? f() : -1); return 0; }`
	cmd := exec.Command(gcc, "-x", "c", "-", "-o", filepath.Join(dir, "load"), "-ldl")
	cmd.Stdin = strings.NewReader(c)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(filepath.Join(dir, "load"), lib).CombinedOutput()
	if err != nil || string(out) != "4711\n" {
		t.Errorf("loaded: %v, %q", err, out)
	}
}

func TestTree(t *testing.T) {
	for _, layout := range []fakedriver.Layout{fakedriver.Distro, fakedriver.Local, fakedriver.Driver} {
		tree := fakedriver.New(t, fakedriver.Options{GPUs: 3, MIG: 2, Layout: layout, Extras: true, Compat: true, Dir: t.TempDir()})
		for _, path := range []string{
			filepath.Join(tree.Lib, "libcuda.so"), filepath.Join(tree.Bin, "nvidia-smi"), filepath.Join(tree.Dev, "nvidia2"),
			filepath.Join(tree.Proc, "driver/nvidia/gpus", tree.GPUs[1].Bus, "information"), filepath.Join(tree.Dev, "nvidia-caps/nvidia-cap21"),
			filepath.Join(tree.Sys, "bus/pci/devices", tree.GPUs[2].Bus, "numa_node"), filepath.Join(tree.Root, "run/nvidia-fabricmanager/socket"),
		} {
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
		}
		if tree.Real != (os.Getuid() == 0) {
			t.Logf("device nodes are real: %v", tree.Real)
		}
	}
}
