package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/step"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

func runVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] [--] [CMD...]",
		Short: "run a command in a container, here or on the nodes of a cluster",
		Long: `Run a command in a container. Where a cluster is running it runs there, as a job, or
inside a job as a step of it, with or without a container; its options are those of srun.
Without a cluster, or with --local, it runs here and now, as the user who asks, without any
daemon. The image is pulled if the store has it not, mounted without being unpacked,
and the command runs in namespaces of its own; its exit status is that of gangway run.

IMAGE is what gangway image pull takes, or a .sqsh file or a directory, used in place.
The container sees the user's files only where --container-mounts says:
  --container-mounts=SRC[:DST[:FLAG+FLAG]][,...]     SRC a path; DST is SRC if it is left out
  --container-mounts=tmpfs:DST  --container-mounts=umount:DST
Without --container-writable its root is read-only, apart from /tmp, /run, /dev/shm and,
unless the image or --container-mount-home gives one, the home directory: they are in
memory, and empty at first. With it, what is written is lost at the end, unless the
container has a name:
  --container-name=NAME[:auto|create|exec|no_exec]   kept on disk until gangway container rm
One that runs is joined, by auto and exec, with an environment as if it were new, and
ends when the last of these commands has; create and no_exec are refused while it runs.

The environment is the caller's, as --export says, without LD_*, LANG, LANGUAGE and
LC_ALL; values of the image win, unless --container-env names them.

Flags come before CMD; what follows CMD is its own. These can be set in the environment,
where the command line does not set them:
` + twins(),
		Example: `gangway run --container-image=debian:12 -- cat /etc/os-release
gangway run --container-image=./torch.sqsh --container-mounts=$PWD:/src --container-workdir=/src -- python3 train.py
gangway run --container-image=debian:12 --container-remap-root --container-writable --container-name=dev -t -- bash
gangway run -N4 --gres=gpu:8 --container-image=./torch.sqsh -- torchrun --nnodes=4 train.py
gangway run --local --dry-run --container-image=debian:12 -- true`,
		SuggestFor: []string{"start", "srun"},
	}
	f := newRunFlags(env, cmd)
	f.choices = addChoices(env, cmd, slurm.Srun)
	cmd.Flags().SetInterspersed(false)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		address, err := f.cluster()
		if err != nil {
			return err
		}
		if address != "" {
			return f.runOn(cmd, address, args)
		}
		if err := f.needCluster(); err != nil {
			return err
		}
		return f.run(cmd, args)
	}
	return cmd
}

// twins lists the variables that set flags.
func twins() string {
	var b strings.Builder
	for _, twin := range spec.Twins() {
		flag := twin.Flag
		if twin.Negative() {
			flag = twin.Contrary
		}
		fmt.Fprintf(&b, "  %-32s --%s\n", twin.Variable, flag)
	}
	return b.String()
}

// errNoImage is that there is nothing to run a container of.
var errNoImage = errors.New("run: no image is named")

// runFlags are the flags of run.
type runFlags struct {
	*imageFlags
	image      string
	mounts     []string
	name       string
	save       string
	unshare    string
	env        []string
	contEnv    string
	pid        string
	pull       string
	entryLog   bool
	readonly   bool
	noHome     bool
	noRemap    bool
	noEntry    bool
	noEntryLog bool
	local      bool
	dryRun     bool
	verbose    bool
	quiet      bool
	rootSize   sizeFlag
	limits     limitFlags
	devices    deviceFlags
	shmSize    sizeFlag
	tmpSize    sizeFlag
	timeout    time.Duration
	request    spec.Request
	choices    *choices                // of a job
	containers []string                // flags of the container, for a job
	pulled     func(done, total int64) // is told how much of an image there is; nil: nobody
}

