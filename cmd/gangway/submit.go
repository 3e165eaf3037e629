package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// choices are options in Slurm's spelling that a native verb was given.
type choices struct {
	command slurm.Command
	all     []slurm.Choice
}

// choice is one of the flags. It implements pflag.Value.
type choice struct {
	of     *choices
	option slurm.Option
	text   string
}

// Set implements pflag.Value.
func (c *choice) Set(text string) error {
	c.text = text
	if text == cli.Bare || c.option.Argument == slurm.NoArgument {
		c.text = ""
	}
	if c.option.Argument == slurm.NoArgument && text != cli.Bare && text != "true" {
		return errors.New("it has no value")
	}
	c.of.all = append(c.of.all, slurm.Choice{Name: c.option.Long, Value: c.text, Bare: text == cli.Bare})
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return c.text }

// Type implements pflag.Value.
func (c *choice) Type() string {
	switch c.option.Argument {
	case slurm.NoArgument:
		return "bool"
	case slurm.OptionalArgument:
		return "" // help shows [=VALUE]
	default:
		return "string"
	}
}

// addChoices gives a verb the options of one of Slurm's commands, apart from those that it
// has already, and those about the command's own talk. A verb that is not run has none:
// they are many, and each start of the program would make those of four verbs.
func addChoices(env *cli.Env, cmd *cobra.Command, c slurm.Command, without ...string) *choices {
	all := &choices{command: c, all: []slurm.Choice{}}
	if !env.Wants(cmd) {
		return all
	}
	fl := cmd.Flags()
	left := map[string]bool{"help": true, "usage": true, "version": true, "parsable": true, "verbose": true, "quiet": true, "clusters": true, "cluster": true, "tasks-per-node": true, "cpu_bind": true}
	for _, name := range without {
		left[name] = true
	}
	for _, o := range slurm.OptionsOf(c) {
		if left[o.Long] || fl.Lookup(o.Long) != nil {
			continue
		}
		short := ""
		if o.Short != 0 && fl.ShorthandLookup(string(o.Short)) == nil {
			short = string(o.Short)
		}
		f := fl.VarPF(&choice{of: all, option: o}, o.Long, short, o.Help)
		if o.Argument != slurm.RequiredArgument {
			f.NoOptDefVal = cli.Bare
		}
		f.Hidden = o.Help == ""
	}
	return all
}

// parse makes options of the flags.
func (c *choices) parse(env *cli.Env, operands []string, script func(*slurm.Options) ([]byte, error)) (*slurm.Options, error) {
	o, err := slurm.Parse(c.command, slurm.Source{Set: c.all, Operands: operands, Getenv: env.Getenv, Now: env.Now(), Script: script})
	if err != nil {
		return nil, native(err)
	}
	for _, w := range o.Warnings {
		env.Logger().Warn(strings.TrimPrefix(strings.TrimPrefix(w, "Warning: "), "warning: "))
	}
	return o, nil
}

// native makes of a refusal in Slurm's words one in ours.
func native(err error) error {
	var r *slurm.Refusal
	if !errors.As(err, &r) {
		return err
	}
	var lines []string
	for _, line := range r.Lines {
		lines = append(lines, strings.TrimPrefix(strings.TrimPrefix(line, "error: "), "fatal: "))
	}
	return fault.Usage(errors.New(strings.Join(lines, " ")), "")
}

