package test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// ignoring makes a command begin with signals ignored, as nohup does.
func ignoring(cmd *exec.Cmd, signals string) *exec.Cmd {
	args := append([]string{"sh", "-c", "trap '' " + signals + `; exec "$@"`, "sh"}, cmd.Args...)
	return &exec.Cmd{Path: "/bin/sh", Args: args, Dir: cmd.Dir, Env: cmd.Env, SysProcAttr: cmd.SysProcAttr}
}

// TestNohup: signals that are ignored when gangway starts are not passed on, and the
// command begins with them ignored: those of its own gangway, and no others.
func TestNohup(t *testing.T) {
	p := newPerson(t)
	j := &job{p, p.image(t, nil), "host"}
	inBackground(t, ignoring(j.rank(nil, "touch /tmp/up; exec sleep 1000"), "INT"))
	j.await(t, "/tmp/up")
	const look = "grep SigIgn /proc/self/status; " // not the last, which the shell becomes, with signals of its own
	const own = "^SigIgn:\t0000000000000001\n"
	const script = look + "trap 'echo USR1' USR1; echo up; n=0; while [ $n -lt 2 ]; do sleep 1000 & wait $!; n=$((n+1)); done"
	for name, cmd := range map[string]*exec.Cmd{
		"run":  p.command("run", "-q", "--container-image="+j.image, "--", "sh", "-c", script),
		"exec": p.command("exec", j.name, "sh", "-c", script),
		"rank": j.rank(nil, script),
	} {
		t.Run(name, func(t *testing.T) {
			b := inBackground(t, ignoring(cmd, "HUP"))
			waitFor(t, func() bool { return strings.HasSuffix(b.out.String(), "up\n") })
			if !matches(own, b.out.String()) {
				t.Errorf("%q", b.out.String())
			}
			b.signal(t, syscall.SIGHUP)
			b.signal(t, syscall.SIGUSR1)
			waitFor(t, func() bool { return strings.Contains(b.out.String(), "USR1") })
		})
	}
	outcomeOf(t, p.command("exec", j.name, "sh", "-c", look+"true")).want(t, 0, "^SigIgn:\t0000000000000000\n$", "")
	outcomeOf(t, j.rank(nil, look+"true")).want(t, 0, "^SigIgn:\t0000000000000000\n$", "")
}
