package slurm

import (
	"fmt"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// VersionText is what --version prints. Programs look for the first word and a number of
// two parts behind it.
const VersionText = "slurm 23.11.0 (gangway)"

// TestSentence is the answer to --test-only.
func TestSentence(id job.ID, start job.Time, cpus int, nodes []string, partition string) string {
	if start == job.Never {
		return fmt.Sprintf("Job %s cannot start as things are", id)
	}
	return fmt.Sprintf("Job %s to start at %s using %d processors on nodes %s in partition %s",
		id, time.UnixMilli(int64(start)).Format("2006-01-02T15:04:05"), cpus, Fold(nodes), partition)
}

// Usage is what --help prints: the options that are carried out.
func Usage(c Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s [OPTIONS...] %s\n\n", c, map[Command]string{
		Sbatch: "script [args...]", Srun: "executable [args...]", Salloc: "[command [args...]]",
	}[c])
	for _, o := range optionsOf(c) {
		if o.set == nil {
			continue
		}
		short := "    "
		if o.Short != 0 {
			short = "-" + string(o.Short) + ", "
		}
		arg := [...]string{NoArgument: "", RequiredArgument: "=VALUE", OptionalArgument: "[=VALUE]"}[o.Argument]
		fmt.Fprintf(&b, "  %s%-34s %s\n", short, "--"+o.Long+arg, helpOf(c, o.Long))
		if o.env != "" {
			fmt.Fprintf(&b, "%46s%s\n", "", c.prefix()+o.env)
		}
	}
	b.WriteString("\nA name in capitals below an option is the variable that sets it.\n")
	return b.String()
}
