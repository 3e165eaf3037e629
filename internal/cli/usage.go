package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Operands checks the operands of a verb against its Use line, where upper and
// lower case words are operands, brackets make one optional and dots repeat it:
//
//	ls IMAGE [PATH...]
//
// Verbs that set no Args are checked by it.
func Operands(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	repeats := false
	for i, name := range names {
		repeats = repeats || strings.Contains(name, "...")
		if i >= len(args) && !strings.HasPrefix(name, "[") {
			return fmt.Errorf("missing operand %s", name)
		}
	}
	if len(args) > len(names) && !repeats {
		return fmt.Errorf("unexpected operand %q", args[len(names)])
	}
	return nil
}

// usageError makes err, found before cmd started its work, an error of usage.
func usageError(cmd *cobra.Command, err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	return fault.Usage(err, "usage: "+cmd.UseLine())
}

// unknownVerb refuses name, which is no command of group.
func unknownVerb(group *cobra.Command, name string) error {
	var known []string
	var meant []string // commands that say themselves what they are mistaken for
	for _, c := range visible(group) {
		known = append(known, c.Name())
		if slices.Contains(c.SuggestFor, name) {
			meant = append(meant, c.Name())
		}
	}
	if len(meant) == 0 {
		meant = fault.Nearest(name, known)
	}
	hint := group.CommandPath() + " --help lists its commands"
	if len(meant) > 0 {
		hint = didYouMean(group.CommandPath()+" ", meant)
	}
	return fault.Usage(fmt.Errorf("unknown command %q for %s", name, group.CommandPath()), hint)
}

// flagError returns what refuses a flag that cmd does not have or a value it does
// not take. args is the whole command line; isVerb says what is a verb of the program.
func flagError(args []string, isVerb func(name string) bool) func(cmd *cobra.Command, err error) error {
	return func(cmd *cobra.Command, err error) error {
		if cmd.HasSubCommands() && cmd.Flags().NArg() > 0 {
			// "gangway versoin --json": the verb is what is wrong.
			return unknownVerb(cmd, cmd.Flags().Arg(0))
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
			return unknownFlag(cmd, unknown, args, isVerb)
		}
		if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			why := bad.Unwrap()
			if num, ok := errors.AsType[*strconv.NumError](why); ok {
				why = num.Err
			}
			err = fmt.Errorf("invalid value %q for --%s: %w", bad.GetValue(), bad.GetFlag().Name, why)
		}
		return usageError(cmd, err)
	}
}

// unknownFlag refuses a flag and offers the flags, or else the verb, whose name is
// near.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError, args []string, isVerb func(string) bool) error {
	typed := "--" + unknown.GetSpecifiedName()
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		// "-json" is the shorthands j, s, o and n to pflag, and --json to
		// people; if there is a shorthand j, pflag complains of "son".
		typed = "-" + short
		for _, arg := range args {
			if strings.HasPrefix(arg, "-") && strings.HasSuffix(arg, short) {
				typed = arg
				break
			}
		}
	}
	name := strings.TrimLeft(typed, "-")
	hint := cmd.CommandPath() + " --help lists its flags"
	if near := fault.Nearest(name, flagNames(cmd)); len(near) > 0 {
		hint = didYouMean("--", near)
	} else if isVerb(name) {
		hint = didYouMean(cmd.Root().Name()+" ", []string{name})
	}
	return fault.Usage(fmt.Errorf("unknown flag %s for %s", typed, cmd.CommandPath()), hint)
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return names
}

func didYouMean(prefix string, names []string) string {
	return "did you mean: " + prefix + strings.Join(names, " or "+prefix)
}
