package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpVerb is "help [COMMAND...]", for those who do not type --help.
func helpVerb() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND...]",
		Short: "explain a command",
		RunE: func(c *cobra.Command, args []string) error {
			cmd, rest, err := c.Root().Find(args)
			if err == nil && len(rest) > 0 && cmd.HasSubCommands() {
				return unknownVerb(cmd, rest[0])
			}
			if err == nil {
				err = cmd.Help()
			}
			return err
		},
	}
}

// printHelp writes the help of c: what it does, what people type, and only then
// the full list. Errors of writing are kept by output.
func printHelp(c *cobra.Command, _ []string) {
	c.InitDefaultHelpFlag()
	_, _ = io.WriteString(c.OutOrStdout(), helpText(c))
}

func helpText(c *cobra.Command) string {
	var b strings.Builder
	b.WriteString(description(c) + "\n")
	if c.Example != "" {
		section(&b, "Examples", indent(c.Example))
	}
	if c.HasSubCommands() {
		section(&b, "Usage", "  "+c.CommandPath()+" COMMAND [flags]")
		section(&b, "Commands", commandList(c))
	} else {
		section(&b, "Usage", "  "+c.UseLine())
	}
	if flags := flagUsages(c.Flags()); flags != "" {
		section(&b, "Flags", flags)
	}
	if c.HasSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help explains one command.\n", c.CommandPath())
	}
	return b.String()
}

// Bare is a NoOptDefVal that nobody can type: the value of a flag whose value was left out.
const Bare = "\x00"

// flagUsages lists flags. pflag would print Bare, and aligns by the same character.
func flagUsages(flags *pflag.FlagSet) string {
	var bare []*pflag.Flag
	flags.VisitAll(func(f *pflag.Flag) {
		if f.NoOptDefVal != Bare {
			return
		}
		bare = append(bare, f)
		f.NoOptDefVal = "VALUE"
		if f.Value.Type() == "bool" {
			f.NoOptDefVal = "true" // which is not shown
		}
	})
	text := flags.FlagUsages()
	for _, f := range bare {
		f.NoOptDefVal = Bare
	}
	return strings.TrimRight(text, "\n")
}

func section(b *strings.Builder, title, body string) {
	fmt.Fprintf(b, "\n%s:\n%s\n", title, body)
}

// description is the long text of c, or its short one as a sentence.
func description(c *cobra.Command) string {
	if c.Long != "" {
		return strings.TrimSpace(c.Long)
	}
	return strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
}

// commandList is a line for each visible command of c.
func commandList(c *cobra.Command) string {
	var lines []string
	for _, sub := range visible(c) {
		lines = append(lines, fmt.Sprintf("  %-12s %s", sub.Name(), sub.Short))
	}
	return strings.Join(lines, "\n")
}

// visible returns the commands of c that help and manual pages list.
func visible(c *cobra.Command) []*cobra.Command {
	return slices.DeleteFunc(slices.Clone(c.Commands()), func(sub *cobra.Command) bool { return sub.Hidden })
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
