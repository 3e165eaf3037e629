package main

import (
	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/launcher/step"
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
		Use:   "exec NAME|PID CMD...",
		Short: "run a command in a running container",
		Long: `Run a command in a container of this user that runs already, named by its name, its
id, or the pid of a process in it. It sees what the container's own command sees, and
has its environment; it ends with the container.`,
		Example: `gangway exec dev -- ps ax
gangway exec -t dev -- bash
gangway exec 4711 -- env`,
		SuggestFor: []string{"attach", "enter", "join"},
	}
	var o step.ExecOptions
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.StringArrayVarP(&o.Env, "env", "e", nil, "NAME=VALUE in the command's environment")
	fl.StringVarP(&o.Cwd, "container-workdir", "w", "", "working directory in the container")
	fl.BoolVarP(&o.Terminal, "pty", "t", false, "give the command a terminal")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := stepOptions(env)
		if err != nil {
			return err
		}
		_, dir, err := step.Find(s.Dirs, args[0])
		if err != nil {
			return err
		}
		o.Args = args[1:]
		if o.Args[0] == "--" { // gangway exec NAME -- CMD
			o.Args = o.Args[1:]
		}
		o.Stdin, o.Stdout, o.Stderr = s.Stdin, s.Stdout, s.Stderr
		return step.Exec(cmd.Context(), dir, o)
	}
	return cmd
}
