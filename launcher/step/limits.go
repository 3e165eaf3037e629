package step

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// Limits are what a container may use, and what becomes known of it.
type Limits struct {
	cgroup.Limits
	Require bool                                 // everything is enforced, or nothing is run
	Stats   func(used cgroup.Stats, rung string) // is told at the end what was used; may be nil
}

// wanted says whether there is to be a control group.
func (l *Limits) wanted() bool {
	return l.Require || l.Stats != nil || l.CPUs != 0 || l.CPUSet != nil || l.Memory != 0 || l.Pids != 0 || l.Devices != nil
}

// removePatience is how long what is left in a control group may take to end.
const removePatience = 5 * time.Second

// limit makes the container's control group. What the machine does not enforce is named,
// or refused where all is required.
func (s *step) limit(ctx context.Context) error {
	root := os.Geteuid() == 0
	if !s.Limits.wanted() && !root {
		return nil
	}
	g, err := cgroup.Open(ctx, cgroup.Options{
		Name: "run-" + s.dir.id(), UID: os.Geteuid(), Runtime: s.Getenv("XDG_RUNTIME_DIR"),
	})
	if err != nil {
		return err
	}
	s.group = g
	s.onClose(func() error {
		// Of a context that has ended there is no time left.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removePatience)
		defer cancel()
		return g.Remove(ctx)
	})
	if err := g.Limit(s.Limits.Limits); err != nil {
		return err
	}
	var missing []string
	for _, m := range g.Missing() {
		missing = append(missing, m.String())
	}
	if g.Rung() == cgroup.None && s.Limits.Require && len(missing) == 0 {
		missing = append(missing, "no control group can be had")
	}
	if len(missing) > 0 && s.Limits.Require {
		return notEnforced(missing, g)
	}
	for _, m := range missing {
		s.Log.Warn(m, "see", "gangway doctor")
	}
	s.phase("cgroup", g.Rung().String())
	if g.Rung() == cgroup.None {
		return nil
	}
	if err := g.Sup().Place(os.Getpid()); err != nil {
		return fmt.Errorf("put the supervisor into its control group: %w", err)
	}
	return s.watchMemory()
}

// notEnforced is the error of --require-cgroup.
func notEnforced(missing []string, g *cgroup.Group) error {
	var why []string
	for _, r := range g.Refused() {
		why = append(why, r.Error())
	}
	return &fault.Error{
		What:  errors.New("limit the container: " + strings.Join(missing, "; ")),
		Cause: strings.Join(why, "; "),
		Hint:  "run it as root, or have control groups delegated: gangway doctor; or leave out --require-cgroup",
	}
}

// watchMemory has it reported when the container runs out of its memory.
func (s *step) watchMemory() error {
	if s.Limits.Memory == 0 {
		return nil
	}
	var err error
	if s.memory, err = s.group.Watch(); err != nil {
		return fmt.Errorf("watch the container's memory: %w", err)
	}
	s.onClose(func() error { s.memory.Stop(); return nil })
	return nil
}

// place puts a process of the container into its control group.
func (s *step) place(pid int) error { return s.group.Ranks().Place(pid) }

// used tells what the container used, and why it was killed if it ran out of memory.
func (s *step) used(status error) error {
	if s.group == nil {
		return status
	}
	if s.Limits.Stats != nil {
		s.Limits.Stats(s.group.Stats(), s.group.Rung().String())
	}
	if s.memory == nil {
		return status
	}
	if oom := s.memory.OOM(); oom != nil {
		return &fault.Error{
			What: errors.New(oom.String()),
			Hint: "give it more: --mem=" + cgroup.Bytes(2*s.Limits.Memory) + ", or let it use less",
			Code: max(fault.Code(status), 1),
		}
	}
	return status
}
