package main

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// needs are the programs of others that are used, and Debian's packages that have them.
func (d *demo) needs() [][2]string {
	all := [][2]string{{"docker-registry", "docker-registry"}, {"skopeo", "skopeo"}, {"busybox", "busybox-static"}}
	if os.Geteuid() == 0 {
		all = append(all, [2]string{"ip", "iproute2"}, [2]string{"nsenter", "util-linux"})
	}
	if !d.quick {
		all = append(all, [2]string{"mmdebstrap", "mmdebstrap"}, [2]string{"umoci", "umoci"}, [2]string{"getfattr", "attr"}, [2]string{"dpkg-deb", "dpkg"})
	}
	return all
}

// static says whether a program needs no other file.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// packages installs what is missing where that is root's, and names it where not.
func (d *demo) packages(ctx context.Context) error {
	var programs, missing []string
	for _, need := range d.needs() {
		path, err := exec.LookPath(need[0])
		if err == nil && need[1] == "busybox-static" && !static(path) {
			err = exec.ErrNotFound // the package busybox has it, too
		}
		if err != nil {
			programs, missing = append(programs, need[0]), append(missing, need[1])
		}
	}
	if len(missing) == 0 {
		return nil
	}
	install := "apt-get install -y --no-install-recommends " + strings.Join(missing, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("there is no %s here\ndemo: hint:  as root: %s", strings.Join(programs, ", "), install)
	}
	d.say.title("packages")
	for _, line := range []string{"apt-get update -q", install} {
		words := strings.Fields(line)
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := d.show(cmd); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
	}
	return nil
}
