package step

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// State is what others may know of a container that runs.
type State struct {
	ID         string    `json:"id"`
	Name       string    `json:"name,omitempty"`
	Image      string    `json:"image"`
	Supervisor int       `json:"supervisor"`           // pid
	Init       int       `json:"init"`                 // pid of PID 1, as the host counts
	PidNS      uint64    `json:"pidns"`                // inode of the pid namespace
	StopSignal int       `json:"stopSignal,omitempty"` // that of the image
	Command    []string  `json:"command"`
	Started    time.Time `json:"started"`
	// Limited says that it has a control group, and NotLimited what that does not enforce.
	Limited    bool     `json:"limited,omitempty"`
	NotLimited []string `json:"notLimited,omitempty"`
}

// The names in a run directory.
const (
	lockName  = "lock"
	stateName = "state.json"
	sockName  = "sock"
	stageName = "root"
	tempName  = "state.tmp"
	givenName = "given" // what hooks add
)

// runsBelow is the directory of run directories, in one that others use too.
const runsBelow = "gangway"

// RunDirs returns the directories in which containers of this user may be found,
// the one for new containers first: $GANGWAY_RUNTIME_DIR/gangway alone where that is set,
// else $XDG_RUNTIME_DIR/gangway where there is such a directory, and one in /tmp. They are
// the same for all sessions of a user: what another one has in XDG_RUNTIME_DIR is looked
// for where systemd puts it, and TMPDIR does not count.
func RunDirs(getenv func(string) string) []string {
	if dir := getenv("GANGWAY_RUNTIME_DIR"); dir != "" {
		return []string{filepath.Join(dir, runsBelow)} // what else is there is not ours
	}
	uid := strconv.Itoa(os.Geteuid())
	var dirs []string
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && ours(dir) == nil {
		dirs = append(dirs, filepath.Join(dir, runsBelow))
	}
	dirs = append(dirs, "/tmp/gangway-"+uid)
	if dir := "/run/user/" + uid; ours(dir) == nil && !slices.Contains(dirs, dir+"/gangway") {
		dirs = append(dirs, dir+"/gangway")
	}
	return dirs
}

// ours says why a directory is not one that only this user may write to.
func ours(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.IsDir():
		return fmt.Errorf("use %s: %w", dir, syscall.ENOTDIR)
	case !ok || int(sys.Uid) != os.Geteuid():
		return fmt.Errorf("use %s: it belongs to another user", dir)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("use %s: others may write there (mode %04o)", dir, st.Mode().Perm())
	}
	return nil
}

// runDir is the directory of one container that runs. Its lock is held for as long as
// the supervisor lives: a directory whose lock is free is a leftover.
type runDir struct {
	path string
	lock *fsx.Lock
}

// newRunDir makes a run directory below base, which it makes too.
func newRunDir(ctx context.Context, base string) (*runDir, error) {
	hint := func(err error) error {
		return &fault.Error{What: fmt.Errorf("make run directory: %w", err), Hint: "choose another directory of your own: GANGWAY_RUNTIME_DIR=DIR"}
	}
	if !filepath.IsAbs(base) {
		return nil, hint(fmt.Errorf("use %q: not an absolute path", base))
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, hint(err)
	}
	if err := ours(base); err != nil {
		return nil, hint(err)
	}
	for {
		d := &runDir{path: filepath.Join(base, newID())}
		if err := os.Mkdir(d.path, 0o700); err != nil {
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			return nil, hint(err)
		}
		var err error
		d.lock, err = fsx.TryAcquire(d.file(lockName), fsx.Exclusive)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fsx.ErrLocked) {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			continue // somebody who removes leftovers was faster
		}
		if err == nil {
			err = os.Mkdir(d.file(stageName), 0o700)
		}
		if err != nil {
			return nil, errors.Join(hint(err), d.remove())
		}
		return d, nil
	}
}

func (d *runDir) id() string              { return filepath.Base(d.path) }
func (d *runDir) file(name string) string { return filepath.Join(d.path, name) }

