package proc

import (
	"errors"
	"io/fs"
	"os/exec"
	"testing"
)

// TestStartSession: a command leads a session without a terminal, is waited for, and what
// cannot be started is an error at once. That it ends with its caller is for the tests of
// hooks/user.
func TestStartSession(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `read -r pid name state parent group session tty rest < /proc/$$/stat; test $group,$session,$tty = $$,$$,0 && exit 7`)
	Confine(cmd)
	ended, err := StartSession(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := errors.AsType[*exec.ExitError](<-ended); !ok || e.ExitCode() != 7 {
		t.Errorf("it ended by %v", cmd.ProcessState)
	}
	cmd = exec.CommandContext(t.Context(), "/nonexistent")
	Confine(cmd)
	if _, err := StartSession(cmd); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
