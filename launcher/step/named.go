package step

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
	"github.com/gangway-hpc/gangway/runtime/spec"
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
	// Identity is Image.Identity as it was then: what was written lies over that, and
	// over nothing else.
	Identity string `json:"identity,omitempty"`
	// Store is where its image was when it was made.
	Store string `json:"store,omitempty"`
	// FuseOverlay says that fuse-overlayfs has written to it at least once, if not
	// always: it writes names that begin with .wh. as its own, and takes for its own those
	// that it finds. To the kernel's overlay they are names like others.
	FuseOverlay bool `json:"fuseOverlay,omitempty"`

	dir  string
	lock *fsx.Lock
}

// The names in the directory of a named container.
const (
	namedFile = "container.json"
	upperName = "upper"
	workName  = "work"
	askedName = "asked.json"
	runsName  = "run" // has the path of its run directory, as of the last run
)

// isNamedPart says whether a name is one that the directory of a named container has.
func isNamedPart(name string) bool {
	return slices.Contains([]string{lockName, namedFile, upperName, workName, askedName, runsName}, name) ||
		strings.HasPrefix(name, fsx.TempPrefix)
}

// ErrNoHome says that nothing tells where named containers are.
var ErrNoHome = errors.New("HOME is not set")

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
			return "", &fault.Error{What: fmt.Errorf("find the named containers: %w", ErrNoHome), Hint: "say where they go: GANGWAY_CONTAINERS=DIR"}
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

// createNamed makes a named container, locked. It is known once its file is written:
// whoever holds the lock of a directory without one may do with it what it likes. Before
// that hold keeps its image, so that no container is without one. The error wraps
// fs.ErrExist where somebody made the container meanwhile, fsx.ErrLocked where somebody is
// about to.
func createNamed(ctx context.Context, base string, n Named, hold func() error) (*Named, error) {
	n.dir = filepath.Join(base, n.Name)
	hint := func(err error) error {
		return &fault.Error{What: fmt.Errorf("create container %s: %w", n.Name, err), Hint: "keep containers elsewhere: GANGWAY_CONTAINERS=DIR"}
	}
	if isForeign(n.dir) {
		return nil, hint(fmt.Errorf("%s is there, and is no container", n.dir))
	}
	lock, err := lockDir(ctx, n.dir)
	if err != nil {
		return nil, hint(err)
	}
	if _, err := os.Lstat(filepath.Join(n.dir, namedFile)); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return nil, errors.Join(hint(err), lock.Release())
	}
	n.lock = lock
	err = n.fill()
	if err == nil {
		if err = hold(); err != nil {
			return nil, errors.Join(err, n.discard())
		}
		err = n.write(ctx)
	}
	if err != nil {
		return nil, errors.Join(hint(err), n.discard())
	}
	return &n, nil
}

// isForeign says whether a directory has something in it that no container has, or what
// only containers have without the lock under which that was made.
func isForeign(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return false // what is wrong shows where it is used
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !isNamedPart(e.Name()) }) {
		return true
	}
	_, err = os.Lstat(filepath.Join(dir, lockName))
	return errors.Is(err, fs.ErrNotExist)
}

