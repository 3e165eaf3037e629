package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Named is a container with a name: its writable layer stays on disk between runs.
type Named struct {
	Name    string    `json:"name"`
	Image   string    `json:"image"`            // as people write it
	Digest  string    `json:"digest,omitempty"` // of the image's manifest; empty for files and directories
	Created time.Time `json:"created"`
	// Remap says that the container was made with --container-remap-root, so that it
	// starts like that again.
	Remap bool `json:"remapRoot,omitempty"`

	dir  string
	lock *fsx.Lock
}

// The names in the directory of a named container.
const (
	namedFile = "container.json"
	upperName = "upper"
	workName  = "work"
)

// NamedDir returns where named containers are kept: $GANGWAY_CONTAINERS, or
// $XDG_DATA_HOME/gangway/containers, by default ~/.local/share/gangway/containers.
func NamedDir(getenv func(string) string) (string, error) {
	if dir := getenv("GANGWAY_CONTAINERS"); filepath.IsAbs(dir) {
		return dir, nil
	}
	data := getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(data) {
		home := getenv("HOME")
		if home == "" {
			return "", &fault.Error{What: errors.New("find the named containers: HOME is not set"), Hint: "say where they go: GANGWAY_CONTAINERS=DIR"}
		}
		data = filepath.Join(home, ".local", "share")
	}
	return filepath.Join(data, "gangway", "containers"), nil
}

// Upper and Work are the directories of the container's overlay.
func (n *Named) Upper() string { return filepath.Join(n.dir, upperName) }

// Work is the overlay's other directory, which the kernel needs.
func (n *Named) Work() string { return filepath.Join(n.dir, workName) }

// openNamed opens and locks a named container; fs.ErrNotExist says that there is none,
// fsx.ErrLocked that somebody uses it.
func openNamed(base, name string) (*Named, error) {
	dir := filepath.Join(base, name)
	if _, err := os.Lstat(filepath.Join(dir, namedFile)); err != nil {
		return nil, err
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
	if err != nil {
		return nil, err
	}
	n, err := readNamed(dir)
	if err != nil {
		return nil, errors.Join(err, lock.Release())
	}
	n.lock = lock
	return n, nil
}

func readNamed(dir string) (*Named, error) {
	b, err := os.ReadFile(filepath.Join(dir, namedFile))
	if err != nil {
		return nil, err
	}
	n := &Named{dir: dir}
	if err := json.Unmarshal(b, n); err != nil || n.Name != filepath.Base(dir) {
		return nil, &fault.Error{
			What: fmt.Errorf("read container %s: %s is damaged: %w", filepath.Base(dir), filepath.Join(dir, namedFile), errors.Join(err, fs.ErrInvalid)),
			Hint: "save what you need of " + filepath.Join(dir, upperName) + ", then: gangway container rm " + filepath.Base(dir),
		}
	}
	return n, nil
}

// createNamed makes a named container, locked. It is known once its file is written.
func createNamed(ctx context.Context, base string, n Named) (*Named, error) {
	n.dir = filepath.Join(base, n.Name)
	for _, dir := range []string{n.Upper(), n.Work()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, &fault.Error{What: fmt.Errorf("create container %s: %w", n.Name, err), Hint: "keep containers elsewhere: GANGWAY_CONTAINERS=DIR"}
		}
	}
	// The root directory of the container gets its mode from here.
	if err := os.Chmod(n.Upper(), 0o755); err != nil {
		return nil, err
	}
	lock, err := fsx.TryAcquire(filepath.Join(n.dir, lockName), fsx.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", n.Name, err)
	}
	b, err := json.MarshalIndent(&n, "", "  ")
	if err == nil {
		err = fsx.WriteFile(ctx, filepath.Join(n.dir, namedFile), fsx.Options{Mode: 0o600}, func(f *os.File) error {
			_, err := f.Write(append(b, '\n'))
			return err
		})
	}
	if err != nil {
		return nil, errors.Join(err, removeTree(n.dir), lock.Release())
	}
	n.lock = lock
	return &n, nil
}

// Close ends the use of the container.
func (n *Named) Close() error {
	if n.lock == nil {
		return nil
	}
	return n.lock.Release()
}

// Containers returns the named containers, and those that could not be read as errors.
func Containers(base string) ([]Named, error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []Named
	errs := []error{err}
	for _, e := range entries {
		n, err := readNamed(filepath.Join(base, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist), strings.HasPrefix(e.Name(), "."):
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, *n)
		}
	}
	return all, errors.Join(errs...)
}

// OpenContainer finds a named container for reading, without locking it.
func OpenContainer(base, name string) (*Named, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	n, err := readNamed(filepath.Join(base, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, noContainer(name)
	}
	return n, err
}

// ErrNoContainer says that there is no named container of a name.
var ErrNoContainer = errors.New("there is none of this name")

func noContainer(name string) error {
	return &fault.Error{What: fmt.Errorf("open container %s: %w", name, ErrNoContainer), Hint: "see what there is: gangway container ls"}
}

// RemoveContainer removes a named container with all that was written in it. The error
// wraps ErrNoContainer where there is none.
func RemoveContainer(base, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	dir := filepath.Join(base, name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return noContainer(name)
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) {
		return inUse(name)
	}
	if err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	// Its file goes first: what is removed by half is no container.
	err = os.Remove(filepath.Join(dir, namedFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, removeTree(dir), lock.Release()); err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	return nil
}

func inUse(name string) error {
	return &fault.Error{
		What: fmt.Errorf("container %s is in use", name),
		Hint: "wait for it to end, or run in it: gangway exec " + name + " -- CMD",
	}
}

// checkName keeps names apart from paths, options and references.
func checkName(name string) error {
	bad := name == "" || len(name) > 128 || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "-") ||
		strings.ContainsFunc(name, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		})
	if bad {
		return fault.Usage(fmt.Errorf("container name %q: letters, digits, '.', '_' and '-' only, at most 128", name), "choose another, as --container-name=dev")
	}
	return nil
}

// removeTree is os.RemoveAll for trees that containers wrote: directories that their
// owner may not read or write, as the kernel's overlay makes one too, are opened first.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			// WalkDir calls before it reads the directory, and again where it could not.
			if os.Chmod(name, 0o700) != nil {
				return fs.SkipDir
			}
		}
		return nil
	})
	return os.RemoveAll(dir)
}
