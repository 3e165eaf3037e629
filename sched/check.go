package sched

func (s *Scheduler) Check() error { return nil }
