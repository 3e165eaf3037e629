package step

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

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

// glibc is a library of the host's.
func glibc(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6", "/lib64/libc.so.6"} {
		if _, err := os.Stat(name); err == nil {
			return name
		}
	}
	t.Skip("needs a glibc host")
	return ""
}

// TestLibrariesBad: what cannot be read of a vendor's directory is left out, and said; what
// lies below a mount is found; what is no directory of the host's is not looked for there.
func TestLibrariesBad(t *testing.T) {
	library := glibc(t)
	vendor, over := t.TempDir(), t.TempDir()
	lib := filepath.Join(vendor, "lib")
	if err := errors.Join(os.Mkdir(lib, 0o755), os.Symlink(library, filepath.Join(lib, "libb.so.1")), os.Symlink(library, filepath.Join(lib, "liba.so.1")),
		os.Symlink("nowhere", filepath.Join(lib, "libdangling.so")), os.Symlink("libloop.so", filepath.Join(lib, "libloop.so")),
		unix.Mkfifo(filepath.Join(lib, "libpipe.so"), 0o644), os.Symlink(library, filepath.Join(over, "libover.so.1"))); err != nil {
		t.Fatal(err)
	}
	bind := func(source, target string) specs.Mount {
		return specs.Mount{Type: "bind", Source: source, Destination: target}
	}
	t.Chdir(vendor)
	for _, c := range []struct {
		name   string
		mounts []specs.Mount
		want   string // names of the libraries
		said   string
	}{
		{"a directory above", []specs.Mount{bind(vendor, "/opt/v")}, "liba.so.1 libb.so.1", "(and 1 more)"},
		{"itself", []specs.Mount{bind(lib, "/opt/v/lib")}, "liba.so.1 libb.so.1", "libdangling.so: no such file or directory"},
		{"above, and nothing there", []specs.Mount{bind(over, "/opt/v")}, "", ""},
		{"a similar name", []specs.Mount{bind(vendor, "/opt/v/li")}, "", ""},
		{"the root", []specs.Mount{bind(over, "/")}, "", ""},
		{"one over the other", []specs.Mount{bind(vendor, "/opt/v"), bind(over, "/opt/v/lib")}, "libover.so.1", ""},
		{"a file into it", []specs.Mount{bind(over, "/opt/v/lib"), bind(library, "/opt/v/lib/libfile.so.1")}, "libfile.so.1 libover.so.1", ""},
		{"tmpfs", []specs.Mount{{Type: "tmpfs", Source: "lib", Destination: "/opt/v/lib"}, bind(library, "/opt/v/lib/libfile.so.1")}, "libfile.so.1", ""},
		{"tmpfs over it", []specs.Mount{bind(vendor, "/opt/v"), {Type: "tmpfs", Source: "lib", Destination: "/opt/v/lib"}}, "", ""},
		{"a directory that is gone", []specs.Mount{bind("/nowhere/lib", "/opt/v/lib")}, "", "/nowhere/lib: no such file or directory"},
	} {
		var log bytes.Buffer
		s := &step{Options: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		s.given.made.Mounts = c.mounts
		s.libraries([]cdi.Action{{Hook: "update-ldcache", Folders: []string{"/opt/v/lib"}}})
		var names []string
		for _, e := range s.given.needs.Entries {
			names = append(names, path.Base(e.Path))
		}
		if got := strings.Join(slices.Compact(names), " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if text := log.String(); !strings.Contains(text, c.said) || (text == "") != (c.said == "") || strings.Count(text, "\n") > 1 {
			t.Errorf("%s: %q, want %q", c.name, text, c.said)
		}
	}
}

// TestLibraries: of the directories that vendors name, the libraries that are mounted there
// are entered, and what is no library is not.
func TestLibraries(t *testing.T) {
	library := glibc(t)
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
		{Type: "bind", Destination: "/opt/one/libacme.so.2", Source: library},
		{Type: "bind", Destination: "/opt/all", Source: dir},
		{Type: "bind", Destination: "/elsewhere/libacme.so.3", Source: library},
	}
	s.libraries([]cdi.Action{
		{Hook: "update-ldcache", Folders: []string{"/opt/one", "/opt/all"}},
		{Hook: "create-soname-symlinks", Folders: []string{"/opt/one"}},
		{Hook: "enable-cuda-compat", DriverVersion: "580.95.05"},
	})
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
