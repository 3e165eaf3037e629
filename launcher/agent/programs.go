package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/program"
)

// programs is what administrators want run here, and what has been run for the jobs of this
// node. The controller says which they are when a session begins.
type programs struct {
	job.Programs
	api      string // where their commands find the controller
	stays    map[release]*stay
	told     bool // which they are
	checking bool // a health check goes on
	serial   sync.Mutex
	group    sync.WaitGroup // of those that run
}

// The reasons of nodes that are drained because a program has failed, by Slurm's words.
const (
	prologError = "Prolog error"
	epilogError = "Epilog error"
)

// setPrograms takes which programs there are. The first time that they are known, the health
// check is run.
func (a *Agent) setPrograms(ctx context.Context, which []byte, address string) {
	p := &a.programs
	p.Programs, p.api = job.Programs{}, address
	if a.Hosts != nil {
		p.api = a.Hosts.Public
	}
	if len(which) > 0 {
		if err := json.Unmarshal(which, &p.Programs); err != nil {
			a.Log.Error("read which programs are to be run", "err", err)
			p.Programs = job.Programs{}
		}
	}
	if !p.told {
		p.told = true
		a.checkHealth(ctx)
	}
}

// stayOf is that of an attempt; made if need be.
func (a *Agent) stayOf(r release) *stay {
	s := a.programs.stays[r]
	if s == nil {
		s = &stay{env: job.JobEnv{ID: r.job, Restarts: max(0, r.attempt-1)}}
		a.programs.stays[r] = s
	}
	return s
}

// envOf reads what a program is to know of a job; nil: that was not said.
func envOf(data []byte) *job.JobEnv {
	var e job.JobEnv
	if len(data) == 0 || json.Unmarshal(data, &e) != nil {
		return nil
	}
	return &e
}

// waitsForProlog says whether a step that comes has to wait for the prolog, which is then begun. What
// follows from its end comes by itself.
func (a *Agent) waitsForProlog(r release) bool {
	s := a.programs.stays[r]
	return len(a.programs.Prolog) > 0 || s != nil && s.prolog == going
}

// enter has the prolog of an attempt run, if it has not.
func (a *Agent) enter(ctx context.Context, r release, env []byte, asked bool) {
	e := cmp.Or(envOf(env), &job.JobEnv{ID: r.job})
	a.toStay(ctx, r, enterIn{env: *e, any: len(a.programs.Prolog) > 0, asked: asked})
}

// toStay lets something happen to a stay, and has done what follows.
func (a *Agent) toStay(ctx context.Context, r release, in any) {
	s := a.stayOf(r)
	after, todo := s.step(in)
	*s = after
	for _, do := range todo {
		switch do := do.(type) {
		case runDo:
			env := s.env
			a.run(ctx, do.kind, fmt.Sprintf("%d.%d.%s", r.job, r.attempt, do.kind), &env, func(f *job.Fault) {
				a.inputs.put(stayIn{r, ranIn{do.kind, f}})
			})
		case keepDo:
			if err := writeJSON(ctx, a.stayFile(r), s.record()); err != nil {
				a.Log.Error("what has run for a job is not on disk", "job", r.job, "err", err)
			}
		case readyDo:
			for h := range a.all {
				if attemptOf(h.key) == r {
					a.happen(h, readyIn(do))
				}
			}
		case tellNow:
			m := &wire.Entered{Job: uint32(r.job), Attempt: int32(r.attempt)}
			if s.fault != nil {
				m.Fault, m.Drain = mustJSON(s.fault), prologError
			}
			a.say(&wire.AgentMessage{Message: &wire.AgentMessage_Entered{Entered: m}})
		case leaveDo:
			drain := ""
			if do.drain {
				drain = epilogError
			}
			a.cleaned(r, do.left, drain)
			a.forgetStays(r)
		}
	}
}

