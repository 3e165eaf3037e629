// Package test runs the built programs as people do. The scripts in testdata are
// testscript files: commands, and what they must print and leave behind. To add a
// case, add lines to the script of its feature.
//
// The scripts see $VERSION, the stamped version, and $REGISTRY, the address of a
// registry (registry_test.go); programs gangway and gangwayd are on their PATH.
// Nothing here may be skipped: what a script needs is always there.
package test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

const version = "v1.2.3-test"

func TestScripts(t *testing.T) {
	watchSources(t)
	bin := t.TempDir()
	const stamp = "github.com/gangway-hpc/gangway/internal/cli."
	build := exec.Command("go", "build", "-trimpath", "-o", bin,
		"-ldflags=-s -w -X "+stamp+"version="+version+" -X "+stamp+"commit=0123456789abcdef -X "+stamp+"date=2026-01-02T03:04:05Z",
		"../cmd/gangway", "../cmd/gangwayd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	registry := startRegistry(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		WorkdirRoot:         publicDir(t), // for the command "user"
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("VERSION", version)
			env.Setenv("REGISTRY", registry)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"user":  asUser,
		},
	})
}

// watchSources looks at every source file. "go test" repeats an old result unless a
// file changed that the test process itself has looked at, and the programs are
// built by another process.
func watchSources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"../cmd", "../hooks", "../image", "../internal", "../launcher", "../runtime", "../sched", "../squashfs", "../go.mod"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// exits is the script command "exits CODE PROGRAM ARG...": it runs a program, which
// must exit with CODE. Its output is there for "cmp stdout FILE" afterwards.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	// The shell takes the code, as a user's script would.
	script := `"$@" >"$WORK/.out" 2>"$WORK/.err"; code=$?; cat "$WORK/.out"; cat "$WORK/.err" >&2; test $code = ` + args[0] + ` || { echo "exit $code" >&2; exit 1; }`
	ts.Check(ts.Exec("sh", append([]string{"-c", script, "sh"}, args[1:]...)...))
}

// asUser is the script command "user PROGRAM ARG...": it runs a program as an ordinary
// user, with a home and a store of his in $WORK/user. "! user ..." wants it to fail.
func asUser(ts *testscript.TestScript, neg bool, args []string) {
	home := ts.MkAbs("user")
	ts.Check(os.MkdirAll(home, 0o755))
	command := append([]string{"env", "HOME=" + home, "GANGWAY_STORE=" + filepath.Join(home, "store"), "GANGWAY_RUNTIME_DIR=" + filepath.Join(home, "run")}, args...)
	if os.Geteuid() == 0 {
		ts.Check(os.Chown(home, 65534, 65534))
		command = append([]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, command...)
	}
	if err := ts.Exec(command[0], command[1:]...); neg == (err == nil) {
		ts.Fatalf("user %q: %v, and that was not to be", args, err)
	}
}

// TestScriptsCannotSkip keeps conditions and skips out of the scripts, and scripts
// in the folder.
func TestScriptsCannotSkip(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(scripts) < 5 {
		t.Fatalf("scripts: %v, %v", scripts, err)
	}
	skips := regexp.MustCompile(`(?m)^(skip|stop|\[)`)
	for _, name := range scripts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		commands, _, _ := strings.Cut(string(text), "\n-- ")
		if bad := skips.FindString(commands); bad != "" {
			t.Errorf("%s: %q: a script may not leave out anything", name, bad)
		}
	}
}
