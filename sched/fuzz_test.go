package sched

import (
	"bytes"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// FuzzRestore: no snapshot, however broken, does worse than being refused.
func FuzzRestore(f *testing.F) {
	s := cluster(f, 3, 2)
	p := gpus(1, 4, job.Hour)
	p.Array = &job.Array{Tasks: []job.Range{{First: 0, Last: 3, Step: 1}}, Throttle: 2}
	apply(f, s, job.Submitted{ID: 1, Spec: p})
	apply(f, s, job.Submitted{ID: 5, Spec: gpus(3, 8, job.Hour)})
	s.Decide(1)
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Restore(bytes.NewReader(data))
		if err != nil {
			return
		}
		s.Decide(s.Now() + 1)
	})
}
