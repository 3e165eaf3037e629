package doctor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/doctor"
)

// parser stands for AppArmor's of some version: it understands what its script says, and
// keeps what it was called with.
func parser(t *testing.T, script string) (path, log string) {
	t.Helper()
	dir := t.TempDir()
	path, log = filepath.Join(dir, "apparmor_parser"), filepath.Join(dir, "log")
	script = "#!/bin/sh\necho \"$@\" >>" + log + "\n" + script
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, log
}

const (
	understands = "exit 0\n"
	before4     = "if grep -q -e abi/4.0 -e userns, ${2:+$([ \"$1\" = -r ] && echo $2)}; then echo 'syntax error, unexpected TOK_ID' >&2; exit 1; fi\n"
	refuses     = "echo 'Access denied. You need policy admin privileges' >&2; exit 1\n"
)

// rootsProgram is a file that only root can change.
const rootsProgram = "/usr/bin/env"

func TestFixAppArmor(t *testing.T) {
	const restrict, module = "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "sys/module/apparmor/parameters/enabled"
	restricted := map[string]string{restrict: "1\n", module: "Y\n", "etc/apparmor.d/x": ""}
	free := map[string]string{module: "Y\n", "etc/apparmor.d/x": ""}
	cases := []struct {
		name, parser, program string
		files                 map[string]string
		err, hint, text       string
	}{
		{"installs", understands, rootsProgram, restricted, "", "", "userns,"},
		{"installs where it is not needed yet", understands, rootsProgram, free, "", "", "abi <abi/4.0>,"},
		{"older AppArmor", before4, rootsProgram, restricted, "", "", "flags=(unconfined) {"},
		{"older AppArmor that restricts nothing", before4, rootsProgram, free, "TOK_ID", "nothing is to be mended", ""},
		{"no AppArmor", understands, rootsProgram, map[string]string{}, "runs without AppArmor", "gangway doctor", ""},
		{"no rights", refuses, rootsProgram, restricted, "policy admin privileges", "", ""},
		{"program that is the user's", understands, "/proc/self/exe", restricted, "others than root can change it", "sudo install", ""},
		{"program that is not there", understands, "/nowhere/gangway", restricted, "no such file", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.files)
			path, log := parser(t, c.parser)
			if c.program == "/proc/self/exe" {
				c.program = filepath.Join(t.TempDir(), "gangway")
				if err := os.WriteFile(c.program, nil, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			done, err := doctor.FixAppArmor(t.Context(), doctor.AppArmor{Root: root, Program: c.program, Parser: path})
			text, readErr := os.ReadFile(filepath.Join(root, "etc/apparmor.d/gangway"))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(fault.Text("gangway", err, false), c.hint) {
					t.Errorf("error %v", err)
				}
				if readErr == nil {
					t.Errorf("a profile was written: %s", text)
				}
				return
			}
			calls, logErr := os.ReadFile(log)
			if err := errors.Join(err, readErr, logErr); err != nil {
				t.Fatal(err)
			}
			if !done.Loaded || !strings.Contains(string(text), c.text) || !strings.Contains(string(text), `profile gangway "`) {
				t.Errorf("%+v\n%s", done, text)
			}
			if c.parser == before4 && (strings.Contains(string(text), "userns,") || strings.Contains(string(text), "abi")) {
				t.Errorf("a profile for AppArmor 4:\n%s", text)
			}
			if !strings.HasSuffix(strings.TrimSpace(string(calls)), "-r "+done.File) {
				t.Errorf("parser was called with\n%s", calls)
			}
		})
	}
}

// TestFixNeedsRoot: on the machine itself an ordinary user is told the command.
func TestFixNeedsRoot(t *testing.T) {
	_, err := doctor.FixAppArmor(t.Context(), doctor.AppArmor{})
	text := ""
	if err != nil {
		text = fault.Text("gangway", err, false)
	}
	if !strings.Contains(text, "sudo gangway doctor --fix apparmor") && !strings.Contains(text, "runs without AppArmor") {
		t.Errorf("error %v: %s", err, text)
	}
}

func TestProfile(t *testing.T) {
	for program, path := range map[string]string{
		"/usr/bin/gangway":       `"/usr/bin/gangway"`,
		"/opt/a b/gang*[x]{y}@?": `"/opt/a b/gang\*\[x\]\{y\}\@\?"`,
	} {
		if text := doctor.Profile(program); !strings.Contains(text, "profile gangway "+path+" flags=(unconfined) {\n  userns,\n") {
			t.Errorf("profile of %s:\n%s", program, text)
		}
	}
}
