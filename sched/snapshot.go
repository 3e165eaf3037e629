package sched

import "io"

func (s *Scheduler) Snapshot(w io.Writer) error { return nil }

func Restore(r io.Reader) (*Scheduler, error) { return New(), nil }
