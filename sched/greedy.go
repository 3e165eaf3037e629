package sched

import "github.com/gangway-hpc/gangway/internal/job"

// greedy starts jobs in their order, and at the first that cannot start plans it (EASY:
// others pass it if they do not delay it) or ends (None).
func (s *Scheduler) greedy() {
	s.grown, s.arrivals = nil, nil
	s.recheck, s.retry, s.anew = false, false, false
	s.startDue()
	head := job.ID(0)
	blocked := map[int32]job.Duration{}
	for _, id := range s.ordered() {
		i := s.index(id)
		r := s.jobs[i]
		if d, ok := blocked[r.class]; ok && r.queueLimit >= d && r.plan == nil {
			continue
		}
		if head == 0 && (s.planned > 1 || s.jobs[i].plan == nil) {
			s.dropOthers(id)
		}
		if s.tryStart(i) {
			continue
		}
		blocked[r.class] = r.queueLimit
		if head == 0 {
			head = id
			if s.config.Backfill == job.None {
				return
			}
			s.promise(i)
		}
	}
	s.grown, s.arrivals = nil, nil
}

// dropOthers gives up what is planned for jobs other than the first.
func (s *Scheduler) dropOthers(head job.ID) {
	if s.planned == 0 {
		return
	}
	for i, r := range s.jobs {
		if r.plan == nil || r.id == head {
			continue
		}
		was := r.promise
		s.unplan(i, false)
		s.ownJob(i).promise = 0
		s.note(job.Promised{
			At: s.now, Starts: []job.Promise{{ID: r.id}},
			Broken: []job.Breach{{ID: r.id, Was: was, Now: job.Never, Why: "job " + head.String() + " comes before it"}},
		})
	}
}
