package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestMain makes the test binary a program, for tests of whole processes.
func TestMain(m *testing.M) {
	if os.Getenv("CLI_TEST_PROGRAM") != "" {
		cli.Main(toy())
	}
	os.Exit(m.Run())
}

// toy is a program with a verb of every kind.
func toy() cli.Program {
	return cli.Program{
		Name: "toy", Short: "play", Example: "toy echo hello",
		Verbs: []cli.Verb{echoVerb, failVerb, waitVerb, listVerb, cli.Version, cli.Completion, cli.Man},
	}
}

func echoVerb(env *cli.Env) *cobra.Command {
	c := &cobra.Command{Use: "echo WORD [MORE...]", Short: "print words", SuggestFor: []string{"say"}}
	upper := c.Flags().BoolP("upper", "u", false, "in capitals")
	c.Flags().Int("number", 0, "how often")
	c.RunE = func(_ *cobra.Command, args []string) error {
		text := strings.Join(args, " ")
		if *upper {
			text = strings.ToUpper(text)
		}
		_, err := fmt.Fprintln(env.Stdout, text)
		return err
	}
	return c
}

func failVerb(env *cli.Env) *cobra.Command {
	return &cobra.Command{Use: "fail", Short: "fail after some output", RunE: func(*cobra.Command, []string) error {
		fmt.Fprintln(env.Stdout, "some output")
		return fmt.Errorf("play: %w", &fault.Error{What: syscall.EPERM, Cause: "rain", Hint: "wait", See: env.Program + " help", Code: 13})
	}}
}

// waitVerb waits for the end of its context and then returns what echo's verbs do.
func waitVerb(env *cli.Env) *cobra.Command {
	return &cobra.Command{Use: "wait", Short: "wait", RunE: func(c *cobra.Command, _ []string) error {
		done := c.Context().Done() // from here on signals are caught
		fmt.Fprintln(env.Stderr, "waiting")
		<-done
		return fmt.Errorf("wait: %w", c.Context().Err())
	}}
}

type toyThing struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

func (t toyThing) Text(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s is %d big\n", t.Name, t.Size)
	return err
}

// listVerb is a group, as "gangway image" is one.
func listVerb(env *cli.Env) *cobra.Command {
	all := &cobra.Command{Use: "all", Short: "list all"}
	out := cli.NewReporter(env, all)
	all.RunE = func(*cobra.Command, []string) error {
		return errors.Join(out.Record(toyThing{"a<b", 1}), out.Record(toyThing{"c", 2}))
	}
	secret := &cobra.Command{Use: "secret", Hidden: true, RunE: func(*cobra.Command, []string) error { return nil }}
	group := &cobra.Command{Use: "list", Short: "list things"}
	group.AddCommand(all, secret)
	return group
}

// run runs toy in this process.
func run(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, talk bytes.Buffer
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk,
		Getenv: func(string) string { return "" },
		Now:    func() time.Time { return time.Unix(0, 0) },
	}
	code = toy().Run(ctx, env, args)
	return code, out.String(), talk.String()
}

