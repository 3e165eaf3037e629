package spec_test

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// tree is an image's root in memory: files by path, directories with a closing
// slash, links as "-> target".
type tree map[string]string

func (t tree) real(name string) string {
	name = path.Clean("/" + name)
	for range 40 {
		resolved := ""
		moved := false
		for part := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
			rest := strings.TrimPrefix(name, resolved+"/"+part)
			if to, ok := strings.CutPrefix(t[resolved+"/"+part], "-> "); ok {
				name, moved = path.Join("/", path.Join(resolved, to), rest), true
				if path.IsAbs(to) {
					name = path.Join(to, rest)
				}
				break
			}
			resolved += "/" + part
		}
		if !moved {
			return name
		}
	}
	return "/loop"
}

func (t tree) ReadFile(name string, limit int64) ([]byte, error) {
	content, ok := t[t.real(name)]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	if int64(len(content)) > limit {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("file too large")}
	}
	return []byte(content), nil
}

func (t tree) Exists(name string) bool {
	directory := strings.HasSuffix(name, "/.")
	name = t.real(name)
	if _, file := t[name]; directory && file {
		return false
	}
	for have := range t {
		if strings.TrimSuffix(have, "/") == name || strings.HasPrefix(have, name+"/") {
			return true
		}
	}
	return name == "/"
}

// mountpoint is what Tree.Mountpoint does, as far as Settle sees it.
func (t tree) mountpoint(name string, _ bool) (string, error) { return t.real(name), nil }

func debian() tree {
	return tree{
		"/bin/sh": "#!", "/bin/bash": "#!", "/root/": "", "/tmp/": "", "/usr/bin/env": "#!", "/etc/apt/sources.list": "",
		"/var/run": "-> /run",
		"/etc/passwd": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
			"_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"/etc/group": "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n",
	}
}

func ann() spec.Host {
	return spec.Host{
		UID: 1000, GID: 100, User: "ann", Home: "/home/ann", Shell: "/bin/zsh", Hostname: "node7", Cwd: "/home/ann/job",
		Groups:     []spec.Group{{ID: 100, Name: "users"}, {ID: 2000, Name: "physics"}},
		Environ:    []string{"USER=ann", "LOGNAME=ann", "HOME=/home/ann", "SHELL=/bin/zsh", "PATH=/opt/slurm/bin:/usr/bin", "TERM=screen", "MASTER_PORT=29500"},
		Hosts:      []byte("127.0.0.1 localhost\n10.0.0.7 node7\n"),
		ResolvConf: []byte("nameserver 10.0.0.1\n"),
		MemTotal:   64 << 30,
	}
}

func debianImage() spec.Image {
	return spec.Image{Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Cmd: []string{"bash"}}
}

func run(command ...string) spec.Request { return spec.Request{Command: command} }

func build(t testing.TB, r spec.Request, img spec.Image, h spec.Host, root spec.Root) *spec.Result {
	t.Helper()
	res, err := spec.Build(r, img, h, root)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return res
}

// refused checks that an error names what it is about and says what to do.
func refused(t testing.TB, err error, names ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("it was accepted")
	}
	text := fault.Text("gangway", err, false)
	for _, name := range names {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name %q:\n%s", name, text)
		}
	}
	if !strings.Contains(text, "hint:") {
		t.Errorf("the error has no remedy:\n%s", text)
	}
	if len(text) > 3000 {
		t.Errorf("the error is %d bytes long", len(text))
	}
}

func env(res *spec.Result, name string) string {
	for _, entry := range res.Spec.Process.Env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return "(unset)"
}

func file(t testing.TB, res *spec.Result, name string) string {
	t.Helper()
	i := slices.IndexFunc(res.Files, func(f spec.File) bool { return f.Path == name })
	if i < 0 {
		return "(none)"
	}
	return string(res.Files[i].Content)
}

// show is a mount in one line.
func show(m specs.Mount) string {
	return fmt.Sprintf("%s %s %s %s", m.Type, m.Source, m.Destination, strings.Join(m.Options, ","))
}

func mountsAt(res *spec.Result, target string) []string {
	var found []string
	for _, m := range res.Spec.Mounts {
		if m.Destination == target {
			found = append(found, show(m))
		}
	}
	return found
}

func parse(t testing.TB, s string) []spec.Mount {
	t.Helper()
	mounts, err := spec.ParseMounts(s, "/home/ann/job")
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}
