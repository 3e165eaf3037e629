package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
)

// BenchmarkStart is all that the program does before a verb does its work, apart from what
// packages do on their own.
func BenchmarkStart(b *testing.B) {
	for _, args := range [][]string{{"version"}, {"squeue", "--version"}, {"sbatch", "--version"}, {"run", "--help"}} {
		b.Run(args[0], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var out bytes.Buffer
				env := &cli.Env{Stdin: &out, Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Now: time.Now}
				if code := program().Run(context.Background(), env, args); code != 0 {
					b.Fatalf("%q ends with %d: %s", args, code, out.String())
				}
			}
		})
	}
}

// TestUnusedFlags: the options of Slurm's commands, which are many, are made only for the
// verb that is run, and there they are.
func TestUnusedFlags(t *testing.T) {
	flags := func(first string) map[string]bool {
		var out bytes.Buffer
		env := &cli.Env{Stdin: &out, Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }, Now: time.Now}
		has := map[string]bool{}
		p := cli.Program{Name: "gangway", Verbs: []cli.Verb{runVerb, submitVerb, allocVerb, planVerb, cli.Man}}
		for i, verb := range p.Verbs[:4] {
			p.Verbs[i] = func(env *cli.Env) *cobra.Command {
				cmd := verb(env)
				has[cmd.Name()] = cmd.Flags().Lookup("gres") != nil
				return cmd
			}
		}
		p.Run(context.Background(), env, []string{first, "--help"})
		return has
	}
	for _, name := range []string{"run", "submit", "alloc", "plan"} {
		for other, has := range flags(name) {
			if has != (other == name) {
				t.Errorf("gangway %s: that %s has --gres is %t", name, other, has)
			}
		}
	}
	for name, has := range flags("man") {
		if !has {
			t.Errorf("the manual page of %s has no --gres", name)
		}
	}
}
