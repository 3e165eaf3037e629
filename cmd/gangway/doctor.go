package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/doctor"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// codeCannotRun is the exit code where containers cannot run: not that of a doctor who
// could not look.
const codeCannotRun = 1

// doctorFlags are what "doctor" takes.
type doctorFlags struct {
	*imageFlags
	registries []string
	verbose    bool
	keep       bool
	fix        string
}

func doctorVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "try out what this machine can and cannot do",
		Long: `Try out what this machine lets you do, and say for all that is not as it should be
what follows from it and one command that mends it.

Things are tried for real: namespaces are made, file systems mounted in them, a container
run, registries asked, each within seconds. Registries are those of the configuration and of --registry.
What killed runs left behind is removed, unless --keep is given.

The exit code is 0 where containers can run, if with less or slower, and 1 where
something is missing without which they cannot.`,
		SuggestFor: []string{"check", "diagnose", "selftest"},
		Example: `gangway doctor
gangway doctor -v --registry registry.example.org:5000
gangway doctor --json
sudo gangway doctor --fix apparmor`,
	}
	f := &doctorFlags{imageFlags: newImageFlags(env, cmd)}
	cmd.Flags().StringArrayVar(&f.registries, "registry", nil, "ask this registry too: HOST[:PORT]")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "say what was tried")
	cmd.Flags().BoolVar(&f.keep, "keep", false, "list what killed runs left behind, and do not remove it")
	cmd.Flags().StringVar(&f.fix, "fix", "", "mend something instead: apparmor (installs the profile that lets gangway make user namespaces; needs root)")
	completeFlag(cmd, "fix", completeWords("apparmor"))
	out := cli.NewReporter(env, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch f.fix {
		case "":
			if cmd.Flags().Changed("fix") {
				return fault.Usage(errors.New("--fix: nothing is named"), "there is: --fix apparmor")
			}
		case "apparmor":
			done, err := doctor.FixAppArmor(cmd.Context(), doctor.AppArmor{})
			if err != nil {
				return err
			}
			return out.Print(fixed(done))
		default:
			return fault.Usage(fmt.Errorf("nothing is known to fix %q", f.fix), "there is: --fix apparmor")
		}
		o, err := f.options()
		if err != nil {
			return err
		}
		report := examined{doctor.Examine(cmd.Context(), o), doctor.TextOptions{Verbose: f.verbose, Color: env.Color(os.Stdout)}}
		return errors.Join(out.Print(report), report.fault())
	}
	return cmd
}

// doctorProbe is a process that "doctor" starts in new namespaces. It is not for people.
func doctorProbe(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "doctor-probe NAME UID GID DIRECTORY", Short: "try one thing for gangway doctor", Hidden: true}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		// Standard output by itself: a step that hangs must have been written.
		return doctor.RunProbe(args, env.Stdin, os.Stdout)
	}
	return cmd
}

// options says where the things are that are looked at.
func (f *doctorFlags) options() (doctor.Options, error) {
	for _, name := range f.registries {
		_, host, found := strings.Cut(name, "://")
		if !found {
			host = name
		}
		if host == "" || host[0] == '/' || host[0] == ':' {
			return doctor.Options{}, fault.Usage(fmt.Errorf("--registry %q: it names no host", name), "write --registry HOST[:PORT]")
		}
	}
	c, err := f.config()
	if err != nil {
		return doctor.Options{}, err
	}
	run, err := stepOptions(f.env)
	if err != nil {
		return doctor.Options{}, err
	}
	o := doctor.Options{
		Registries: doctorRegistries(c, f.registries), RuntimeDir: run.Dirs[0],
		Container: func(ctx context.Context) error { return step.TryContainer(ctx, run) },
		WritableRung: func(ctx context.Context) (rung, why string, err error) {
			r, err := step.TryWritable(ctx, run)
			return r.Rung, r.Why, err
		},
		Limits: func(ctx context.Context) (string, []string, error) { return step.TryLimits(ctx, run) },
		Keep:   f.keep, Now: f.env.Now,
	}
	if o.Store, err = c.StoreDir(f.env.Getenv); err != nil {
		return o, err
	}
	run.Scratch = step.ScratchDir(o.Store)
	o.Leftovers = func(_ context.Context, remove bool) ([]string, error) {
		left, err := step.Leftovers(run.Dirs, step.ScratchDir(o.Store), remove)
		half, err2 := step.SweepContainers(run.Containers, remove)
		return append(left, half...), errors.Join(err, err2)
	}
	return o, nil
}

// doctorRegistries are the registries of the configuration, their mirrors, and more, each
// once.
func doctorRegistries(c config.Config, more []string) []doctor.Registry {
	var all []doctor.Registry
	add := func(name string) {
		scheme, host, found := strings.Cut(name, "://")
		if !found {
			scheme, host = "", name
		}
		host, _, _ = strings.Cut(host, "/") // the prefix of a mirror
		if slices.ContainsFunc(all, func(r doctor.Registry) bool { return r.Name == host }) {
			return
		}
		all = append(all, doctorRegistry(scheme, host, c.Registry[host]))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Registry)) {
		for _, mirror := range c.Registry[name].Mirrors {
			add(mirror)
		}
		add(name)
	}
	for _, name := range more {
		add(name)
	}
	return all
}

func doctorRegistry(scheme, host string, r config.Registry) doctor.Registry {
	name, _, _ := strings.Cut(host, ":")
	local := name == "localhost" || strings.HasPrefix(name, "127.") || strings.HasPrefix(host, "[::1]")
	if scheme == "" {
		scheme = "https"
		if r.PlainHTTP || local && r.CA == "" && !r.SkipVerify {
			scheme = "http"
		}
	}
	at := host
	if host == "docker.io" {
		at = "registry-1.docker.io" // the name of its API
	}
	return doctor.Registry{Name: host, URL: scheme + "://" + at, CAFile: r.CA, SkipVerify: r.SkipVerify}
}

// examined is what "doctor" prints.
type examined struct {
	doctor.Report
	text doctor.TextOptions
}

// Text implements cli.Result.
func (e examined) Text(w io.Writer) error { return e.WriteText(w, e.text) }

// fault is the error where containers cannot run: the first thing that they need.
func (e examined) fault() error {
	if e.Summary.CanRun {
		return nil
	}
	f := e.Blocking()
	return &fault.Error{
		What:  fmt.Errorf("containers cannot run here: %s: %s", f.Name, f.Got),
		Cause: f.Cause, Hint: f.Remedy, Code: codeCannotRun,
	}
}

// fixed is what "doctor --fix" prints.
type fixed doctor.Fixed

// Text implements cli.Result.
func (f fixed) Text(w io.Writer) error {
	text := "installed " + f.File + " for " + f.Program + "\n"
	if !f.Restricted {
		text += "this kernel does not restrict user namespaces at present: it was not needed\n"
	}
	_, err := io.WriteString(w, text)
	return err
}
