package spec_test

import (
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/gangway-hpc/gangway/runtime/spec"
)

func TestAccounts(t *testing.T) {
	res := build(t, run("true"), debianImage(), ann(), debian())
	const passwd = `ann:x:1000:100:ann:/home/ann:/bin/bash
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`
	const group = "users:x:100:\nroot:x:0:\ndaemon:x:1:\nnogroup:x:65534:\nphysics:x:2000:ann\n"
	if got := file(t, res, "/etc/passwd"); got != passwd {
		t.Errorf("passwd:\n%s", got)
	}
	if got := file(t, res, "/etc/group"); got != group {
		t.Errorf("group:\n%s", got)
	}
}

func TestAccountsRemapRoot(t *testing.T) {
	r := run("true")
	r.RemapRoot = true
	root := debian()
	root["/etc/passwd"] += "toor:x:0:0::/toor:/bin/sh\n"
	res := build(t, r, debianImage(), ann(), root)
	const passwd = `root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
`
	if got := file(t, res, "/etc/passwd"); got != passwd {
		t.Errorf("passwd:\n%s", got)
	}
	if got := file(t, res, "/etc/group"); got != "root:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n" {
		t.Errorf("group:\n%s", got)
	}
	if got := file(t, res, "/etc/apt/apt.conf.d/99gangway-root"); got != "APT::Sandbox::User \"root\";\n" {
		t.Errorf("apt: %s", got)
	}
	if u := res.Spec.Process.User; u.UID != 0 || u.GID != 0 {
		t.Errorf("user %+v", u)
	}
	if m := res.Spec.Linux; m.UIDMappings[0].ContainerID != 0 || m.UIDMappings[0].HostID != 1000 || m.GIDMappings[0].HostID != 100 || m.UIDMappings[0].Size != 1 {
		t.Errorf("maps %+v %+v", m.UIDMappings, m.GIDMappings)
	}
	delete(root, "/etc/apt/sources.list")
	if got := file(t, build(t, r, debianImage(), ann(), root), "/etc/apt/apt.conf.d/99gangway-root"); got != "(none)" {
		t.Errorf("apt where none is: %s", got)
	}
}

// TestBadAccounts is the row "/etc/passwd" of the list of bad inputs, as far as
// lines are left out.
func TestBadAccounts(t *testing.T) {
	const good = "daemon:x:1:1::/:/bin/sh\n"
	const want = "ann:x:1000:100:ann:/home/ann:/bin/bash\ndaemon:x:1:1::/:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	for _, c := range []struct{ name, lines string }{
		{"nothing else", ""},
		{"too few fields", "x:x:5:5\n"},
		{"too many fields", "x:x:5:5::/:/bin/sh:y\n"},
		{"carriage return inside", "x:x:5:5:a\rroot:/:/bin/sh\n"},
		{"NUL", "x:x:5:5:\x00:/:/bin/sh\n"},
		{"terminal", "x:x:5:5:\x1b[2J:/:/bin/sh\n"},
		{"no name", ":x:5:5::/:/bin/sh\n"},
		{"NIS", "+::::::\n"},
		{"minus", "-root:x:5:5::/:/bin/sh\n"},
		{"uid -1", "x:x:-1:5::/:/bin/sh\n"},
		{"uid 2^32-1", "x:x:4294967295:5::/:/bin/sh\n"},
		{"uid 2^32", "x:x:4294967296:5::/:/bin/sh\n"},
		{"uid 2^64", "x:x:18446744073709551616:5::/:/bin/sh\n"},
		{"uid hexadecimal", "x:x:0x0:5::/:/bin/sh\n"},
		{"uid octal", "x:x:00:5::/:/bin/sh\n"},
		{"uid empty", "x:x::5::/:/bin/sh\n"},
		{"gid empty", "x:x:5:::/:/bin/sh\n"},
		{"gid with space", "x:x:5: 5::/:/bin/sh\n"},
		{"the user's name", "ann:x:7:7::/:/bin/sh\n"},
		{"the user's number", "eve:x:1000:7::/:/bin/sh\n"},
		{"long line", "x:x:5:5:" + strings.Repeat("y", 5000) + ":/:/bin/sh\n"},
		{"comment", "# x:x:5:5::/:/bin/sh\n"},
		{"empty lines", "\n\n\r\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := debian()
			root["/etc/passwd"] = c.lines + good
			if got := file(t, build(t, run("true"), debianImage(), ann(), root), "/etc/passwd"); got != want {
				t.Errorf("got:\n%s", got)
			}
		})
	}
}

