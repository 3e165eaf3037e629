package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// ParseBool reads the value of an environment variable, or option, of that name:
// 1, true, yes, y or 0, false, no, n, in letters of any case.
func ParseBool(name, s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "true", "yes", "y":
		return true, nil
	case "0", "false", "no", "n":
		return false, nil
	}
	return false, fault.Usage(fmt.Errorf("%s is %q, which is neither yes nor no", name, shorten(s)), "write "+name+"=1 or "+name+"=0")
}

// The flags after a container's name.
const (
	NameAuto   = "auto"    // join it if it runs, start it if it is there, else make it
	NameCreate = "create"  // it may not be there yet
	NameExec   = "exec"    // it must run
	NameNoExec = "no_exec" // start it, even if it runs
)

// ParseName reads --container-name: NAME[:auto|create|exec|no_exec].
func ParseName(s string) (name, flag string, err error) {
	name, flag, found := strings.Cut(s, ":")
	if !found {
		flag = NameAuto
	}
	flags := []string{NameAuto, NameCreate, NameExec, NameNoExec}
	if !slices.Contains(flags, flag) {
		return "", "", fault.Usage(fmt.Errorf("container name %q: no such flag %q", shorten(s), shorten(flag)), didYouMean(flag, flags))
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
	if name == "" || len(name) > 128 || strings.Trim(name, letters+".-") != "" || !strings.Contains(letters, name[:1]) {
		return "", "", fault.Usage(fmt.Errorf("container name %q: wrong or too long", shorten(name)),
			"a name has up to 128 letters, digits, dots, dashes and underscores and begins with none of dot and dash")
	}
	return name, flag, nil
}

// ParseUnshare reads --container-unshare: names of namespaces, separated by commas.
// pid is accepted, for a container has that of its own always.
func ParseUnshare(s string) (Unshare, error) {
	var u Unshare
	for word := range strings.SplitSeq(s, ",") {
		switch word {
		case "net", "network":
			u.Net = true
		case "ipc":
			u.IPC = true
		case "uts":
			u.UTS = true
		case "pid":
		default:
			return Unshare{}, fault.Usage(fmt.Errorf("unshare %q: no such namespace %q", shorten(s), shorten(word)), didYouMean(word, []string{"net", "ipc", "uts", "pid"}))
		}
	}
	return u, nil
}

// ParseContainerEnv reads --container-env: names of environment variables,
// separated by commas.
func ParseContainerEnv(s string) ([]string, error) {
	names := strings.Split(s, ",")
	for _, name := range names {
		if err := checkContainerEnv(name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// ParseSave reads --container-save: the path of a file, relative to cwd if not
// absolute.
func ParseSave(s, cwd string) (string, error) {
	if s == "" || hasControl(s) || strings.HasSuffix(s, "/") || path.Base(s) == "." || path.Base(s) == ".." {
		return "", fault.Usage(fmt.Errorf("save container as %q: not the name of a file", shorten(s)), "name a file, for example ./image.sqsh")
	}
	if path.IsAbs(s) {
		return path.Clean(s), nil
	}
	return path.Join("/", cwd, s), nil
}

// Setting is an option that the environment set.
type Setting struct {
	Variable string // the name in the environment
	Flag     string // the option, without dashes
	Value    string // of a switch: true or false
	Contrary string // the option that says the contrary of a switch, if there is one
}

// Overridden says whether the command line set the option or its contrary: it wins
// over the environment.
func (s Setting) Overridden(changed func(flag string) bool) bool {
	return changed(s.Flag) || s.Contrary != "" && changed(s.Contrary)
}

// FromEnviron returns what the PYXIS_CONTAINER_* variables set, as options: each
// is to be set unless [Setting.Overridden]. A variable that is empty counts as not
// set. A switch that is neither yes nor no is an error, as are both
// PYXIS_CONTAINER_WRITABLE and PYXIS_CONTAINER_READONLY where they contradict each
// other; the setting for either is container-writable.
func FromEnviron(getenv func(name string) string) ([]Setting, error) {
	var settings []Setting
	for _, twin := range twins {
		text := getenv(twin.Variable)
		if text == "" {
			continue
		}
		s := Setting{Variable: twin.Variable, Flag: twin.Flag, Value: text, Contrary: twin.Contrary}
		if twin.Contrary != "" {
			on, err := ParseBool(s.Variable, text)
			if err != nil {
				return nil, err
			}
			s.Value = fmt.Sprint(on != twin.negative)
		}
		i := slices.IndexFunc(settings, func(other Setting) bool { return other.Flag == s.Flag })
		if i < 0 {
			settings = append(settings, s)
		} else if settings[i].Value != s.Value {
			return nil, fault.Usage(fmt.Errorf("%s and %s contradict each other", settings[i].Variable, s.Variable), "unset one of them")
		}
	}
	return settings, nil
}

// Twin is an option's name in the environment.
type Twin struct {
	Variable, Flag string
	Contrary       string // of a switch: the option that says the contrary
	negative       bool   // the variable says the contrary of Flag
}

// Negative says whether the variable sets the contrary.
func (t Twin) Negative() bool { return t.negative }

// Twins returns the table that FromEnviron goes by, for manuals.
func Twins() []Twin { return slices.Clone(twins) }

var twins = []Twin{
	{Variable: "PYXIS_CONTAINER_IMAGE", Flag: "container-image"},
	{Variable: "PYXIS_CONTAINER_MOUNTS", Flag: "container-mounts"},
	{Variable: "PYXIS_CONTAINER_WORKDIR", Flag: "container-workdir"},
	{Variable: "PYXIS_CONTAINER_NAME", Flag: "container-name"},
	{Variable: "PYXIS_CONTAINER_SAVE", Flag: "container-save"},
	{Variable: "PYXIS_CONTAINER_MOUNT_HOME", Flag: "container-mount-home", Contrary: "no-container-mount-home"},
	{Variable: "PYXIS_CONTAINER_REMAP_ROOT", Flag: "container-remap-root", Contrary: "no-container-remap-root"},
	{Variable: "PYXIS_CONTAINER_ENTRYPOINT", Flag: "container-entrypoint", Contrary: "no-container-entrypoint"},
	{Variable: "PYXIS_CONTAINER_ENTRYPOINT_LOG", Flag: "container-entrypoint-log", Contrary: "no-container-entrypoint-log"},
	{Variable: "PYXIS_CONTAINER_WRITABLE", Flag: "container-writable", Contrary: "container-readonly"},
	{Variable: "PYXIS_CONTAINER_READONLY", Flag: "container-writable", Contrary: "container-readonly", negative: true},
	{Variable: "PYXIS_CONTAINER_ENV", Flag: "container-env"},
	{Variable: "PYXIS_CONTAINER_UNSHARE", Flag: "container-unshare"},
}
