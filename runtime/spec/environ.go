package spec

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

	maxString = 128<<10 - 1 // of the kernel, without the closing NUL
	maxTotal  = 2 << 20     // a quarter of the usual 8 MiB of stack
)

// variable is a value with who set it, for messages.
type variable struct{ value, by string }

// environment is the process's: the caller's as --export says, below the image's,
// below the caller's of --container-env, below --env.
func (b *builder) environment() ([]string, error) {
	export, err := ParseExport(b.r.Export)
	if err != nil {
		return nil, err
	}
	caller, err := b.callers()
	if err != nil {
		return nil, err
	}
	env := map[string]variable{}
	b.inherit(env, caller, export)
	named := map[string]string{} // what the caller named, whether inherited or not
	maps.Copy(named, caller)
	for _, pair := range export.Set {
		named[pair[0]] = pair[1]
	}
	if err := b.images(env); err != nil {
		return nil, err
	}
	if term := named["TERM"]; term != "" {
		env["TERM"] = variable{term, "the caller"}
	} else if b.r.Terminal && env["TERM"].value == "" {
		env["TERM"] = variable{"xterm", "Gangway"}
	}
	if b.r.MountHome {
		delete(env, "HOME")
	}
	for _, name := range b.r.ContainerEnv {
		if err := checkContainerEnv(name); err != nil {
			return nil, err
		}
		if v, ok := named[name]; ok {
			env[name] = variable{v, "the caller"}
		}
	}
	if err := b.asked(env, named); err != nil {
		return nil, err
	}
	fill(env, "PATH", defaultPath)
	fill(env, "HOME", b.home)
	list := make([]string, 0, len(env))
	for _, name := range sortedKeys(env) {
		list = append(list, name+"="+env[name].value)
	}
	return list, checkSizes(b.Spec.Process.Args, env)
}

// Environ is the environment of a further process of the container, for somebody who comes
// with an environment of his own, as os.Environ gives it. Of own count Command, Terminal,
// Export, ContainerEnv and Env.
func (r *Result) Environ(own Request, environ []string) ([]string, error) {
	b := *r.further
	b.r.Command, b.r.Terminal, b.r.Export, b.r.ContainerEnv, b.r.Env = own.Command, own.Terminal, own.Export, own.ContainerEnv, own.Env
	b.h.Environ = environ
	b.Result = Result{Spec: &specs.Spec{Process: &specs.Process{Args: own.Command}}}
	return b.environment()
}

func fill(env map[string]variable, name, value string) {
	if _, ok := env[name]; !ok {
		env[name] = variable{value, "Gangway"}
	}
}

// callers is the caller's environment by name, the first value of each as
// getenv(3) has it.
func (b *builder) callers() (map[string]string, error) {
	caller := map[string]string{}
	for _, entry := range b.h.Environ {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			b.note("the caller's environment has %q, which is not NAME=VALUE: left out", shorten(entry))
			continue
		}
		if strings.ContainsRune(entry, 0) {
			return nil, fault.Usage(fmt.Errorf("environment variable %q contains a NUL", shorten(name)), "unset "+shorten(name))
		}
		if _, twice := caller[name]; !twice {
			caller[name] = value
		}
	}
	return caller, nil
}

// inherit takes over from the caller what export says. Loader settings, the language
// and names that speak of the host enter only where they are named; LC_* enter, but for
// LC_ALL, which would win over the image's own.
func (b *builder) inherit(env map[string]variable, caller map[string]string, export Export) {
	for name, value := range caller {
		if slurms(name) || export.All && !hostOnly(name) {
			env[name] = variable{value, "the caller"}
		}
	}
	account := b.account
	for name, inside := range map[string]string{"USER": account.name, "LOGNAME": account.name, "SHELL": account.shell} {
		if _, ok := env[name]; ok && (name == "SHELL" || b.r.RemapRoot) {
			env[name] = variable{inside, "Gangway"}
		}
	}
	for _, name := range export.Names {
		if value, ok := caller[name]; ok {
			env[name] = variable{value, "the caller"}
		}
	}
	for _, pair := range export.Set {
		env[pair[0]] = variable{pair[1], "--export"}
	}
}

