package user

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// entry is a line of an fstab in Enroot's dialect.
type entry struct {
	where                string // file:line
	source, target, kind string
	options              []string
	pass                 int
}

// maxMounts bounds a file.
const maxMounts = 1000

// parseFstab reads lines of up to six fields, of which all but the first may be
// missing. ${NAME} stands for a variable if there are any; it is replaced after the line
// was split, so that no value makes fields.
func parseFstab(name, text string, vars map[string]string) ([]entry, error) {
	var all []entry
	n := 0
	for line := range strings.Lines(text) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(all) == maxMounts {
			return nil, fmt.Errorf("read %s: it has more than %d entries", name, maxMounts)
		}
		for i, f := range fields {
			if vars != nil {
				f = substitute(f, vars)
			}
			fields[i] = proc.Unescape(f)
		}
		e, err := parseEntry(fields)
		if err != nil {
			return nil, fmt.Errorf("read %s:%d: %w", name, n, err)
		}
		e.where = fmt.Sprintf("%s:%d", name, n)
		all = append(all, e)
	}
	return all, nil
}

// parseEntry fills in what is missing: "/src" is bound to itself, "tmpfs /x" is one.
func parseEntry(fields []string) (entry, error) {
	e := entry{source: fields[0], target: fields[0], kind: "none"}
	if len(fields) > 1 {
		e.target = fields[1]
	}
	if len(fields) > 2 {
		e.kind = fields[2]
	} else if e.source == "tmpfs" {
		e.kind = "tmpfs"
	}
	if len(fields) > 3 {
		e.options = strings.Split(fields[3], ",")
	}
	if len(fields) > 6 {
		return e, fmt.Errorf("it has %d fields: a space in a path is written \\040", len(fields))
	}
	if len(fields) > 4 { // the last of them that is there
		pass, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil {
			return e, fmt.Errorf("%q is no number", fields[len(fields)-1])
		}
		e.pass = pass
	}
	if !path.IsAbs(e.target) || strings.Contains(e.target+e.source, "\x00") {
		return e, fmt.Errorf("the target %q is no absolute path", e.target)
	}
	e.target = path.Clean(e.target)
	return e, nil
}

// inPasses orders entries by pass, and otherwise leaves them.
func inPasses(all []entry) []entry {
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.pass, b.pass) })
	return all
}

// mount makes a mount of an entry, or a note why there is none.
func (e entry) mount() (*cdi.Mount, string, error) {
	m := &cdi.Mount{ContainerPath: e.target}
	switch {
	case e.has("x-detach"), e.has("x-move"), e.has("remount"):
		return nil, "is left out: it changes a mount instead of making one", nil
	case e.kind == "tmpfs":
		m.Type, m.HostPath = "tmpfs", "tmpfs"
		m.Options = e.keep(true)
		return m, "", nil
	case e.kind != "none" && e.kind != "bind" && e.kind != "":
		return nil, fmt.Sprintf("is left out: Gangway mounts %s itself, or nobody may", e.kind), nil
	case !path.IsAbs(e.source):
		return nil, fmt.Sprintf("is left out: %q is no absolute path of the host", e.source), nil
	}
	m.HostPath = path.Clean(e.source)
	if _, err := os.Stat(m.HostPath); err != nil {
		if e.has("nofail") {
			return nil, "", nil
		}
		return nil, "", missing(e.where, m.HostPath)
	}
	m.Options = e.keep(false)
	if !e.has("bind") && !e.has("rbind") {
		m.Options = append([]string{"rbind"}, m.Options...)
	}
	return m, "", nil
}

func (e entry) has(option string) bool { return slices.Contains(e.options, option) }

// keep returns the options that say something to a runtime: flags, and for a tmpfs its
// own. Mount points are made as their sources are, whatever x-create says.
func (e entry) keep(tmpfs bool) []string {
	var all []string
	for _, o := range e.options {
		name, _, value := strings.Cut(o, "=")
		switch {
		case slices.Contains(flags(), o) && !(tmpfs && strings.HasSuffix(o, "bind")):
			all = append(all, o)
		case tmpfs && value && slices.Contains([]string{"size", "mode", "nr_inodes", "nr_blocks", "huge"}, name):
			all = append(all, o)
		}
	}
	return all
}

// flags are the options that OCI runtimes know.
func flags() []string {
	return []string{
		"bind", "rbind", "ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec", "atime", "noatime", "diratime", "nodiratime",
		"relatime", "norelatime", "strictatime", "nostrictatime", "sync", "async", "dirsync",
		"private", "rprivate", "slave", "rslave", "shared", "rshared", "unbindable", "runbindable",
	}
}
