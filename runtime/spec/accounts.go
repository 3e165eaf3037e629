package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	maxAccounts     = 1 << 20 // bytes of the image's passwd or group
	maxAccountsLine = 4 << 10
	maxID           = 1<<32 - 2 // 1<<32-1 means "none" to the kernel
	nobody          = 65534     // how the ids outside of the map look
)

// account is the user inside the container.
type account struct {
	name        string
	uid, gid    int
	home, shell string
}

// inside is the user's account in the container.
func (b *builder) inside() account {
	a := account{name: b.h.User, uid: b.h.UID, gid: b.h.GID, home: b.h.Home, shell: b.h.Shell}
	if b.r.RemapRoot {
		a = account{name: "root", home: "/root", shell: b.h.Shell}
	}
	if !validName(a.name) {
		a.name = "user"
	}
	if !path.IsAbs(a.home) || strings.Contains(a.home, ":") || hasControl(a.home) || len(a.home) > maxPath {
		a.home = "/"
	}
	a.home = path.Clean(a.home)
	for _, shell := range []string{a.shell, "/bin/bash", "/bin/sh"} {
		a.shell = shell
		if path.IsAbs(shell) && !strings.Contains(shell, ":") && !hasControl(shell) && b.root.Exists(shell) {
			break
		}
	}
	return a
}

// accounts makes /etc/passwd and /etc/group: the image's with the user in it.
func (b *builder) accounts() error {
	users, err := b.imageLines("/etc/passwd", 7, 2, 3)
	if err != nil {
		return err
	}
	groups, err := b.imageLines("/etc/group", 4, 2)
	if err != nil {
		return err
	}
	a := b.account
	users = slices.DeleteFunc(users, func(f []string) bool {
		return f[0] == a.name || f[2] == strconv.Itoa(a.uid) || b.r.RemapRoot && f[0] == "_apt"
	})
	users = slices.Insert(users, 0, []string{a.name, "x", strconv.Itoa(a.uid), strconv.Itoa(a.gid), a.name, a.home, a.shell})
	users = addMissing(users, []string{"root", "x", "0", "0", "root", "/root", "/bin/sh"})
	users = addMissing(users, []string{"nobody", "x", strconv.Itoa(nobody), strconv.Itoa(nobody), "nobody", "/nonexistent", "/usr/sbin/nologin"})

	own := []string{b.primaryGroup(), "x", strconv.Itoa(a.gid), ""}
	groups = slices.DeleteFunc(groups, func(f []string) bool { return f[0] == own[0] || f[2] == own[2] })
	groups = slices.Insert(groups, 0, own)
	groups = addMissing(groups, []string{"root", "x", "0", ""})
	groups = addMissing(groups, []string{"nogroup", "x", strconv.Itoa(nobody), ""})
	for _, g := range b.h.Groups {
		if validName(g.Name) && g.ID >= 0 && g.ID <= maxID && !b.r.RemapRoot {
			groups = addMissing(groups, []string{g.Name, "x", strconv.Itoa(g.ID), a.name})
		}
	}
	b.file("/etc/passwd", joinLines(users), 0o644)
	b.file("/etc/group", joinLines(groups), 0o644)
	return nil
}

// primaryGroup is the name of the user's group.
func (b *builder) primaryGroup() string {
	if b.r.RemapRoot {
		return "root"
	}
	for _, g := range b.h.Groups {
		if g.ID == b.h.GID && validName(g.Name) {
			return g.Name
		}
	}
	return b.account.name
}

// addMissing adds an account unless there is one of its name or number.
func addMissing(lines [][]string, a []string) [][]string {
	if slices.ContainsFunc(lines, func(f []string) bool { return f[0] == a[0] || f[2] == a[2] }) {
		return lines
	}
	return append(lines, a)
}

// imageLines reads a file of accounts of the image.
func (b *builder) imageLines(name string, fields int, ids ...int) ([][]string, error) {
	content, err := b.root.ReadFile(name, maxAccounts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(content) > maxAccounts {
		err = errors.New("file too large")
	}
	if err != nil {
		return nil, &fault.Error{
			What: fmt.Errorf("read %s of the image: %w", name, err),
			Hint: fmt.Sprintf("the image needs a file there of at most %d bytes, or none: use another image", maxAccounts),
		}
	}
	lines, bad := parseAccounts(content, fields, ids...)
	if bad > 0 {
		b.note("%d of %d lines of the image's %s are damaged: left out", bad, bad+len(lines), name)
	}
	return lines, nil
}

// parseAccounts splits the lines of passwd or group, those that are well formed:
// with that many fields, a sound name, and sound numbers in the fields ids. The
// password is never that of the image.
func parseAccounts(content []byte, fields int, ids ...int) (lines [][]string, bad int) {
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, ":")
		sound := len(f) == fields && len(line) <= maxAccountsLine && !hasControl(line) && validName(f[0])
		for _, i := range ids {
			sound = sound && validID(f[i])
		}
		if !sound {
			bad++
			continue
		}
		f[1] = "x"
		lines = append(lines, f)
	}
	return lines, bad
}

func joinLines(lines [][]string) []byte {
	var b strings.Builder
	for _, f := range lines {
		b.WriteString(strings.Join(f, ":"))
		b.WriteByte('\n')
	}
	return []byte(b.String())
}

// validName says whether s can be the name of a user or group.
func validName(s string) bool {
	return s != "" && len(s) <= 256 && !strings.ContainsAny(s, ":,/") && !hasControl(s) && s == strings.TrimSpace(s) && !strings.ContainsAny(s[:1], "-+~#")
}

// validID says whether s is a user or group id in plain decimal digits.
func validID(s string) bool {
	if s == "" || len(s) > 10 || strings.Trim(s, "0123456789") != "" || len(s) > 1 && s[0] == '0' {
		return false
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return err == nil && n <= maxID
}

// checkUser reads the image's User, USER[:GROUP] with names or numbers. It is only
// reported, so that a name need not be in the image.
func (b *builder) checkUser() error {
	if b.img.User == "" {
		return nil
	}
	user, group, found := strings.Cut(b.img.User, ":")
	words := []string{user}
	if found && group != "" {
		words = append(words, group)
	}
	for _, word := range words {
		digit := word != "" && word[0] >= '0' && word[0] <= '9'
		if digit && !validID(word) || !digit && !validName(word) || strings.Contains(group, ":") {
			return b.imageError(fmt.Errorf("user %q is neither a name nor a number up to %d", shorten(b.img.User), maxID))
		}
	}
	as := fmt.Sprintf("%s (%d)", b.account.name, b.account.uid)
	b.note("the image asks for user %q: not applied, the command runs as %s", b.img.User, as)
	return nil
}