func TestRun(t *testing.T) {
	cases := []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"echo hello world", 0, "hello world\n", ""},
		{"echo -u hello", 0, "HELLO\n", ""},
		{"list all", 0, "a<b is 1 big\nc is 2 big\n", ""},
		{"list all --json", 0, `{"name":"a<b","size":1}` + "\n" + `{"name":"c","size":2}` + "\n", ""},
		{"list secret", 0, "", ""},
		{"fail", 13, "some output\n", "toy: error: play: operation not permitted\ntoy: cause: rain\ntoy: hint:  wait\ntoy: see:   toy help\n"},

		// What a person may have meant.
		{"ecko", 2, "", "toy: error: unknown command \"ecko\" for toy\ntoy: hint:  did you mean: toy echo\n"},
		{"ehco -u x", 2, "", "toy: error: unknown command \"ehco\" for toy\ntoy: hint:  did you mean: toy echo\n"},
		{"comp", 2, "", "toy: error: unknown command \"comp\" for toy\ntoy: hint:  did you mean: toy completion\n"},
		{"say", 2, "", "toy: error: unknown command \"say\" for toy\ntoy: hint:  did you mean: toy echo\n"},
		{"frobnicate", 2, "", "toy: error: unknown command \"frobnicate\" for toy\ntoy: hint:  toy --help lists its commands\n"},
		{"list al", 2, "", "toy: error: unknown command \"al\" for toy list\ntoy: hint:  did you mean: toy list all\n"},
		{"list secre", 2, "", "toy: error: unknown command \"secre\" for toy list\ntoy: hint:  toy list --help lists its commands\n"},
		{"help ecko", 2, "", "toy: error: unknown command \"ecko\" for toy\ntoy: hint:  did you mean: toy echo\n"},
		{"echo --uper x", 2, "", "toy: error: unknown flag --uper for toy echo\ntoy: hint:  did you mean: --upper\n"},
		{"echo -upper x", 2, "", "toy: error: unknown flag -upper for toy echo\ntoy: hint:  did you mean: --upper\n"},
		{"echo --frobnicate x", 2, "", "toy: error: unknown flag --frobnicate for toy echo\ntoy: hint:  toy echo --help lists its flags\n"},
		{"--version", 2, "", "toy: error: unknown flag --version for toy\ntoy: hint:  did you mean: toy version\n"},

		// Operands and values.
		{"echo", 2, "", "toy: error: missing operand WORD\ntoy: hint:  usage: toy echo WORD [MORE...] [flags]\n"},
		{"fail x", 2, "", "toy: error: unexpected operand \"x\"\ntoy: hint:  usage: toy fail\n"},
		{"echo --number=x y", 2, "", "toy: error: invalid value \"x\" for --number: invalid syntax\ntoy: hint:  usage: toy echo WORD [MORE...] [flags]\n"},
		{"echo x --number", 2, "", "toy: error: flag needs an argument: --number\ntoy: hint:  usage: toy echo WORD [MORE...] [flags]\n"},
		{"completion tcsh", 2, "", "toy: error: no completion for shell \"tcsh\"\ntoy: hint:  usage: toy completion bash|zsh|fish\n"},
	}
	for _, c := range cases {
		t.Run(c.args, func(t *testing.T) {
			code, stdout, stderr := run(t.Context(), strings.Fields(c.args)...)
			if code != c.code || stdout != c.stdout || stderr != c.stderr {
				t.Errorf("got exit %d\n%s%s\nwant exit %d\n%s%s", code, stdout, stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
}

func TestHelpIsTheSameByEveryName(t *testing.T) {
	_, want, _ := run(t.Context(), "help", "list")
	if !strings.Contains(want, "all          list all") || strings.Contains(want, "secret") {
		t.Errorf("help of a group:\n%s", want)
	}
	for _, args := range [][]string{{"list"}, {"list", "--help"}, {"list", "-h"}} {
		if code, got, stderr := run(t.Context(), args...); code != 0 || got != want || stderr != "" {
			t.Errorf("%v: exit %d\n%s%s", args, code, got, stderr)
		}
	}
	code, root, _ := run(t.Context())
	if code != 0 || strings.Index(root, "Examples:") > strings.Index(root, "Commands:") {
		t.Errorf("examples do not come first:\n%s", root)
	}
}

// failingWriter fails with err after n bytes.
type failingWriter struct {
	n   int
	err error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.n -= len(p); w.n < 0 {
		return 0, w.err
	}
	return len(p), nil
}

// TestStandardOutputFails: no result may be lost in silence, and a reader that
// went away is no reason to talk.
func TestStandardOutputFails(t *testing.T) {
	cases := []struct {
		args   string
		err    error
		code   int
		stderr string
	}{
		{"echo x", syscall.ENOSPC, 125, "toy: error: no space left on device\n"},
		{"help", syscall.ENOSPC, 125, "toy: error: no space left on device\n"},
		{"completion bash", syscall.ENOSPC, 125, "toy: error: no space left on device\n"},
		{"echo x", syscall.EPIPE, 141, ""},
		{"completion bash", syscall.EPIPE, 141, ""},
		{"fail", syscall.EPIPE, 13, "toy: error: play: operation not permitted\ntoy: cause: rain\ntoy: hint:  wait\ntoy: see:   toy help\n"},
	}
	for _, c := range cases {
		var talk bytes.Buffer
		env := &cli.Env{Stdout: &failingWriter{err: c.err}, Stderr: &talk, Getenv: func(string) string { return "" }}
		code := toy().Run(t.Context(), env, strings.Fields(c.args))
		if code != c.code || talk.String() != c.stderr {
			t.Errorf("%s with %v: exit %d, %q", c.args, c.err, code, talk.String())
		}
	}
}

func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "man")
	if code, _, stderr := run(t.Context(), "man", dir); code != 0 {
		t.Fatal(stderr)
	}
	pages, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(pages) != 10 {
		t.Errorf("pages: %v", pages)
	}
	echo, err := os.ReadFile(filepath.Join(dir, "toy-echo.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH TOY\\-ECHO 1", ".B toy echo WORD [MORE...] [flags]", ".B \\-u, \\-\\-upper\nin capitals", ".B 128+n\n", ".BR toy (1)"} {
		if !strings.Contains(string(echo), want) {
			t.Errorf("toy-echo.1 lacks %q:\n%s", want, echo)
		}
	}
	if code, _, stderr := run(t.Context(), "man", filepath.Join(dir, "toy.1")); code != 125 {
		t.Errorf("a file as directory: exit %d, %s", code, stderr)
	}
}

// TestSignals sends real signals to a real process.
func TestSignals(t *testing.T) {
	for sig, want := range map[syscall.Signal]struct {
		code   int
		stderr string
	}{
		syscall.SIGINT:  {130, "waiting\ntoy: error: interrupted\n"},
		syscall.SIGTERM: {143, "waiting\ntoy: error: terminated\n"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "wait")
		cmd.Env = append(os.Environ(), "CLI_TEST_PROGRAM=1")
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		first := make([]byte, len("waiting\n"))
		if _, err := io.ReadFull(stderr, first); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(stderr)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // the code says it
		if code, text := cmd.ProcessState.ExitCode(), string(first)+string(rest); code != want.code || text != want.stderr {
			t.Errorf("%v: exit %d, %q", sig, code, text)
		}
	}
}

// TestColor: only a terminal gets colour, and only if the user wants it.
func TestColor(t *testing.T) {
	terminal := openTerminal(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	cases := []struct {
		to   io.Writer
		vars map[string]string
		want bool
	}{
		{terminal, nil, true},
		{terminal, map[string]string{"NO_COLOR": "1"}, false},
		{terminal, map[string]string{"NO_COLOR": ""}, true},
		{terminal, map[string]string{"TERM": "dumb"}, false},
		{file, nil, false},
		{&bytes.Buffer{}, nil, false},
	}
	for _, c := range cases {
		env := &cli.Env{Getenv: func(name string) string { return c.vars[name] }}
		if got := env.Color(c.to); got != c.want {
			t.Errorf("Color(%T) with %v = %v", c.to, c.vars, got)
		}
	}
}

// openTerminal returns the far side of a new pseudo-terminal.
func openTerminal(t *testing.T) *os.File {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	return near
}

// TestHidden: a hidden verb runs by its name, and then no other is made; it is there
// otherwise, but in no list.
func TestHidden(t *testing.T) {
	made := map[string]int{}
	verb := func(name string, hidden bool) cli.Verb {
		return func(env *cli.Env) *cobra.Command {
			made[name]++
			return &cobra.Command{Use: name, Short: "say it", Hidden: hidden, RunE: func(*cobra.Command, []string) error {
				_, err := io.WriteString(env.Stdout, name+"\n")
				return err
			}}
		}
	}
	p := cli.Program{Name: "p", Short: "test", Verbs: []cli.Verb{verb("shown", false)}, Hidden: map[string]cli.Verb{"inner": verb("inner", true)}}
	for _, test := range []struct {
		args, want string
		made       int // how often shown was
	}{{"inner", "inner\n", 0}, {"shown", "shown\n", 1}, {"help inner", "Say it", 2}} {
		var out, errs bytes.Buffer
		env := &cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
		if code := p.Run(t.Context(), env, strings.Fields(test.args)); code != 0 || !strings.Contains(strings.ToLower(out.String()), strings.ToLower(test.want)) || made["shown"] != test.made {
			t.Errorf("%s: %d %q %q, made %v", test.args, code, out.String(), errs.String(), made)
		}
	}
}
