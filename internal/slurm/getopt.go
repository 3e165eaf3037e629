package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// Argument says whether an option has an argument.
type Argument uint8

// The kinds of options.
const (
	NoArgument Argument = iota
	RequiredArgument
	OptionalArgument // only as --NAME=VALUE
)

// Flag is an option as getopt_long(3) knows it.
type Flag struct {
	Long     string // without dashes
	Short    byte   // 0: none
	Argument Argument
}

// Given is an option on a command line.
type Given struct {
	Flag  int    // its place in the table
	Value string // its argument
	Bare  bool   // an optional argument was left out
}

// UsageError is what getopt_long says of a command line that it cannot read: it is
// printed as it is, after the program's name.
type UsageError struct{ Text string }

// Error implements error.
func (e *UsageError) Error() string { return e.Text }

// Getopt reads a command line, without the program's name, as the GNU C library's
// getopt_long does: options may be abbreviated as long as they are unambiguous, values
// are attached or follow, "--" ends the options. Where first is set, they end at the first
// operand, as for programs that take a command; else operands may be anywhere.
func Getopt(flags []Flag, args []string, first bool) (given []Given, operands []string, err error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
			return given, append(operands, args...), nil
		case strings.HasPrefix(arg, "--"):
			var g Given
			if g, args, err = longOption(flags, arg[2:], args); err != nil {
				return nil, nil, err
			}
			given = append(given, g)
		case len(arg) > 1 && arg[0] == '-':
			var all []Given
			if all, args, err = shortOptions(flags, arg[1:], args); err != nil {
				return nil, nil, err
			}
			given = append(given, all...)
		case first:
			return given, append([]string{arg}, args...), nil
		default:
			operands = append(operands, arg)
		}
	}
	return given, operands, nil
}

// longOption reads NAME or NAME=VALUE; args are the words that follow.
func longOption(flags []Flag, text string, args []string) (g Given, rest []string, err error) {
	name, value, attached := strings.Cut(text, "=")
	n, err := findLong(flags, name)
	if err != nil {
		var u *UsageError
		if errors.As(err, &u) { // it names the whole word where that is ambiguous
			u.Text = strings.Replace(u.Text, "'--"+name+"' is ambiguous", "'--"+text+"' is ambiguous", 1)
		}
		return g, nil, err
	}
	g.Flag = n
	switch f := flags[n]; {
	case attached && f.Argument == NoArgument:
		return g, nil, &UsageError{fmt.Sprintf("option '--%s' doesn't allow an argument", f.Long)}
	case attached:
		g.Value = value
	case f.Argument == OptionalArgument:
		g.Bare = true
	case f.Argument == RequiredArgument && len(args) == 0:
		return g, nil, &UsageError{fmt.Sprintf("option '--%s' requires an argument", f.Long)}
	case f.Argument == RequiredArgument:
		g.Value, args = args[0], args[1:]
	}
	return g, args, nil
}

// findLong finds an option by its name, or by a beginning that no other one has.
func findLong(flags []Flag, name string) (int, error) {
	var like []int
	for n, f := range flags {
		if f.Long == name {
			return n, nil
		}
		if f.Long != "" && strings.HasPrefix(f.Long, name) {
			like = append(like, n)
		}
	}
	switch len(like) {
	case 0:
		return 0, &UsageError{fmt.Sprintf("unrecognized option '--%s'", name)}
	case 1:
		return like[0], nil
	}
	names := make([]string, len(like))
	for i, n := range like {
		names[i] = "'--" + flags[n].Long + "'"
	}
	return 0, &UsageError{fmt.Sprintf("option '--%s' is ambiguous; possibilities: %s", name, strings.Join(names, " "))}
}

// shortOptions reads a word of single letters, the last of which may have its argument
// attached or behind.
func shortOptions(flags []Flag, word string, args []string) (all []Given, rest []string, err error) {
	for len(word) > 0 {
		n := findShort(flags, word[0])
		if n < 0 {
			return nil, nil, &UsageError{fmt.Sprintf("invalid option -- '%c'", word[0])}
		}
		g := Given{Flag: n}
		letter := word[0]
		word = word[1:]
		switch flags[n].Argument {
		case NoArgument:
			all = append(all, g)
			continue
		case OptionalArgument:
			g.Value, g.Bare = word, word == ""
		case RequiredArgument:
			switch {
			case word != "":
				g.Value = word
			case len(args) > 0:
				g.Value, args = args[0], args[1:]
			default:
				return nil, nil, &UsageError{fmt.Sprintf("option requires an argument -- '%c'", letter)}
			}
		}
		return append(all, g), args, nil
	}
	return all, args, nil
}

func findShort(flags []Flag, letter byte) int {
	for n, f := range flags {
		if f.Short == letter && letter != 0 {
			return n
		}
	}
	return -1
}
