package slurm

import (
	"slices"
	"strings"
)

// containerOptions are those that Pyxis adds to Slurm. What they mean is not known here:
// they are handed on, as flags of "gangway run".
func containerOptions() []option {
	var all []option
	for _, name := range []string{"image", "mounts", "workdir", "name", "save", "env", "unshare"} {
		all = append(all, option{Flag: Flag{"container-" + name, 0, RequiredArgument}, in: asking, set: setContainer})
	}
	for _, name := range []string{"mount-home", "remap-root", "entrypoint", "entrypoint-log"} {
		all = append(all,
			option{Flag: Flag{"container-" + name, 0, NoArgument}, in: asking, set: setContainer},
			option{Flag: Flag{"no-container-" + name, 0, NoArgument}, in: asking, set: setContainer})
	}
	return append(all,
		option{Flag: Flag{"container-writable", 0, NoArgument}, in: asking, set: setContainer},
		option{Flag: Flag{"container-readonly", 0, NoArgument}, in: asking, set: setContainer})
}

// setContainer keeps an option as --NAME=VALUE. One from the command line takes the place
// of what the script had, and of its contrary.
func setContainer(o *Options, v value) error {
	text := v.text
	if text == "" {
		if !isSwitch(v.name) {
			return refuse(badOption, "--%s: the value is empty", v.name)
		}
		text = "true"
	}
	o.containers = slices.DeleteFunc(o.containers, func(old container) bool {
		return old.from < v.from && (old.name == v.name || old.name == contraryOf(v.name))
	})
	o.containers = append(o.containers, container{v.name, text, v.from})
	return nil
}

// container is an option about the container.
type container struct {
	name, text string
	from       origin
}

// isSwitch says whether a container's option has no value.
func isSwitch(name string) bool { return contraryOf(name) != "" }

// contraryOf is the option that says the contrary; empty: there is none.
func contraryOf(name string) string {
	switch name {
	case "container-writable":
		return "container-readonly"
	case "container-readonly":
		return "container-writable"
	}
	if rest, ok := strings.CutPrefix(name, "no-"); ok {
		return rest
	}
	for _, end := range []string{"mount-home", "remap-root", "entrypoint", "entrypoint-log"} {
		if name == "container-"+end {
			return "no-" + name
		}
	}
	return ""
}

// flags are the container's options for "gangway run".
func (o *Options) flags() []string {
	var all []string
	for _, c := range o.containers {
		all = append(all, "--"+c.name+"="+c.text)
	}
	return all
}
