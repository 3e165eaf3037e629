package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/top"
	"github.com/gangway-hpc/gangway/launcher/step"
)

func topVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [JOB]",
		Short: "show nodes, queue, ranks and output of a cluster on the terminal, as they change",
		Long: `Show a cluster on the terminal, as it changes: its nodes and what of them is in use, jobs that
run, wait (with their expected starts) and have ended lately, and of one job its ranks, what they
use, and the end of its output.

up and down choose a job, q ends it. GPUs that nodes are only declared to have are marked so. With
NO_COLOR there is no colour.`,
		Example: "gangway top\ngangway top 4711",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var chosen job.ID
		if len(args) > 0 {
			n, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil || n == 0 {
				return fault.Usage(fmt.Errorf("%q is not a job", args[0]), "jobs are numbers, as 4711")
			}
			chosen = job.ID(n)
		}
		if !env.Terminal(os.Stdin) || !env.Terminal(os.Stdout) {
			return &fault.Error{
				What: errors.New("show the cluster: standard input and output are not a terminal"), Code: fault.CodeUsage,
				Hint: "gangway nodes and gangway queue print the same once",
			}
		}
		address, err := api.Find(env.Getenv, step.RunDirs(env.Getenv), api.SystemDir)
		if err != nil {
			return err
		}
		client := api.Dial(address).Of(cli.Release())
		defer client.Close()
		if _, err := client.Ping(cmd.Context()); err != nil {
			return err
		}
		return top.Run(cmd.Context(), client, top.Options{Job: chosen, Color: env.Color(os.Stdout), In: os.Stdin, Out: os.Stdout})
	}
	return cmd
}
