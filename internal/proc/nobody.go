package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nobody is the user, and the group, of programs that take apart what strangers wrote
// where root starts them: it owns nothing.
const Nobody = 65534

// IsRoot says whether this process has the rights of the machine's root. Root in a user
// namespace may be an ordinary user outside, who has no more rights than that; what
// "unshare -r" makes of root is root still.
func IsRoot() bool { return os.Geteuid() == 0 && !inUserNamespace() }

func inUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" {
			return err == nil && f[1] != "0"
		}
	}
	return false
}

// AsNobody makes a command run as Nobody: in no group, without a terminal and without
// an environment, in "/", with no files but those it is given. It is killed when the
// thread that starts it ends, with the program at the latest: who needs it for long
// starts it by a goroutine that keeps its thread (runtime.LockOSThread). Its first deed
// is to be Renounce.
func AsNobody(cmd *exec.Cmd) {
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: Nobody, Gid: Nobody, Groups: []uint32{}},
		// A session of its own has no terminal, into which it could type.
		Pdeathsig: syscall.SIGKILL, Setsid: true,
	}
	CloseOnExec()
}

// Renounce is called by a program that AsNobody started, for itself: nothing that it
// becomes has more rights, and no other process of the same user looks into it. It is
// an error where it has rights that it should not have.
func Renounce() error {
	if os.Geteuid() == 0 {
		return errors.New("give up rights: this is root, and was to be another user")
	}
	if err := noNewPrivileges(); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("be hidden from other processes: %w", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("look for capabilities: %w", err)
	}
	if have := caps[0].Permitted | caps[1].Permitted; have != 0 {
		return errors.New("give up rights: some capabilities are left")
	}
	return nil
}

// noNewPrivileges keeps all threads of this process, not only the calling one, from
// more rights.
func noNewPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno == syscall.ENOTSUP { // linked with C
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if errno != 0 {
		return errno
	}
	return nil
}

// Excerpt keeps the begin of what is written to it, 64 KiB: what a program said last is
// seldom why it failed. The zero value is ready; it is not for concurrent use.
type Excerpt struct{ b []byte }

const excerpt = 1 << 16

// Write implements io.Writer. It takes everything.
func (e *Excerpt) Write(p []byte) (int, error) {
	e.b = append(e.b, p[:min(len(p), excerpt-len(e.b))]...)
	return len(p), nil
}

// Bytes returns what was kept.
func (e *Excerpt) Bytes() []byte { return e.b }
