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

// upVerb becomes "gangwayd up", which knows the flags: this program links no daemons.
func upVerb(*cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:                "up",
		Short:              "run a whole cluster on this machine, in the foreground",
		Example:            "gangway up --nodes 4\ngangway up --help",
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			path := filepath.Join(filepath.Dir(self), daemonProgram)
			err = syscall.Exec(path, append([]string{daemonProgram, "up"}, args...), os.Environ())
			f := &fault.Error{What: fmt.Errorf("run %s: %w", path, err)}
			if errors.Is(err, fs.ErrNotExist) {
				f.Hint = "gangway and gangwayd lie in one directory: make build or make install puts them there"
			}
			return f
		},
	}
}
