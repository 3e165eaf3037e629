package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// programsIn has a master tell of programs that write down their name, and fail where a file
// says so.
func programsIn(t *testing.T, dir string, m *master) (ran func() string) {
	t.Helper()
	path := func(name string) string {
		text := fmt.Sprintf("#!/bin/sh\necho %s $SLURM_JOB_ID >> %s/ran\nwhile test -e %[2]s/wait-%[1]s; do sleep 0.01; done\nif test -e %[2]s/bad-%[1]s; then exit 4; fi\n", name, dir)
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	m.programs = mustJSON(job.Programs{Prolog: []string{path("prolog")}, Epilog: []string{path("epilog")}, Health: path("health"), Serial: true})
	return func() string {
		b, _ := os.ReadFile(filepath.Join(dir, "ran"))
		return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; ")
	}
}

func (m *master) enter(id job.ID) {
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Enter{Enter: &wire.Enter{Job: uint32(id), Attempt: 1, Epoch: 3, Env: mustJSON(job.JobEnv{ID: id})}}})
}

func (m *master) release(id job.ID) {
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Release{Release: &wire.Release{Job: uint32(id), Attempt: 1, Epoch: 3, Env: mustJSON(job.JobEnv{ID: id})}}})
}

func (m *master) cleaned(id job.ID) *wire.Cleaned {
	m.t.Helper()
	return m.expect("Cleaned", func(a *wire.AgentMessage) bool { return a.GetCleaned().GetJob() == uint32(id) }).GetCleaned()
}

// touch makes a file, and the function that removes it.
func touch(t *testing.T, name string) func() {
	t.Helper()
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return func() { _ = os.Remove(name) }
}

// TestPrograms: the health check when the agent has come, the prolog before a step is launched,
// the epilog after the last, and each once.
func TestPrograms(t *testing.T) {
	dir := shortDir(t)
	m := newMaster(t, dir)
	ran := programsIn(t, dir, m)
	newAgent(t, dir)
	m.greeted()
	until(t, "the health check has run", func() bool { return ran() == "health" })
	step := job.StepKey{Job: 7, Attempt: 1, Step: 0, Try: 1}
	done := touch(t, filepath.Join(dir, "wait-prolog"))
	m.prepare(step, "", "true")
	until(t, "the prolog runs", func() bool { return ran() == "health; prolog 7" })
	if _, err := os.Stat(filepath.Join(dir, "steps", "7.1.0.1")); err == nil {
		t.Error("the step was launched before its prolog has run")
	}
	done()
	m.prepared(step)
	m.start(step)
	m.end(step)
	m.ack(step)
	next := job.StepKey{Job: 7, Attempt: 1, Step: 1, Try: 1}
	m.prepare(next, "", "sleep", "1000")
	m.prepared(next)
	m.release(7)
	m.ack(m.end(next).Key)
	if c := m.cleaned(7); c.Left != "" || c.Drain != "" {
		t.Errorf("%v", c)
	}
	if got := ran(); got != "health; prolog 7; epilog 7" {
		t.Errorf("%s ran", got)
	}
	m.release(7) // the answer was lost
	m.cleaned(7)
	m.release(8) // a node where nothing of the job has run
	m.cleaned(8)
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_CheckHealth{CheckHealth: &wire.CheckHealth{Epoch: 3}}})
	until(t, "the health check has run again", func() bool { return ran() == "health; prolog 7; epilog 7; epilog 8; health" })
}

