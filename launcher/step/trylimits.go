package step

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"

	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// TryLimits makes a control group as a run does, with limits of memory, processes and CPU
// time, and returns its rung and what is not enforced; where there is none, why.
func TryLimits(ctx context.Context, o Options) (rung string, missing []string, err error) {
	g, err := cgroup.Open(ctx, cgroup.Options{
		Name: "doctor-" + strings.ToLower(rand.Text()[:idLength]), UID: os.Geteuid(), Runtime: o.Getenv("XDG_RUNTIME_DIR"),
	})
	if err != nil {
		return "", nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePatience)
		defer cancel()
		err = errors.Join(err, g.Remove(ctx))
	}()
	if err := g.Limit(cgroup.Limits{CPUs: 1, Memory: 64 << 20, Pids: 64}); err != nil {
		return "", nil, err
	}
	if g.Rung() == cgroup.None {
		for _, r := range g.Refused() {
			missing = append(missing, r.Error())
		}
		return g.Rung().String(), missing, nil
	}
	for _, m := range g.Missing() {
		missing = append(missing, m.String())
	}
	return g.Rung().String(), missing, nil
}
