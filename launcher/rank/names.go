package rank

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Names are what the signs in the name of a file stand for.
type Names struct {
	Job      job.ID
	Array    *job.ArrayFacts // nil: no array
	Step     job.StepID
	Restarts int
	JobName  string
	User     string
	Node     string
	NodeID   int // of the step
	Rank     int
}

// maxWidth is to how many digits a number may be padded.
const maxWidth = 10

// Expand replaces Slurm's signs in the name of a file: %A %a %b %J %j %N %n %r %S %s %t %u
// %x and %%, of which numbers may have a width before their letter (%5j). Others stay. A
// backslash in a name means that no sign in it is one, and is taken away.
func (n Names) Expand(pattern string) string {
	if strings.Contains(pattern, `\`) {
		return strings.ReplaceAll(pattern, `\`, "")
	}
	return eachSign(pattern, n.sign)
}

// eachSign replaces what begins with a percent sign by what f makes of it; f's text is the
// whole of it.
func eachSign(pattern string, f func(sign byte, width int, text string) string) string {
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			b.WriteByte(pattern[i])
			continue
		}
		j := i + 1
		for j < len(pattern) && pattern[j] >= '0' && pattern[j] <= '9' {
			j++
		}
		if j == len(pattern) {
			b.WriteString(pattern[i:])
			break
		}
		width, err := strconv.Atoi(pattern[i+1 : j])
		if err != nil && j > i+1 {
			width = maxWidth
		}
		b.WriteString(f(pattern[j], min(width, maxWidth), pattern[i:j+1]))
		i = j
	}
	return b.String()
}

// sign is what one stands for.
func (n Names) sign(sign byte, width int, text string) string {
	number := func(v uint64) string { return fmt.Sprintf("%0*d", width, v) }
	switch sign {
	case '%':
		return "%"
	case 'A':
		if n.Array != nil {
			return number(uint64(n.Array.Job))
		}
		return number(uint64(n.Job))
	case 'a':
		if n.Array != nil {
			return number(uint64(n.Array.Task))
		}
		return number(noTask)
	case 'b':
		if n.Array != nil {
			return number(uint64(n.Array.Task % 10))
		}
		return number(noTask % 10)
	case 'J':
		if n.Step < 0 {
			return number(uint64(n.Job))
		}
		return number(uint64(n.Job)) + "." + n.Step.String()
	case 'j':
		return number(uint64(n.Job))
	case 'N':
		short, _, _ := strings.Cut(n.Node, ".")
		return short
	case 'n':
		return number(uint64(n.NodeID))
	case 'r':
		return number(uint64(n.Restarts))
	case 's':
		if n.Step < 0 {
			return n.Step.String()
		}
		return number(uint64(n.Step))
	case 'S':
		return number(uint64(n.Step))
	case 't':
		return number(uint64(n.Rank))
	case 'u':
		return n.User
	case 'x':
		return n.JobName
	}
	return text
}

// noTask is Slurm's number of the task of a job without an array (NO_VAL).
const noTask = 0xfffffffe
