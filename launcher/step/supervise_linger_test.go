package step

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// TestLinger: output is kept for the client whose step it is, and for others as long as they
// are there, but not for longer than it may be, whoever does not come or go.
func TestLinger(t *testing.T) {
	for _, test := range []struct {
		name   string
		step   job.StepID
		ack    time.Duration // when the client has had all; 0: never
		others time.Duration // when the others are gone; 0: there are none
		stays  bool          // it is connected all the time
		reads  time.Duration // until when its client is seen to read; 0: it never comes
		want   time.Duration
	}{
		{"nobody", job.BatchStep, 0, 0, false, 0, 0},
		{"its client", 0, 3 * time.Second, 0, false, 0, 3 * time.Second},
		{"others stay", 0, time.Second, 5 * time.Second, false, 0, 5 * time.Second},
		{"its client never comes", 0, 0, 0, false, 0, lingerTime},
		{"nobody comes or goes", 0, 0, time.Hour, false, 0, lingerTime},
		{"its client reads for long", 0, 100 * time.Second, 0, false, time.Hour, 100 * time.Second},
		{"its client reads and stops", 0, 0, 0, false, 100 * time.Second, 100*time.Second + lingerTime},
		{"its client stays but does not read", 0, 0, 0, true, time.Second, time.Second + connectedTime},
		{"others do not go", job.BatchStep, 0, time.Hour, false, 0, lingerTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &supervisor{spec: &job.StepSpec{Key: job.StepKey{Step: test.step}}, clients: clients{done: make(chan struct{})}, spool: stdio.NewSpool(nil, 0, 0)}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if test.ack > 0 {
				time.AfterFunc(test.ack, func() { s.clients.once(s.clients.done) })
			}
			if test.others > 0 {
				s.clients.count(1)
				time.AfterFunc(test.others, func() { s.clients.count(-1) })
			}
			if test.reads > 0 {
				s.spool.From(stdio.Hello{Primary: true})
			}
			for at := time.Second; at <= test.reads; at += time.Second {
				time.AfterFunc(at, s.spool.Reads)
			}
			if test.stays {
				s.clients.here(1)
			}
			begin := time.Now()
			s.linger(ctx)
			if took := time.Since(begin); took != test.want {
				t.Errorf("%s: %s, want %s", test.name, took, test.want)
			}
			time.Sleep(2 * time.Hour) // what is left to happen
		})
	}
}

// TestSuperviseLastWords: what a script started and was told to end with it may say something
// after its shell has gone, and is not waited for for ever.
func TestSuperviseLastWords(t *testing.T) {
	for script, want := range map[string]string{
		`sh -c 'trap "sleep 0.4; echo last; exit" TERM; echo ready; while :; do sleep 0.05; done' & wait`: "ready\nlast\n",
		`sh -c 'trap "" TERM; echo ready; while :; do sleep 0.05; done' & wait`:                           "ready\n",
	} {
		spec := stepSpec(1)
		spec.Key.Step = job.BatchStep
		spec.Program.Script = []byte("#!/bin/sh\n" + script + "\n")
		spec.Program.Cwd, spec.Program.Output, spec.Program.Error = []byte(t.TempDir()), "out", "err"
		out := filepath.Join(string(spec.Program.Cwd), "out")
		s := supervise(t, spec)
		s.begin()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if b, _ := os.ReadFile(out); len(b) > 0 {
				break // its trap is set
			}
			if time.Now().After(deadline) {
				t.Fatal("the script does not begin")
			}
		}
		s.send(control.Request{Kill: &control.Kill{GraceMS: 60000, Why: "time limit"}})
		if end := s.ended(); end.Ranks[0].Signal != int(syscall.SIGTERM) {
			t.Errorf("%s: %+v", script, end.Ranks)
		}
		if b, err := os.ReadFile(out); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v; want %q", script, b, err, want)
		}
	}
}
