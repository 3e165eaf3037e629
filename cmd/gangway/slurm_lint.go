package main

import (
	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// slurmLintVerb is "gangway slurm lint".
func slurmLintVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lint DIR",
		Short: "say what Slurm's configuration means here",
		Long: `Read the files of Slurm's configuration in DIR, and say of every setting that has no meaning
here, that does something else than in Slurm, or that cannot do what was meant, where it is,
and what to do. Read are slurm.conf with all that it includes, gres.conf, topology.yaml or
topology.conf, cgroup.conf and plugstack.conf, as gangway up --slurm-conf reads them. DIR may
be a copy, and may name a file that ends in .conf in the place of slurm.conf.

Errors are what cannot do what was meant: values that cannot be read, partitions of nodes
that nobody defines, weights that do not count. Warnings are what differs, and keys that
nobody knows. Notes are what means nothing here.

Nothing is changed, and nobody is asked. The exit code is 1 if there are errors, else 0.`,
		Example: `gangway slurm lint /etc/slurm
gangway slurm lint --json ~/slurm-copy | jq '.findings[] | select(.severity == "error")'`,
	}
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		report, err := slurm.Lint(args[0])
		if err != nil {
			return err
		}
		if err := out.Print(report); err != nil {
			return err
		}
		if report.Errors > 0 {
			return fault.Exit(1)
		}
		return nil
	}
	return cmd
}