// orphan lists what PID 1 removes if the supervisor dies, in that order: the lock is
// last, because who finds the rest looks at it.
func (d *runDir) orphan() []string {
	return []string{d.file(sockName), d.file(tempName), d.file(stateName), d.file(stageName), d.file(lockName), d.path}
}

// listen makes the socket. Its name goes through /proc, because that of the directory
// may be longer than the 107 bytes that a socket's may have.
func (d *runDir) listen() (*net.UnixListener, error) {
	dir, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: procName(dir, sockName)})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", d.file(sockName), err)
	}
	l.SetUnlinkOnClose(false) // remove does it
	return l, nil
}

func procName(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// publish makes the container known to others.
func (d *runDir) publish(s *State) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// Not synced: it means nothing after a crash of the machine.
	if err := os.WriteFile(d.file(tempName), b, 0o600); err != nil {
		return err
	}
	return os.Rename(d.file(tempName), d.file(stateName))
}

// remove removes the directory and ends the lock.
func (d *runDir) remove() error {
	errs := []error{removeTree(d.file(givenName))}
	for _, name := range d.orphan() {
		if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if d.lock != nil {
		errs = append(errs, d.lock.Release())
	}
	return errors.Join(errs...)
}

// NodeRunDir is where the containers of a node have their run directories: what
// GANGWAY_RUNTIME_DIR is for them. node is the directory of the node's agent.
func NodeRunDir(node string) string { return filepath.Join(node, "run") }

// ScratchDir is where a store's disk is used for what is large and goes away again.
func ScratchDir(store string) string { return filepath.Join(store, "scratch") }

// NodeLeftovers removes what killed supervisors of a node left. See [Leftovers].
func NodeLeftovers(node, store string) error {
	_, err := Leftovers([]string{filepath.Join(NodeRunDir(node), runsBelow)}, ScratchDir(store), true)
	return err
}

// treeName is an image that is written to disk, in a scratch directory.
const treeName = "tree"

// runNames and scratchNames are what may be in what a killed run leaves: a run directory,
// and a scratch directory. One that has another name in it is not ours, wherever it lies.
func runNames() []string {
	return []string{lockName, stateName, tempName, sockName, stageName, givenName}
}
func scratchNames() []string { return []string{lockName, treeName, upperName, workName} }

// Leftovers finds what killed runs left in the run directories and in the directory for
// scratch, which may be "", and removes it, if remove is set. It returns what it found.
// Nothing of a run that lives is touched, and nothing that no run made.
func Leftovers(dirs []string, scratch string, remove bool) ([]string, error) {
	var found []string
	var errs []error
	look := func(base string, names []string) {
		if ours(base) != nil {
			return
		}
		entries, err := os.ReadDir(base)
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			dir := filepath.Join(base, e.Name())
			left, err := leftover(dir, names, remove)
			if left {
				found = append(found, dir)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("remove leftover %s: %w", dir, err))
			}
		}
	}
	for _, base := range dirs {
		look(base, runNames())
	}
	if scratch != "" {
		look(scratch, scratchNames())
	}
	return found, errors.Join(errs...)
}

// youngest is how old a directory without a lock must be to be a leftover: its maker
// may be between two system calls.
const youngest = 2 * time.Second

func leftover(dir string, names []string, remove bool) (bool, error) {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() || !isID(filepath.Base(dir)) || !hasOnly(dir, names) {
		return false, nil // of other purpose, or gone
	}
	name := filepath.Join(dir, lockName)
	if _, err := os.Lstat(name); err != nil && time.Since(st.ModTime()) < youngest {
		return false, nil
	}
	lock, err := fsx.TryAcquire(name, fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !remove {
		return true, lock.Release()
	}
	return true, errors.Join(removeTree(dir), lock.Release())
}

// idLength is how many characters the id of a container has.
const idLength = 12

func newID() string { return strings.ToLower(rand.Text()[:idLength]) }

// isID says whether newID can have made a name.
func isID(name string) bool {
	return len(name) == idLength && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// hasOnly says whether a directory has no names but some, and nothing in the place where
// roots are mounted.
func hasOnly(dir string, names []string) bool {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) {
			return false
		}
		if e.Name() == stageName {
			if in, err := os.ReadDir(filepath.Join(dir, stageName)); err != nil || len(in) > 0 {
				return false
			}
		}
	}
	return err == nil
}