func newRunFlags(env *cli.Env, cmd *cobra.Command) *runFlags {
	f := &runFlags{imageFlags: newImageFlags(env, cmd).withPlatform(cmd)}
	fl := cmd.Flags()
	r := &f.request
	onceVar(fl, &f.image, "container-image", "", "the image: a reference, a .sqsh file or a directory")
	eachVar(fl, &f.mounts, "container-mounts", "", "mount SRC[:DST[:FLAG+FLAG]][,...] in the container")
	onceVar(fl, &r.Workdir, "container-workdir", "", "working directory in the container")
	onceVar(fl, &f.name, "container-name", "", "keep the container, or use the one of this name: NAME[:auto|create|exec|no_exec]")
	onceVar(fl, &f.save, "container-save", "", "write the container to this .sqsh file at the end")
	fl.BoolVar(&r.MountHome, "container-mount-home", false, "mount the home directory")
	fl.BoolVar(&f.noHome, "no-container-mount-home", false, "do not mount it (default)")
	fl.BoolVar(&r.RemapRoot, "container-remap-root", false, "be root in the container, without being it")
	fl.BoolVar(&f.noRemap, "no-container-remap-root", false, "be the same user in the container (default)")
	fl.BoolVar(&r.Entrypoint, "container-entrypoint", true, "run the image's entry point")
	fl.BoolVar(&f.noEntry, "no-container-entrypoint", false, "do not run it")
	fl.BoolVar(&f.entryLog, "container-entrypoint-log", false, "print the command with its entry point")
	fl.BoolVar(&f.noEntryLog, "no-container-entrypoint-log", false, "do not print it (default)")
	fl.BoolVar(&r.Writable, "container-writable", false, "let the container write to its root")
	fl.BoolVar(&f.readonly, "container-readonly", false, "do not (default)")
	onceVar(fl, &f.contEnv, "container-env", "", "NAME[,NAME...] keep the caller's value where the image has one")
	onceVar(fl, &f.unshare, "container-unshare", "", "net[,ipc][,uts][,pid]: have these of its own; ipc and pid always are")
	eachVar(fl, &f.env, "env", "e", "NAME=VALUE, or NAME for the caller's value")
	onceVar(fl, &r.Export, "export", "", "ALL (default), NONE, or NAME[=VALUE],...: what of the caller's environment goes in")
	fl.BoolVarP(&r.Terminal, "pty", "t", false, "give the command a terminal")
	fl.StringVar(&f.pid, "pid", "private", "private or host: whose processes the container sees")
	fl.StringVar(&f.pull, "pull", "missing", "missing, always or never: when to ask the registry")
	fl.Var(&f.rootSize, "container-root-size", "how much a writable container without a name may write, in memory")
	fl.Var(&f.shmSize, "shm-size", "size of /dev/shm (default: the machine's memory)")
	fl.Var(&f.tmpSize, "tmp-size", "size of /tmp and /run (default: half of the machine's memory)")
	f.limits.add(fl)
	f.devices.add(fl)
	fl.DurationVar(&f.timeout, "timeout", 0, "end the command after this time, as 90s or 2h: SIGTERM, 10 s later SIGKILL")
	fl.BoolVar(&f.local, "local", false, "run here, even if a cluster is configured")
	fl.BoolVar(&f.dryRun, "dry-run", false, "print the operations that would start the container")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print the phases, and which ways of doing things are in use")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing of its own but errors")
	completeFlag(cmd, "pull", completeWords("missing", "always", "never"))
	completeFlag(cmd, "pid", completeWords("private", "host"))
	completeFlag(cmd, "container-image", f.completeImages)
	completeFlag(cmd, "container-name", f.completeContainers(true))
	return f
}

// fromEnviron applies the PYXIS_CONTAINER_* variables.
func (f *runFlags) fromEnviron(cmd *cobra.Command) error {
	settings, err := spec.FromEnviron(f.imageFlags.env.Getenv)
	if err != nil {
		return err
	}
	given := map[string]bool{}
	for _, s := range settings {
		given[s.Flag] = s.Overridden(cmd.Flags().Changed)
	}
	for _, s := range settings {
		if given[s.Flag] {
			continue
		}
		if err := cmd.Flags().Set(s.Flag, s.Value); err != nil {
			return fault.Usage(fmt.Errorf("%s: %w", s.Variable, err), "unset it, or give --"+s.Flag)
		}
	}
	return nil
}

