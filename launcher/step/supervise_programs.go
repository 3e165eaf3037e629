package step

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
)

// programName is this program's, beside which the others are links.
const programName = "gangway"

// programNames are the commands that a job's programs find.
func programNames() []string {
	return []string{"srun", "sbatch", "salloc", "squeue", "scancel", "sinfo", "sacct", "scontrol"}
}

// programs is a directory with the commands of the cluster: links to this program, or, for a
// container, to a file beside them over which it is mounted. The steps of a node share it,
// because to make a dozen files costs a step more than the rest of its preparation does. It
// is made under another name first, so that nobody sees a part of it.
func (s *supervisor) programs(mounted bool) (string, error) {
	if _, err := os.Stat(s.Program); err != nil {
		return "", fmt.Errorf("find this program, for the ranks: %w", err) // it was replaced since
	}
	to := s.Program
	if mounted {
		to = programName
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(to))
	for _, name := range programNames() {
		_, _ = h.Write([]byte("\x00" + name))
	}
	// Its name says what is in it: that of another version of this program is another's.
	dir := filepath.Join(s.Programs, fmt.Sprintf("%08x", h.Sum32()))
	if _, err := os.Lstat(dir); err == nil {
		return dir, nil
	}
	if err := os.Mkdir(s.Programs, 0o700); err == nil {
		err = os.Chmod(s.Programs, 0o700) // whatever the umask
		if err != nil {
			return "", fmt.Errorf("make directory of commands: %w", err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make directory of commands: %w", err)
	}
	made, err := os.MkdirTemp(s.Programs, "new-")
	if err != nil {
		return "", fmt.Errorf("make directory of commands: %w", err)
	}
	err = linkPrograms(made, to, mounted)
	if err == nil {
		err = os.Rename(made, dir)
	}
	if err == nil {
		return dir, nil
	}
	err = errors.Join(err, os.RemoveAll(made))
	if _, gone := os.Lstat(dir); gone == nil && errors.Is(err, fs.ErrExist) {
		return dir, nil // another step was faster
	}
	return "", fmt.Errorf("make directory of commands: %w", err)
}

// linkPrograms fills a directory of commands.
func linkPrograms(dir, to string, mounted bool) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	own := filepath.Join(dir, programName)
	if mounted {
		if err := os.WriteFile(own, nil, 0o755); err != nil {
			return err
		}
	} else if err := os.Symlink(to, own); err != nil {
		return err
	}
	for _, name := range programNames() {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
