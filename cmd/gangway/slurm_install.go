package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

func slurmVerb(env *cli.Env) *cobra.Command {
	install := &cobra.Command{
		Use:   "install DIR",
		Short: "make links with the names of Slurm's commands",
		Long: `Make links in DIR, which is made if it is not there, from the names of Slurm's commands to
this program. Links that it made before are made anew; other files of these names stay,
unless --force takes their place.`,
		Example: "gangway slurm install ~/.local/bin\ngangway slurm install /opt/gangway/slurm && PATH=/opt/gangway/slurm:$PATH sbatch train.sh",
	}
	force := install.Flags().Bool("force", false, "replace files that are there")
	install.RunE = func(_ *cobra.Command, args []string) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		if err := os.MkdirAll(args[0], 0o755); err != nil {
			return err
		}
		for _, c := range slurmCommands() {
			if err := link(self, filepath.Join(args[0], c.name), *force); err != nil {
				return err
			}
			fmt.Fprintln(env.Stdout, filepath.Join(args[0], c.name))
		}
		return nil
	}
	group := &cobra.Command{Use: "slurm", Short: "have Slurm's commands by their own names"}
	return cli.Group(env, group, func(*cli.Env) *cobra.Command { return install })
}

// link makes name a symlink to target.
func link(target, name string, force bool) error {
	old, err := os.Readlink(name)
	switch _, serr := os.Lstat(name); {
	case err == nil && old == target:
		return nil
	case serr == nil && !force && (err != nil || filepath.Base(old) != filepath.Base(target)):
		return &fault.Error{What: fmt.Errorf("make link %s: %w", name, os.ErrExist), Hint: "choose another directory, or replace it: --force"}
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, name)
}
