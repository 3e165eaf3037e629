package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/proc"
)

// What needs namespaces is done by this program started anew: a process with several
// threads, as every program in Go is, cannot enter a user namespace.

// step is one thing that such a process did. It is written before and after, so that
// the one in which it hangs has a name.
type step struct {
	What  string        `json:"what"`
	Done  bool          `json:"done"`
	Errno syscall.Errno `json:"errno,omitempty"`
	Error string        `json:"error,omitempty"`
}

// trial is what came of such a process.
type trial struct {
	steps []step
	start syscall.Errno // where it could not be started
	end   string        // how it ended, if not well
}

// failed returns the step that did not succeed.
func (t *trial) failed() (step, bool) {
	for _, s := range t.steps {
		if !s.Done || s.Errno != 0 || s.Error != "" {
			return s, true
		}
	}
	return step{}, false
}

// text is the steps for people.
func (t *trial) text() string {
	steps := t.steps
	// All begin alike; what they are for comes later.
	if n := slices.IndexFunc(steps, func(s step) bool { return strings.HasPrefix(s.What, "mount ") }); n > 0 {
		steps = steps[n:]
	}
	var names []string
	for _, s := range steps {
		names = append(names, s.What)
	}
	return strings.Join(names, ", ")
}

// finding is ok if every step was done, and else says which was not.
func (t *trial) finding() Finding {
	f := Finding{Result: OK, Tried: t.text(), Got: "works"}
	if t.start != 0 {
		f.Result, f.Tried, f.Got = Unknown, "start a process in new namespaces", t.start.Error()
		return f
	}
	if s, bad := t.failed(); bad {
		f.Result, f.Got = Degraded, s.What+": "+s.Error
		if !s.Done {
			f.Result, f.Got = Unknown, s.What+": no answer; the process "+t.end
		}
		return f
	}
	if t.end != "" || len(t.steps) == 0 {
		f.Result, f.Got = Unknown, "the process "+t.end
	}
	return f
}

// capabilities are what a process in a namespace of its own keeps when it becomes this
// program again.
func capabilities() []uintptr {
	return []uintptr{
		unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETUID, unix.CAP_SETGID,
		unix.CAP_SETPCAP, unix.CAP_SYS_CHROOT, unix.CAP_SYS_ADMIN, unix.CAP_MKNOD, unix.CAP_NET_ADMIN,
	}
}

// command is the process that runs the probe name. flags are the namespaces that are
// made for it.
func (e *examination) command(ctx context.Context, name string, flags uintptr) *exec.Cmd {
	args := slices.Concat(e.Args, []string{name, strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Getegid()), existing(e.TempDir)})
	cmd := exec.CommandContext(ctx, e.Program, args...)
	proc.Confine(cmd)
	cmd.Dir = "/"
	cmd.SysProcAttr.Cloneflags = flags
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if flags&^syscall.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.AmbientCaps = capabilities()
	}
	return cmd
}

// try runs the probe name and returns what it did.
func (e *examination) try(ctx context.Context, name string, flags uintptr) trial {
	var stdout, stderr bytes.Buffer
	cmd := e.command(ctx, name, flags)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return notStarted(err)
	}
	return ended(ctx, cmd.Wait(), &stdout, &stderr)
}

func notStarted(err error) trial {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return trial{start: errno}
	}
	return trial{end: "was not started: " + err.Error()}
}

func ended(ctx context.Context, err error, stdout, stderr *bytes.Buffer) trial {
	var t trial
	for line := range strings.Lines(stdout.String()) {
		var s step
		if json.Unmarshal([]byte(line), &s) != nil {
			t.end = fmt.Sprintf("wrote %.60q", line)
			return t
		}
		if n := len(t.steps); s.Done && n > 0 {
			t.steps[n-1] = s
		} else {
			t.steps = append(t.steps, s)
		}
	}
	switch {
	case ctx.Err() != nil:
		t.end = "was ended when its time was up"
	case err != nil:
		t.end = "ended: " + err.Error()
		if text := strings.TrimSpace(stderr.String()); text != "" {
			t.end += fmt.Sprintf(": %.200s", text)
		}
	}
	return t
}

// namespaces tries out what every container needs: a user namespace, ids in it, and
// mounts. Each is tried only where that before it works.
func (e *examination) namespaces(ctx context.Context) []Finding {
	user := Finding{Name: nameUserNS, Result: OK, Tried: "start a process in a new user namespace", Got: "works"}
	maps := Finding{Name: nameMaps, Result: Unknown, Tried: "nothing", Got: "not tried: it needs a user namespace"}
	mounts := Finding{Name: nameMounts, Result: Unknown, Tried: "nothing", Got: "not tried: it needs ids in a user namespace"}
	const consequence = "no container can be started by an ordinary user"
	if t := e.try(ctx, "hello", syscall.CLONE_NEWUSER); t.start != 0 {
		why := e.facts.created(t.start)
		user.Result, user.Got = Missing, t.start.Error()
		user.Cause, user.Consequence, user.Remedy = why.cause, consequence, why.remedy
		return []Finding{user, maps, mounts}
	} else if f := t.finding(); f.Result != OK {
		// The namespace is not to blame where the program cannot be started at all.
		user.Result, user.Got, user.Consequence = Unknown, f.Got, "it is not known whether containers start"
		return []Finding{user, maps, mounts}
	}

	t := e.try(ctx, "mounts", syscall.CLONE_NEWUSER|syscall.CLONE_NEWNS|syscall.CLONE_NEWPID|syscall.CLONE_NEWIPC)
	maps = Finding{Name: nameMaps, Result: OK, Tried: "write setgroups, uid_map and gid_map", Got: "works"}
	mounts.Tried, mounts.Got = t.text(), "works"
	mounts.Result = OK
	f := t.finding()
	if f.Result == OK {
		return []Finding{user, maps, mounts}
	}
	at, why := &mounts, refusal{}
	if t.start != 0 {
		at.Tried = "start a process in new user, mount, pid and ipc namespaces"
		why = e.facts.late(t.start)
	} else if s, bad := t.failed(); bad {
		if isMap(s.What) {
			at = &maps
			mounts.Result, mounts.Tried, mounts.Got = Unknown, "nothing", "not tried: it needs ids in a user namespace"
		}
		why = e.facts.late(s.Errno)
	}
	at.Result, at.Got = Missing, f.Got
	at.Cause, at.Consequence, at.Remedy = why.cause, consequence, why.remedy
	return []Finding{user, maps, mounts}
}

func isMap(what string) bool { return strings.HasPrefix(what, "write ") }

// held starts a process that stays in a user namespace without ids until stop is
// called.
func (e *examination) held(ctx context.Context) (pid int, stop func(), err error) {
	cmd := e.command(ctx, "wait", syscall.CLONE_NEWUSER)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	return cmd.Process.Pid, func() {
		_ = stdin.Close() // it ends by that
		cmd.WaitDelay = time.Second
		_ = cmd.Wait() // how does not matter
	}, nil
}