// switches settles each option that has a contrary.
func (f *runFlags) switches(cmd *cobra.Command) error {
	r := &f.request
	for _, s := range []struct {
		name, contrary string
		value          *bool
		off            bool
	}{
		{"container-mount-home", "no-container-mount-home", &r.MountHome, f.noHome},
		{"container-remap-root", "no-container-remap-root", &r.RemapRoot, f.noRemap},
		{"container-entrypoint", "no-container-entrypoint", &r.Entrypoint, f.noEntry},
		{"container-entrypoint-log", "no-container-entrypoint-log", &f.entryLog, f.noEntryLog},
		{"container-writable", "container-readonly", &r.Writable, f.readonly},
	} {
		if !s.off {
			continue
		}
		if cmd.Flags().Changed(s.name) && *s.value {
			return fault.Usage(fmt.Errorf("--%s and --%s contradict each other", s.name, s.contrary), "leave one of them out")
		}
		*s.value = false
	}
	return nil
}

// parse makes the request of the flags.
func (f *runFlags) parse(cmd *cobra.Command, args []string) error {
	if err := f.fromEnviron(cmd); err != nil {
		return err
	}
	if err := f.switches(cmd); err != nil {
		return err
	}
	f.request.Command = args
	if err := f.values(); err != nil {
		return err
	}
	for n := range f.request.Mounts {
		if err := f.request.Mounts[n].Check(os.Stat); err != nil {
			return err
		}
	}
	return nil
}

// values makes the request of the flags' values, without a look at the machine.
func (f *runFlags) values() error {
	r := &f.request
	r.ShmSize, r.TmpSize = f.shmSize.n, f.tmpSize.n
	// Here and not only by spec.Build, which comes after a pull.
	if _, err := spec.ParseExport(r.Export); err != nil {
		return err
	}
	if _, err := spec.ParseEnv(f.env, nil); err != nil {
		return err
	}
	r.Env = f.env
	cwd, err := os.Getwd()
	if err != nil {
		cwd = "/"
	}
	for _, text := range f.mounts {
		mounts, err := spec.ParseMounts(text, cwd)
		if err != nil {
			return err
		}
		r.Mounts = append(r.Mounts, mounts...)
	}
	if f.contEnv != "" {
		if r.ContainerEnv, err = spec.ParseContainerEnv(f.contEnv); err != nil {
			return err
		}
	}
	if f.unshare != "" {
		if r.Unshare, err = spec.ParseUnshare(f.unshare); err != nil {
			return err
		}
	}
	switch f.pid {
	case "private":
	case "host":
		r.HostPID = true
	default:
		return fault.Usage(fmt.Errorf("--pid %q: there are private and host", f.pid), "leave it out for private")
	}
	if f.name != "" {
		if _, _, err := spec.ParseName(f.name); err != nil {
			return err
		}
	}
	if f.save != "" {
		if f.save, err = spec.ParseSave(f.save, cwd); err != nil {
			return err
		}
	}
	if f.timeout < 0 {
		return fault.Usage(fmt.Errorf("--timeout %s: it must not be negative", f.timeout), "leave it out for none")
	}
	return errors.Join(f.checkRootSize(), f.checkPull())
}

// checkRootSize refuses a size for what is not written in memory.
func (f *runFlags) checkRootSize() error {
	switch {
	case !f.rootSize.set:
	case f.name != "":
		return fault.Usage(errors.New("--container-root-size: a container with a name writes to the disk, not to memory"), "leave it out")
	case !f.request.Writable:
		return fault.Usage(errors.New("--container-root-size: the container's root is read-only"), "add --container-writable; for /tmp and /run there is --tmp-size")
	}
	return nil
}

func (f *runFlags) checkPull() error {
	switch f.pull {
	case "missing", "always", "never":
		return nil
	}
	return fault.Usage(fmt.Errorf("--pull %q: there are missing, always and never", f.pull), "leave it out for missing")
}