// Running returns the containers that run, as their run directories say: those in dirs,
// and those that named containers say where they are.
func Running(dirs []string, containers string) ([]State, error) {
	all, _, err := found(dirs, containers)
	return all, err
}

// found returns the containers that run with their run directories.
func found(dirs []string, containers string) (all []State, paths []string, err error) {
	add := func(dir string) {
		if slices.Contains(paths, dir) || ours(dir) != nil {
			return
		}
		if s, ok := running(dir); ok {
			all, paths = append(all, s), append(paths, dir)
		}
	}
	for _, base := range dirs {
		if ours(base) != nil {
			continue
		}
		entries, err := os.ReadDir(base)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			add(filepath.Join(base, e.Name()))
		}
	}
	if containers != "" {
		entries, _ := os.ReadDir(containers) // there may be none
		for _, e := range entries {
			if dir := runsIn(filepath.Join(containers, e.Name())); dir != "" {
				add(dir)
			}
		}
	}
	return all, paths, nil
}

func running(dir string) (State, bool) {
	s, err := readState(dir)
	if err != nil {
		return s, false
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, lockName), fsx.Shared)
	if err == nil {
		_ = lock.Release() // a leftover
		return s, false
	}
	return s, errors.Is(err, fsx.ErrLocked)
}

func readState(dir string) (State, error) {
	var s State
	b, err := os.ReadFile(filepath.Join(dir, stateName))
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err == nil && s.ID != filepath.Base(dir) {
		err = fs.ErrInvalid
	}
	return s, err
}

// FindNamed returns the running container of a name, and its run directory.
func FindNamed(dirs []string, containers, name string) (State, string, error) {
	all, paths, err := found(dirs, containers)
	if err != nil {
		return State{}, "", err
	}
	if n := slices.IndexFunc(all, func(s State) bool { return name != "" && s.Name == name }); n >= 0 {
		return all[n], paths[n], nil
	}
	return State{}, "", noneRuns(name, len(all), false)
}

// Find returns the running container that a person names, and its run directory: by its
// name, else by its id, else by the pid of a process in it or of its supervisor. A name
// may look like a pid.
func Find(dirs []string, containers, name string) (State, string, error) {
	all, paths, err := found(dirs, containers)
	if err != nil {
		return State{}, "", err
	}
	pid, _ := strconv.Atoi(name)
	var ns uint64
	if pid > 0 {
		ns = pidNamespace(pid)
	}
	for _, is := range []func(s *State) bool{
		func(s *State) bool { return name != "" && s.Name == name },
		func(s *State) bool { return s.ID == name },
		func(s *State) bool { return pid > 0 && (s.Supervisor == pid || s.Init == pid) },
		// Every process of the machine is in the namespace that a container shares with it.
		func(s *State) bool { return ns != 0 && s.PidNS == ns && ns != pidNamespace(s.Supervisor) },
	} {
		for n := range all {
			if is(&all[n]) {
				return all[n], paths[n], nil
			}
		}
	}
	return State{}, "", noneRuns(name, len(all), pid > 0)
}

func noneRuns(name string, others int, isPID bool) error {
	hint := "see what runs: gangway container ls"
	if others == 0 {
		hint = "no container runs; start one: gangway run --container-name=" + name + " --container-image=IMAGE -- CMD"
		if isPID {
			hint = "no container of this user runs"
		}
	}
	return &fault.Error{What: fmt.Errorf("find container %s: no such container runs", name), Hint: hint}
}

// pidNamespace returns the inode of a process's pid namespace, 0 if it cannot be seen.
func pidNamespace(pid int) uint64 {
	st, err := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return 0
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Ino
	}
	return 0
}
