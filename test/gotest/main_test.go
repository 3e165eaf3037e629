package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRun runs go test on a small module of its own with a test of every kind.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"ok/ok_test.go": `package ok
import "testing"
func TestQuiet(t *testing.T) { t.Log("nobody reads this") }
func TestShown(t *testing.T) { t.Log("everybody reads this") }
func TestA(t *testing.T) { t.Skip("needs: a GPU") }
func TestB(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Skip("needs: a GPU") }) }
func TestC(t *testing.T) { t.SkipNow() }
`,
		"bad/bad_test.go": `package bad
import "testing"
func TestBad(t *testing.T) { t.Error("the reason") }
`,
		"crash/crash_test.go": `package crash
import ("os"; "testing"; "fmt")
func TestCrash(t *testing.T) { fmt.Println("last words"); os.Exit(3) }
`,
		"broken/broken_test.go": "package broken\nvar x int = \"no\"\n",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)

	var out strings.Builder
	code, err := run([]string{"-timeout", "5m", "-show", "^TestShown$", "./..."}, &out)
	if err != nil || code != 1 {
		t.Errorf("exit %d, %v; want 1", code, err)
	}
	for _, want := range []string{
		"ok  \tm/ok\t", "FAIL\tm/bad\t", "bad_test.go:3: the reason", "last words", "cannot use \"no\"",
		"everybody reads this", "skipped 2: needs: a GPU (ok.TestA, ok.TestB/sub)\n", "skipped 1: no reason given (ok.TestC)\n",
		"3 passed, 2 failed, 3 skipped\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	for _, unwanted := range []string{"nobody reads this", "PASS\n", "=== RUN"} {
		if strings.Contains(out.String(), unwanted) {
			t.Errorf("the report contains %q", unwanted)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}

	out.Reset()
	if code, err := run([]string{"./ok"}, &out); err != nil || code != 0 {
		t.Errorf("all pass: exit %d, %v\n%s", code, err, out.String())
	}
}

// TestAgain: what fails once is run again and named; what fails twice, or with a proof
// that it is no accident, fails.
func TestAgain(t *testing.T) {
	once := `package once
import ("os"; "testing")
func TestOnce(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if _, err := os.Stat("was-here"); err != nil {
			os.WriteFile("was-here", nil, 0o644)
			t.Fatal("REASON")
		}
	})
}
func TestOther(t *testing.T) {}
`
	tests := []struct {
		name, more string
		reason     string
		code       int
		want       string
	}{
		{"once", "", "busy machine", 0, "passed, 0 failed, 0 skipped\nunsteady 1: failed, and passed when run again alone (once.TestOnce)\n"},
		{"twice", "func TestBad(t *testing.T) { t.Error(1) }\n", "busy machine", 1, "again, alone: once.TestBad\n"},
		{"race", "", "WARNING: DATA RACE", 1, " failed, 0 skipped\n"},
		{"random", "", "[rapid] failed after 3 tests: no", 1, " failed, 0 skipped\n"},
		{"crash", "func TestCrash(t *testing.T) { os.Exit(3) }\n", "busy machine", 1, " failed, 0 skipped\n"},
		{"many", "func TestM1(t *testing.T) { t.Error(1) }; func TestM2(t *testing.T) { t.Error(1) }; func TestM3(t *testing.T) { t.Error(1) }; func TestM4(t *testing.T) { t.Error(1) }; func TestM5(t *testing.T) { t.Error(1) }\n", "busy machine", 1, "0 skipped\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			text := strings.ReplaceAll(once, "REASON", test.reason) + test.more
			if err := errors.Join(os.WriteFile("go.mod", []byte("module m\n\ngo 1.26\n"), 0o644), os.Mkdir("once", 0o755), os.WriteFile("once/once_test.go", []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			code, err := run([]string{"-again", "./..."}, &out)
			if err != nil || code != test.code || !strings.Contains(out.String(), test.want) {
				t.Errorf("exit %d, %v, want %d and %q:\n%s", code, err, test.code, test.want, out.String())
			}
			if retried := strings.Contains(out.String(), "again, alone: "); retried != strings.Contains("once twice", test.name) {
				t.Errorf("run again: %t\n%s", retried, out.String())
			}
		})
	}
}
