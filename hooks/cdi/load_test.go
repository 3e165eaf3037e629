package cdi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// write makes a file of the test's.
func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// device is a specification of one device.
func device(kind, name, env string) string {
	return `{"cdiVersion":"0.5.0","kind":"` + kind + `","devices":[{"name":"` + name + `","containerEdits":{"env":["` + env + `"]}}]}`
}

func load(t *testing.T, dirs ...string) *cdi.Registry {
	t.Helper()
	r, err := cdi.Load(t.Context(), cdi.Options{Dirs: dirs, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestLoad: the later directory wins, two files of one directory do not, and other
// files do not count.
func TestLoad(t *testing.T) {
	etc, run, none := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "none")
	write(t, filepath.Join(etc, "a.json"), device("acme.com/thing", "0", "FROM=etc"))
	write(t, filepath.Join(etc, "b.yaml"), device("acme.com/thing", "1", "FROM=etc"))
	write(t, filepath.Join(etc, "c.json"), device("acme.com/thing", "2", "FROM=c"))
	write(t, filepath.Join(etc, "d.json"), device("acme.com/thing", "2", "FROM=d"))
	write(t, filepath.Join(etc, "e.json.rpmsave"), device("acme.com/thing", "3", "FROM=old"))
	write(t, filepath.Join(etc, "deeper", "f.json"), device("acme.com/thing", "4", "FROM=deeper"))
	write(t, filepath.Join(etc, "g.json"), "{")
	write(t, filepath.Join(run, "a.json"), device("acme.com/thing", "0", "FROM=run"))
	r := load(t, etc, none, run)
	spec, err := cdi.Parse([]byte(device("acme.com/thing", "0", "FROM=found")))
	if err != nil {
		t.Fatal(err)
	}
	spec.Devices = append(spec.Devices, spec.Devices[0])
	spec.Devices[1].Name = "9"
	if err := r.Add(spec, "found"); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(r.Devices(), " "), "acme.com/thing=0 acme.com/thing=1 acme.com/thing=9"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
	for name, want := range map[string]string{"0": "FROM=run", "1": "FROM=etc", "9": "FROM=found"} {
		e, err := r.Edits("acme.com/thing=" + name)
		if err != nil || len(e.Env) != 1 || e.Env[0] != want {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	if _, err := r.Edits("acme.com/thing=2"); err == nil || !strings.Contains(err.Error(), "c.json and ") {
		t.Errorf("a device that two files describe: %v", err)
	}
	problems := r.Problems()
	if len(problems) != 2 || !strings.Contains(problems[0].Error(), "g.json") || !strings.Contains(problems[1].Error(), "described twice") {
		t.Errorf("%v", problems)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cdi.Load(ctx, cdi.Options{Dirs: []string{etc}, UID: os.Getuid()}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestOnlyUnusable: where there is a file which cannot be used, it is not said that there is
// none, and what to do is about that file.
func TestOnlyUnusable(t *testing.T) {
	refused := func(files map[string]string) string {
		dir := t.TempDir()
		for name, content := range files {
			write(t, filepath.Join(dir, name), content)
		}
		_, err := load(t, dir).Edits("acme.com/thing=0")
		if err == nil {
			t.Fatalf("%v: a device", files)
		}
		return strings.ReplaceAll(fault.Text("gangway", err, false), dir, "DIR")
	}
	broken := refused(map[string]string{"x.json": "{"})
	twice := refused(map[string]string{"a.json": device("acme.com/thing", "1", "A=b"), "b.json": device("acme.com/thing", "1", "A=c")})
	for text, wants := range map[string][]string{
		broken: {"no CDI specification in DIR can be used; not used: CDI specification DIR/x.json: ", "hint:  mend it, or write DIR/x.json anew"},
		twice:  {"no CDI specification in DIR can be used; not used: device acme.com/thing=1 is described twice: in DIR/a.json and DIR/b.json", "hint:  remove one of the two files"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) || strings.Contains(text, "was found") {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
}

// TestUnusableFiles: what is no file, or too big, is named and nothing else is lost; a
// pipe is not waited for.
func TestUnusableFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "z.json"), device("acme.com/thing", "0", "A=b"))
	write(t, filepath.Join(dir, "big.json"), strings.Repeat(" ", cdi.MaxFile+1))
	if err := unix.Mkfifo(filepath.Join(dir, "pipe.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("z.json", filepath.Join(dir, "link.txt")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "zero.yaml")); err != nil {
		t.Fatal(err)
	}
	// A file is no directory.
	r := load(t, dir, filepath.Join(dir, "z.json"))
	if got := r.Devices(); !slices.Equal(got, []string{"acme.com/thing=0"}) {
		t.Errorf("%v", got)
	}
	var text strings.Builder
	for _, err := range r.Problems() {
		text.WriteString(err.Error() + "\n")
	}
	for _, want := range []string{"big.json: it has more than", "pipe.json: it is no regular file", "zero.yaml: it is no regular file", "dangling.yaml: open: no such file", "z.json: "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
}

// TestUntrusted: a specification that somebody else could have written is not used, and
// the refusal of its device says why and what to type.
func TestUntrusted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to make files of other users")
	}
	const other, own = 64321, 64322
	for _, c := range []struct {
		name   string
		uid    int // of the caller
		spoil  func(t *testing.T, dir, file string) error
		reason string // "" is trusted
	}{
		{"root's", own, func(*testing.T, string, string) error { return nil }, ""},
		{"the user's", own, func(_ *testing.T, dir, file string) error {
			return errors.Join(os.Chown(dir, own, own), os.Chown(file, own, own))
		}, ""},
		{"another user's file", own, func(_ *testing.T, _, file string) error { return os.Chown(file, other, 0) }, "belongs to user 64321"},
		{"another user's file, for root", 0, func(_ *testing.T, _, file string) error { return os.Chown(file, other, 0) }, "belongs to user 64321"},
		{"another user's directory", own, func(_ *testing.T, dir, _ string) error { return os.Chown(dir, other, 0) }, "belongs to user 64321"},
		{"a directory below another user's", own, func(_ *testing.T, dir, _ string) error { return os.Chown(filepath.Dir(dir), other, 0) }, "belongs to user 64321"},
		{"a file that the group writes", own, func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o664) }, "can be written by others (mode 0664)"},
		{"a file that all write", own, func(_ *testing.T, _, file string) error { return os.Chmod(file, 0o646) }, "can be written by others"},
		{"a directory that all write", own, func(_ *testing.T, dir, _ string) error { return os.Chmod(dir, 0o777) }, "can be written by others"},
		{"a sticky directory, where all can put files", own, func(_ *testing.T, dir, _ string) error { return os.Chmod(dir, 0o777|os.ModeSticky) }, "can be written by others"},
		{"below a directory that all write", own, func(_ *testing.T, dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o777) }, "can be written by others"},
		{"below a sticky directory", own, func(_ *testing.T, dir, _ string) error { return os.Chmod(filepath.Dir(dir), 0o777|os.ModeSticky) }, ""},
		{"a link to another user's file", own, func(t *testing.T, dir, file string) error {
			evil := filepath.Join(t.TempDir(), "evil.json")
			return errors.Join(os.Rename(file, evil), os.Chown(evil, other, 0), os.Symlink(evil, file))
		}, "belongs to user 64321"},
		{"a link to another user's directory", own, func(t *testing.T, dir, _ string) error {
			evil := filepath.Join(t.TempDir(), "evil")
			return errors.Join(os.Rename(dir, evil), os.Chown(evil, other, 0), os.Symlink(evil, dir))
		}, "belongs to user 64321"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "above", "cdi")
			file := filepath.Join(dir, "acme.json")
			write(t, file, device("acme.com/thing", "0", "A=b"))
			if err := c.spoil(t, dir, file); err != nil {
				t.Fatal(err)
			}
			r, err := cdi.Load(t.Context(), cdi.Options{Dirs: []string{dir}, UID: c.uid})
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.Edits("acme.com/thing=0")
			if c.reason == "" {
				if err != nil || len(r.Problems()) > 0 {
					t.Errorf("%v, %v", err, r.Problems())
				}
				return
			}
			if err == nil || len(r.Problems()) != 1 || len(r.Devices()) != 0 {
				t.Fatalf("used: %v, %v", r.Devices(), r.Problems())
			}
			text := fault.Text("gangway", err, false)
			if !strings.Contains(text, c.reason) || !strings.Contains(text, "hint:  ch") {
				t.Errorf("%s", text)
			}
		})
	}
}

// TestUnknownDevice: the refusal lists what there is, and is not endless.
func TestUnknownDevice(t *testing.T) {
	dir := t.TempDir()
	var devices []string
	for i := range 40 {
		devices = append(devices, `{"name":"`+strings.Repeat("x", i%3)+"n"+string(rune('a'+i%26))+strings.Repeat("y", i)+`","containerEdits":{"env":["A=b"]}}`)
	}
	write(t, filepath.Join(dir, "a.json"), `{"cdiVersion":"0.5.0","kind":"acme.com/thing","devices":[`+strings.Join(devices, ",")+`]}`)
	for _, c := range []struct{ dir, name, want string }{
		{dir, "acme.com/thing=0", "device acme.com/thing=0 is not known|of acme.com/thing there are: na, |and 24 more|--device acme.com/thing=na"},
		{dir, "nvidia.com/gpu=0", "no specification is of the kind nvidia.com/gpu; there are: acme.com/thing|name one of"},
		{t.TempDir(), "nvidia.com/gpu=0", "no CDI specification was found in|nvidia-ctk cdi generate --output="},
		{t.TempDir(), "amd.com/gpu=0", "amd-ctk cdi generate"},
		{t.TempDir(), "acme.com/gpu=0", "anew with the tool of acme.com"},
	} {
		_, err := load(t, c.dir).Edits(c.name)
		if err == nil {
			t.Fatalf("%s is there", c.name)
		}
		text := fault.Text("gangway", err, false)
		for want := range strings.SplitSeq(c.want, "|") {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
		if fault.Code(err) != fault.CodeFailed || len(text) > 2000 {
			t.Errorf("code %d, %d bytes", fault.Code(err), len(text))
		}
	}
}

// TestStale: what the host has not, or has otherwise, is refused with what to type.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	r := func(edits string) error {
		write(t, filepath.Join(dir, "nvidia.yaml"), strings.Replace(edit(edits), "acme.com/thing", "nvidia.com/gpu", 1))
		_, err := load(t, dir).Edits("nvidia.com/gpu=0")
		return err
	}
	nodes := func(fields string) string { return `"deviceNodes":[{` + fields + `}]` }
	for _, c := range []struct{ edits, want string }{
		{nodes(`"path":"/dev/nvidia77"`), "/dev/nvidia77: no such file"},
		{nodes(`"path":"/dev/nvidia77","type":"c","major":195,"minor":77`), "/dev/nvidia77: no such file"},
		{nodes(`"path":"/dev/nvidia0","hostPath":"/dev/zero","type":"c","major":195`), "/dev/zero is 1:5, not 195:0"},
		{nodes(`"path":"/dev/nvidia0","hostPath":"/dev/zero","major":1,"minor":3`), "/dev/zero is 1:5, not 1:3"},
		{nodes(`"path":"/dev/nvidia0","hostPath":"/dev/zero","type":"b"`), "/dev/zero is of type c, not b"},
		{nodes(`"path":"/dev/nvidia0","hostPath":"/etc/passwd"`), "/etc/passwd is no device node"},
		{`"mounts":[{"hostPath":"/usr/lib/libcuda.so.1.2.3","containerPath":"/a"}]`, "/usr/lib/libcuda.so.1.2.3: no such file"},
	} {
		err := r(c.edits)
		if !errors.Is(err, cdi.ErrStale) {
			t.Fatalf("%s: %v", c.edits, err)
		}
		text := fault.Text("gangway", err, false)
		for _, want := range []string{c.want, "device nvidia.com/gpu=0", "does not fit this machine: " + dir, "nvidia-ctk cdi generate --output=" + dir} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
		}
	}
	if err := r(nodes(`"path":"/dev/nvidia0","hostPath":"/dev/zero","type":"u","major":1,"minor":5`)); err != nil {
		t.Errorf("one that fits: %v", err)
	}
}

// TestSharedRegistry: a registry is not changed by being asked, so many may ask.
func TestSharedRegistry(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), good)
	r := load(t, dir)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			e, err := r.Edits("acme.com/thing=0")
			if err == nil || !errors.Is(err, cdi.ErrStale) { // there is no /opt/acme
				t.Errorf("%v, %v", e, err)
			}
			_, _ = r.Devices(), r.Problems()
		})
	}
	group.Wait()
}
