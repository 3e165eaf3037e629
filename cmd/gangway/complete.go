package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/launcher/step"
)

// Completions look into directories only when a shell asks, and say nothing where they
// cannot.

// completeFlag completes the values of a flag that cmd has.
func completeFlag(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	_ = cmd.RegisterFlagCompletionFunc(flag, values) // fails only where there is no such flag, and a test sees that
}

// completeWords completes what is one of some words.
func completeWords(words ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// completeContainers completes the names of containers: all, or those that run.
func (f *imageFlags) completeContainers(all bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !all {
			return nil, cobra.ShellCompDirectiveDefault // exec's command
		}
		s, err := stepOptions(f.env)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		running, _ := step.Running(s.Dirs, s.Containers)
		for _, r := range running {
			names = append(names, r.Name)
			if r.Name == "" {
				names[len(names)-1] = r.ID
			}
		}
		if all {
			kept, _ := step.Containers(s.Containers)
			names = nil // what runs without a name can be neither removed nor exported
			for _, n := range kept {
				names = append(names, n.Name)
			}
		}
		slices.Sort(names)
		return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeImages completes the names of the store's images; files are images, too.
func (f *imageFlags) completeImages(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	store, _, err := f.open()
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	images, _ := store.List()
	for i := range images {
		names = append(names, familiar(images[i].Reference))
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveDefault
}
