package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/account"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// Users is what an agent has that is root's, and runs steps of all users of its machine,
// each with that user's rights. What a user may write to lies in directories of his own,
// whose place is root's; what the agent relies on is in [Options.Dir], which is root's
// alone. Of what a user has written it reads how his step ended, and nothing else.
type Users struct {
	// Dir has the directories of the users' steps, UID/steps/KEY. It is root's, and everybody
	// may pass.
	Dir      string
	Accounts *account.Database // nil: those of this machine

	mu     sync.Mutex
	soiled map[uint32]bool
}

// owner is whose a step is.
type owner struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Name   string   `json:"name"`
	Home   string   `json:"home"`
	Shell  string   `json:"shell"`
}

// ownerFile is in the agent's directory of a step.
const ownerFile = "owner"

// refusal is a fault that is told as it is.
type refusal struct{ job.Fault }

// Error implements error.
func (r *refusal) Error() string { return r.What }

// ownerOf finds whose a step is on this machine, which has to be who it is where the job was submitted.
func (u *Users) ownerOf(ctx context.Context, spec *job.StepSpec, node string) (*owner, error) {
	refuse := func(what, cause, hint string) error {
		return &refusal{job.Fault{What: what, Cause: cause, Hint: hint, Node: true}}
	}
	a, err := u.Accounts.ByID(ctx, spec.UID)
	uid := strconv.FormatUint(uint64(spec.UID), 10)
	switch {
	case errors.Is(err, account.ErrUnknown):
		return nil, refuse(fmt.Sprintf("node %s has no user %s, who is %s where the job was submitted", node, uid, spec.User), "getent passwd "+uid+" finds nobody there",
			"have the account made on "+node+", or its directory service reached; until then: scontrol update NodeName="+node+" State=DRAIN Reason=users")
	case err != nil:
		return nil, refuse(fmt.Sprintf("node %s cannot find out who user %s is", node, uid), err.Error(), "see whether the directory service of "+node+" runs: getent passwd "+uid)
	case a.Name != spec.User:
		return nil, refuse(fmt.Sprintf("user %s is %s on node %s, and %s where the job was submitted", uid, a.Name, node, spec.User), "", "have all hosts know the same users")
	case spec.GID == 0 && spec.UID != 0 && !a.Has(0):
		return nil, refuse(fmt.Sprintf("the job of user %s is to run in the group of root", a.Name), "user "+a.Name+" is not in it on node "+node, "")
	}
	groups := spec.Groups
	if len(groups) == 0 {
		groups = []uint32{spec.GID}
	}
	return &owner{UID: spec.UID, GID: spec.GID, Groups: groups, Name: a.Name, Home: a.Home, Shell: a.Shell}, nil
}

// soil notes that a supervisor of a user was killed: it may have left something.
func (u *Users) soil(uid uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.soiled == nil {
		u.soiled = map[uint32]bool{}
	}
	u.soiled[uid] = true
}

// takeSoiled are the users of whom that is so since it was last asked.
func (u *Users) takeSoiled() map[uint32]bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := u.soiled
	if all == nil {
		all = map[uint32]bool{}
	}
	u.soiled = map[uint32]bool{}
	return all
}

// node is the directory of a user's on this node, in which his steps are below "steps".
func (u *Users) node(uid uint32) string {
	return filepath.Join(u.Dir, strconv.FormatUint(uint64(uid), 10))
}

func (u *Users) run(uid uint32, key job.StepKey) string {
	return filepath.Join(u.node(uid), "steps", control.DirOf(key))
}

// make makes the directory that all users' are in.
func (u *Users) make() error {
	if u.Accounts == nil {
		u.Accounts = &account.Database{}
	}
	if err := os.MkdirAll(u.Dir, 0o711); err != nil {
		return fmt.Errorf("make directory of users' steps: %w", err)
	}
	if err := os.Chmod(u.Dir, 0o711); err != nil { // whatever the umask
		return fmt.Errorf("make directory of users' steps: %w", err)
	}
	for dir := u.Dir; ; dir = filepath.Dir(dir) {
		st, err := os.Lstat(dir)
		if err != nil {
			return fmt.Errorf("make directory of users' steps: %w", err)
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		switch {
		case !st.IsDir() || !ok || sys.Uid != 0, st.Mode()&0o022 != 0 && st.Mode()&fs.ModeSticky == 0:
			return fmt.Errorf("use %s for users' steps: %s is not root's alone to change", u.Dir, dir)
		case st.Mode()&0o001 == 0:
			return fmt.Errorf("use %s for users' steps: others may not pass %s; choose another one: --run-dir DIR", u.Dir, dir)
		}
		if dir == "/" {
			return nil
		}
	}
}

// room makes the directory of a user's step, which is root's until [Users.give].
func (u *Users) room(o *owner, key job.StepKey) error {
	node := u.node(o.UID)
	for _, dir := range []string{node, filepath.Join(node, "steps")} {
		if err := makeDir(dir, 0o711, 0, 0); err != nil {
			return err
		}
	}
	// What the steps of the user on this node share, see the verb step.
	for _, name := range []string{"programs", "containers", "cpus", "run"} {
		if err := makeDir(filepath.Join(node, name), 0o700, o.UID, o.GID); err != nil {
			return err
		}
	}
	dir := u.run(o.UID, key)
	// What lies there already is of a launch that was not finished, and the user's to change.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}

// makeDir makes a directory that somebody has, in one of root's.
func makeDir(dir string, mode fs.FileMode, uid, gid uint32) error {
	err := os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrExist) {
		return nil // nobody else could
	}
	if err == nil {
		err = errors.Join(os.Chmod(dir, mode), os.Lchown(dir, int(uid), int(gid)))
	}
	return err
}

// give makes a directory of root's with all that is in it a user's.
func (o *owner) give(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Lchown(filepath.Join(dir, e.Name()), int(o.UID), int(o.GID)); err != nil {
			return err
		}
	}
	return os.Lchown(dir, int(o.UID), int(o.GID)) // last: until then it is nobody's but root's
}

