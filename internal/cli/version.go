package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Stamped by the linker (-X), see the Makefile; empty in a plain go build.
var (
	version string // as git describe says it
	commit  string // full hash
	date    string // of the commit, RFC 3339
)

// Build is what a program knows about its own making.
type Build struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// buildInfo describes the running program. Without stamps, the module version
// that "go install module@version" records is used.
func buildInfo(name string) Build {
	b := Build{name, version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH}
	if b.Version == "" {
		b.Version = "unknown"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
			b.Version = info.Main.Version
		}
	}
	return b
}

// Text implements Result: one line.
func (b Build) Text(w io.Writer) error {
	made := ""
	if b.Commit != "" {
		made = fmt.Sprintf("commit %.12s, ", b.Commit)
	}
	if b.Date != "" {
		made += b.Date + ", "
	}
	_, err := fmt.Fprintf(w, "%s %s (%s%s, %s/%s)\n", b.Name, b.Version, made, b.Go, b.OS, b.Arch)
	return err
}

// Version is the verb that prints what is running.
func Version(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "print the version of this program",
		Example: env.Program + " version\n" + env.Program + " version --json",
	}
	out := NewReporter(env, cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		return out.Print(buildInfo(env.Program))
	}
	return cmd
}

// Release is the version of the running program, as daemons tell each other.
func Release() string { return buildInfo("").Version }