// hostOnly says whether a variable is of no use or does harm in another root.
func hostOnly(name string) bool {
	switch name {
	case "LANG", "LANGUAGE", "LC_ALL", "PATH", "HOME", "PWD", "OLDPWD", "_":
		return true
	}
	return strings.HasPrefix(name, "LD_")
}

// images adds the image's variables, which win.
func (b *builder) images(env map[string]variable) error {
	for _, entry := range b.img.Env {
		name, value, ok := strings.Cut(entry, "=")
		switch {
		case strings.ContainsRune(entry, 0):
			return b.imageError(fmt.Errorf("environment variable %q contains a NUL", shorten(name)))
		case !ok:
			b.note("the image's environment has %q, which is not NAME=VALUE: left out", shorten(entry))
		case name == "":
			return b.imageError(fmt.Errorf("environment has %q, which names no variable", shorten(entry)))
		default:
			env[name] = variable{value, "the image"}
		}
	}
	return nil
}

// asked adds those of --env.
func (b *builder) asked(env map[string]variable, caller map[string]string) error {
	list, err := parseEnv(b.r.Env, func(name string) (string, bool) { v, ok := caller[name]; return v, ok })
	for _, entry := range list {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = variable{value, "--env"}
	}
	return err
}

// ParseEnv reads what --env gave: NAME=VALUE, or NAME for the value in environ, which is
// the caller's as os.Environ gives it; a name that has none there is left out. The result
// is NAME=VALUE in the same order.
func ParseEnv(list, environ []string) ([]string, error) {
	return parseEnv(list, func(name string) (string, bool) {
		for _, entry := range environ { // the first counts, as for getenv(3)
			if value, ok := strings.CutPrefix(entry, name+"="); ok {
				return value, true
			}
		}
		return "", false
	})
}

func parseEnv(list []string, lookup func(name string) (string, bool)) ([]string, error) {
	var env []string
	for _, entry := range list {
		name, _, assigned := strings.Cut(entry, "=")
		switch {
		case name == "":
			return nil, fault.Usage(fmt.Errorf("env %q: the name is empty", shorten(entry)), "write --env=NAME=VALUE, or --env=NAME for the caller's value")
		case hasControl(name):
			return nil, fault.Usage(fmt.Errorf("env %q: the name contains a control character", shorten(name)), "remove it")
		case strings.ContainsRune(entry, 0):
			return nil, fault.Usage(fmt.Errorf("env %q: it contains a NUL", shorten(name)), "remove it")
		}
		if assigned {
			env = append(env, entry)
		} else if value, ok := lookup(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}

func checkContainerEnv(name string) error {
	switch {
	case name == "":
		return fault.Usage(errors.New("container-env: a name is empty"), "remove the comma that has nothing before or after it")
	case strings.Contains(name, "="):
		return fault.Usage(fmt.Errorf("container-env %q: it takes names alone", shorten(name)), "to set a value use --env="+shorten(name))
	case hasControl(name):
		return fault.Usage(fmt.Errorf("container-env %q: it contains a control character", shorten(name)), "remove it")
	}
	return nil
}

// checkSizes refuses what execve would refuse with "argument list too long",
// which does not say which.
func checkSizes(args []string, env map[string]variable) error {
	total, longest := 0, 0
	what, by := "", ""
	count := func(name, setBy string, size int) error {
		if size > maxString {
			return fault.Usage(fmt.Errorf("%s is %d bytes long: no argument or variable can have more than %d", name, size, maxString), remedySize(setBy))
		}
		if size > longest {
			longest, what, by = size, name, setBy
		}
		total += size + 1 + 8 // the NUL and a pointer
		return nil
	}
	for i, arg := range args {
		if err := count(fmt.Sprintf("argument %d", i), "the command", len(arg)); err != nil {
			return err
		}
	}
	for _, name := range sortedKeys(env) {
		if err := count("environment variable "+shorten(name), env[name].by, len(name)+1+len(env[name].value)); err != nil {
			return err
		}
	}
	if total > maxTotal {
		return fault.Usage(fmt.Errorf("arguments and environment have %d bytes together, more than %d; the longest, %s, has %d", total, maxTotal, what, longest), remedySize(by))
	}
	return nil
}

func remedySize(by string) string {
	switch by {
	case "the image":
		return "the image sets it: use another image, or set a shorter value by --env"
	case "the command":
		return "hand it over in a file"
	}
	return "unset it, or export less: --export=NONE or --export=NAME,NAME"
}
