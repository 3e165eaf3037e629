// Package usertest lets the tests of rootless features run as an ordinary user, also
// where "go test" is root's, as it is in CI.
//
//	func TestMain(m *testing.M) { os.Exit(usertest.Main(m)) }
//
// It is for tests only and starts one process. It makes no account: the user is a number
// that nobody has, which is what a cluster without its directory service looks like.
package usertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ID is the user and the group that root's tests become.
const ID = 64321

// marker is in the environment of a program that was started again.
const marker = "GANGWAY_USERTEST"

// Main runs the tests, and returns the exit status. Where the caller is root it runs
// this program again as an ordinary user with a home and a temporary directory of its
// own, in which it also stands: files beside the test are not to be had there.
//
// /dev/fuse becomes everybody's first, as distributions have it. Tests that start
// themselves again must do so by the name /proc/self/exe: os.Executable names a file
// that the user may not see.
//
// Fuzzing stays root's: its corpus is in root's cache, and what is fuzzed are decoders.
func Main(m *testing.M) int {
	fuzzes := slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz=") })
	if os.Geteuid() != 0 || fuzzes {
		if os.Getenv(marker) != "" {
			_ = syscall.Close(3) // this program, see again
			_ = os.Unsetenv(marker)
		}
		return m.Run()
	}
	code, err := again()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests as an ordinary user:", err)
		return 1
	}
	return code
}

func again() (code int, err error) {
	if err := os.Chmod("/dev/fuse", 0o666); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	home, err := os.MkdirTemp("", "usertest-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	tmp := filepath.Join(home, "tmp")
	for _, dir := range []string{tmp, filepath.Join(home, "run")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return 0, err
		}
		if err := os.Chown(dir, ID, ID); err != nil {
			return 0, err
		}
	}
	if err := os.Chown(home, ID, ID); err != nil {
		return 0, err
	}
	// "go test" puts the program where only root may look, so it is handed on open.
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	defer program.Close()
	cmd := &exec.Cmd{
		Path:       "/proc/self/fd/3",
		Args:       slices.DeleteFunc(slices.Clone(os.Args), isRoots),
		Dir:        home,
		Env:        append(os.Environ(), "HOME="+home, "TMPDIR="+tmp, "XDG_RUNTIME_DIR="+filepath.Join(home, "run"), "XDG_CACHE_HOME=", "XDG_DATA_HOME=", "USER=usertest", marker+"=1"),
		Stdin:      os.Stdin,
		Stdout:     os.Stdout,
		Stderr:     os.Stderr,
		ExtraFiles: []*os.File{program},
		SysProcAttr: &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: ID, Gid: ID},
			Pdeathsig:  syscall.SIGKILL,
		},
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// isRoots says whether an argument makes "go test" write a file where only root may: what
// tests covered is known of those only that need no ordinary user.
func isRoots(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name == "test.testlogfile" || name == "test.gocoverdir" || name == "test.coverprofile"
}
