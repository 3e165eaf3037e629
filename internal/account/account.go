// Package account knows the users of this machine: who has a number or a name, in which
// groups, with which home. It reads passwd(5) and group(5), and asks getent(1) where
// nsswitch.conf(5) names other sources too, as LDAP or sssd: these are libraries of the C
// library, which no static program can load.
//
// First use: db := &account.Database{}, then [Database.ByID]. Its methods may be called by
// any number of goroutines. What was found counts for a minute; that nothing was, for some
// seconds.
//
// The package decides nothing about what a user may do.
package account

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Account is a user of this machine.
type Account struct {
	UID, GID          uint32
	Name, Home, Shell string
	Groups            []uint32 // all, GID among them, ascending
	GroupNames        []string // of those that have one
}

// Has says whether the user is in a group.
func (a *Account) Has(gid uint32) bool { return slices.Contains(a.Groups, gid) }

// ErrUnknown is that this machine has no such user.
var ErrUnknown = errors.New("no such user")

// Database is what the machine knows. The zero value is that of this machine.
type Database struct {
	Etc string // where passwd, group and nsswitch.conf are; empty: /etc
	// Getent is the program to ask for what is not there; empty: getent, wherever it is.
	Getent string

	mu    sync.Mutex
	known map[string]entry // by "u" and the number, or "n" and the name
}

// entry is what was found, and when.
type entry struct {
	account *Account
	err     error
	at      time.Time
}

const (
	knownSpan   = time.Minute     // that an account is taken for true
	unknownSpan = 5 * time.Second // that there is none
	askSpan     = 10 * time.Second
	maxKnown    = 65536 // accounts that are remembered
	maxAnswer   = 16 << 20
)

// ByID is who has a number. It is [ErrUnknown] where nobody has.
func (d *Database) ByID(ctx context.Context, uid uint32) (*Account, error) {
	text := strconv.FormatUint(uint64(uid), 10)
	return d.lookup(ctx, "u"+text, text, func(a *Account) bool { return a.UID == uid })
}

// ByName is who has a name. It is [ErrUnknown] where nobody has.
func (d *Database) ByName(ctx context.Context, name string) (*Account, error) {
	if name == "" || strings.ContainsAny(name, ":\n\x00") || strings.HasPrefix(name, "-") {
		return nil, fmt.Errorf("user %q: %w", name, ErrUnknown)
	}
	return d.lookup(ctx, "n"+name, name, func(a *Account) bool { return a.Name == name })
}

// lookup finds an account that counts still, or looks again.
func (d *Database) lookup(ctx context.Context, key, text string, is func(*Account) bool) (*Account, error) {
	d.mu.Lock()
	e, ok := d.known[key]
	d.mu.Unlock()
	if ok && time.Since(e.at) < knownSpan && (e.err == nil || time.Since(e.at) < unknownSpan) {
		return e.account, e.err
	}
	a, err := d.find(ctx, text, is)
	if err == nil || errors.Is(err, ErrUnknown) {
		d.mu.Lock()
		if d.known == nil || len(d.known) >= maxKnown {
			d.known = map[string]entry{}
		}
		d.known[key] = entry{a, err, time.Now()}
		d.mu.Unlock()
	}
	return a, err
}

func (d *Database) etc(name string) string {
	if d.Etc == "" {
		return filepath.Join("/etc", name)
	}
	return filepath.Join(d.Etc, name)
}

