package rank

import (
	"fmt"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Commands are what ranks run, of a step with so many tasks: the line of [job.Program].MultiProg
// that is each one's, and arguments that all have. An error is about what the user wrote.
func Commands(p *job.Program, tasks int, ranks []int) ([][]string, error) {
	name, rest := "", []string(nil)
	if all := texts(p.Args); len(all) > 0 {
		name, rest = all[0], all[1:]
	}
	m, err := slurm.ParseMultiProg(p.MultiProg, name, tasks)
	if err != nil {
		return nil, fmt.Errorf("read what ranks run: %w", err)
	}
	all := make([][]string, len(ranks))
	for i, rank := range ranks {
		all[i] = append(m.Args(rank), rest...)
	}
	return all, nil
}
