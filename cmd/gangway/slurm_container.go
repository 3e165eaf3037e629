package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// containerFlags completes the options about a container by those of the environment, and
// checks them as "gangway run" does. They come and go as --NAME=VALUE.
func containerFlags(env *cli.Env, given []string) ([]string, error) {
	settings, err := spec.FromEnviron(env.Getenv)
	if err != nil {
		return nil, err
	}
	has := map[string]bool{}
	for _, flag := range given {
		name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		has[name] = true
	}
	all := given
	for _, s := range settings {
		if !s.Overridden(func(name string) bool { return has[name] }) {
			all = append(all, "--"+s.Flag+"="+s.Value)
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	cmd := &cobra.Command{}
	f := newRunFlags(env, cmd)
	for _, flag := range all {
		name, text, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if err := cmd.Flags().Set(name, text); err != nil {
			return nil, fault.Usage(err, "")
		}
	}
	if err := f.switches(cmd); err != nil {
		return nil, err
	}
	if f.image == "" && f.name == "" {
		return nil, fault.Usage(errNoImage, "name one: --container-image=IMAGE")
	}
	return all, f.values()
}
