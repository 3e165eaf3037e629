package slurm_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// someFlags is a table with options of each kind, and names that begin alike.
func someFlags() []slurm.Flag {
	return []slurm.Flag{
		{Long: "nodes", Short: 'N', Argument: slurm.RequiredArgument},
		{Long: "nodelist", Short: 'w', Argument: slurm.RequiredArgument},
		{Long: "no-kill", Short: 'k', Argument: slurm.OptionalArgument},
		{Long: "hold", Short: 'H'},
		{Long: "time", Short: 't', Argument: slurm.RequiredArgument},
		{Long: "time-min", Argument: slurm.RequiredArgument},
	}
}

// text writes what was read as NAME, NAME=VALUE, and the operands.
func text(flags []slurm.Flag, given []slurm.Given, operands []string) string {
	var b strings.Builder
	for _, g := range given {
		b.WriteString(flags[g.Flag].Long)
		if flags[g.Flag].Argument != slurm.NoArgument && !g.Bare {
			b.WriteString("=" + g.Value)
		}
		b.WriteString(" ")
	}
	return b.String() + "| " + strings.Join(operands, " ")
}

func TestGetopt(t *testing.T) {
	for _, c := range []struct{ line, want, permuted string }{
		{"-N4 -H run -H", "nodes=4 hold | run -H", "nodes=4 hold hold | run"},
		{"-N 4 --nodes 5 --nodes=6 --nodes= x", "nodes=4 nodes=5 nodes=6 nodes= | x", ""},
		{"-HN4", "hold nodes=4 | ", ""},
		{"-HNH4", "hold nodes=H4 | ", ""},
		{"--hol --nodel=a --time 3 --time-m 4", "hold nodelist=a time=3 time-min=4 | ", ""},
		{"-k -koff --no-kill --no-kill=off", "no-kill no-kill=off no-kill no-kill=off | ", ""},
		{"-k off", "no-kill | off", ""},
		{"-H -- -N4", "hold | -N4", ""},
		{"-N -- x", "nodes=-- | x", ""},
		{"- -H", " | - -H", "hold | -"},
		{"a -- -H b -- c", " | a -- -H b -- c", " | a -H b -- c"},
		{"--nodes=a=b", "nodes=a=b | ", ""},
	} {
		for _, first := range []bool{true, false} {
			want := c.want
			if !first && c.permuted != "" {
				want = c.permuted
			}
			given, operands, err := slurm.Getopt(someFlags(), strings.Fields(c.line), first)
			got := text(someFlags(), given, operands)
			if err != nil || strings.TrimLeft(got, " ") != strings.TrimLeft(want, " ") {
				t.Errorf("%q, first %v: %q, %v; want %q", c.line, first, got, err, want)
			}
		}
	}
}

// TestGetoptRefuses has the sentences of the GNU C library.
func TestGetoptRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"--nodes":    "option '--nodes' requires an argument",
		"-N":         "option requires an argument -- 'N'",
		"-HN":        "option requires an argument -- 'N'",
		"--hold=3":   "option '--hold' doesn't allow an argument",
		"--zz":       "unrecognized option '--zz'",
		"--zz=3":     "unrecognized option '--zz'",
		"-Hz":        "invalid option -- 'z'",
		"--no":       "option '--no' is ambiguous; possibilities: '--nodes' '--nodelist' '--no-kill'",
		"--node=4":   "option '--node=4' is ambiguous; possibilities: '--nodes' '--nodelist'",
		"--tim":      "option '--tim' is ambiguous; possibilities: '--time' '--time-min'",
		"--=3":       "option '--=3' is ambiguous; possibilities: '--nodes' '--nodelist' '--no-kill' '--hold' '--time' '--time-min'",
		"-H --hol=3": "option '--hold' doesn't allow an argument",
	} {
		_, _, err := slurm.Getopt(someFlags(), strings.Fields(line), true)
		var usage *slurm.UsageError
		if !errors.As(err, &usage) || usage.Text != want {
			t.Errorf("%q: %v; want %s", line, err, want)
		}
	}
}

// FuzzGetopt: what was read, written with all names and values spelt out, is read the
// same.
func FuzzGetopt(f *testing.F) {
	for _, line := range []string{"-N4 -H x", "--nodes=4\x00--hol\x00y", "-k\x00-koff\x00--\x00-N"} {
		f.Add(line, true)
	}
	f.Fuzz(func(t *testing.T, line string, first bool) {
		flags := someFlags()
		given, operands, err := slurm.Getopt(flags, strings.Split(line, "\x00"), first)
		if err != nil {
			return
		}
		var again []string
		for _, g := range given {
			word := "--" + flags[g.Flag].Long
			if flags[g.Flag].Argument != slurm.NoArgument && !g.Bare {
				word += "=" + g.Value
			}
			again = append(again, word)
		}
		again = append(append(again, "--"), operands...)
		given2, operands2, err := slurm.Getopt(flags, again, first)
		if err != nil || !reflect.DeepEqual(given, given2) || strings.Join(operands, "\x00") != strings.Join(operands2, "\x00") {
			t.Errorf("%q: %v %q; again %q: %v %q, %v", line, given, operands, again, given2, operands2, err)
		}
	})
}
