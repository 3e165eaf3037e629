// Package incontainer_test applies CDI edits to containers of an ordinary user and looks
// from inside. It is a package of its own because a test that fuzzes cannot link runtime.
package incontainer_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/usertest"
	"github.com/gangway-hpc/gangway/runtime"
)

// TestMain runs the tests as an ordinary user.
func TestMain(m *testing.M) { os.Exit(usertest.Main(m)) }

// write makes a file of the test's.
func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, dir string) *cdi.Registry {
	t.Helper()
	r, err := cdi.Load(t.Context(), cdi.Options{Dirs: []string{dir}, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestContainer: in a container of an ordinary user a made-up vendor's device is there
// and works, beside the standard nodes and nothing else.
func TestContainer(t *testing.T) {
	dir, lib := t.TempDir(), t.TempDir()
	write(t, filepath.Join(lib, "libacme.so"), "a library\n")
	write(t, filepath.Join(dir, "acme.yaml"), `
cdiVersion: "0.6.0"
kind: acme.com/thing
containerEdits:
  env: [ACME=yes]
devices:
- name: all
  containerEdits:
    deviceNodes:
    - {path: /dev/full}
    - {path: /dev/acme/deep/renamed, hostPath: /dev/zero}
    - {path: /dev/acme0, hostPath: /dev/full, permissions: rw}
    mounts:
    - {hostPath: `+lib+`, containerPath: /tmp/acme, options: [ro, nosuid, nodev, rbind, rprivate]}
    - {hostPath: `+lib+`/libacme.so, containerPath: /tmp/lib/libacme.so.1, options: [ro]}
`)
	// /dev/full is the container's own; nobody else may say what it is.
	if problems := load(t, dir).Problems(); len(problems) != 1 {
		t.Fatalf("%v", problems)
	}
	text, err := os.ReadFile(filepath.Join(dir, "acme.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "acme.yaml"), strings.Replace(string(text), "    - {path: /dev/full}\n", "", 1))

	edits, err := load(t, dir).Edits("acme.com/thing=all")
	if err != nil {
		t.Fatal(err)
	}
	spec := bare(`head -c 3 /dev/acme/deep/renamed | od -An -tx1; head -c 1 /dev/zero 2>&1 >/dev/acme0 | grep -o 'No space.*'; echo $ACME
		cat /tmp/acme/libacme.so /tmp/lib/libacme.so.1; touch /tmp/acme/x 2>&1 | grep -o 'Read-only.*'
		cd /dev; for f in $(find . | sort); do if [ -c $f ] && ! [ -L $f ]; then echo -n "$f "; fi; done`)
	report, err := cdi.Apply(spec, edits)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Cannot)+len(report.Denied) > 0 {
		t.Errorf("%+v", report)
	}
	got := run(t, spec)
	want := " 00 00 00\nNo space left on device\nyes\na library\na library\nRead-only file system\n" +
		"./acme/deep/renamed ./acme0 ./full ./null ./pts/ptmx ./random ./tty ./urandom ./zero "
	if got != want {
		t.Errorf("%q, not\n%q", got, want)
	}
}

// TestDenied: a node that the user may not open is named, with the group.
func TestDenied(t *testing.T) {
	denied := func(node, access string, groups ...int) []cdi.Denied {
		edits := `{"cdiVersion":"0.6.0","kind":"acme.com/mem","devices":[{"name":"0","containerEdits":{"deviceNodes":[{"path":"/dev/acme","hostPath":"` + node + `","permissions":"` + access + `"}]}}]}`
		dir := t.TempDir()
		write(t, filepath.Join(dir, "acme.json"), edits)
		e, err := load(t, dir).Edits("acme.com/mem=0")
		if err != nil {
			t.Skipf("needs %s: %v", node, err)
		}
		report, err := cdi.Host{Groups: groups}.Apply(&oci.Spec{}, e)
		if err != nil {
			t.Fatal(err)
		}
		return report.Denied
	}
	if got := denied("/dev/zero", "rwm"); got != nil {
		t.Errorf("%v", got)
	}
	st, err := os.Stat("/dev/kmsg")
	if err != nil || st.Mode().Perm()&0o002 != 0 {
		t.Skip("needs a /dev/kmsg that not everybody writes")
	}
	if got := denied("/dev/kmsg", "w"); len(got) != 1 || !strings.HasPrefix(got[0].String(), "/dev/kmsg cannot be opened by this user") {
		t.Errorf("%q", got)
	}
}

// bare is a container of a shell command in the host's root.
func bare(script string) *oci.Spec {
	return &oci.Spec{
		Process: &oci.Process{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}},
		Mounts: []oci.Mount{
			{Destination: "/proc", Type: "proc", Options: []string{"nosuid", "nodev", "noexec"}},
			{Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/tmp", Type: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777"}},
		},
		Linux: &oci.Linux{
			Namespaces:  []oci.LinuxNamespace{{Type: "user"}, {Type: "mount"}, {Type: "pid"}, {Type: "ipc"}},
			UIDMappings: []oci.LinuxIDMapping{{ContainerID: uint32(os.Getuid()), HostID: uint32(os.Getuid()), Size: 1}},
			GIDMappings: []oci.LinuxIDMapping{{ContainerID: uint32(os.Getgid()), HostID: uint32(os.Getgid()), Size: 1}},
		},
	}
}

// run runs a container and returns what it wrote.
func run(t *testing.T, spec *oci.Spec) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	box, err := runtime.Prepare(t.Context(), &runtime.Config{Spec: spec, Root: runtime.Root{Dir: "/"}, Stage: t.TempDir(), Stdout: w, Stderr: w})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	if err := box.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if status, err := box.Wait(); err != nil || status.Code != 0 {
		t.Errorf("%+v, %v", status, err)
	}
	return string(out)
}

// TestHidden: what the user may not look at is not called stale.
func TestHidden(t *testing.T) {
	dir, closed := t.TempDir(), filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "a.json"), `{"cdiVersion":"0.6.0","kind":"acme.com/x","devices":[{"name":"0","containerEdits":{"mounts":[{"hostPath":"`+closed+`/lib","containerPath":"/a"}]}}]}`)
	_, err := load(t, dir).Edits("acme.com/x=0")
	text := fault.Text("gangway", err, false)
	if errors.Is(err, cdi.ErrStale) || !strings.Contains(text, "permission denied") || !strings.Contains(text, "ask an administrator") {
		t.Errorf("%s", text)
	}
}
