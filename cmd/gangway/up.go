package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// daemonProgram lies beside this one.
const daemonProgram = "gangwayd"

// daemonVerbs are those that gangwayd carries out.
func daemonVerbs() []cli.Verb {
	var all []cli.Verb
	for _, v := range [][3]string{
		{"up", "run a whole cluster on this machine, in the foreground", "--nodes 4"},
		{"top", "show nodes, queue, ranks and output of a cluster on the terminal, as they change", "4711"},
		{"init", "make a cluster of several hosts: its state directory and its authority", "--state-dir DIR --name lab --nodes gpu[01-16]"},
		{"controller", "be the controller of a cluster", "--state-dir DIR --listen :7430"},
		{"agent", "be the daemon of a node", "--state-dir DIR --join TOKEN --controller HOST:PORT"},
		{"client", "be the cluster on a host that runs none of its jobs", "--state-dir DIR --join TOKEN --controller HOST:PORT"},
		{"token", "make a token by which one host joins the cluster", "--state-dir DIR --node gpu01"},
		{"revoke", "take back what lets a host be of the cluster", "--state-dir DIR --node gpu01"},
	} {
		all = append(all, func(*cli.Env) *cobra.Command { return daemonVerb(v[0], v[1], v[2]) })
	}
	return all
}

// daemonVerb becomes the verb of gangwayd, which knows the flags: this program links no
// daemons.
func daemonVerb(name, short, example string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              short,
		Example:            "gangway " + name + " " + example + "\ngangway " + name + " --help",
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			path := filepath.Join(filepath.Dir(self), daemonProgram)
			err = syscall.Exec(path, append([]string{daemonProgram, name}, args...), os.Environ())
			f := &fault.Error{What: fmt.Errorf("run %s: %w", path, err)}
			if errors.Is(err, fs.ErrNotExist) {
				f.Hint = "gangway and gangwayd lie in one directory: make build or make install puts them there"
			}
			return f
		},
	}
}
