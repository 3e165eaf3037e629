package usertest_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/gangway-hpc/gangway/internal/usertest"
)

func TestMain(m *testing.M) { os.Exit(usertest.Main(m)) }

// TestOrdinary: the tests of this package have an ordinary user's rights, a home and a
// temporary directory, can start themselves, and inherit nothing.
func TestOrdinary(t *testing.T) {
	if os.Geteuid() == 0 || os.Getegid() == 0 {
		t.Error("this is root")
	}
	if err := os.WriteFile(os.Getenv("HOME")+"/x", nil, 0o600); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(t.TempDir()+"/x", nil, 0o600); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if link, err := os.Readlink("/proc/self/fd/3"); err == nil && link == os.Args[0] {
		t.Error("the program was left open")
	}
}
