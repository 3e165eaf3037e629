package proc

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

// TestChildren: a child is one from its start until it was waited for, also while it is dead.
func TestChildren(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := Children(os.Getpid()); !slices.Contains(got, cmd.Process.Pid) {
		t.Errorf("%v has no %d", got, cmd.Process.Pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := Children(os.Getpid()); !slices.Contains(got, cmd.Process.Pid) {
		t.Errorf("%v has no %d, which nobody has waited for", got, cmd.Process.Pid)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	if got := Children(os.Getpid()); slices.Contains(got, cmd.Process.Pid) {
		t.Errorf("%v has %d", got, cmd.Process.Pid)
	}
	if got := Children(cmd.Process.Pid); len(got) != 0 {
		t.Errorf("of nobody: %v", got)
	}
}
