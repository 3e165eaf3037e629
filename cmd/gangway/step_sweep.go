package main

import (
	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// sweepVerb is the hidden verb that removes what a killed run has on disk.
const sweepVerb = "step-sweep"

func stepSweep(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: sweepVerb + " DIRECTORY", Short: "remove the scratch directory of a run that was killed", Hidden: true}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return step.SweepScratch(cmd.Context(), env.Stdin, args[0])
	}
	return cmd
}
