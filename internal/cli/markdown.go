package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// writeMarkdown writes one page of all commands below c, PROGRAM.md, into dir.
func writeMarkdown(ctx context.Context, dir string, c *cobra.Command) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\nMade of the command table by `%[1]s man --markdown DIR`: what `--help` says.\n\n", c.Name())
	b.WriteString("| exit code | meaning |\n|---|---|\n")
	for _, row := range fault.CodeTable() {
		fmt.Fprintf(&b, "| %s | %s |\n", row.Code, row.Meaning)
	}
	markdownCommand(&b, c)
	return fsx.WriteFile(ctx, filepath.Join(dir, c.Name()+".md"), fsx.Options{}, func(f *os.File) error {
		_, err := f.Write(b.Bytes())
		return err
	})
}

// markdownCommand is the section of c, and those of what is below it.
func markdownCommand(b *bytes.Buffer, c *cobra.Command) {
	c.InitDefaultHelpFlag()
	if c.HasParent() {
		fmt.Fprintf(b, "\n## %s\n", c.CommandPath())
	}
	fmt.Fprintf(b, "\n```\n%s\n", description(c))
	if c.Example != "" {
		fmt.Fprintf(b, "\nExamples:\n%s\n", indent(c.Example))
	}
	if c.Runnable() && c.HasParent() {
		fmt.Fprintf(b, "\nUsage:\n  %s\n", c.UseLine())
	}
	if flags := flagUsages(c.LocalFlags()); flags != "" {
		fmt.Fprintf(b, "\nFlags:\n%s\n", flags)
	}
	b.WriteString("```\n")
	for _, sub := range visible(c) {
		if sub.Name() != "help" {
			markdownCommand(b, sub)
		}
	}
}
