package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// doom has a process crash at one of the next places where one may.
type doom struct {
	target any
	left   int
}

// doomed says whether a process crashes here.
func (s *sim) doomed(_ string, target any) bool {
	if s.doom == nil || s.doom.target != target || s.calm {
		return false
	}
	if s.doom.left--; s.doom.left > 0 {
		return false
	}
	s.doom = nil
	return true
}

// nextFault has something break after a while.
func (s *sim) nextFault() {
	s.after(s.between(0, 5*time.Second), func() {
		if s.calm {
			return
		}
		s.fault()
		s.nextFault()
	})
}

func (s *sim) fault() {
	n := s.nodes[s.rng.IntN(len(s.nodes))]
	what := []string{
		"cut", "cut", "partition", "agent", "agent", "reboot", "kill", "kill", "freeze agent", "controller", "freeze controller", "clock", "full", "tear", "doom", "doom", "doom",
	}[s.rng.IntN(17)]
	s.note("env", what, n.name)
	s.faults[what]++
	switch what {
	case "cut":
		if n.link != nil {
			n.link.cut()
		}
	case "partition":
		n.cutOff = true
		s.after(s.between(10*time.Millisecond, 60*time.Second), func() { n.cutOff = false })
		if l := n.link; l != nil {
			s.after(s.between(10*time.Millisecond, 40*time.Second), l.cut)
		}
	case "agent":
		n.crash()
	case "reboot":
		n.reboot()
	case "kill":
		keys := slices.SortedFunc(maps.Keys(n.sups), job.StepKey.Compare)
		if len(keys) > 0 {
			n.sups[keys[s.rng.IntN(len(keys))]].killed(s.chance(0.5))
		}
	case "freeze agent":
		n.freeze(s.between(100*time.Millisecond, 40*time.Second))
	default:
		s.faultOfMaster(what, n)
	}
}

func (s *sim) faultOfMaster(what string, n *simNode) {
	m := s.master
	switch {
	case what == "clock":
		s.wall += s.between(-time.Minute, 10*time.Minute)
	case what == "full":
		s.disk.full = true
		s.after(s.between(10*time.Millisecond, 10*time.Second), func() { s.disk.full = false })
	case what == "tear":
		s.disk.tear = true
	case what == "doom" && (m == nil || s.chance(0.5)):
		s.doom = &doom{n, 1 + s.rng.IntN(30)}
	case what == "doom":
		s.doom = &doom{m, 1 + s.rng.IntN(30)}
	case m == nil || m.frozen:
	case what == "controller":
		s.note("ctl", "is killed")
		m.crash()
	case what == "freeze controller":
		m.freeze(s.between(100*time.Millisecond, 20*time.Second), s.chance(0.5))
	}
}

// heal has nothing break any more.
func (s *sim) heal() {
	s.calm, s.doom, s.disk.full = true, nil, false
	s.note("env", "nothing breaks any more")
	for _, n := range s.nodes {
		n.cutOff = false
		if n.link != nil && n.link.lossy {
			n.link.cut()
		}
	}
}

// quiet says whether all is over.
func (s *sim) quiet() bool { return s.unquiet() == "" }

// unquiet is what is not over.
func (s *sim) unquiet() string {
	var left []string
	add := func(n int, what string) {
		if n > 0 {
			left = append(left, fmt.Sprintf("%d %s", n, what))
		}
	}
	m := s.master
	if m == nil || m.frozen {
		return "there is no controller"
	}
	pending := 0
	for range m.c.sched.Pending {
		pending++
	}
	add(pending, "jobs wait")
	add(len(m.c.runs), "jobs run")
	add(len(m.c.dirty), "nodes are not clean")
	add(len(m.c.commit.queue), "batches are not stored")
	add(s.user.asked, "requests are not answered")
	add(len(s.user.active), "jobs are waited for")
	for _, n := range s.nodes {
		add(len(n.sups), "supervisors on "+n.name)
		add(len(n.strays), "processes on "+n.name)
		add(len(n.dirs), "run directories on "+n.name)
		if n.link == nil {
			left = append(left, "no session of "+n.name)
		}
	}
	return strings.Join(left, ", ")
}

// checkEnd looks at what is left when all is quiet.
func (s *sim) checkEnd() {
	c := s.master.c
	s.user.checkKnown(c)
	for _, id := range slices.Sorted(maps.Keys(s.user.jobs)) {
		if !s.user.accounted(id) {
			s.fail("job %v has ended, and is not accounted", id)
		}
	}
	for name, id := range s.user.once {
		if had := s.user.rows[name]; had != id {
			s.fail("%s was acknowledged as job %v, and is accounted as %v", name, id, had)
		}
	}
	if len(s.user.once) == 0 {
		s.fail("no job was submitted")
	}
	if err := c.sched.Check(); err != nil {
		s.fail("the scheduler's state at the end: %v", err)
	}
	// All is stored: what a controller would know that starts now is what this one knows.
	s.sameState("of the controller", c, "of the log", s.disk.shadow)
}
