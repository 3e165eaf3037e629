package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/stdio"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// probeVerb is the hidden verb that a container runs to try what can be written.
const probeVerb = "step-probe"

func stepProbe(*cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: probeVerb, Short: "try what a writable container can do", Hidden: true,
		RunE: func(*cobra.Command, []string) error { return step.RunProbe() },
	}
}

func execVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [flags] NAME|PID|JOB[.STEP][:RANK] [--] CMD...",
		Short: "run a command in a running container, or beside a rank of a job",
		Long: `Run a command in a container of this user that runs already, named by its name, else
its id, else the pid of a process in it. It sees what the container's own command sees, and
has its environment; it ends with the container. Flags come before NAME.

A number that is none of these is a job of the cluster: the command runs where a rank of it
is (rank 0 of the step that began last, unless STEP and RANK say otherwise), in its
container if it has one, and with its environment.`,
		Example: `gangway exec dev -- ps ax
gangway exec -t dev -- bash
gangway exec 4711:3 -- nvidia-smi
gangway exec -t 4711.0 -- bash
gangway exec 4711 -- env`,
		SuggestFor: []string{"attach", "enter", "join"},
	}
	var o step.ExecOptions
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	var list []string
	eachVar(fl, &list, "env", "e", "NAME=VALUE in the command's environment, or NAME for the caller's value")
	onceVar(fl, &o.Cwd, "container-workdir", "w", "working directory in the container")
	fl.BoolVarP(&o.Terminal, "pty", "t", false, "give the command a terminal")
	cmd.ValidArgsFunction = (&imageFlags{env: env}).completeContainers(false)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		name, command := splitExec(args)
		switch {
		case name == "":
			return errors.New("missing operand NAME|PID")
		case len(command) == 0 || command[0] == "":
			return errors.New("missing operand CMD")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.Cwd != "" && !path.IsAbs(o.Cwd) {
			return fault.Usage(fmt.Errorf("--container-workdir %q: not an absolute path", o.Cwd), "it is the container's: --container-workdir=/"+o.Cwd)
		}
		s, err := stepOptions(env)
		if err != nil {
			return err
		}
		if o.Env, err = spec.ParseEnv(list, s.Environ); err != nil {
			return err
		}
		_, o.Args = splitExec(args)
		place, isJob := parseJobPlace(args[0])
		var dir string
		if err = fs.ErrNotExist; !isJob || place.bare {
			_, dir, err = step.Find(s.Dirs, s.Containers, args[0])
		}
		if err != nil && isJob {
			if _, cerr := contact(env); errors.Is(cerr, api.ErrNoCluster) && place.bare {
				return err
			}
			return execIn(cmd.Context(), env, place, &stdio.Exec{Args: byteSlices(o.Args), Environ: byteSlices(o.Env), Cwd: []byte(o.Cwd), Terminal: o.Terminal})
		}
		if err != nil {
			return err
		}
		o.Stdin, o.Stdout, o.Stderr = s.Stdin, s.Stdout, s.Stderr
		return step.Exec(cmd.Context(), dir, o)
	}
	return cmd
}

// byteSlices are texts as they travel.
func byteSlices(texts []string) [][]byte {
	all := make([][]byte, len(texts))
	for i, text := range texts {
		all[i] = []byte(text)
	}
	return all
}

// splitExec splits exec's operands, NAME CMD... or NAME -- CMD...
func splitExec(args []string) (name string, command []string) {
	if len(args) == 0 {
		return "", nil
	}
	name, command = args[0], args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	return name, command
}
