package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// onlyHere are flags of run that have no meaning on a cluster.
func onlyHere() []string {
	return []string{"dry-run", "stats", "timeout", "device", "cdi-dir", "nvidia-root", "gpu-wait", "require-cgroup", "cpus", "cpuset", "platform"}
}

// alsoSlurm are flags of run that are options of srun of the same name.
func alsoSlurm() []string { return []string{"export", "mem", "gpus", "pty"} }

// cluster is the address of the cluster on which the command runs; empty: here.
func (f *runFlags) cluster() (string, error) {
	if f.local {
		return "", nil
	}
	address, err := api.Find(f.imageFlags.env.Getenv, step.RunDirs(f.imageFlags.env.Getenv), api.SystemDir)
	if errors.Is(err, api.ErrNoCluster) {
		return "", nil
	}
	return address, err
}

// needCluster refuses options that only a cluster can carry out.
func (f *runFlags) needCluster() error {
	if len(f.choices.all) == 0 {
		return nil
	}
	name := "--" + f.choices.all[0].Name
	if f.local {
		return fault.Usage(fmt.Errorf("%s needs a cluster, and --local is without one", name), "leave one of them out")
	}
	return &fault.Error{What: fmt.Errorf("%s: %w", name, api.ErrNoCluster), Hint: "start one here: gangway up; or leave " + name + " out", Code: fault.CodeUnreachable}
}

// runOn runs the command as a job, or in one as its step.
func (f *runFlags) runOn(cmd *cobra.Command, address string, args []string) error {
	env := f.imageFlags.env
	if len(args) == 0 {
		return fault.Usage(errors.New("run: no command is given"), "name one: gangway run -N4 -- hostname")
	}
	if err := f.asChoices(cmd.Flags()); err != nil {
		return err
	}
	set := f.choices
	o, err := set.parse(env, args, nil)
	if err != nil {
		return err
	}
	if o.JobID == 0 && !f.quiet {
		talk(env, "gangway", "on the cluster at %s (--local: here)", address)
	}
	r := &stepRun{env: env, name: "gangway", quiet: f.quiet, options: o, client: api.Dial(address).Of(cli.Release())}
	return native(runStep(r, f.added))
}

// asChoices hands flags that srun has, too, to the options of the job, and those of the
// container.
func (f *runFlags) asChoices(fl *pflag.FlagSet) error {
	var errs []error
	fl.Visit(func(flag *pflag.Flag) {
		name, text := flag.Name, flag.Value.String()
		switch {
		case slices.Contains(onlyHere(), name):
			errs = append(errs, fault.Usage(fmt.Errorf("--%s: only for a run here", name), "add --local, or leave it out"))
		case slices.Contains(alsoSlurm(), name):
			f.choices.all = append(f.choices.all, slurm.Choice{Name: name, Value: text, Bare: true})
		case name == "container-mounts":
			for _, m := range f.mounts {
				f.containers = append(f.containers, "--"+name+"="+m)
			}
		case strings.HasPrefix(name, "container-") || strings.HasPrefix(name, "no-container-"),
			slices.Contains([]string{"pull", "store", "rdma", "shm-size", "tmp-size", "pids-limit", "pid", "max-size"}, name):
			f.containers = append(f.containers, "--"+name+"="+text)
		}
	})
	return errors.Join(errs...)
}

// added completes the program by what only run has: variables, and all flags of the
// container.
func (f *runFlags) added(r *stepRun) error {
	p := &r.request.Program
	environ := make([]string, len(p.Environ))
	for i, v := range p.Environ {
		environ[i] = string(v)
	}
	more, err := spec.ParseEnv(f.env, environ)
	if err != nil {
		return err
	}
	for _, v := range more {
		p.Environ = append(p.Environ, []byte(v))
	}
	if f.image != "" || f.name != "" {
		p.Container, err = containerFlags(f.imageFlags.env, f.containers)
	}
	return err
}
