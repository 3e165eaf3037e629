package step

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
)

// TestLibraryPath: where the loader's cache does not lead to the libraries a variable does,
// after what is there.
func TestLibraryPath(t *testing.T) {
	g := &given{made: specs.Spec{Process: &specs.Process{Env: []string{"A=new"}}}, needs: nvidia.Needs{Dirs: []string{"/x", "/y"}}, pathNeeded: true}
	for _, c := range []struct{ env, want []string }{
		{[]string{"A=old", "B=b"}, []string{"B=b", "A=new", "LD_LIBRARY_PATH=/x:/y"}},
		{[]string{"LD_LIBRARY_PATH=/own"}, []string{"LD_LIBRARY_PATH=/own:/x:/y", "A=new"}},
	} {
		if got := g.environ(c.env); !slices.Equal(got, c.want) {
			t.Errorf("%q", got)
		}
	}
	g.pathNeeded = false
	if got := g.environ([]string{"LD_LIBRARY_PATH=/own"}); !slices.Equal(got, []string{"LD_LIBRARY_PATH=/own", "A=new"}) {
		t.Errorf("%q", got)
	}
	if got := (&given{}).environ([]string{"A=old"}); !slices.Equal(got, []string{"A=old"}) {
		t.Errorf("nothing given: %q", got)
	}
}

// TestLibraries: of the directories that vendors name, the libraries that are mounted there
// are entered, and what is no library is not.
func TestLibraries(t *testing.T) {
	library := ""
	for _, name := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"} {
		if _, err := os.Stat(name); err == nil {
			library = name
			break
		}
	}
	if library == "" {
		t.Skip("needs a glibc host")
	}
	dir := t.TempDir()
	content, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	writeAll(t, dir, "libscript.so", "readme.txt", "sub.so/x")
	if err := os.WriteFile(filepath.Join(dir, "libacme.so.1"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	s := &step{}
	s.given.made.Mounts = []specs.Mount{
		{Destination: "/opt/one/libacme.so.2", Source: library},
		{Destination: "/opt/all", Source: dir},
		{Destination: "/elsewhere/libacme.so.3", Source: library},
	}
	err = s.libraries([]cdi.Action{
		{Hook: "update-ldcache", Folders: []string{"/opt/one", "/opt/all"}},
		{Hook: "create-soname-symlinks", Folders: []string{"/opt/one"}},
		{Hook: "enable-cuda-compat", DriverVersion: "580.95.05"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range s.given.needs.Entries {
		if !strings.HasPrefix(e.Name, "lib") {
			t.Errorf("%+v", e)
		}
		paths = append(paths, e.Path)
	}
	slices.Sort(paths)
	if paths = slices.Compact(paths); !slices.Equal(paths, []string{"/opt/all/libacme.so.1", "/opt/one/libacme.so.2"}) {
		t.Errorf("%q", paths)
	}
	if n := s.given.needs; n.Facts.Driver != "580.95.05" || !slices.Equal(n.Dirs, []string{"/opt/one", "/opt/all"}) {
		t.Errorf("%+v", n)
	}
}
