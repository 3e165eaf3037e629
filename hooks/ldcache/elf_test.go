package ldcache_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
)

// TestReadELF compares with Go's own reader, over this machine's libraries.
func TestReadELF(t *testing.T) {
	names, _ := filepath.Glob("/usr/lib/*/lib*.so.*")
	n := 0
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		want, wantErr := elf.NewFile(f)
		got, err := ldcache.ReadELF(f)
		if wantErr == nil {
			sonames, _ := want.DynString(elf.DT_SONAME)
			if soname := strings.Join(sonames, ""); err != nil || got.Soname != soname || got.Flags != ldcache.HostFlags() {
				t.Errorf("%s: %+v, %v; want %q", name, got, err, soname)
			}
			n++
		} else if err == nil {
			t.Errorf("%s: read what debug/elf refuses: %v", name, wantErr)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d libraries", n)
}

func TestReadNote(t *testing.T) {
	for arch, flags := range map[string]int32{"amd64": ldcache.FlagsAMD64, "arm64": ldcache.FlagsARM64, "386": ldcache.Flags386} {
		r := bytes.NewReader(fakedriver.ELF(fakedriver.Library{Soname: "liba.so.1", Arch: arch, Note: `{"CUDA Version":"13.1"}`}))
		e, err := ldcache.ReadELF(r)
		if err != nil || e.Soname != "liba.so.1" || e.Flags != flags {
			t.Errorf("%s: %+v, %v", arch, e, err)
		}
		note, err := ldcache.ReadNote(r, ".note.cuda.fwd_compatibility", "NVIDIA Corporation")
		if err != nil || note != `{"CUDA Version":"13.1"}` {
			t.Errorf("%s: note %q, %v", arch, note, err)
		}
		if note, err := ldcache.ReadNote(r, ".note.cuda.fwd_compatibility", "GNU"); err != nil || note != "" {
			t.Errorf("%s: another's note %q, %v", arch, note, err)
		}
		if note, err := ldcache.ReadNote(r, ".note.other", "NVIDIA Corporation"); err != nil || note != "" {
			t.Errorf("%s: another note %q, %v", arch, note, err)
		}
	}
}

func TestBadELF(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("#!/bin/sh\n"), fakedriver.ELF(fakedriver.Library{})[:63], bytes.Repeat([]byte("\x7fELF\x02\x01"), 20)} {
		if _, err := ldcache.ReadELF(bytes.NewReader(b)); !errors.Is(err, ldcache.ErrELF) {
			t.Errorf("%.20q: %v", b, err)
		}
		if _, err := ldcache.ReadNote(bytes.NewReader(b), "x", "y"); !errors.Is(err, ldcache.ErrELF) {
			t.Errorf("%.20q: note: %v", b, err)
		}
	}
}

func FuzzELF(f *testing.F) {
	f.Add(fakedriver.ELF(fakedriver.Library{Soname: "liba.so.1", Note: "{}"}))
	f.Add(fakedriver.ELF(fakedriver.Library{Soname: "liba.so.1", Arch: "386", Note: "{}"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		if e, err := ldcache.ReadELF(r); err == nil && len(e.Soname) > 4096 {
			t.Fatalf("a soname of %d bytes", len(e.Soname))
		}
		if _, err := ldcache.ReadNote(r, ".note.cuda.fwd_compatibility", "NVIDIA Corporation"); err != nil && !errors.Is(err, ldcache.ErrELF) {
			t.Fatal(err)
		}
	})
}
