package cdi

import (
	"fmt"
	"path"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"
)

// Action is what a well-known hook would do in the container if it were run. Vendors'
// tools write these hooks into every specification; carried out by the runtime they need
// no program, and nothing of the image is touched with the host's rights.
type Action struct {
	Hook          string   // create-symlinks, update-ldcache, create-soname-symlinks, enable-cuda-compat, disable-device-node-modification
	Links         []Link   // create-symlinks: to be made in the container, over what is there
	Folders       []string // update-ldcache, create-soname-symlinks: directories of the container with libraries
	DriverVersion string   // enable-cuda-compat: the host's, "" where not said
}

// Link is a symbolic link to be made in the container.
type Link struct {
	Path   string // absolute, in the container
	Target string // what it says; relative ones begin at the directory of Path
}

// actionOf reads a hook of nvidia-cdi-hook, nvidia-ctk or amd-ctk. It returns false if
// the hook is none of these, and no action if nothing has to be done. An error says what
// of a known program is not known.
func actionOf(h *specs.Hook) (action *Action, known bool, err error) {
	program := path.Base(h.Path)
	var args []string
	if len(h.Args) > 0 {
		args = h.Args[1:] // the first is the program's name
	}
	switch program {
	case "nvidia-cdi-hook":
	case "nvidia-ctk", "amd-ctk":
		if len(args) == 0 || args[0] != "hook" {
			return nil, false, nil
		}
		args = args[1:]
	default:
		return nil, false, nil
	}
	if len(args) == 0 {
		return nil, true, fmt.Errorf("hook %s has no command", program)
	}
	command, options := args[0], flags(args[1:])
	action = &Action{Hook: command}
	switch command {
	case "create-symlinks":
		err = action.readLinks(options["link"])
	case "update-ldcache", "create-soname-symlinks":
		err = action.readFolders(options["folder"])
	case "enable-cuda-compat", "cuda-compat":
		action.Hook = "enable-cuda-compat"
		if v := options["host-driver-version"]; len(v) > 0 {
			action.DriverVersion = v[len(v)-1]
		}
	case "disable-device-node-modification":
	case "chmod":
		return nil, true, nil // it opens directories of /dev, which ours are
	default:
		return nil, true, fmt.Errorf("hook %s %s is not known here", program, shorten(command))
	}
	if err != nil {
		return nil, true, fmt.Errorf("hook %s %s: %w", program, command, err)
	}
	return action, true, nil
}

// flags reads --name value and --name=value. A value may be several with commas
// between, as those programs have it.
func flags(args []string) map[string][]string {
	all := map[string][]string{}
	for i := 0; i < len(args); i++ {
		name, value, found := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if !strings.HasPrefix(args[i], "-") {
			continue
		}
		if !found && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			i++
			value = args[i]
		}
		all[name] = append(all[name], strings.Split(value, ",")...)
	}
	return all
}

func (a *Action) readLinks(list []string) error {
	for _, text := range list {
		target, name, found := strings.Cut(text, "::")
		if !found || target == "" || len(target) > maxPath {
			return fmt.Errorf("link %q is not TARGET::LINK", shorten(text))
		}
		if err := checkTarget("link", name); err != nil {
			return err
		}
		a.Links = append(a.Links, Link{Path: path.Clean(name), Target: target})
	}
	return nil
}

func (a *Action) readFolders(list []string) error {
	for _, dir := range list {
		if err := checkPath("folder", dir); err != nil {
			return err
		}
		a.Folders = append(a.Folders, path.Clean(dir))
	}
	return nil
}
