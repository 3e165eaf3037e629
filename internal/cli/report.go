package cli

import (
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
)

// Result is something a reading verb prints: as text by Text, as JSON by its
// fields and their tags.
type Result interface {
	Text(w io.Writer) error
}

// Reporter prints the results of a reading verb as text or, with --json, as
// JSON, so that no verb asks which of the two it is.
type Reporter struct {
	env  *Env
	json bool
}

// NewReporter gives cmd the flag --json and returns the Reporter that heeds it.
func NewReporter(env *Env, cmd *cobra.Command) *Reporter {
	r := &Reporter{env: env}
	cmd.Flags().BoolVar(&r.json, "json", false, "print JSON instead of text")
	return r
}

// Print prints v, which is the whole result. As JSON it is one indented document.
func (r *Reporter) Print(v Result) error { return r.print(v, "  ") }

// Record prints v, which is one of many. As JSON it is a document on one line,
// so that results may be read while they come.
func (r *Reporter) Record(v Result) error { return r.print(v, "") }

func (r *Reporter) print(v Result, indent string) error {
	if !r.json {
		return v.Text(r.env.Stdout)
	}
	enc := json.NewEncoder(r.env.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	return enc.Encode(v)
}
