package account

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	passwd = "root:x:0:0:root:/root:/bin/bash\n# a comment:x:1:1:::\nalice:x:1001:1001:Alice:/home/alice:/bin/bash\n" +
		"bob:x:1002:1002::/home/bob:/bin/sh\nbad:x:-1:1:::\nworse:x:4294967295:1:::\nshort:x:7\nzero:x:01001:1:::\n"
	group = "root:x:0:\nalice:x:1001:\nlab:x:2000:alice,bob\ngpu:x:2001:bob\nbad:x:x:alice\n"
)

// database is one with some files, and a getent that is a script.
func database(t *testing.T, files map[string]string) *Database {
	t.Helper()
	d := &Database{Etc: t.TempDir(), Getent: "/nowhere/getent"}
	for name, text := range files {
		path := filepath.Join(d.Etc, name)
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "getent" {
			d.Getent = path
		}
	}
	return d
}

// TestFiles: an account is found by number and name with all of its groups, and only by
// exact ones; where files are all there is, nobody is asked.
func TestFiles(t *testing.T) {
	t.Parallel()
	d := database(t, map[string]string{"passwd": passwd, "group": group, "nsswitch.conf": "passwd: files systemd\ngroup: files [SUCCESS=merge] systemd\n"})
	for range 2 { // found, and remembered
		a, err := d.ByID(t.Context(), 1001)
		if err != nil || a.Name != "alice" || a.Home != "/home/alice" || a.GID != 1001 || !slices.Equal(a.Groups, []uint32{1001, 2000}) || !slices.Equal(a.GroupNames, []string{"alice", "lab"}) {
			t.Errorf("alice: %+v, %v", a, err)
		}
	}
	b, err := d.ByName(t.Context(), "bob")
	if err != nil || b.UID != 1002 || !slices.Equal(b.Groups, []uint32{1002, 2000, 2001}) || !slices.Equal(b.GroupNames, []string{"lab", "gpu"}) {
		t.Errorf("bob: %+v, %v", b, err)
	}
	if !b.Has(2001) || b.Has(1001) {
		t.Error("bob is not in the groups that he is in")
	}
	for _, uid := range []uint32{1, 7, 100, 10011, 4294967295} {
		if a, err := d.ByID(t.Context(), uid); !errors.Is(err, ErrUnknown) {
			t.Errorf("%d is %+v, %v", uid, a, err)
		}
	}
	for _, name := range []string{"", "bo", "bobb", "worse", "bad", "zero", "short", "-s", "a:b", "a\nb"} {
		if a, err := d.ByName(t.Context(), name); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q is %+v, %v", name, a, err)
		}
	}
}

// TestElsewhere: where nsswitch.conf names other sources, getent is asked for who is in no
// file, and for groups of everybody; that it does not answer is no "no such user".
func TestElsewhere(t *testing.T) {
	t.Parallel()
	getent := `#!/bin/sh
case "$*" in
"passwd 5001"|"passwd carol") echo carol:x:5001:5001::/home/carol:/bin/zsh;;
"passwd 5002") echo other:x:5003:1:::;;
"passwd 5009") exit 1;;
"initgroups carol") echo "carol  5001 6000 2000";;
"initgroups alice") echo "alice  6000";;
"group 5001 6000"|"group 6000 5001") echo people:x:6000:; exit 2;;
"group 6000") echo people:x:6000:;;
"passwd "*) exit 2;;
*) echo "asked for $*" >&2; exit 1;;
esac
`
	d := database(t, map[string]string{"passwd": passwd, "group": group, "nsswitch.conf": "passwd:\tfiles sss # more\ngroup: files sss\n", "getent": getent})
	c, err := d.ByID(t.Context(), 5001)
	if err != nil || c.Name != "carol" || !slices.Equal(c.Groups, []uint32{2000, 5001, 6000}) || !slices.Equal(c.GroupNames, []string{"lab", "people"}) {
		t.Errorf("carol: %+v, %v", c, err)
	}
	if c, err := d.ByName(t.Context(), "carol"); err != nil || c.UID != 5001 {
		t.Errorf("carol: %+v, %v", c, err)
	}
	if a, err := d.ByID(t.Context(), 1001); err != nil || !slices.Equal(a.Groups, []uint32{1001, 2000, 6000}) {
		t.Errorf("alice: %+v, %v", a, err)
	}
	for _, uid := range []uint32{5002, 5003} { // getent says somebody else, or nobody
		if a, err := d.ByID(t.Context(), uid); !errors.Is(err, ErrUnknown) {
			t.Errorf("%d is %+v, %v", uid, a, err)
		}
	}
	if a, err := d.ByID(t.Context(), 5009); err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "ask getent passwd") {
		t.Errorf("5009 is %+v, %v", a, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a, err := d.ByID(ctx, 5010); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("without an answer 5010 is %+v, %v", a, err)
	}
}

// TestNothing: a machine without the files knows nobody.
func TestNothing(t *testing.T) {
	t.Parallel()
	if a, err := database(t, nil).ByID(t.Context(), 0); !errors.Is(err, ErrUnknown) {
		t.Errorf("root is %+v, %v", a, err)
	}
}

// FuzzPasswd: no line of either file makes the parsers fail, or an id that the kernel takes
// for "leave it".
func FuzzPasswd(f *testing.F) {
	for line := range strings.Lines(passwd + group) {
		f.Add(strings.TrimSuffix(line, "\n"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		if a := parsePasswd(line); a != nil && (a.Name == "" || a.UID == 1<<32-1 || a.GID == 1<<32-1) {
			t.Errorf("%q is %+v", line, a)
		}
		if name, gid, _, ok := parseGroup(line); ok && (name == "" || gid == 1<<32-1) {
			t.Errorf("%q is %s, %d", line, name, gid)
		}
	})
}
