package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// gangway runs the program with variables of the environment in front of its arguments,
// in a directory of its own.
func gangway(t *testing.T, environ map[string]string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	home := t.TempDir()
	var out, errs bytes.Buffer
	env := cli.OSEnv()
	env.Stdin, env.Stdout, env.Stderr = strings.NewReader(""), &out, &errs
	env.Getenv = func(name string) string {
		if value, ok := environ[name]; ok {
			return value
		}
		return map[string]string{"HOME": home, "GANGWAY_RUNTIME_DIR": home + "/run", "GANGWAY_STORE": home + "/store"}[name]
	}
	code = program().Run(t.Context(), env, args)
	return code, out.String(), errs.String()
}

// refused runs what must end as a wrong command line, and checks what is said.
func refused(t *testing.T, environ map[string]string, command string, words ...string) {
	t.Helper()
	code, _, stderr := gangway(t, environ, strings.Fields(command)...)
	if code != fault.CodeUsage {
		t.Errorf("%s: exit code %d", command, code)
	}
	for _, word := range append(words, "hint:") {
		if !strings.Contains(stderr, word) {
			t.Errorf("%s: no %q in:\n%s", command, word, stderr)
		}
	}
}

// TestOptionsTwice: as for Pyxis, an option's value is not empty, and another value
// later is refused; the same is not.
func TestOptionsTwice(t *testing.T) {
	for _, c := range []struct{ option, one, two string }{
		{"container-image", "./one.sqsh", "./two.sqsh"},
		{"container-workdir", "/one", "/two"},
		{"container-name", "one", "two"},
		{"container-save", "one.sqsh", "two.sqsh"},
		{"container-env", "ONE", "TWO"},
		{"container-unshare", "net", "uts"},
		{"export", "ALL", "NONE"},
		{"container-mounts", "/etc", ""},
		{"env", "ONE", ""},
	} {
		t.Run(c.option, func(t *testing.T) {
			name := "--" + c.option
			refused(t, nil, "run --container-image=./gone.sqsh "+name+"= -- true", name, "empty")
			if c.two != "" {
				refused(t, nil, "run "+name+"="+c.one+" "+name+"="+c.two+" -- true", name, c.one, c.two, "once")
				refused(t, nil, "run "+name+"="+c.one+" "+name+"="+c.one+" --pull=soon -- true", "--pull")
			}
		})
	}
	refused(t, nil, "run --container-mounts=/etc, -- true", "entry is empty")
	// The environment's is another's, which the command line overrides.
	refused(t, map[string]string{"PYXIS_CONTAINER_WORKDIR": "/one"}, "run --container-workdir=/two --pull=soon -- true", "--pull")
	refused(t, map[string]string{"PYXIS_CONTAINER_MOUNTS": "/etc,"}, "run -- true", "entry is empty")
}

// TestBadCommandLines: each says what is wrong with it, and what to write.
func TestBadCommandLines(t *testing.T) {
	for command, words := range map[string]string{
		"run true --container-image=debian":                        "no image is named|flags go before the command|-- true",
		"run --export=A,,B --container-image=x -- true":            "export|empty",
		"run --export=A;B --container-image=x -- true":             "export|A;B",
		"run -e =x --container-image=x -- true":                    "env",
		"run --container-root-size=1G --container-image=x -- true": "--container-root-size|--container-writable",
		"run --container-root-size=1G --container-name=n -- true":  "--container-root-size|name",
		"run --container-mounts=tmpfs:/dev/null -- true":           "/dev/null",
		"exec":                         "NAME|PID",
		"exec dev":                     "CMD|usage: gangway exec [flags] NAME",
		"exec dev --":                  "CMD",
		"exec -e =x dev -- true":       "env",
		"exec -w here dev -- true":     "--container-workdir|--container-workdir=/here",
		"doctor --fix=":                "--fix|apparmor",
		"doctor --registry http://":    "http://|HOST",
		"doctor --registry=":           "HOST",
		"doctor --registry https:///x": "HOST",
	} {
		refused(t, nil, command, strings.Split(words, "|")...)
	}
	for _, name := range []string{"GANGWAY_RUNTIME_DIR", "GANGWAY_CONTAINERS"} {
		refused(t, map[string]string{name: "some/dir"}, "container ls", name, "absolute")
	}
}

// TestTwinsInHelp: the variables that set options are listed where people look.
func TestTwinsInHelp(t *testing.T) {
	code, stdout, _ := gangway(t, nil, "run", "--help")
	for _, line := range []string{"PYXIS_CONTAINER_IMAGE ", "PYXIS_CONTAINER_READONLY ", "Usage:\n  gangway run [flags] [--] [CMD...]\n"} {
		if code != 0 || !strings.Contains(stdout, line) {
			t.Errorf("no %q in:\n%s", line, stdout)
		}
	}
}

// TestCompletion: shells are told the words of flags.
func TestCompletion(t *testing.T) {
	for command, word := range map[string]string{
		"run --pull ": "never", "run --pid ": "host", "doctor --fix ": "apparmor", "run --container-image ": ":0", "exec ": ":4", "container rm ": ":4", "run --container-name ": ":4",
	} {
		code, stdout, stderr := gangway(t, nil, append([]string{"__complete"}, strings.Split(command, " ")...)...)
		if code != 0 || !strings.Contains(stdout, word+"\n") {
			t.Errorf("%s: exit code %d, no %q in %q, %s", command, code, word, stdout, stderr)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"1m": 1 << 20, "2k": 2 << 10, "1g": 1 << 30, "1t": 1 << 40, "1M": 1 << 20, "1kB": 1000, "1mB": 1000000, "7": 7, "1.5G": 3 << 29} {
		if n, err := cli.ParseSize(text); n != want || err != nil {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "m", "1mm", "1e3", "-1", "1x"} {
		if n, err := cli.ParseSize(text); err == nil {
			t.Errorf("%s: %d", text, n)
		}
	}
}
