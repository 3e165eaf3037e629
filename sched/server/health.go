package server

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// tickHealth has the health of nodes checked whose time has come. It is the same time on all,
// so that parallel programs are disturbed at once, unless they are to take turns.
func (c *core) tickHealth() {
	p := c.programs()
	if p.Health == "" || p.HealthEvery <= 0 {
		return
	}
	var used map[string]*usage
	for i := range c.known {
		n := c.nodes[c.known[i].Name]
		if n == nil {
			continue
		}
		if n.check == 0 {
			n.check = firstCheck(p, c.now, i, len(c.known))
		}
		if c.now < n.check {
			continue
		}
		for n.check <= c.now { // those that were missed are not made up for
			n.check = n.check.Add(p.HealthEvery)
		}
		if used == nil {
			used = c.usages()
		}
		if n.session != nil && wantsCheck(p.HealthStates, c.nodeWord(n), c.cpusUsed(used[n.spec.Name]), n.cpus()) {
			c.send(n.spec.Name, &wire.ControllerMessage{Message: &wire.ControllerMessage_CheckHealth{CheckHealth: &wire.CheckHealth{Epoch: c.store.Epoch()}}})
		}
	}
}

func (c *core) cpusUsed(u *usage) int {
	if u == nil {
		return 0
	}
	return u.cpus
}

// firstCheck is when a node's health is first checked after its agent has done so itself: the
// i-th of so many.
func firstCheck(p *job.Programs, now job.Time, i, nodes int) job.Time {
	if slices.Contains(p.HealthStates, "CYCLE") {
		return now.Add(p.HealthEvery * job.Duration(i+1) / job.Duration(max(1, nodes)))
	}
	return now.Add(p.HealthEvery)
}

// wantsCheck says whether a node is in one of the states in which its health is checked: none
// is all, as is ANY.
func wantsCheck(states []string, word string, used, cpus int) bool {
	any := true
	for _, s := range states {
		switch s {
		case "CYCLE":
			continue
		case "ANY":
			return true
		case "START_ONLY":
		case "ALLOC":
			if used >= cpus && used > 0 {
				return true
			}
		case "MIXED":
			if used > 0 && used < cpus {
				return true
			}
		case "IDLE":
			if used == 0 && word != "down" {
				return true
			}
		case "NONDRAINED_IDLE":
			if used == 0 && word == "idle" {
				return true
			}
		}
		any = false
	}
	return any
}