// run runs a program, for a job or for none, and posts how it ended: nil where it did well.
func (a *Agent) run(ctx context.Context, kind program.Kind, name string, env *job.JobEnv, ended func(*job.Fault)) {
	p := a.programs.Programs
	patterns, timeout := p.Prolog, p.PrologTimeout
	switch kind {
	case program.Epilog:
		patterns, timeout = p.Epilog, p.EpilogTimeout
	case program.Health:
		patterns, timeout = []string{p.Health}, job.Duration(program.HealthTimeout.Milliseconds())
	}
	log := a.Log
	if env != nil {
		log = log.With("job", env.ID)
	}
	place := program.Place{Cluster: a.Name, Node: a.Node.Name, API: a.programs.api}
	// By the marker the next agent finds what is left of it, and ends that.
	environ := append(program.Environ(kind, place, env), control.Marker+"="+a.Cluster+"/"+a.Node.Name+"/"+strings.ReplaceAll(name, " ", "-")+"/")
	r := &program.Run{Kind: kind, Env: environ, Timeout: time.Duration(timeout) * time.Millisecond, Starter: a.Orphans, Log: log}
	a.programs.group.Go(func() {
		if p.Serial && kind != program.Health {
			a.programs.serial.Lock()
			defer a.programs.serial.Unlock()
		}
		var err error
		if r.Paths, err = program.Find(patterns); err == nil {
			err = r.Do(ctx)
		}
		if ctx.Err() != nil {
			return // the next agent runs it again
		}
		if err == nil {
			ended(nil)
			return
		}
		log.Error(string(kind)+" failed", "err", err)
		ended(&job.Fault{
			What: fmt.Sprintf("run the %s of the cluster on node %s", kind, a.Node.Name), Cause: err.Error(), Node: true,
			Hint: "the node takes nothing more until an administrator has looked: its agent's log has what the program printed",
		})
	})
}

// checkHealth runs the health check, unless it still runs. What follows from its result is its
// own to do, as with Slurm.
func (a *Agent) checkHealth(ctx context.Context) {
	if a.programs.Health == "" || a.programs.checking || !a.stopping.IsZero() {
		return
	}
	a.programs.checking = true
	a.run(ctx, program.Health, "health", nil, func(*job.Fault) { a.inputs.put(checkedIn{}) })
}

// What is posted to the loop by programs.
type (
	stayIn struct {
		release release
		in      any
	}
	checkedIn struct{}
)

// stayRecord is what has ended, as it is kept on disk.
type stayRecord struct {
	Env            job.JobEnv
	Prolog, Epilog bool
	Fault          *job.Fault `json:",omitempty"`
	Failed         string     `json:",omitempty"`
}

func (s *stay) record() stayRecord {
	return stayRecord{Env: s.env, Prolog: s.prolog == done, Epilog: s.epilog == done, Fault: s.fault, Failed: s.failed}
}

// stay is the contrary of [stay.record].
func (r *stayRecord) stay() *stay {
	s := &stay{env: r.Env, fault: r.Fault, failed: r.Failed}
	if r.Prolog {
		s.prolog = done
	}
	if r.Epilog {
		s.epilog = done
	}
	return s
}

func (a *Agent) staysDir() string { return filepath.Join(a.Dir, "jobs") }

func (a *Agent) stayFile(r release) string {
	return filepath.Join(a.staysDir(), fmt.Sprintf("%d.%d", r.job, r.attempt))
}

// findStays reads what an earlier agent has run.
func (a *Agent) findStays() error {
	if err := os.MkdirAll(a.staysDir(), 0o700); err != nil {
		return fmt.Errorf("make directory of jobs of node %s: %w", a.Node.Name, err)
	}
	entries, err := os.ReadDir(a.staysDir())
	if err != nil {
		return fmt.Errorf("find jobs of node %s: %w", a.Node.Name, err)
	}
	for _, e := range entries {
		var r release
		if n, err := fmt.Sscanf(e.Name(), "%d.%d", &r.job, &r.attempt); err != nil || n != 2 || filepath.Base(a.stayFile(r)) != e.Name() {
			continue // a file that was not finished
		}
		record, err := readJSON[stayRecord](a.stayFile(r))
		if err != nil {
			a.Log.Error("what has run for a job is not known", "job", r.job, "err", err)
			continue
		}
		a.programs.stays[r] = record.stay()
	}
	return nil
}

// maxStays is how many attempts that are over are remembered: a release of one may come again.
const maxStays = 256

// forgetStays forgets an attempt for which nothing has run, and the oldest of too many.
func (a *Agent) forgetStays(r release) {
	if s := a.programs.stays[r]; s.prolog != done && s.epilog != done {
		delete(a.programs.stays, r)
		return
	}
	var over []release
	for r, s := range maps.All(a.programs.stays) {
		if s.leaving && a.releases[r] == nil {
			over = append(over, r)
		}
	}
	if len(over) <= maxStays {
		return
	}
	slices.SortFunc(over, release.compare)
	for _, r := range over[:len(over)-maxStays] {
		delete(a.programs.stays, r)
		if err := os.Remove(a.stayFile(r)); err != nil {
			a.Log.Error("file of a job stays", "job", r.job, "err", err)
		}
	}
}
