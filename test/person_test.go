package test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	maps0 "maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/image/oci"
	"github.com/gangway-hpc/gangway/internal/usertest"
)

// person is an ordinary user, also where the tests are root's, with a gangway of his
// machine, a home, and images that a test makes for him.
type person struct {
	dir  string // of this test, others may look
	bin  string // the program
	base []byte // the layer with a shell, compressed
	diff oci.Digest
	cred *syscall.Credential // nil where the tests are an ordinary user's
}

func newPerson(t *testing.T) *person {
	t.Helper()
	watchSources(t)
	return newPersonWith(t, build(t))
}

// newPersonWith is a person with a gangway that was built before.
func newPersonWith(t *testing.T, bin string) *person {
	t.Helper()
	p := &person{dir: publicDir(t), bin: bin}
	raw, zipped := writeTar(t, busybox(t))
	p.base, p.diff = zipped, oci.DigestOf(raw)
	if os.Geteuid() == 0 {
		// Its own id, so that no other test has processes of it.
		p.cred = &syscall.Credential{Uid: usertest.ID + 2, Gid: usertest.ID + 2}
		if err := os.Chmod("/dev/fuse", 0o666); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	p.mkdir(t, "home")
	p.mkdir(t, "run")
	return p
}

// uid is the user's id.
func (p *person) uid() int {
	if p.cred != nil {
		return int(p.cred.Uid)
	}
	return os.Geteuid()
}

// mkdir makes a directory of the user's and returns its path.
func (p *person) mkdir(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(p.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, p.uid(), -1); err != nil {
		t.Fatal(err)
	}
	return dir
}

// environ is all of the environment of the user's programs.
func (p *person) environ() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + filepath.Join(p.dir, "home"), "TMPDIR=/tmp", "TERM=dumb",
		"GANGWAY_RUNTIME_DIR=" + filepath.Join(p.dir, "run"), "GANGWAY_STORE=" + filepath.Join(p.dir, "home", "store"),
	}
}

// command is gangway, to be run by the user.
func (p *person) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.bin, args...)
	cmd.Dir = filepath.Join(p.dir, "home")
	cmd.Env = p.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.cred}
	return cmd
}

// outcome is what a program printed, and how it ended.
type outcome struct {
	out, err string
	code     int
}

func outcomeOf(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatalf("%s: %v", cmd.Path, err)
	}
	return outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// run runs gangway run of an image, whose options end with "--".
func (p *person) run(t *testing.T, image string, args ...string) outcome {
	t.Helper()
	return outcomeOf(t, p.command(append([]string{"run", "-q", "--container-image=" + image}, args...)...))
}

// want fails unless a run ended with a code, and its output and errors match; an empty
// pattern wants nothing to be printed.
func (o outcome) want(t *testing.T, code int, out, errs string) {
	t.Helper()
	if o.code != code || !matches(out, o.out) || !matches(errs, o.err) {
		t.Errorf("exit %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s", o.code, code, out, o.out, errs, o.err)
	}
}

func matches(pattern, text string) bool {
	if pattern == "" {
		return text == ""
	}
	return regexp.MustCompile(pattern).MatchString(text)
}

// entry is a file of a crafted layer.
type entry struct {
	name    string
	kind    byte // of a tar header; 0 is a regular file, or a symlink or a directory as its fields say
	link    string
	content string
	mode    int64 // 0 is 0755
	major   int64
	minor   int64
}

// craft returns a layer of entries, uncompressed.
func craft(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content)), Devmajor: e.major, Devminor: e.minor}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		switch {
		case e.kind != 0:
		case e.link != "":
			h.Typeflag = tar.TypeSymlink
		case e.name[len(e.name)-1] == '/':
			h.Typeflag = tar.TypeDir
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// image makes an image of a shell and layers over it, with what it says of itself, and
// returns its name.
func (p *person) image(t *testing.T, config map[string]any, layers ...[]byte) string {
	t.Helper()
	return p.layout(t, true, config, layers...)
}

// layout makes an image, with or without the layer that has a shell.
func (p *person) layout(t *testing.T, shell bool, config map[string]any, layers ...[]byte) string {
	t.Helper()
	dir, err := os.MkdirTemp(p.dir, "layout-")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755)); err != nil {
		t.Fatal(err)
	}
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(mediaType string, b []byte) oci.Descriptor {
		d := oci.Descriptor{MediaType: mediaType, Digest: oci.DigestOf(b), Size: int64(len(b))}
		put("blobs/sha256/"+d.Digest.Hex(), b)
		return d
	}
	document := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaTypeManifest}
	var diffIDs []oci.Digest
	if shell {
		diffIDs = append(diffIDs, p.diff)
		m.Layers = append(m.Layers, blob(oci.MediaTypeLayer+"+gzip", p.base))
	}
	for _, l := range layers {
		diffIDs = append(diffIDs, oci.DigestOf(l))
		if len(l) < 1<<20 {
			m.Layers = append(m.Layers, blob(oci.MediaTypeLayer, l))
			continue
		}
		var z bytes.Buffer
		g := gzip.NewWriter(&z)
		if _, err := g.Write(l); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		m.Layers = append(m.Layers, blob(oci.MediaTypeLayer+"+gzip", z.Bytes()))
	}
	if config["Env"] == nil {
		config = merge(config, map[string]any{"Env": []string{"PATH=/bin"}})
	}
	host := oci.HostPlatform()
	m.Config = blob(oci.MediaTypeConfig, document(map[string]any{
		"os": host.OS, "architecture": host.Architecture, "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	}))
	put("index.json", document(oci.Index{SchemaVersion: 2, Manifests: []oci.Descriptor{blob(oci.MediaTypeManifest, document(m))}}))
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return "oci:" + dir
}

func merge(maps ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range maps {
		maps0.Copy(all, m)
	}
	return all
}

// running is a gangway run that goes on.
type running struct {
	cmd  *exec.Cmd
	done chan struct{} // closed at its end
	out  strings.Builder
	err  strings.Builder
}

// start starts a container with a name, whose command says that it is there by /tmp/up;
// without a command it sleeps.
func (p *person) start(t *testing.T, image string, args ...string) *running {
	t.Helper()
	all := append([]string{"run", "-q", "--container-image=" + image}, args...)
	name := ""
	for _, a := range args {
		if value, ok := strings.CutPrefix(a, "--container-name="); ok {
			name = value
		}
	}
	if !slices.Contains(args, "--") {
		all = append(all, "--", "sh", "-c", "echo x > /tmp/up; trap 'exit 0' TERM; while :; do sleep 1000 & wait; done")
	}
	r := &running{cmd: p.command(all...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.done)
		_ = r.cmd.Wait() // how it ended is asked of the process
	}()
	t.Cleanup(func() { r.stop(t) })
	waitFor(t, func() bool {
		select {
		case <-r.done:
			t.Fatalf("it ended: %v: %s", r.cmd.ProcessState, r.err.String())
		default:
		}
		return p.command("exec", name, "ls", "/tmp/up").Run() == nil
	})
	return r
}

// stop kills it.
func (r *running) stop(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	<-r.done
}