func TestAccountsWithLineEndsOfWindowsAndPasswords(t *testing.T) {
	root := debian()
	root["/etc/passwd"] = "root::0:0:root:/root:/bin/bash\r\ndaemon:$6$x:1:1::/:/bin/sh"
	got := file(t, build(t, run("true"), debianImage(), ann(), root), "/etc/passwd")
	if !strings.Contains(got, "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/sh\n") {
		t.Errorf("got:\n%s", got)
	}
}

type badRoot struct {
	tree
	err error
}

func (r badRoot) ReadFile(string, int64) ([]byte, error) { return nil, r.err }

// TestUnreadableAccounts: a huge or damaged file, or one below something that is
// no directory, ends the start; one that is not there does not.
func TestUnreadableAccounts(t *testing.T) {
	huge := debian()
	huge["/etc/passwd"] = strings.Repeat("x", 1<<20+1)
	_, err := spec.Build(run("true"), debianImage(), ann(), huge)
	refused(t, err, "/etc/passwd", "too large")
	huge = debian()
	huge["/etc/group"] = strings.Repeat("x", 1<<20+1)
	_, err = spec.Build(run("true"), debianImage(), ann(), huge)
	refused(t, err, "/etc/group", "too large")
	for _, cause := range []error{syscall.EIO, syscall.ENOTDIR, syscall.ELOOP, syscall.EISDIR} {
		_, err = spec.Build(run("true"), debianImage(), ann(), badRoot{debian(), &fs.PathError{Op: "read", Path: "/etc/passwd", Err: cause}})
		if refused(t, err, "/etc/passwd"); !errors.Is(err, cause) {
			t.Errorf("%v is not %v", err, cause)
		}
	}
	res := build(t, run("true"), debianImage(), ann(), tree{})
	if got := file(t, res, "/etc/passwd"); !strings.HasPrefix(got, "ann:x:1000:100:ann:/home/ann:/bin/sh\nroot:x:0:0:") {
		t.Errorf("got:\n%s", got)
	}
}

// TestStrangeHostAccount: what the host's name service says cannot break the file.
func TestStrangeHostAccount(t *testing.T) {
	host := ann()
	host.User, host.Home, host.Shell = "a:0:0\nroot", "relative:home", "/bin/x\ny"
	host.Groups = []spec.Group{{ID: 100, Name: "domain users"}, {ID: -1, Name: "x"}, {ID: 7, Name: "a:b"}, {ID: 8, Name: ""}}
	res := build(t, run("true"), debianImage(), host, debian())
	if got := file(t, res, "/etc/passwd"); !strings.HasPrefix(got, "user:x:1000:100:user:/:/bin/bash\n") {
		t.Errorf("got:\n%s", got)
	}
	if got := file(t, res, "/etc/group"); got != "domain users:x:100:\nroot:x:0:\ndaemon:x:1:\nnogroup:x:65534:\n" {
		t.Errorf("got:\n%s", got)
	}
}

// TestImageUser is the row "User" of the list of bad inputs.
func TestImageUser(t *testing.T) {
	for _, user := range []string{"root", "0", "1000:1000", "nginx", "nginx:www-data", "65534:", "4294967294", "user_not_in_passwd", "bob@site"} {
		res := build(t, run("true"), spec.Image{User: user}, ann(), debian())
		if u := res.Spec.Process.User; u.UID != 1000 || u.GID != 100 || u.AdditionalGids != nil {
			t.Errorf("%s: runs as %+v", user, u)
		}
		if notes := strings.Join(res.Notes, "\n"); !strings.Contains(notes, user) || !strings.Contains(notes, "ann (1000)") {
			t.Errorf("%s: notes %q", user, notes)
		}
	}
	for name, user := range map[string]string{
		"2^32-1": "4294967295", "2^32": "4294967296", "2^64": "18446744073709551616", "minus one": "-1", "hexadecimal": "0x0", "plus": "+0",
		"space": " 0", "group 2^32": "0:4294967296", "group minus": "0:-1", "three": "0:0:0", "octal": "00", "only a group": ":0", "NUL": "root\x00",
		"newline": "root\nroot", "path": "../../etc/passwd", "exponent": "1e3", "float": "0.0", "long": strings.Repeat("x", 300), "huge": strings.Repeat("9", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.Build(run("true"), spec.Image{User: user}, ann(), debian())
			refused(t, err, "image's user")
		})
	}
}
