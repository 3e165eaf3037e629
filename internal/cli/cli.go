// Package cli is the shell that the programs of Gangway share: it builds the
// cobra tree from a table of verbs, runs it, prints the error of a verb in the
// four-line form and turns it into an exit code. Signals, colour, help, "did you
// mean", --json, completion and manual pages are decided here and nowhere else.
//
// A program is a table:
//
//	func main() {
//		cli.Main(cli.Program{
//			Name:  "gangway",
//			Short: "run containers on GPU clusters",
//			Verbs: []cli.Verb{runVerb, cli.Version, cli.Completion, cli.Man},
//		})
//	}
//
// A verb is a function from its surroundings ([Env]) to a cobra command that
// has RunE. It writes its result to env.Stdout and talk to env.Stderr, returns
// its error (a [fault.Error] where it knows a remedy) and never prints or exits
// by itself. Its Use line says which operands it takes; see [Operands].
//
// Nothing here keeps state between runs: [Program.Run] may be called any number
// of times, also at the same time, which is how tests run verbs. The package
// knows no verb's business and reads no configuration.
package cli

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Env is what a verb may touch of the process it runs in.
type Env struct {
	Program string // the program's name, for examples and hints; set by Run
	Stdin   io.Reader
	Stdout  io.Writer // results; buffered, flushed when the verb has returned
	Stderr  io.Writer // talk; not buffered
	Getenv  func(string) string
	Now     func() time.Time

	first string // the first argument, usually the verb
}

// OSEnv is the Env of the running process.
func OSEnv() *Env {
	return &Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Now: time.Now}
}

// Color says whether text written to w may carry colours: only on a terminal
// that has them, and not if the user set NO_COLOR.
func (e *Env) Color(w io.Writer) bool { return e.Getenv("NO_COLOR") == "" && e.Terminal(w) }

// Terminal says whether w is a terminal on which lines can be drawn anew.
func (e *Env) Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && e.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// TerminalSize returns how many columns and lines the terminal w has: 80 and 24 where
// it does not say.
func (e *Env) TerminalSize(w io.Writer) (columns, lines int) {
	if f, ok := w.(*os.File); ok {
		if columns, lines, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 && lines > 0 {
			return columns, lines
		}
	}
	return 80, 24
}

// Group gives a command its verbs. They are made only where they may be needed: a
// program that is started once a container does not build what it was not asked for.
func Group(env *Env, cmd *cobra.Command, verbs ...Verb) *cobra.Command {
	if env.Wants(cmd) {
		for _, verb := range verbs {
			cmd.AddCommand(verb(env))
		}
	}
	return cmd
}

// Wants says whether anything of a command below its name may be needed: it is the one
// that is run, or the whole tree is looked at.
func (e *Env) Wants(cmd *cobra.Command) bool { return e.first == cmd.Name() || e.whole() }

// whole says whether all verbs are needed, whatever is asked for.
func (e *Env) whole() bool {
	all := []string{"", "help", "man", "completion", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd}
	return slices.Contains(all, e.first) || strings.HasPrefix(e.first, "-")
}

// Verb makes one command of a program. It is called at most once a run.
type Verb func(*Env) *cobra.Command

// Program is a command line program as a table.
type Program struct {
	Name    string // as it is typed
	Short   string // one line, lower case, no full stop
	Long    string // some lines for its help; Short if empty
	Example string // what people type most often
	// Verbs are looked through from the first on for the one that is asked for, and those
	// behind it are not made.
	Verbs []Verb
	// Hidden are verbs that programs type, by name. Where the first argument is one of these,
	// no other verb is made: that takes longer than the start of a process.
	Hidden map[string]Verb
}

// Main runs p as the process's main program and exits.
func Main(p Program) {
	ctx, stop := newOnDemand(context.Background())
	code := p.Run(ctx, OSEnv(), os.Args[1:])
	stop()
	os.Exit(code)
}

// Run runs p with args (without the program's name) and returns the exit code.
// An error has been printed to env.Stderr by then.
func (p Program) Run(ctx context.Context, env *Env, args []string) int {
	out := newOutput(env.Stdout)
	inner := *env
	inner.Program, inner.Stdout = p.Name, out
	if len(args) > 0 {
		inner.first = args[0]
	}

	err := p.execute(ctx, &inner, args)
	werr := out.Flush()
	if werr != nil && (err == nil || errors.Is(err, werr)) {
		if errors.Is(werr, syscall.EPIPE) {
			// The reader has seen enough (| head). Programs die quietly
			// of this signal; so do we where it is ignored.
			return fault.CodeSignal(syscall.SIGPIPE)
		}
		err = werr
	}
	if err == nil {
		return fault.CodeOK
	}
	code := fault.Code(err)
	if _, ok := errors.AsType[fault.Exit](err); ok {
		return code
	}
	if sig, ok := errors.AsType[*fault.Error](context.Cause(ctx)); ok {
		code = sig.Code
		if errors.Is(err, context.Canceled) {
			err = sig
		}
	}
	// Nobody is left to tell where this write goes wrong.
	_, _ = io.WriteString(env.Stderr, fault.Text(p.Name, err, env.Color(env.Stderr)))
	return code
}

// execute builds the command tree and runs the command that args name.
func (p Program) execute(ctx context.Context, env *Env, args []string) error {
	root := p.root(env)
	started := false
	walk(root, func(c *cobra.Command) { prepare(c, &started) })
	root.SetFlagErrorFunc(flagError(args, func(name string) bool {
		all := *env
		all.first = ""
		c, _, err := p.root(&all).Find([]string{name})
		return err == nil && c.HasParent()
	}))
	// cobra takes a nil slice for os.Args.
	root.SetArgs(append([]string{}, args...))
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !started {
		return usageError(cmd, err)
	}
	return err
}

// root is the command tree of p, before prepare.
func (p Program) root(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:               p.Name,
		Short:             p.Short,
		Long:              p.Long,
		Example:           p.Example,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetHelpFunc(printHelp)
	help := helpVerb()
	root.SetHelpCommand(help)
	root.AddCommand(help)
	if verb := p.Hidden[env.first]; verb != nil {
		root.AddCommand(verb(env))
		return root
	}
	for _, verb := range p.Verbs {
		c := verb(env)
		root.AddCommand(c)
		if !env.whole() && (c.Name() == env.first || c.HasAlias(env.first)) {
			return root
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Hidden)) {
		root.AddCommand(p.Hidden[name](env))
	}
	return root
}

// prepare gives c what every command has: groups print help or refuse an
// unknown verb, verbs check their operands, and started tells an error of the
// command line (before) from one of the work (after).
func prepare(c *cobra.Command, started *bool) {
	// "[flags]" says nothing where --help is the only one.
	c.DisableFlagsInUseLine = !c.HasAvailableFlags()
	if c.HasSubCommands() {
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownVerb(c, args[0])
			}
			return c.Help()
		}
		return
	}
	if c.Args == nil {
		c.Args = Operands
	}
	run := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		*started = true
		return run(c, args)
	}
}

// walk calls f for c and every command below it.
func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}
