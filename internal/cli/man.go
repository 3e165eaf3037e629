package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// Man is the verb that writes a manual page for every command. It prints roff by
// itself: cobra's own generator links a Markdown parser into the program.
func Man(env *Env) *cobra.Command {
	markdown := false
	c := &cobra.Command{
		Use:   "man DIR",
		Short: "write the manual pages into a directory",
		Long: `Write one manual page a command into DIR, which is made if it is not there. With
--markdown it is one page of all commands.`,
		Example: fmt.Sprintf("%[1]s man ./man && man ./man/%[1]s.1", env.Program),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			if markdown {
				return writeMarkdown(c.Context(), args[0], c.Root())
			}
			return writePages(c.Context(), args[0], c.Root())
		},
	}
	c.Flags().BoolVar(&markdown, "markdown", false, "write DIR/"+env.Program+".md instead, for the web")
	return c
}

// writePages writes the pages of c and of the commands below it into dir.
func writePages(ctx context.Context, dir string, c *cobra.Command) error {
	c.InitDefaultHelpFlag()
	name := filepath.Join(dir, pageName(c)+".1")
	err := fsx.WriteFile(ctx, name, fsx.Options{}, func(f *os.File) error {
		_, err := f.Write(manPage(c))
		return err
	})
	for _, sub := range visible(c) {
		if err == nil {
			err = writePages(ctx, dir, sub)
		}
	}
	return err
}

// pageName is the name of c's page: its path with dashes, as git's are named.
func pageName(c *cobra.Command) string {
	return strings.ReplaceAll(c.CommandPath(), " ", "-")
}

// manPage is the manual page of c, in man(7) macros.
func manPage(c *cobra.Command) []byte {
	var b bytes.Buffer
	build := buildInfo(c.Root().Name())
	fmt.Fprintf(&b, ".TH %s 1 %q %q %q\n", roff(strings.ToUpper(pageName(c))), fmt.Sprintf("%.10s", build.Date),
		build.Name+" "+build.Version, "Gangway Manual")
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	usage := c.UseLine()
	if c.HasSubCommands() {
		usage = c.CommandPath() + " COMMAND [flags]"
	}
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(usage))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s\n", strings.ReplaceAll(roff(description(c)), "\n\n", "\n.PP\n"))
	if c.HasSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range visible(c) {
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(sub.Name()), roff(sub.Short))
		}
	}
	b.WriteString(".SH OPTIONS\n")
	c.Flags().VisitAll(func(f *pflag.Flag) { manFlag(&b, f) })
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	b.WriteString(".SH EXIT STATUS\n")
	for _, row := range fault.CodeTable() {
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(row.Code), roff(row.Meaning))
	}
	seeAlso(&b, c)
	return b.Bytes()
}

func manFlag(b *bytes.Buffer, f *pflag.Flag) {
	if f.Hidden {
		return
	}
	kind, usage := pflag.UnquoteUsage(f)
	names := "--" + f.Name
	if f.Shorthand != "" {
		names = "-" + f.Shorthand + ", " + names
	}
	if f.NoOptDefVal == Bare && f.Value.Type() != "bool" {
		names += "[=VALUE]"
	}
	if kind != "" && f.DefValue != "" && f.DefValue != "0" && f.DefValue != "[]" {
		usage += " (default " + f.DefValue + ")"
	}
	fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(names+" "+kind)), roff(usage))
}

func seeAlso(b *bytes.Buffer, c *cobra.Command) {
	var pages []string
	if c.HasParent() {
		pages = append(pages, pageName(c.Parent()))
	}
	for _, sub := range visible(c) {
		pages = append(pages, pageName(sub))
	}
	if len(pages) == 0 {
		return
	}
	b.WriteString(".SH SEE ALSO\n")
	for i, page := range pages {
		end := ","
		if i == len(pages)-1 {
			end = ""
		}
		fmt.Fprintf(b, ".BR %s (1)%s\n", roff(page), end)
	}
}

// roff escapes text for roff: backslashes, hyphens that must stay hyphens, and
// lines that would be requests.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(strings.TrimSpace(text))
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
