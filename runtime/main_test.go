package runtime

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/gangway-hpc/gangway/internal/usertest"
)

// helperVariable makes the test binary be something else.
const helperVariable = "GANGWAY_RUNTIME_HELPER"

// TestMain runs the tests as an ordinary user, or a part that a test plays.
func TestMain(m *testing.M) {
	if part := os.Getenv(helperVariable); part != "" {
		if err := helper(part, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(usertest.Main(m))
}

// again is a command that runs this program as a helper.
func again(t testing.TB, part string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), helperVariable+"="+part)
	return cmd
}