// submitted is the result of submit.
type submitted struct {
	ID    job.ID   `json:"id"`
	Tasks int      `json:"tasks,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Text implements cli.Result.
func (s *submitted) Text(w io.Writer) error {
	_, err := fmt.Fprintln(w, s.ID)
	return err
}

func submitVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "submit [flags] [SCRIPT [ARGS...]]",
		Short: "submit a batch script to the cluster",
		Long: `Submit a script, which runs on the first node of a job once that has its nodes, and
starts programs on all of them with srun or gangway run. It comes from SCRIPT, --wrap or
standard input. Lines of it that begin with #SBATCH, before its first command, are flags;
variables (SBATCH_*) win over these, and the command line over both. The job is on stable
storage when its id is printed.`,
		Example: `gangway submit train.sh
gangway submit -N4 --gres=gpu:8 --container-image=./torch.sqsh --wrap 'torchrun train.py'
gangway submit --dependency=afterok:4711 --array=0-15%4 shard.sh`,
		SuggestFor: []string{"sbatch", "qsub"},
	}
	out := cli.NewReporter(env, cmd)
	flags := addChoices(env, cmd, slurm.Sbatch)
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := ""
		o, err := flags.parse(env, append([]string{}, args...), func(o *slurm.Options) (script []byte, err error) {
			script, path, err = readScript(env, o.Operands)
			return script, err
		})
		if err != nil {
			return err
		}
		nameBatch(o, path)
		s := submission(env, o)
		s.Command = commandPath(env, path)
		if s.Program, err = batchProgram(env, o); err != nil {
			return native(err)
		}
		c, err := contact(env)
		if err != nil {
			return err
		}
		answer, err := c.Submit(cmd.Context(), s)
		if o.TestOnly {
			return sayTest(env, o, "gangway", &answer, err)
		}
		if err != nil {
			return err
		}
		for _, note := range answer.Notes {
			env.Logger().Warn(note)
		}
		if err := out.Print(&submitted{answer.ID, answer.Tasks, answer.Notes}); err != nil || !o.Wait {
			return err
		}
		if err := flush(env); err != nil {
			return err
		}
		return awaitJobs(cmd.Context(), env, c, "gangway", answer.ID)
	}
	return cmd
}

// nameBatch names a job after its script.
func nameBatch(o *slurm.Options, path string) {
	switch {
	case o.Job.Name != "":
	case o.Wrapped:
		o.Job.Name = "wrap"
	case path != "":
		o.Job.Name = filepath.Base(path)
	default:
		o.Job.Name = "sbatch"
	}
}

// flush writes results that are waited for.
func flush(env *cli.Env) error {
	if f, ok := env.Stdout.(interface{ Flush() error }); ok {
		return f.Flush()
	}
	return nil
}

func allocVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alloc [flags] [CMD...]",
		Short: "get nodes of the cluster, and a shell in which to use them",
		Long: `Wait for nodes, then run CMD, or a shell, here, from which srun and gangway run start
programs on them. The nodes are given back when it ends.`,
		Example:    "gangway alloc -N4 --gres=gpu:8 -t 2:00:00\ngangway alloc -N2 -- ./launch.sh",
		SuggestFor: []string{"salloc"},
	}
	flags := addChoices(env, cmd, slurm.Salloc)
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		o, err := flags.parse(env, append([]string{}, args...), nil)
		if err != nil {
			return err
		}
		return runAlloc(env, "gangway", o)
	}
	return cmd
}

func cancelVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel JOB...",
		Short: "end jobs or steps, or send them a signal",
		Long: `End jobs that wait or run, tasks of arrays (JOB_TASK, JOB_[TASKS]), or steps (JOB.STEP). Programs get SIGTERM, and SIGKILL
30 s later. With --signal they get only that.`,
		Example:    "gangway cancel 4711\ngangway cancel 4711_3 4712.0\ngangway cancel --signal=USR1 4711",
		SuggestFor: []string{"scancel", "kill", "stop"},
	}
	o := &slurm.Cancel{}
	cmd.Flags().StringVarP(&o.Signal, "signal", "s", "", "send this signal instead of ending anything")
	cmd.Flags().BoolVarP(&o.Batch, "batch", "b", false, "signal the batch script only")
	cmd.Flags().BoolVarP(&o.Full, "full", "f", false, "signal the batch script and all steps")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Signal != "" {
			if _, err := slurm.ParseSignal(o.Signal); err != nil {
				return fault.Usage(err, "a name as USR1, or a number")
			}
		}
		for _, arg := range args {
			t, err := slurm.ParseTarget(arg)
			if err != nil {
				return fault.Usage(fmt.Errorf("%q is not a job", arg), "jobs are numbers, as 4711, 4711_3 (task of an array) or 4711.0 (step)")
			}
			o.Targets = append(o.Targets, t)
		}
		c, err := contact(env)
		if err != nil {
			return err
		}
		var errs []error
		for _, named := range o.Targets {
			tasks, err := tasksOf(cmd.Context(), env, c, named)
			if err != nil {
				return err
			}
			for _, t := range tasks {
				if err := cancelOne(cmd.Context(), c, o, t); err != nil {
					errs = append(errs, fmt.Errorf("cancel %s: %w", t, err))
				}
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}
