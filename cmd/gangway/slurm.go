package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// slurmCommand is one of Slurm's commands: a verb that reads its command line and speaks
// as Slurm's own does.
type slurmCommand struct {
	name, short string
	run         func(ctx context.Context, env *cli.Env, args []string) error
	// failed is how the command says that the controller refused: "Batch job submission
	// failed"; empty: nothing.
	failed string
	usage  int // exit code for a command line that cannot be read
}

// slurmCommands are all of them, as "gangway slurm install" makes them.
func slurmCommands() []slurmCommand {
	return []slurmCommand{
		{"sbatch", "submit a batch script", sbatch, "Batch job submission failed", badUsage},
		{"srun", "run a command on the nodes of a job", srun, "Unable to allocate resources", badUsage},
		{"salloc", "get nodes, and a shell in which to use them", salloc, "Job submit/allocate failed", badUsage},
		{"scancel", "end jobs, or send them signals", scancel, "", 1},
		{"squeue", "list jobs", squeue, "", 1},
		{"sinfo", "list partitions and nodes", sinfo, "", 1},
		{"sacct", "list jobs that are over, and their steps", sacct, "", 1},
		{"sstat", "show what running steps have used", sstat, "", 1},
		{"sdiag", "show what the controller has done", sdiag, "", 1},
		{"scontrol", "show and change jobs, nodes and partitions", scontrol, "", 1},
	}
}

// slurmName says which of Slurm's commands a program was called as; empty: none.
func slurmName(arg0 string) string {
	for _, c := range slurmCommands() {
		if filepath.Base(arg0) == c.name {
			return c.name
		}
	}
	return ""
}

// slurmVerbs makes the hidden verbs of Slurm's commands.
func slurmVerbs() map[string]cli.Verb {
	verbs := map[string]cli.Verb{}
	for _, c := range slurmCommands() {
		verbs[c.name] = func(env *cli.Env) *cobra.Command {
			return &cobra.Command{
				Use: c.name + " [ARGS...]", Short: c.short, Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
				RunE: func(cmd *cobra.Command, args []string) error {
					return c.end(env, c.run(cmd.Context(), env, args))
				},
			}
		}
	}
	return verbs
}

// end prints an error as the command of Slurm does, and makes it an exit code.
func (c slurmCommand) end(env *cli.Env, err error) error {
	var exit fault.Exit
	if err == nil || errors.As(err, &exit) {
		return err
	}
	text, code := c.words(err)
	_, _ = io.WriteString(env.Stderr, text)
	var refusal *slurm.Refusal
	if code == 1 && c.usage == badUsage && !errors.As(err, &refusal) {
		code = codeFrom(env, "SLURM_EXIT_ERROR", code)
	}
	return fault.Exit(code)
}

// codeFrom is the exit code that a variable says, if it does.
func codeFrom(env *cli.Env, name string, code int) int {
	if n, err := strconv.ParseUint(env.Getenv(name), 10, 8); err == nil {
		return int(n)
	}
	return code
}

// badUsage is the exit code of the commands that ask for resources where they cannot read a
// command line.
const badUsage = 255

// words is what the command of Slurm says of an error, and its exit code.
func (c slurmCommand) words(err error) (text string, code int) {
	var (
		refusal *slurm.Refusal
		usage   *slurm.UsageError
		away    *api.Unreachable
		refused *api.Error
		b       strings.Builder
	)
	say := func(format string, args ...any) { fmt.Fprintf(&b, c.name+": "+format+"\n", args...) }
	failed := c.failed
	if failed != "" {
		failed += ": "
	}
	switch {
	case errors.As(err, &refusal):
		for _, line := range refusal.Lines {
			if refusal.Plain {
				b.WriteString(line + "\n")
			} else {
				say("%s", line)
			}
		}
		return b.String(), refusal.Code
	case errors.As(err, &usage):
		say("%s", usage.Text)
		fmt.Fprintf(&b, "Try \"%s --help\" for more information\n", c.name)
		return b.String(), c.usage
	case errors.As(err, &away):
		why := "connect failure"
		if away.Timeout {
			why = "no answer"
		}
		say("error: %sUnable to contact slurm controller (%s)", failed, why)
		say("error: %s", away.Error())
		return b.String(), 1
	case errors.Is(err, api.ErrNoCluster):
		say("error: %sUnable to contact slurm controller (connect failure)", failed)
	case errors.As(err, &refused):
		if sentence := slurm.ErrorText(refused.Kind); sentence != "" {
			say("error: %s%s", failed, sentence)
			failed = ""
		}
	}
	lines := fault.Text(c.name, err, false)
	if failed != "" && refused != nil {
		lines = strings.Replace(lines, "error: ", "error: "+failed, 1)
	}
	b.WriteString(lines)
	if code = fault.Code(err); code <= 128 {
		code = 1 // Slurm has no others, but for signals
	}
	return b.String(), code
}

// contact makes a client of the cluster that is meant.
func contact(env *cli.Env) (*api.Client, error) {
	address, err := api.Find(env.Getenv, step.RunDirs(env.Getenv), api.SystemDir)
	if err != nil {
		return nil, err
	}
	c := api.Dial(address).Of(cli.Release())
	if env.Getenv("SLURM_JOB_ID") != "" {
		c.WaitFor(jobPatience)
	}
	return c, nil
}

// talk prints a line as a command of Slurm does.
func talk(env *cli.Env, name, format string, args ...any) {
	fmt.Fprintf(env.Stderr, name+": "+format+"\n", args...)
}

// workDir is where a program runs: what was asked for, or here. A symlink in $PWD stays
// one, as for a shell.
func workDir(env *cli.Env, asked string) string {
	here := env.Getenv("PWD")
	a, aerr := os.Stat(here)
	b, berr := os.Stat(".")
	if aerr != nil || berr != nil || !os.SameFile(a, b) || !filepath.IsAbs(here) {
		var err error
		if here, err = os.Getwd(); err != nil {
			here = "/"
		}
	}
	switch {
	case asked == "":
		return here
	case filepath.IsAbs(asked):
		return asked
	}
	return filepath.Join(here, asked)
}

// standsSomewhere refuses, as Slurm's commands do, where the working directory was removed.
func standsSomewhere() error {
	_, err := os.Getwd()
	if err == nil {
		return nil
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		err = number
	}
	return &slurm.Refusal{Lines: []string{"error: getcwd failed: " + slurm.SystemError(err)}, Code: 255}
}

// jobPatience is how long programs of a job wait for a controller that is away: one that
// was killed is there again in less than a second.
const jobPatience = 15 * time.Second
