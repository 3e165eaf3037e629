package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image/reference"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/config"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// stepVerb is the hidden verb that agents start: the supervisor of a step on a node.
func stepVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "step DIRECTORY", Short: "supervise a step of a job on this node", Hidden: true, Args: cobra.ExactArgs(1)}
	node := cmd.Flags().String("node", "", "which of the step's nodes this is")
	lease := cmd.Flags().Int64("lease", 0, "milliseconds that it is kept prepared")
	left := cmd.Flags().Bool("leftovers", false, "instead, remove what killed supervisors of this user left in a node's directory")
	fd := cmd.Flags().Int("agent", -1, "descriptor of the agent's connection")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		if *left {
			return removeLeftovers(env, dir)
		}
		if env.Getenv("GOGC") == "" {
			// At first time counts: others wait for this node. It is there for as long as the
			// step, and then memory does.
			debug.SetGCPercent(400)
			time.AfterFunc(quickTime, func() { debug.SetGCPercent(50) })
		}
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		o := step.SuperviseOptions{
			Dir: dir, Node: *node, Lease: time.Duration(*lease) * time.Millisecond, Log: env.Logger(),
			Program: program, Programs: filepath.Join(nodeDir(dir), "programs"),
			Container: func(spec *job.StepSpec, pulled func(done, total int64)) (step.Options, func(), error) {
				return containerOf(env, spec, dir, pulled)
			},
		}
		if *fd >= 0 {
			if o.Agent, err = control.Inherited(*fd); err != nil {
				return err
			}
		}
		if marker := env.Getenv(control.Marker); marker != "" {
			o.Marker = control.Marker + "=" + marker
		}
		return step.Supervise(cmd.Context(), o)
	}
	return cmd
}

// removeLeftovers removes what killed supervisors left: in a node's directory, and in the
// user's store.
func removeLeftovers(env *cli.Env, node string) error {
	c, err := config.ForImages(env.Getenv, "")
	if err != nil {
		return err
	}
	store, err := c.StoreDir(env.Getenv)
	if err != nil {
		return err
	}
	return step.NodeLeftovers(node, store)
}

// nodeDir is where the agent of the node keeps what it has, of which a step's directory is
// steps/KEY.
func nodeDir(dir string) string { return filepath.Dir(filepath.Dir(dir)) }

// quickTime is how long time counts more than memory.
const quickTime = 5 * time.Second

// containerOf reads the flags of gangway run that a step's container is made by. What
// variables would set was set by whoever made the step.
func containerOf(env *cli.Env, spec *job.StepSpec, dir string, pulled func(done, total int64)) (step.Options, func(), error) {
	own := *env
	node := nodeDir(dir)
	own.Getenv = func(name string) string {
		switch {
		// Nodes of one machine are as far apart as others.
		case name == "GANGWAY_CONTAINERS":
			return filepath.Join(node, "containers")
		case name == "GANGWAY_RUNTIME_DIR":
			return step.NodeRunDir(node)
		case strings.HasPrefix(name, "PYXIS_"):
			return ""
		case name == "NVIDIA_VISIBLE_DEVICES", name == "MELLANOX_VISIBLE_DEVICES":
			return variable(spec.Program.Environ, name)
		}
		return env.Getenv(name)
	}
	cmd := &cobra.Command{Use: "run"}
	f := newRunFlags(&own, cmd)
	if err := cmd.ParseFlags(spec.Program.Container); err != nil {
		return step.Options{}, nil, fmt.Errorf("read flags of the step's container: %w", err)
	}
	f.quiet, f.pulled = true, pulled
	err := f.parse(cmd, nil)
	if err != nil {
		return step.Options{}, nil, err
	}
	if spec.Image != "" && f.image != "" {
		if f.image, err = pinned(f.image, spec.Image); err != nil {
			return step.Options{}, nil, err
		}
	}
	o, images, err := f.options()
	if err != nil {
		return o, nil, err
	}
	o.Asked, o.RemapGiven = f.image, cmd.Flags().Changed("container-remap-root") || cmd.Flags().Changed("no-container-remap-root")
	o.Unsealed = true
	return o, images.close, nil
}

// variable is the value of a variable in an environment.
func variable(environ [][]byte, name string) string {
	for _, v := range environ {
		if value, ok := strings.CutPrefix(string(v), name+"="); ok {
			return value
		}
	}
	return ""
}

// pinned is the name of an image of a registry with the digest that it had when it was
// first resolved. Others have no other name.
func pinned(name, digest string) (string, error) {
	ref, err := reference.Parse(name)
	if err != nil || ref.Kind != reference.Registry || strings.Contains(name, "@") {
		return name, err
	}
	return name + "@" + digest, nil
}