// lockDir makes a directory and locks it, however often somebody removes it in between.
func lockDir(ctx context.Context, dir string) (*fsx.Lock, error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
		if !errors.Is(err, fs.ErrNotExist) {
			return lock, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// fill makes the directories of a new container, in the place of what one left that was
// killed while it was made or removed.
func (n *Named) fill() error {
	for _, dir := range []string{n.Upper(), n.Work()} {
		if err := removeTree(dir); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
	}
	// The root directory of the container gets its mode from here.
	return os.Chmod(n.Upper(), 0o755)
}

// write writes the container's file.
func (n *Named) write(ctx context.Context) error {
	b, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return fsx.WriteFile(ctx, filepath.Join(n.dir, namedFile), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		_, err := f.Write(append(b, '\n'))
		return err
	})
}

// starts notes where a container runs, and that fuse-overlayfs writes to it, before
// anything does.
func (n *Named) starts(ctx context.Context, runDir string, fuseOverlay bool) error {
	if fuseOverlay && !n.FuseOverlay {
		n.FuseOverlay = true
		if err := n.write(ctx); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(n.dir, runsName), []byte(runDir), 0o600)
}

// runsIn returns the run directory of a named container, as of its last run.
func runsIn(dir string) string {
	b, err := os.ReadFile(filepath.Join(dir, runsName))
	if path := string(b); err == nil && filepath.IsAbs(path) && isID(filepath.Base(path)) {
		return path
	}
	return ""
}

// discard removes a container whose lock is held, and gives that back.
func (n *Named) discard() error { return errors.Join(removeNamed(n.dir), n.lock.Release()) }

// removeNamed removes the directory of a container, whose lock is held. The container's
// file goes first: what is removed by half is no container. The lock goes last, because
// whoever makes one anew may fill the directory from then on. What no container has stays.
func removeNamed(dir string) error {
	if err := os.Remove(filepath.Join(dir, namedFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != lockName && isNamedPart(e.Name()) {
			errs = append(errs, removeTree(filepath.Join(dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
		return err
	}
	if err := os.Remove(dir); !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // or it is somebody else's already
}

// SweepContainers finds what is left of named containers that were killed while they
// were made or removed, and removes it if remove is set. It returns what it found.
// Directories that hold anything else are not touched.
func SweepContainers(base string, remove bool) ([]string, error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found []string
	errs := []error{err}
	for _, e := range entries {
		dir := filepath.Join(base, e.Name())
		if checkName(e.Name()) != nil || !isHalf(dir) {
			continue
		}
		lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
		switch {
		case errors.Is(err, fsx.ErrLocked), errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			errs = append(errs, err)
			continue
		}
		if isHalf(dir) { // still
			found = append(found, dir)
			if remove {
				errs = append(errs, removeNamed(dir))
			}
		}
		errs = append(errs, lock.Release())
	}
	return found, errors.Join(errs...)
}

// isHalf says whether a directory is part of a named container, but none, for a while.
func isHalf(dir string) bool {
	st, err := os.Lstat(dir)
	return err == nil && time.Since(st.ModTime()) >= youngest && isPart(dir)
}

// isPart is isHalf, however old it is.
func isPart(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) > 0 && !isForeign(dir) &&
		!slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == namedFile })
}

// IsOf says whether the container was made of the image that is called name.
func (n *Named) IsOf(name string) bool {
	if n.Image == name {
		return true
	}
	path, err := filepath.Abs(name)
	return err == nil && n.Digest == "" && n.Image == path
}

// Check says why a container cannot go on with an image: it is not what it was made of.
func (n *Named) Check(i *Image) error {
	if n.Identity == "" || n.Identity == i.Identity {
		return nil
	}
	return &fault.Error{
		What:  fmt.Errorf("start container %s: %s is not the image that it was made of", n.Name, n.Image),
		Cause: fmt.Sprintf("it had %s, and has %s", n.Identity, i.Identity),
		Hint: "put the old one back; or make another of the new: --container-name=OTHER --container-image=" + n.Image +
			"; what was written is in " + n.Upper() + " until: gangway container rm " + n.Name,
	}
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

// OpenContainer opens and locks a named container that does not run, for reading what was
// written in it.
func OpenContainer(base, name string) (*Named, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	n, err := openNamed(base, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, noContainer(name)
	case errors.Is(err, fsx.ErrLocked):
		return nil, &fault.Error{
			What:  fmt.Errorf("open container %s: it is in use", name),
			Cause: "what is in it changes while it runs",
			Hint:  "do it again when its command has ended; see: gangway container ls",
		}
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
	if _, err := os.Lstat(filepath.Join(dir, namedFile)); errors.Is(err, fs.ErrNotExist) && !isPart(dir) {
		return noContainer(name) // a directory of that name is something else
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) {
		return inUse(name)
	}
	if err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	if err = errors.Join(removeNamed(dir), lock.Release()); err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	return nil
}

// remember notes the options with which the container is started, for who joins it.
func (n *Named) remember(options map[string]string) error {
	b, err := json.Marshal(options)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.dir, askedName), b, 0o600)
}

// optionDigests returns what the options are that make a container, apart from its
// command: as digests, because values may be secrets. Those that were not given are
// left out.
func (s *step) optionDigests() map[string]string {
	r, none := s.Request, spec.Request{}
	all := map[string]string{}
	for _, o := range []struct {
		name        string
		value, none any
	}{
		{"--container-image", s.Asked, ""},
		{"--container-mounts", r.Mounts, none.Mounts},
		{"--container-mount-home", r.MountHome, false},
		{"--container-remap-root", r.RemapRoot, false},
		{"--container-env", r.ContainerEnv, none.ContainerEnv},
		{"--container-unshare", r.Unshare, none.Unshare},
		{"--export", r.Export, ""},
		{"--pid", r.HostPID, false},
		{"--shm-size", r.ShmSize, int64(0)},
		{"--tmp-size", r.TmpSize, int64(0)},
		{"--device", s.Devices.CDI, []string(nil)},
		{"--gpus", s.Devices.GPUs, ""},
		{"--rdma", s.Devices.RDMA, ""},
		{"--cpus", s.Limits.CPUs, float64(0)},
		{"--cpuset", fmt.Sprint(s.Limits.CPUSet, s.Limits.Near), fmt.Sprint(cgroup.Set(nil), false)},
		{"--mem", s.Limits.Memory, int64(0)},
		{"--pids-limit", s.Limits.Pids, int64(0)},
	} {
		if value := fmt.Sprintf("%+v", o.value); value != fmt.Sprintf("%+v", o.none) {
			all[o.name] = fmt.Sprintf("%x", sha256.Sum256([]byte(value)))
		}
	}
	return all
}

// ignored returns the options that were given and are not those of the container, which
// runs.
func (s *step) ignored() []string {
	has := map[string]string{}
	dir := filepath.Join(s.Containers, s.Name)
	if b, err := os.ReadFile(filepath.Join(dir, askedName)); err == nil {
		_ = json.Unmarshal(b, &has) // what cannot be read was not given
	}
	asked := s.optionDigests()
	if n, err := readNamed(dir); err == nil && n.IsOf(s.Asked) {
		delete(asked, "--container-image")
	}
	var ignored []string
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		if asked[name] != has[name] {
			ignored = append(ignored, name)
		}
	}
	if s.Limits.Stats != nil {
		ignored = append(ignored, "--stats") // they are the container's
	}
	if s.RemapGiven && !s.Request.RemapRoot && has["--container-remap-root"] != "" {
		ignored = append(ignored, "--no-container-remap-root")
	}
	return ignored
}

// refusesJoin says whether a command may not do without one of these options, which the
// container that runs was not started with.
func (s *step) refusesJoin(dir string, ignored []string) error {
	must := []string{"--device", "--gpus", "--rdma"}
	if s.Limits.Require {
		must = append(must, "--cpus", "--cpuset", "--mem", "--pids-limit")
		if state, err := readState(dir); err == nil && (!state.Limited || len(state.NotLimited) > 0) {
			return &fault.Error{
				What:  fmt.Errorf("run in container %s with all limits enforced (--require-cgroup): it runs already, and they are not", s.Name),
				Cause: cmp.Or(strings.Join(state.NotLimited, "; "), "it has no control group"),
				Hint:  "leave out --require-cgroup, or wait for its end: gangway container ls",
			}
		}
	}
	for _, name := range ignored {
		if slices.Contains(must, name) {
			return &fault.Error{
				What:  fmt.Errorf("run in container %s: it runs already, and was started without this %s", s.Name, name),
				Cause: "what joins a container has the devices and limits of that container",
				Hint:  "leave out " + name + ", or wait for its end: gangway container ls",
			}
		}
	}
	return nil
}

// exists is the error of :create where there is such a container.
func exists(name string) error {
	return &fault.Error{What: fmt.Errorf("create container %s: there is one of this name", name), Hint: "gangway container rm " + name + ", or choose another name"}
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
