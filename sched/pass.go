package sched

import (
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// pass is a time in which jobs are given places, one after the other, and nothing is given
// back: what is free only becomes less, so what was not found in it once need not be looked
// for again. That makes a conservative plan of all jobs nearly linear in their number.
type pass struct {
	lengths []job.Duration // of jobs, rising: all of them, or so many that divide them evenly
	gaps    []*gaps
	left    []leftover
	lists   lists
	plans   []plan   // that are not in use yet
	used    *plan    // that the job had, which may be used again; nil: it had none
	changes []uint32 // how many of each node there were; nil: so few jobs that gaps are not worth their making
}

// maxLengths is how many lengths a pass tells apart.
const maxLengths = 64

// largePass is from how many jobs on a pass keeps gaps, unless a test has it otherwise.
const largePass = 256

// newPass is a pass for jobs with these limits, which are sorted.
func (s *Scheduler) newPass(limits []job.Duration) *pass {
	p := &pass{}
	if len(limits) >= s.largePass {
		p.changes = make([]uint32, len(s.nodes))
	}
	p.lengths = slices.Compact(slices.Clone(limits))
	if len(p.lengths) > maxLengths {
		for i := range maxLengths {
			p.lengths[i] = limits[i*len(limits)/maxLengths]
		}
		p.lengths = slices.Compact(p.lengths[:maxLengths])
	}
	return p
}

// class is the largest length that is not above d; -1: none.
func (p *pass) class(d job.Duration) int {
	i, ok := slices.BinarySearch(p.lengths, d)
	if !ok {
		i--
	}
	return i
}

// keepsGaps says whether gaps are kept that are long enough for d.
func (p *pass) keepsGaps(d job.Duration) bool {
	return p != nil && p.changes != nil && d >= p.lengths[0]
}

// newPlan is an empty plan. In a pass it is the one that the job had before, unless a fork
// may have it too, or one of many that are made at once.
func (s *Scheduler) newPlan() *plan {
	if s.pass == nil {
		return &plan{tok: s.tok}
	}
	if p := s.pass.used; p != nil && p.tok == s.tok {
		s.pass.used = nil
		*p = plan{tok: s.tok}
		return p
	}
	if len(s.pass.plans) == 0 {
		s.pass.plans = make([]plan, 64)
	}
	p := &s.pass.plans[0]
	p.tok = s.tok
	s.pass.plans = s.pass.plans[1:]
	return p
}

// cursors are for each option of a class up to when nothing was found, by length: that
// stays so for the same length and longer ones.
type cursors struct {
	pass *pass
	by   [][]cursorAt
}

type cursorAt struct {
	d job.Duration
	t job.Time
}

// cursor is from when on a search has to look.
func (s *Scheduler) cursor(c *class, option int, from job.Time, d job.Duration) job.Time {
	if s.pass == nil || c.cursors == nil || c.cursors.pass != s.pass {
		return from
	}
	for _, at := range c.cursors.by[option][:s.pass.class(d)+1] {
		if at.d <= d {
			from = max(from, at.t)
		}
	}
	return from
}

// moveCursor notes what a search has found.
func (s *Scheduler) moveCursor(c *class, option int, t job.Time, d job.Duration) {
	if s.pass == nil {
		return
	}
	class := s.pass.class(d)
	if class < 0 {
		return
	}
	if c.cursors == nil || c.cursors.pass != s.pass {
		c.cursors = &cursors{s.pass, make([][]cursorAt, len(c.options))}
		for i := range c.cursors.by {
			c.cursors.by[i] = make([]cursorAt, len(s.pass.lengths))
		}
	}
	at := &c.cursors.by[option][class]
	if t > at.t || t == at.t && d < at.d {
		*at = cursorAt{d, t}
	}
}
