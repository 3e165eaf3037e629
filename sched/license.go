package sched

import (
	"fmt"
	"math"
	"slices"

	"github.com/gangway-hpc/gangway/internal/job"
)

// license is how many of a licence there are and when they are free. It uses the first
// slot of a timeline.
type license struct {
	name   string
	total  int32
	used   int64 // by what runs
	excess int64 // how many more than there are were in use when their number was set
	line   timeline
}

// setLicenses takes over the licences of a configuration. What runs and is planned keeps
// what it has, also of a licence that was gone for a while; there may be less than nothing
// left.
func (s *Scheduler) setLicenses(list []job.License) {
	s.licenses, s.licenseTok = nil, s.tok
	s.licenseAt = make(map[string]int, len(list)) // a new one: forks may have the old one
	for i, l := range list {
		s.licenseAt[l.Name] = i
		s.licenses = append(s.licenses, license{name: l.Name, total: int32(min(int64(l.Count), math.MaxInt32))})
	}
	s.layLicenses()
	for _, r := range s.jobs {
		s.holdLicenses(r.licenses, 1)
		if p := r.plan; p != nil {
			s.useLicenses(p.licenses, p.start, p.end, false)
		}
	}
	for i := range s.licenses {
		l := &s.licenses[i]
		l.excess = max(0, l.used-int64(l.total))
	}
}

// layLicenses makes the timelines of licences: what is left beside what runs.
func (s *Scheduler) layLicenses() {
	if len(s.licenses) == 0 {
		return
	}
	s.ownLicenses()
	for i := range s.licenses {
		s.licenses[i].line = timeline{{math.MinInt64, vec{s.licenses[i].total}}}
	}
	for _, r := range s.jobs {
		s.useLicenses(r.licenses, r.start, r.ends, false)
	}
}

// holdLicenses counts those of a job that starts, or with -1 of one that ends.
func (s *Scheduler) holdLicenses(list []job.License, sign int64) {
	for _, l := range list {
		s.ownLicenses()
		if have := s.license(l.Name); have != nil {
			have.used += sign * min(l.Count, math.MaxInt32)
		}
	}
}

func (s *Scheduler) license(name string) *license {
	if i, ok := s.licenseAt[name]; ok {
		return &s.licenses[i]
	}
	return nil
}

// unlicensed says why there can never be the licences of a spec; empty if there can.
func (s *Scheduler) unlicensed(spec *job.Spec) (why, near string) {
	for i, list := range [][]job.License{spec.Licenses, spec.AnyLicense} {
		few, enough := 0, max(1, i*len(list)) // of those that one is enough of, all have to be too few
		for _, l := range list {
			have := s.license(l.Name)
			if have == nil {
				return "there is no licence " + l.Name, nearest(l.Name, func(yield func(string) bool) {
					for i := range s.licenses {
						if !yield(s.licenses[i].name) {
							return
						}
					}
				})
			}
			if l.Count > int64(have.total) {
				why, near = fmt.Sprintf("there are %d of licence %s", have.total, l.Name), fmt.Sprintf("--licenses=%s:%d", l.Name, have.total)
				few++
			}
		}
		if few >= enough {
			return why, near
		}
	}
	return "", ""
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

// licensesNow says whether what runs leaves the licences of spec free. Whether what is
// planned does too licensed says.
func (s *Scheduler) licensesNow(spec *job.Spec) bool {
	free := func(l job.License) bool {
		have := s.license(l.Name)
		return have != nil && have.used+l.Count <= int64(have.total)
	}
	for _, l := range spec.Licenses {
		if !free(l) {
			return false
		}
	}
	return len(spec.AnyLicense) == 0 || slices.ContainsFunc(spec.AnyLicense, free)
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
		have.line.forget(s.now)
		v := vec{int32(min(int64(l.Count), math.MaxInt32))}
		if give {
			have.line.give(from, to, &v)
		} else {
			have.line.take(from, to, &v)
		}
	}
}

// yieldLicenses takes away what is planned with licences that a job has for longer than was
// expected.
func (s *Scheduler) yieldLicenses(list []job.License, until job.Time, why string) {
	for _, l := range list {
		sane := func() bool {
			have := s.license(l.Name)
			return have == nil || have.line.sane(s.now, until)
		}
		if sane() {
			continue
		}
		var plans []timer
		for _, r := range s.jobs {
			if r.plan != nil && r.plan.start < until && r.plan.end > s.now && takes(r.plan.licenses, l.Name) {
				plans = append(plans, timer{r.plan.start, r.id})
			}
		}
		slices.SortFunc(plans, compareTimer)
		for ; len(plans) > 0 && !sane(); plans = plans[1:] {
			s.breach(s.index(plans[0].id), why)
		}
	}
}

func takes(list []job.License, name string) bool {
	return slices.ContainsFunc(list, func(l job.License) bool { return l.Name == name })
}

// licensesLeft is what a job that starts now gets, and whether nobody who runs has it. One
// that starts late gets what was planned for it, also where others are to have that before
// it ends.
func (s *Scheduler) licensesLeft(r *record, d job.Duration) ([]job.License, bool) {
	if p := r.plan; p != nil {
		s.useLicenses(p.licenses, p.start, p.end, true)
		defer s.useLicenses(p.licenses, p.start, p.end, false)
	}
	got := s.takesLicenses(r.spec, s.now, d)
	if r.plan != nil && len(got) == len(r.spec.Licenses) {
		got = r.plan.licenses
	}
	for _, l := range got {
		if have := s.license(l.Name); have == nil || have.used+l.Count > int64(have.total) {
			return nil, false
		}
	}
	return got, len(r.spec.AnyLicense) == 0 || len(got) > len(r.spec.Licenses)
}

func (s *Scheduler) ownLicenses() {
	if s.licenseTok == s.tok {
		return
	}
	s.licenseTok = s.tok
	list := make([]license, len(s.licenses))
	for i, l := range s.licenses {
		list[i] = l
		list[i].line = slices.Clone(l.line)
	}
	s.licenses = list
}

// LicenseUse is how many of a licence there are, and are in use.
type LicenseUse struct {
	Name        string
	Total, Used int64
}

// Licenses yields the licences in the order of the configuration.
func (s *Scheduler) Licenses(yield func(LicenseUse) bool) {
	for i := range s.licenses {
		if l := &s.licenses[i]; !yield(LicenseUse{l.name, int64(l.total), l.used}) {
			return
		}
	}
}
