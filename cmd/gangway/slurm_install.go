package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

func slurmInstallVerb(env *cli.Env) *cobra.Command {
	install := &cobra.Command{
		Use:   "install DIR",
		Short: "make links with the names of Slurm's commands",
		Long: `Make links in DIR, which is made if it is not there, from the names of Slurm's commands to
this program. Links that it made before are made anew. Where another file has one of the
names nothing is made, unless --force has it replaced; directories are never.`,
		Example: "gangway slurm install ~/.local/bin\ngangway slurm install /opt/gangway/slurm && PATH=/opt/gangway/slurm:$PATH sbatch train.sh",
	}
	out := cli.NewReporter(env, install)
	force := install.Flags().Bool("force", false, "replace files that are there")
	install.RunE = func(_ *cobra.Command, args []string) error {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		made, err := installLinks(self, dir, *force)
		if err != nil {
			return err
		}
		made.Hint = pathHint(env.Getenv("PATH"), dir)
		if err := out.Print(made); err != nil {
			return err
		}
		if made.Hint != "" {
			env.Logger().Warn(made.Hint)
		}
		return nil
	}
	return install
}

// slurmVerb is what there is for those who come from Slurm.
func slurmVerb(env *cli.Env) *cobra.Command {
	group := &cobra.Command{Use: "slurm", Short: "have Slurm's commands by their own names, and its configuration checked"}
	return cli.Group(env, group, slurmInstallVerb, slurmLintVerb)
}

// installed is what "gangway slurm install" made.
type installed struct {
	Links []string `json:"links"`
	Hint  string   `json:"hint,omitempty"` // what is left to do
}

// Text implements cli.Result.
func (i *installed) Text(w io.Writer) error {
	_, err := fmt.Fprintln(w, strings.Join(i.Links, "\n"))
	return err
}

// installLinks makes the links to target in dir, all or none: names that others have are looked for
// first.
func installLinks(target, dir string, force bool) (*installed, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make links to this program: %w", err)
	}
	all := &installed{}
	var taken []string
	for _, c := range slurmCommands() {
		name := filepath.Join(dir, c.name)
		all.Links = append(all.Links, name)
		switch info, err := os.Lstat(name); {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("make links to this program: %w", err)
		case info.IsDir():
			return nil, &fault.Error{What: fmt.Errorf("make link %s: a directory has this name", name), Hint: "choose another directory"}
		case !force && !isOurs(name, target):
			taken = append(taken, c.name)
		}
	}
	if len(taken) > 0 {
		return nil, &fault.Error{
			What:  fmt.Errorf("make links in %s: %s: %w", dir, strings.Join(taken, ", "), os.ErrExist),
			Cause: "they are not links to gangway; nothing was made",
			Hint:  "choose another directory, or have them replaced: --force",
		}
	}
	for _, name := range all.Links {
		if err := replaceLink(target, name); err != nil {
			return nil, fmt.Errorf("make links to this program: %w", err)
		}
	}
	return all, nil
}

// isOurs says whether name is a link to this program, here or where it was before.
func isOurs(name, target string) bool {
	old, err := os.Readlink(name)
	return err == nil && filepath.Base(old) == filepath.Base(target)
}

// replaceLink makes name a link to target, at no moment none.
func replaceLink(target, name string) error {
	if old, err := os.Readlink(name); err == nil && old == target {
		return nil
	}
	aside := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.Symlink(target, aside); err != nil {
		return err
	}
	if err := os.Rename(aside, name); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return nil
}

// pathHint is what is to be done for a shell to find the links first; empty: nothing.
func pathHint(path, dir string) string {
	dirs := filepath.SplitList(path)
	at := slices.IndexFunc(dirs, func(d string) bool { return d == dir || sameDir(d, dir) })
	for i, d := range dirs {
		if i == at {
			return ""
		}
		if other, err := exec.LookPath(filepath.Join(d, "sbatch")); err == nil && d != "" {
			return fmt.Sprintf("%s comes first in PATH; begin it with %s: export PATH=%s:$PATH", other, dir, dir)
		}
	}
	return fmt.Sprintf("%s is not in PATH: export PATH=%s:$PATH", dir, dir)
}

func sameDir(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	return xerr == nil && yerr == nil && os.SameFile(x, y)
}
