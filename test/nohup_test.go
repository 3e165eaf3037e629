package test

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestNohup: signals that are ignored when gangway starts are not passed on, and the
// command begins with them ignored.
func TestNohup(t *testing.T) {
	p := newPerson(t)
	image := p.image(t, nil)
	host := p.start(t, image, "--container-name=host")
	defer host.stop(t)
	for name, args := range map[string][]string{
		"run":  {"run", "-q", "--container-image=" + image, "--"},
		"exec": {"exec", "host"},
	} {
		t.Run(name, func(t *testing.T) {
			gangway := p.command(append(args, "sh", "-c", "grep SigIgn /proc/self/status; trap 'echo USR1' USR1; echo up; n=0; while [ $n -lt 2 ]; do sleep 1000 & wait $!; n=$((n+1)); done")...)
			cmd := &exec.Cmd{Path: "/bin/sh", Args: append([]string{"sh", "-c", `trap '' HUP; exec "$@"`, "sh"}, gangway.Args...), Dir: gangway.Dir, Env: gangway.Env, SysProcAttr: gangway.SysProcAttr}
			var out output
			cmd.WaitDelay = time.Second // what it left behind in the container has its output
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			}()
			waitFor(t, func() bool { return strings.HasSuffix(out.String(), "up\n") })
			if name == "run" && !strings.Contains(out.String(), "SigIgn:\t0000000000000001\n") {
				t.Errorf("%q", out.String())
			}
			for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1} {
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			waitFor(t, func() bool { return strings.Contains(out.String(), "USR1") })
		})
	}
}