// become makes a program one of the user's, with his rights and no others.
func (o *owner) become(cmd *exec.Cmd, environ []string) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: o.UID, Gid: o.GID, Groups: o.Groups}
	cmd.Env = o.environ(environ)
}

// environ is what a program of the user's is told at first: of the agent's own environment
// only what is for everybody.
func (o *owner) environ(all []string) []string {
	var env []string
	for _, v := range all {
		name, _, _ := strings.Cut(v, "=")
		if slices.Contains([]string{
			"PATH", "LANG", "LC_ALL", "TZ", "GANGWAY_IMAGE_SERVICE", "SSL_CERT_FILE", "SSL_CERT_DIR",
			"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
		}, name) {
			env = append(env, v)
		}
	}
	env = append(env, "HOME="+o.Home, "USER="+o.Name, "LOGNAME="+o.Name, "SHELL="+o.Shell)
	dir := filepath.Join("/run/user", strconv.FormatUint(uint64(o.UID), 10))
	if st, err := os.Lstat(dir); err == nil && st.IsDir() {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid == o.UID {
			env = append(env, "XDG_RUNTIME_DIR="+dir)
		}
	}
	return env
}

// readAs reads a file that a user has written in his directory: he may have put anything there.
func readAs[T any](name string, uid uint32) (T, error) {
	var v T
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return v, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return v, fmt.Errorf("read %s: %w", name, err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.Mode().IsRegular() || sys.Uid != uid || st.Size() > control.MaxLine {
		return v, fmt.Errorf("read %s: it is not a file of user %d with at most %d bytes", name, uid, control.MaxLine)
	}
	b, err := io.ReadAll(io.LimitReader(f, control.MaxLine))
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read %s: %w", name, err)
	}
	return v, nil
}

// ownStep finds out whose the step is that is launched, and makes its directory.
func (s *supervisor) ownStep(ctx context.Context, spec *job.StepSpec) error {
	if s.users == nil {
		if own := os.Geteuid(); spec.UID != uint32(own) {
			return &refusal{job.Fault{
				What:  fmt.Sprintf("node %s runs steps of user %d only, and the job is user %d's (%s)", s.node, own, spec.UID, spec.User),
				Cause: "its agent was started with --mode=user, or not by root", Hint: "start it as root, or submit as user " + strconv.Itoa(own), Node: true,
			}}
		}
		return nil
	}
	o, err := s.users.ownerOf(ctx, spec, s.node)
	if err != nil {
		return err
	}
	if err := writeJSON(ctx, s.file(ownerFile), o); err != nil {
		return err
	}
	s.whose.Store(o)
	return s.users.room(o, s.key)
}

// findOwner reads whose a step is that an earlier agent launched.
func (s *supervisor) findOwner() {
	if s.users == nil {
		return
	}
	if o, err := readJSON[owner](s.file(ownerFile)); err == nil {
		s.whose.Store(&o)
	}
}

// owner is whose the step is; nil: this user's, or it is not known yet.
func (s *supervisor) owner() *owner { return s.whose.Load() }

// killProcess kills the supervising process, whatever its environment says by now.
func (s *supervisor) killProcess() {
	p, err := readJSON[process](s.file(control.PIDFile))
	if err != nil {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	if p.alive() { // and so the number is its own
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) // it may have ended
	}
}

// runDir is where the supervising process works.
func (s *supervisor) runDir() string {
	if o := s.owner(); o != nil {
		return s.users.run(o.UID, s.key)
	}
	return s.dir
}

// removeAll removes what a step has on disk.
func (s *supervisor) removeAll() error {
	if s.owner() == nil {
		return os.RemoveAll(s.dir)
	}
	// The agent's goes last: by it the user's is found.
	return errors.Join(os.RemoveAll(s.runDir()), os.RemoveAll(s.dir))
}

// dial connects to the supervising process.
func (s *supervisor) dial() (*control.Conn, error) {
	if o := s.owner(); o != nil {
		return control.DialAs(s.runDir(), o.UID)
	}
	return control.Dial(s.dir)
}

// lastWord is how the step ended, as the supervising process, or this one in its place, has
// written it down.
func (s *supervisor) lastWord() (job.StepEnd, error) {
	end, err := readJSON[job.StepEnd](s.file(control.EndFile))
	o := s.owner()
	if o == nil || !errors.Is(err, fs.ErrNotExist) {
		return end, err
	}
	return readAs[job.StepEnd](filepath.Join(s.runDir(), control.EndFile), o.UID)
}
