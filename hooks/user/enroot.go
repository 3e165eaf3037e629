package user

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Enroot runs what sites have written for Enroot: hooks.d/*.sh, environ.d/*.env and
// mounts.d/*.fstab of the system and of the user.
//
// What they write to ENROOT_ENVIRON and ENROOT_MOUNTS becomes edits. That is what most
// hooks do; others act on the container's root in Enroot's namespaces (enroot-mount,
// files copied into ENROOT_ROOTFS), which there is no root for here: ENROOT_ROOTFS is an
// empty directory, whatever the image is, so that nobody's image is written to. The files that Enroot itself ships are left out, because Gangway
// does the same without them; [EnrootOwn] says which. As with Enroot, a hook has the
// caller's whole environment; nothing of the image is in it.
type Enroot struct {
	Runner              // its Dirs and Env are not used
	System     string   // empty: /etc/enroot
	Personal   string   // ~/.config/enroot; empty: none
	Library    string   // where common.sh is; empty: /usr/lib/enroot
	Dir        string   // private and the user's; files are made in it
	Environ    []string // the caller's
	Image      []string // the image's environment, as data
	Skip       []string // names of files to leave out; nil: EnrootOwn
	RemapRoot  bool     // the container's user is root
	Containers string   // what ENROOT_DATA_PATH says; empty: nothing
}

// EnrootOwn returns the names of the files that Enroot ships.
func EnrootOwn() []string {
	return []string{
		"10-aptfix.sh", "10-cgroups.sh", "10-devices.sh", "10-home.sh", "10-localtime.sh", "10-shadow.sh",
		"98-nvidia.sh", "99-mellanox.sh", "10-system.fstab", "20-config.fstab",
	}
}

// Edits runs everything: variables first, then mounts, then hooks, as Enroot does. The
// caller makes Dir before and removes it after the container's end.
func (e Enroot) Edits(ctx context.Context) (*Result, error) {
	if e.System == "" {
		e.System = "/etc/enroot"
	}
	if e.Library == "" {
		e.Library = "/usr/lib/enroot"
	}
	if e.Skip == nil {
		e.Skip = EnrootOwn()
	}
	x := &enrootRun{Enroot: e, result: &Result{}, vars: environment(e.Environ)}
	if err := x.files(); err != nil {
		return x.result, fmt.Errorf("run hooks of Enroot: %w", err)
	}
	if err := x.hooks(ctx); err != nil {
		return x.result, err
	}
	if err := x.collect(); err != nil {
		return x.result, fmt.Errorf("run hooks of Enroot: %w", err)
	}
	return x.result, nil
}

// enrootRun is one run of the adapter.
type enrootRun struct {
	Enroot
	result  *Result
	vars    map[string]string // the caller's, for ${NAME}
	environ string            // the file ENROOT_ENVIRON
	mounts  string            // the file ENROOT_MOUNTS
	rootfs  string            // the directory that ENROOT_ROOTFS names
	before  map[string]string // the image's environment as that file says it
	fstab   []entry
}

// files writes the two files that hooks add to, and reads mounts.d.
func (x *enrootRun) files() error {
	var env strings.Builder
	for _, v := range x.Image {
		if !strings.ContainsAny(v, "\r\n\x00") { // a line cannot say it; it stays as it is
			env.WriteString(v + "\n")
		}
	}
	x.before = environment(parseEnviron(env.String()))
	err := x.each("environ.d", ".env", func(path, text string) error {
		for _, v := range parseEnviron(text) {
			env.WriteString(substitute(v, x.vars) + "\n")
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = x.each("mounts.d", ".fstab", func(path, text string) error {
		entries, err := parseFstab(path, text, x.vars)
		x.fstab = append(x.fstab, entries...)
		return err
	})
	if err != nil {
		return err
	}
	x.environ, x.mounts = filepath.Join(x.Dir, "environment"), filepath.Join(x.Dir, "fstab")
	x.rootfs = filepath.Join(x.Dir, "rootfs")
	if err := os.Mkdir(x.rootfs, 0o755); err != nil {
		return err
	}
	return errors.Join(x.write(x.environ, env.String()), x.write(x.mounts, ""))
}

// write makes a file that is the user's. Root may be writing into a directory of that
// user here, who may have put something else there.
func (x *enrootRun) write(name, text string) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if x.Credential != nil {
		if err := f.Chown(int(x.Credential.Uid), int(x.Credential.Gid)); err != nil {
			return err
		}
	}
	_, err = f.WriteString(text)
	return err
}

// each calls f with every file of a kind, the system's first, in the order of names.
func (x *enrootRun) each(dir, suffix string, f func(path, text string) error) error {
	return x.list(dir, suffix, func(path string) error {
		text, err := x.read(path)
		if err != nil {
			return err
		}
		return f(path, text)
	})
}

func (x *enrootRun) list(dir, suffix string, f func(path string) error) error {
	for _, base := range []string{x.System, x.Personal} {
		if base == "" {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(base, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			name := entry.Name()
			path := filepath.Join(base, dir, name)
			if !strings.HasSuffix(name, suffix) || name == suffix || entry.IsDir() {
				continue
			}
			if slices.Contains(x.Skip, name) {
				x.note("%s is left out: Gangway does itself what Enroot's file of that name does", path)
				continue
			}
			if err := f(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *enrootRun) note(format string, args ...any) {
	x.result.Notes = append(x.result.Notes, fmt.Sprintf(format, args...))
}

// hooks runs hooks.d.
func (x *enrootRun) hooks(ctx context.Context) error {
	env := x.hookEnv()
	return x.list("hooks.d", ".sh", func(path string) error {
		st, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("look for hooks of Enroot: %w", err)
		}
		if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return nil // Enroot says nothing either
		}
		if err := x.trusted(path); err != nil {
			return err
		}
		o, err := x.execute(ctx, command{path: path, env: env})
		x.result.Ran = append(x.result.Ran, Ran{path, o.took})
		x.result.Notes = append(x.result.Notes, prefixed(path, o.notes)...)
		return err
	})
}

// hookEnv is the caller's environment with Enroot's variables.
func (x *enrootRun) hookEnv() []string {
	var env []string
	for _, v := range x.Environ {
		if !strings.HasPrefix(v, "ENROOT_") {
			env = append(env, v)
		}
	}
	set := func(name, value string) {
		if value != "" {
			env = append(env, "ENROOT_"+name+"="+value)
		}
	}
	set("PID", strconv.Itoa(os.Getpid()))
	set("ROOTFS", x.rootfs)
	set("ENVIRON", x.environ)
	set("MOUNTS", x.mounts)
	set("LIBRARY_PATH", x.Library)
	set("SYSCONF_PATH", x.System)
	set("CONFIG_PATH", x.Personal)
	set("RUNTIME_PATH", x.Dir)
	set("DATA_PATH", x.Containers)
	if x.RemapRoot {
		set("REMAP_ROOT", "y")
	}
	return env
}

// collect makes edits of what the hooks left.
func (x *enrootRun) collect() error {
	text, err := x.read(x.environ)
	if err != nil {
		return err
	}
	after := parseEnviron(text)
	last := environment(after)
	for _, v := range after {
		name, _, _ := strings.Cut(v, "=")
		value, ok := last[name]
		if before, had := x.before[name]; ok && (!had || before != value) {
			x.result.Edits.Env = append(x.result.Edits.Env, name+"="+value)
		}
		delete(last, name)
	}
	if text, err = x.read(x.mounts); err != nil {
		return err
	}
	entries, err := parseFstab("ENROOT_MOUNTS", text, nil) // the shell has substituted
	if err != nil {
		return err
	}
	for _, entry := range inPasses(append(x.fstab, entries...)) {
		m, note, err := entry.mount()
		if err != nil {
			return err
		}
		if note != "" {
			x.note("%s: %s", entry.where, note)
		}
		if m != nil {
			x.result.Edits.Mounts = append(x.result.Edits.Mounts, m)
		}
	}
	if written, err := os.ReadDir(x.rootfs); err == nil && len(written) > 0 {
		x.note("a hook wrote %s into ENROOT_ROOTFS, where no container sees it: mount it by ENROOT_MOUNTS", written[0].Name())
	}
	return nil
}

// maxText bounds a file of Enroot's, in bytes.
const maxText = 1 << 20

// read returns a file's content. Where root reads for a user, it takes only what is that
// user's: a link in a directory of his could lead anywhere. Those of the system are
// root's to write.
func (x *enrootRun) read(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo would wait
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); x.Credential != nil && !strings.HasPrefix(path, x.System+"/") && (!ok || sys.Uid != x.Credential.Uid) {
		return "", fmt.Errorf("read %s: it is not the user's: %w", path, os.ErrPermission)
	}
	if !st.Mode().IsRegular() {
		return "", fmt.Errorf("read %s: it is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if len(b) > maxText {
		return "", fmt.Errorf("read %s: it has more than %d bytes", path, maxText)
	}
	return string(b), err
}

// environment is a list of NAME=VALUE as a map; the last of a name counts.
func environment(list []string) map[string]string {
	all := map[string]string{}
	for _, v := range list {
		if name, value, ok := strings.Cut(v, "="); ok {
			all[name] = value
		}
	}
	return all
}

// parseEnviron reads lines NAME=VALUE as Enroot does: without leading spaces, comments,
// what is no variable, and Enroot's own; one pair of quotes around a value is dropped.
func parseEnviron(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		line = strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t\v\f")
		name, value, ok := strings.Cut(line, "=")
		if !ok || !isVariable(name) || strings.HasPrefix(name, "ENROOT_") || strings.Contains(value, "\x00") {
			continue
		}
		if v := strings.TrimRight(value, " \t"); len(v) >= 2 && strings.ContainsRune(`"'`, rune(v[0])) && strings.ContainsRune(`"'`, rune(v[len(v)-1])) {
			value = v[1 : len(v)-1]
		}
		all = append(all, name+"="+value)
	}
	return all
}

func isVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// substitute replaces ${NAME} by the variable's value, or by nothing. Nothing else is
// special, no command is run, and a value is not looked through again. A line break in
// a value becomes a space: it would begin another line of the file.
func substitute(s string, vars map[string]string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if name, after, ok := strings.Cut(rest, "}"); ok && isVariable(name) {
			b.WriteString(strings.NewReplacer("\n", " ", "\r", " ").Replace(vars[name]))
			s = after
			continue
		}
		b.WriteString("${")
		s = rest
	}
}

// missing is the error for a source that is not there.
func missing(where, source string) error {
	return &fault.Error{
		What: fmt.Errorf("mount %s: %w", source, os.ErrNotExist), Cause: where + " asks for it",
		Hint: "make it, or add the option nofail to the entry",
	}
}
