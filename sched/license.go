package sched

import (
	"math"

	"github.com/gangway-hpc/gangway/internal/job"
)

// license is how many of a licence there are and when they are free. It uses the first
// slot of a timeline.
type license struct {
	name  string
	total int32
	line  timeline
}

// setLicenses takes over the licences of a configuration. What runs and is planned keeps
// what it has; there may be less than nothing left.
func (s *Scheduler) setLicenses(list []job.License) {
	old := s.licenses
	s.licenses = nil
	for _, l := range list {
		total := int32(min(int64(l.Count), math.MaxInt32))
		line := timeline{{math.MinInt64, vec{total}}}
		for _, o := range old {
			if o.name != l.Name {
				continue
			}
			line = nil
			for _, st := range o.line {
				st.free[0] += total - o.total
				line = append(line, st)
			}
		}
		s.licenses = append(s.licenses, license{l.Name, total, line})
	}
}

func (s *Scheduler) license(name string) *license {
	for i := range s.licenses {
		if s.licenses[i].name == name {
			return &s.licenses[i]
		}
	}
	return nil
}

// licensed is when the licences of spec are free for d, not before from.
func (s *Scheduler) licensed(spec *job.Spec, from job.Time, d job.Duration) job.Time {
	if len(spec.Licenses) == 0 && len(spec.AnyLicense) == 0 {
		return from
	}
	for at := from; ; {
		next := at
		for _, l := range spec.Licenses {
			next = max(next, s.licenseFree(l, next, d))
		}
		if len(spec.AnyLicense) > 0 {
			any := job.Never
			for _, l := range spec.AnyLicense {
				any = min(any, s.licenseFree(l, next, d))
			}
			next = max(next, any)
		}
		if next == at || next == job.Never {
			return next
		}
		at = next
	}
}

func (s *Scheduler) licenseFree(l job.License, from job.Time, d job.Duration) job.Time {
	have := s.license(l.Name)
	if have == nil {
		return job.Never
	}
	return have.line.earliest(&vec{int32(min(int64(l.Count), math.MaxInt32))}, from, d)
}

// takesLicenses is what a job that starts at a time gets.
func (s *Scheduler) takesLicenses(spec *job.Spec, at job.Time, d job.Duration) []job.License {
	got := spec.Licenses
	for _, l := range spec.AnyLicense {
		if s.licenseFree(l, at, d) == at {
			return append(got[:len(got):len(got)], l)
		}
	}
	return got
}

// useLicenses takes licences for a span, or gives them back.
func (s *Scheduler) useLicenses(list []job.License, from, to job.Time, give bool) {
	if len(list) == 0 {
		return
	}
	s.ownLicenses()
	for _, l := range list {
		have := s.license(l.Name)
		if have == nil {
			continue
		}
		v := vec{int32(min(int64(l.Count), math.MaxInt32))}
		if give {
			have.line.give(from, to, &v)
		} else {
			have.line.take(from, to, &v)
		}
	}
}

func (s *Scheduler) ownLicenses() {
	if s.licenseTok == s.tok {
		return
	}
	s.licenseTok = s.tok
	list := make([]license, len(s.licenses))
	for i, l := range s.licenses {
		list[i] = license{l.name, l.total, append(timeline(nil), l.line...)}
	}
	s.licenses = list
}