// TestProgramsFail: what fails is told with what it was for, also by the agent that comes after.
func TestProgramsFail(t *testing.T) {
	dir := shortDir(t)
	m := newMaster(t, dir)
	ran := programsIn(t, dir, m)
	_, end := newAgent(t, dir)
	m.greeted()
	touch(t, filepath.Join(dir, "bad-prolog"))
	touch(t, filepath.Join(dir, "bad-epilog"))
	step := job.StepKey{Job: 7, Attempt: 1, Step: job.BatchStep, Try: 1}
	ended := func() {
		t.Helper()
		var e job.StepEnd
		a := m.expect("Ended", func(a *wire.AgentMessage) bool { return a.GetEnded() != nil })
		if err := json.Unmarshal(a.GetEnded().End, &e); err != nil || e.Key != step || e.Fault == nil || !e.Fault.Node || !strings.HasSuffix(e.Fault.Cause, "prolog: exit code 4") || a.GetEnded().Drain != "Prolog error" {
			t.Errorf("%v, %s: %s", err, a.GetEnded().Drain, a.GetEnded().End)
		}
	}
	m.prepare(step, "", "true")
	ended()
	m.enter(7)
	if e := m.expect("Entered", func(a *wire.AgentMessage) bool { return a.GetEntered() != nil }).GetEntered(); e.Drain != "Prolog error" || len(e.Fault) == 0 {
		t.Errorf("%v", e)
	}
	end()
	newAgent(t, dir)
	m.greeted()
	ended()
	m.ack(step)
	m.release(7)
	if c := m.cleaned(7); c.Drain != "Epilog error" {
		t.Errorf("%v", c)
	}
	m.release(7)
	if c := m.cleaned(7); c.Drain != "Epilog error" {
		t.Errorf("said again: %v", c)
	}
	if got := ran(); strings.Count(got, "prolog 7") != 1 || strings.Count(got, "epilog 7") != 1 {
		t.Errorf("%s ran", got)
	}
}

// TestProgramsGoOn: what an agent was about when it ended is begun anew by the next; what was
// over by then is not.
func TestProgramsGoOn(t *testing.T) {
	dir := shortDir(t)
	m := newMaster(t, dir)
	ran := programsIn(t, dir, m)
	_, end := newAgent(t, dir)
	m.greeted()
	done := touch(t, filepath.Join(dir, "wait-prolog"))
	m.enter(7)
	until(t, "the prolog runs", func() bool { return strings.Contains(ran(), "prolog 7") })
	end()
	_, end = newAgent(t, dir)
	m.greeted()
	m.enter(7)
	until(t, "the prolog runs again", func() bool { return strings.Count(ran(), "prolog 7") == 2 })
	done()
	entered := func() bool {
		return m.expect("Entered", func(a *wire.AgentMessage) bool { return a.GetEntered() != nil }).GetEntered().Drain == ""
	}
	if !entered() {
		t.Error("it has failed")
	}
	done = touch(t, filepath.Join(dir, "wait-epilog"))
	m.release(7)
	until(t, "the epilog runs", func() bool { return strings.Contains(ran(), "epilog 7") })
	end()
	newAgent(t, dir)
	m.greeted()
	m.release(7)
	until(t, "the epilog runs again", func() bool { return strings.Count(ran(), "epilog 7") == 2 })
	done()
	if c := m.cleaned(7); c.Drain != "" {
		t.Errorf("%v", c)
	}
	if got := strings.ReplaceAll(ran()+"; ", "health; ", ""); got != "prolog 7; prolog 7; epilog 7; epilog 7; " {
		t.Errorf("%s ran", got)
	}
}

// TestStaysAreForgotten: what has run for jobs long over is not kept for ever.
func TestStaysAreForgotten(t *testing.T) {
	dir := shortDir(t)
	a := agentIn(dir)
	if err := a.findStays(); err != nil {
		t.Fatal(err)
	}
	for id := job.ID(1); id <= maxStays+10; id++ {
		r := release{id, 1}
		s := &stay{leaving: true, epilog: done}
		a.programs.stays[r] = s
		if err := writeJSON(t.Context(), a.stayFile(r), s.record()); err != nil {
			t.Fatal(err)
		}
		a.forgetStays(r)
	}
	entries, err := os.ReadDir(a.staysDir())
	if err != nil || len(entries) != maxStays || len(a.programs.stays) != maxStays {
		t.Errorf("%v: %d files, %d known", err, len(entries), len(a.programs.stays))
	}
	if a.programs.stays[release{maxStays + 10, 1}] == nil || a.programs.stays[release{1, 1}] != nil {
		t.Error("not the oldest are forgotten")
	}
}