// find looks for an account, and for its groups.
func (d *Database) find(ctx context.Context, text string, is func(*Account) bool) (*Account, error) {
	a, err := d.inFile("passwd", func(line string) *Account {
		if a := parsePasswd(line); a != nil && is(a) {
			return a
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if a == nil && d.elsewhere("passwd") {
		out, err := d.ask(ctx, "passwd", text)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", text, err)
		}
		for line := range strings.Lines(out) {
			if one := parsePasswd(strings.TrimSuffix(line, "\n")); one != nil && is(one) {
				a = one
				break
			}
		}
	}
	if a == nil {
		return nil, fmt.Errorf("user %s: %w", text, ErrUnknown)
	}
	if err := d.fillGroups(ctx, a); err != nil {
		return nil, err
	}
	return a, nil
}

// inFile calls f with the lines of a file until it has an account. A file that is not there has none.
func (d *Database) inFile(name string, f func(line string) *Account) (*Account, error) {
	file, err := os.Open(d.etc(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for users: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if a := f(lines.Text()); a != nil {
			return a, nil
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("look for users in %s: %w", d.etc(name), err)
	}
	return nil, nil
}

// fillGroups finds the groups of an account.
func (d *Database) fillGroups(ctx context.Context, a *Account) error {
	names := map[uint32]string{}
	a.Groups = []uint32{a.GID}
	_, err := d.inFile("group", func(line string) *Account {
		name, gid, members, ok := parseGroup(line)
		if !ok {
			return nil
		}
		if names[gid] == "" {
			names[gid] = name
		}
		if slices.Contains(members, a.Name) {
			a.Groups = append(a.Groups, gid)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if d.elsewhere("group") || d.elsewhere("initgroups") {
		if err := d.askGroups(ctx, a, names); err != nil {
			return err
		}
	}
	slices.Sort(a.Groups)
	a.Groups = slices.Compact(a.Groups)
	for _, gid := range a.Groups {
		if names[gid] != "" {
			a.GroupNames = append(a.GroupNames, names[gid])
		}
	}
	return nil
}

// askGroups adds the groups that are in no file, and their names.
func (d *Database) askGroups(ctx context.Context, a *Account, names map[uint32]string) error {
	out, err := d.ask(ctx, "initgroups", a.Name)
	if err != nil {
		return fmt.Errorf("groups of user %s: %w", a.Name, err)
	}
	if fields := strings.Fields(out); len(fields) > 0 && fields[0] == a.Name {
		for _, text := range fields[1:] {
			gid, ok := parseID(text)
			if !ok {
				return fmt.Errorf("groups of user %s: getent says %q", a.Name, text)
			}
			a.Groups = append(a.Groups, gid)
		}
	}
	args := []string{"group"}
	for _, gid := range a.Groups {
		if text := strconv.FormatUint(uint64(gid), 10); names[gid] == "" && !slices.Contains(args, text) {
			args = append(args, text)
		}
	}
	if len(args) == 1 {
		return nil
	}
	out, err = d.ask(ctx, args...)
	if err != nil {
		return fmt.Errorf("groups of user %s: %w", a.Name, err)
	}
	for line := range strings.Lines(out) {
		if name, gid, _, ok := parseGroup(strings.TrimSuffix(line, "\n")); ok {
			names[gid] = name
		}
	}
	return nil
}

// elsewhere says whether nsswitch.conf names sources of a database that are no files of /etc.
func (d *Database) elsewhere(database string) bool {
	b, err := os.ReadFile(d.etc("nsswitch.conf"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		line, _, _ = strings.Cut(line, "#")
		name, sources, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) != database {
			continue
		}
		for source := range strings.FieldsSeq(sources) {
			// [NOTFOUND=return] is an action; systemd has users of its own units only, which
			// submit no jobs.
			if !slices.Contains([]string{"files", "compat", "systemd", "db"}, source) && !strings.ContainsAny(source, "[]=") {
				return true
			}
		}
	}
	return false
}

// ask runs getent. That nothing was found is an empty answer.
func (d *Database) ask(ctx context.Context, args ...string) (string, error) {
	program := d.Getent
	if program == "" {
		program = "getent"
	}
	ctx, cancel := context.WithTimeout(ctx, askSpan)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var out bounded
	cmd.Stdout = &out
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 { // not all keys were found
		err = nil
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within %s", askSpan)
	}
	if err != nil {
		return "", fmt.Errorf("ask getent %s: %w", args[0], err)
	}
	return out.String(), nil
}

// bounded keeps as much as an answer may have.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, errors.New("the answer is too long")
	}
	return b.Buffer.Write(p)
}

// parsePasswd reads a line of passwd(5); nil: it is none of an account.
func parsePasswd(line string) *Account {
	f := strings.Split(line, ":")
	if len(f) != 7 || f[0] == "" || strings.HasPrefix(f[0], "#") {
		return nil
	}
	uid, ok := parseID(f[2])
	gid, also := parseID(f[3])
	if !ok || !also {
		return nil
	}
	return &Account{UID: uid, GID: gid, Name: f[0], Home: f[5], Shell: f[6]}
}

// parseGroup reads a line of group(5).
func parseGroup(line string) (name string, gid uint32, members []string, ok bool) {
	f := strings.Split(line, ":")
	if len(f) != 4 || f[0] == "" || strings.HasPrefix(f[0], "#") {
		return "", 0, nil, false
	}
	if gid, ok = parseID(f[2]); !ok {
		return "", 0, nil, false
	}
	if f[3] != "" {
		members = strings.Split(f[3], ",")
	}
	return f[0], gid, members, true
}

// parseID reads the number of a user or group: -1, which means "leave it" to the kernel, is none.
func parseID(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1 && strconv.FormatUint(n, 10) == text
}
