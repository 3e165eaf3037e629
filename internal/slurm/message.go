package slurm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Version is the Slurm whose texts, options and fields these are.
const Version = "22.05.8"

// VersionText is what --version prints. Programs look for the first word and a number of
// two parts behind it.
const VersionText = "slurm " + Version + " (gangway)"

// TestSentence is the answer to --test-only.
func TestSentence(id job.ID, start job.Time, cpus int, nodes []string, partition string) string {
	if start == job.Never {
		return fmt.Sprintf("Job %s cannot start as things are", id)
	}
	return fmt.Sprintf("Job %s to start at %s using %d processors on nodes %s in partition %s",
		id, time.UnixMilli(int64(start)).Format("2006-01-02T15:04:05"), cpus, Fold(nodes), partition)
}

// Defined are the lines that --verbose prints: what was asked for, wherever.
func (o *Options) Defined() []string {
	lines := []string{"defined options", strings.Repeat("-", 20) + " " + strings.Repeat("-", 20)}
	for _, name := range slices.Sorted(maps.Keys(o.texts)) {
		lines = append(lines, fmt.Sprintf("%-20s: %s", name, o.texts[name]))
	}
	return append(lines, lines[1], "end of defined options")
}

// Usage is what --help prints: the options that are carried out.
func Usage(c Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s [OPTIONS...] %s\n\n", c, map[Command]string{
		Sbatch: "script [args...]", Srun: "executable [args...]", Salloc: "[command [args...]]",
	}[c])
	texts := helpTexts(c)
	for _, o := range grouped(c) {
		if o.set == nil {
			continue
		}
		short := "    "
		if o.Short != 0 {
			short = "-" + string(o.Short) + ", "
		}
		arg := [...]string{NoArgument: "", RequiredArgument: "=VALUE", OptionalArgument: "[=VALUE]"}[o.Argument]
		fmt.Fprintf(&b, "  %s%-34s %s\n", short, "--"+o.Long+arg, texts[o.Long])
		if o.env != "" {
			fmt.Fprintf(&b, "%46s%s\n", "", c.prefix()+o.env)
		}
	}
	b.WriteString("\nA name in capitals below an option is the variable that sets it.\n")
	return b.String()
}