// options makes the supervisor's options.
func (f *runFlags) options() (step.Options, *runImages, error) {
	o, err := stepOptions(f.imageFlags.env)
	if err != nil && (f.name != "" || !errors.Is(err, step.ErrNoHome)) {
		return o, nil, err
	}
	if f.name != "" {
		if o.Name, o.NameUse, err = spec.ParseName(f.name); err != nil {
			return o, nil, err
		}
	}
	if f.image == "" && f.name == "" {
		hint := "name one: gangway run --container-image=IMAGE -- CMD"
		if slices.ContainsFunc(f.request.Command, func(arg string) bool { return strings.HasPrefix(arg, "--container-") }) {
			hint = "flags go before the command: gangway run --container-image=IMAGE -- " + f.request.Command[0]
		}
		return o, nil, fault.Usage(errNoImage, hint)
	}
	images, err := newRunImages(f)
	if err != nil {
		return o, nil, err
	}
	o.Request = f.request
	o.Image, o.Hold, o.Save = images.open, images.hold, images.save
	o.SaveTo, o.RootSize, o.Timeout = f.save, f.rootSize.n, f.timeout
	o.Scratch = step.ScratchDir(images.store.Dir())
	if o.Devices, err = f.devices.options(&images.config, f.imageFlags.env.Getenv); err == nil {
		o.Hooks, err = hookOptions(&images.config, f.imageFlags.env.Getenv)
	}
	if err != nil {
		images.close()
		return o, nil, err
	}
	if o.Limits, err = f.limits.options(f.imageFlags.env.Stderr); err != nil {
		images.close()
		return o, nil, err
	}
	return o, images, nil
}

// stepOptions are what every verb says that has to do with containers. With
// step.ErrNoHome they are enough for containers without a name.
func stepOptions(env *cli.Env) (step.Options, error) {
	for _, name := range []string{"GANGWAY_RUNTIME_DIR", "GANGWAY_CONTAINERS"} {
		// One that depends on where a verb is called would hide containers.
		if dir := env.Getenv(name); dir != "" && !filepath.IsAbs(dir) {
			return step.Options{}, fault.Usage(fmt.Errorf("%s=%s: not an absolute path", name, dir), "write "+name+"=\"$PWD/"+dir+"\", or unset it")
		}
	}
	containers, err := step.NamedDir(env.Getenv)
	return step.Options{
		Dirs: step.RunDirs(env.Getenv), Containers: containers,
		Probe: []string{probeVerb}, Serve: []string{serveVerb}, Sweep: []string{sweepVerb},
		Environ: os.Environ(), Getenv: env.Getenv,
		Stdin: file(env.Stdin), Stdout: os.Stdout, Stderr: file(env.Stderr),
		Log: env.Logger(),
	}, err
}

// file is the file behind a stream, if it is one: the command gets it as it is.
func file(stream any) *os.File {
	f, _ := stream.(*os.File)
	return f
}

func (f *runFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.parse(cmd, args); err != nil {
		return err
	}
	o, images, err := f.options()
	if err != nil {
		return err
	}
	defer images.close()
	o.Asked, o.RemapGiven = f.image, cmd.Flags().Changed("container-remap-root") || cmd.Flags().Changed("no-container-remap-root")
	env := f.imageFlags.env
	if f.verbose {
		o.Phase = func(name string, took time.Duration, rung string) {
			fmt.Fprintf(env.Stderr, "gangway: %-8s %8.1f ms  %s\n", name, float64(took.Microseconds())/1000, rung)
		}
	}
	o.Notes = func(notes []string, argv []string) {
		if f.entryLog {
			fmt.Fprintf(env.Stderr, "gangway: command: %s\n", strings.Join(argv, " "))
		}
		if f.verbose {
			for _, note := range notes {
				fmt.Fprintf(env.Stderr, "gangway: note: %s\n", note)
			}
		}
	}
	if f.dryRun {
		return f.printPlan(cmd.Context(), env.Stdout, o)
	}
	err = step.Run(cmd.Context(), o)
	if !errors.Is(err, step.ErrSeal) {
		return err
	}
	// It does not return where that can be done.
	err = sealed(os.Args)
	env.Logger().Warn("what runs in the container could change the program gangway", "err", err)
	o.Request.HostPID, o.Unsealed = true, true
	return step.Run(cmd.Context(), o)
}

// sealed runs the same command line from a copy of this program that nobody can change.
func sealed(args []string) error {
	// args[0] may be any name
	at := slices.Index(args[min(1, len(args)):], "run")
	if at < 0 {
		return errors.New("this process was not started by a command line")
	}
	args = slices.Insert(slices.Clone(args), at+2, "--pid=host")
	if self, err := os.Executable(); err == nil {
		args[0] = self // which the copy has no other way to know
	}
	return step.Seal(args)
}

func (f *runFlags) printPlan(ctx context.Context, w io.Writer, o step.Options) error {
	p, err := step.DryRun(ctx, o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, p.String())
	return err
}
