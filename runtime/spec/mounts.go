package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// The types of a Mount.
const (
	Bind   = "bind"   // a file or directory of the host
	Tmpfs  = "tmpfs"  // an empty directory in memory
	Umount = "umount" // nothing: what is mounted there is taken away
)

// Kind is what the source of a bind is.
type Kind uint8

// The kinds of a source. Unknown is that of a mount whose [Mount.Check] was not
// called; it is taken for a directory.
const (
	Unknown Kind = iota
	Directory
	RegularFile // or a socket or fifo
	Device
	Missing // and the mount says nofail
)

// Mount is one entry of --container-mounts.
type Mount struct {
	Text    string   // as it was given
	Type    string   // Bind, Tmpfs or Umount
	Source  string   // of a bind: an absolute path of the host
	Target  string   // clean absolute path in the container
	Options []string // as the specification has them
	Create  string   // what x-create= said: dir, file, auto or nothing
	NoFail  bool     // leave the mount out if its source is missing
	Kind    Kind     // found by Check
}

// maxPath is the kernel's PATH_MAX without the closing NUL.
const maxPath = 4095

// ParseMounts reads SRC[:DST[:FLAG+FLAG]][,...] as Pyxis does. SRC is a path of the
// host, relative to cwd if not absolute, or the word tmpfs or umount; DST is a path
// in the container and begins with / or a dot; without it, it is SRC. An entry given
// twice counts once. Neither comma nor colon can be part of a path.
func ParseMounts(s, cwd string) ([]Mount, error) {
	var mounts []Mount
	for text := range strings.SplitSeq(s, ",") {
		if slices.ContainsFunc(mounts, func(m Mount) bool { return m.Text == text }) {
			continue
		}
		m, err := parseMount(text, cwd)
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

func parseMount(text, cwd string) (Mount, error) {
	m := Mount{Text: text, Type: Bind}
	bad := func(hint, format string, args ...any) (Mount, error) {
		return m, fault.Usage(fmt.Errorf("mount %q: %s", shorten(text), fmt.Sprintf(format, args...)), hint)
	}
	const form = "write SRC[:DST[:FLAG+FLAG]], for example /data:/data:ro+nosuid"
	switch {
	case text == "":
		return bad("remove the comma that has nothing before or after it", "an entry is empty")
	case hasControl(text):
		return bad("remove the line break or control character from --container-mounts", "it contains a control character")
	case len(text) > 2*maxPath+1024:
		return bad("a path has at most 4095 bytes", "it is too long")
	}
	fields := strings.Split(text, ":")
	if len(fields) > 3 {
		return bad(form+"; a path with a colon in it cannot be mounted, but its parent directory can", "it has more than two colons")
	}
	source, target := fields[0], fields[0]
	if source == "" {
		return bad(form, "it has no source")
	}
	if source == Tmpfs || source == Umount {
		m.Type = source
		if len(fields) == 1 {
			return bad(fmt.Sprintf("write %s:/path, or ./%s for a file of that name", source, source), "it does not say where in the container")
		}
	}
	if len(fields) > 1 {
		target = fields[1]
	}
	if target == "" || target[0] != '/' && target[0] != '.' {
		hint := "a path in the container begins with / or a dot: " + form
		if _, known := standardFlags[target]; known && len(fields) == 1 {
			hint = "flags are joined with +, as in /data:/data:ro+nosuid"
		} else if known {
			hint = fmt.Sprintf("to give flags name the target too: %s:%s:%s", source, source, target)
		}
		return bad(hint, "the path in the container is %q", shorten(target))
	}
	m.Target = path.Clean("/" + target)
	if m.Type == Bind {
		if m.Source = source; !path.IsAbs(source) {
			m.Source = path.Join("/", cwd, source)
		}
		m.Source = path.Clean(m.Source)
		if magic(m.Source) {
			return bad("name the file or directory itself", "%s means another file in each process", m.Source)
		}
	}
	if len(m.Source) > maxPath || len(m.Target) > maxPath {
		return bad("a path has at most 4095 bytes", "it is too long")
	}
	if err := Reserved(m.Target); err != nil {
		return m, fmt.Errorf("mount %q: %w", shorten(text), err)
	}
	if deviceFile(m.Target) && m.Type != Bind {
		return bad("leave it out", "%s is a device that every container has", m.Target)
	}
	if len(fields) < 3 {
		return m, m.setFlags(nil)
	}
	return m, m.setFlags(strings.Split(fields[2], "+"))
}

// magic says whether p is or lies below a link that the kernel resolves by the
// process that asks: what it means to the person, to the supervisor and to the
// container's first process are three things, of which the last two are ours.
func magic(p string) bool {
	switch p {
	case "/dev/stdin", "/dev/stdout", "/dev/stderr":
		return true
	}
	if below(p, "/dev/fd") {
		return true
	}
	rest, ok := strings.CutPrefix(p, "/proc/")
	if !ok {
		return false
	}
	process, _, _ := strings.Cut(rest, "/")
	return process == "self" || process == "thread-self" || strings.Trim(process, "0123456789") == ""
}

// Reserved is the error of mounting on target, an absolute path in the container:
// its root, /proc and all below, /dev and /sys, and what of /dev is a link or a
// terminal, belong to Gangway.
func Reserved(target string) error {
	switch target = path.Clean(target); {
	case target == "/":
		return fault.Usage(errors.New("the container's root cannot be mounted over"), "to run in a directory of the host give it as --container-image")
	case below(target, "/proc"):
		return fault.Usage(fmt.Errorf("%s cannot be mounted over: programs trust /proc", target), "mount it elsewhere")
	case magic(target), target == "/dev/ptmx", target == "/dev/console", below(target, "/dev/pts"):
		return fault.Usage(fmt.Errorf("%s cannot be mounted over: it is different in each process or terminal", target), "mount it elsewhere")
	case target == "/dev", target == "/sys":
		return fault.Usage(fmt.Errorf("%s itself cannot be mounted over", target), fmt.Sprintf("mount what is needed below it, for example %s/NAME", target))
	}
	return nil
}

// deviceFile says whether target is a device that every container has.
func deviceFile(target string) bool {
	switch target {
	case "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty":
		return true
	}
	return false
}

// Check asks the host, by stat, what the source is. It sets Kind, which [Build]
// needs to make a mount point of the same kind; a source that is not there is an
// error that names it, unless the mount says nofail.
func (m *Mount) Check(stat func(name string) (fs.FileInfo, error)) error {
	if m.Type != Bind {
		return nil
	}
	info, err := stat(m.Source)
	if errors.Is(err, fs.ErrNotExist) {
		if m.NoFail {
			m.Kind = Missing
			return nil
		}
		return fault.Usage(fmt.Errorf("mount %s: source path does not exist: %w", m.Source, fs.ErrNotExist), m.missingHint())
	}
	if err != nil {
		return fault.Usage(fmt.Errorf("mount %s: ask for the source path: %w", m.Source, err),
			"the user who runs the container must be able to reach it; root has no rights on a file system with root_squash")
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		m.Kind = Directory
	case mode&fs.ModeDevice != 0:
		m.Kind = Device
	default:
		m.Kind = RegularFile
	}
	return m.checkCreate()
}

// checkCreate refuses a mount point that the kernel would refuse.
func (m *Mount) checkCreate() error {
	is := "dir"
	if m.Kind == RegularFile || m.Kind == Device {
		is = "file"
	}
	if m.Kind != Unknown && m.Create != "" && m.Create != "auto" && m.Create != is {
		return fault.Usage(fmt.Errorf("mount %q: x-create=%s does not fit the source, which needs x-create=%s", shorten(m.Text), m.Create, is),
			"leave x-create out: the mount point is made as the source is")
	}
	return nil
}

func (m *Mount) missingHint() string {
	source, _, _ := strings.Cut(m.Text, ":")
	switch {
	case strings.HasPrefix(source, "~"):
		return "write $HOME instead of ~, which no shell replaces here"
	case source != strings.TrimSpace(source):
		return "remove the space at the beginning or end of the path, or quote the whole option"
	case !path.IsAbs(source):
		return "relative paths are looked up in the directory of the call; give an absolute one, or add the flag nofail"
	}
	return "make it first, or leave the mount out where it is missing with the flag nofail: " + m.Source + ":" + m.Target + ":nofail"
}

// isDir says whether the mount point is a directory.
func (m *Mount) isDir() bool {
	if m.Kind == Unknown {
		return m.Create != "file"
	}
	return m.Kind == Directory
}

// below says whether p is dir or lies below it, both clean and absolute.
func below(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

// hasControl says whether s contains a control character, NUL and line breaks
// among them.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// shorten makes a text fit a message.
func shorten(s string) string {
	if len(s) <= 200 {
		return s
	}
	return s[:200] + "..."
}
