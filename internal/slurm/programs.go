package slurm

import (
	"math"
	"path"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// The keys of programs that agents run beside jobs, in lower case.
const (
	prologKey        = "prolog"
	epilogKey        = "epilog"
	bothTimeoutKey   = "prologepilogtimeout"
	prologTimeoutKey = "prologtimeout"
	epilogTimeoutKey = "epilogtimeout"
	prologFlagsKey   = "prologflags"
	healthKey        = "healthcheckprogram"
	healthEveryKey   = "healthcheckinterval"
	healthStateKey   = "healthchecknodestate"
)

// program takes one of these keys.
func (r *reader) program(l line, p pair) (err error) {
	c := &r.conf.programs
	switch strings.ToLower(p.key) {
	case prologKey:
		r.fullPath(l, p, &c.Prolog)
	case epilogKey:
		r.fullPath(l, p, &c.Epilog)
	case bothTimeoutKey:
		if c.PrologTimeout, err = spanOf(l, p); err == nil {
			c.EpilogTimeout = c.PrologTimeout
		}
	case prologTimeoutKey:
		r.conf.prologTimeout, err = spanOf(l, p)
	case epilogTimeoutKey:
		r.conf.epilogTimeout, err = spanOf(l, p)
	case prologFlagsKey:
		r.prologFlags(l, p)
	case healthKey:
		var one []string
		r.fullPath(l, p, &one)
		c.Health = strings.Join(one, "")
	case healthEveryKey:
		c.HealthEvery, err = spanOf(l, p)
	case healthStateKey:
		r.words(l, p, slurmConf)
		c.HealthStates = nil
		for _, word := range splitList(p.value) {
			c.HealthStates = append(c.HealthStates, strings.ToUpper(word))
		}
	}
	return err
}

// fullPath takes a path, or a pattern of paths. Slurm takes others, and then does not find them.
func (r *reader) fullPath(l line, p pair, all *[]string) {
	if p.value == "" || isOneOf(p.value, "none (null)") {
		return
	}
	if _, err := path.Match(p.value, "x"); err != nil || !strings.HasPrefix(p.value, "/") {
		r.impossible(l, p, "it is no full path, nor a pattern of such: it is not found on any node, in Slurm either", "write where it is, as /etc/slurm/prolog.d/*")
	}
	*all = append(*all, p.value)
}

// spanOf takes a number of seconds; UNLIMITED is 0.
func spanOf(l line, p pair) (job.Duration, error) {
	n, err := orNone(l, p, 0, math.MaxUint16)
	return job.Duration(n) * job.Second, err
}

func (r *reader) prologFlags(l line, p pair) {
	r.words(l, p, slurmConf)
	c := &r.conf.programs
	for _, flag := range splitList(p.value) {
		note := ""
		switch strings.ToLower(flag) {
		case "alloc", "x11":
			c.Alloc = true
		case "contain":
			c.Alloc, note = true, "the prolog runs when a job gets its nodes; there is no step for what is started by other ways than Gangway's"
		case "deferbatch":
			c.DeferBatch = true
		case "serial":
			c.Serial = true
		case "nohold", "forcerequeueonfail":
			note = "it is so here anyway"
		case "runinjob":
			r.unlike(l, pair{p.key, flag}, "programs run beside the job, not within its limits", "leave it out")
		}
		if note != "" {
			r.add(l, Finding{Severity: SeverityNote, Key: p.key, Value: flag, Text: note})
		}
	}
}

// theirPrograms are the programs as all lines together say; nil: there are none.
func (r *reader) theirPrograms() *job.Programs {
	c := r.conf.programs
	if _, ok := r.conf.said[prologTimeoutKey]; ok {
		c.PrologTimeout = r.conf.prologTimeout
	}
	if _, ok := r.conf.said[epilogTimeoutKey]; ok {
		c.EpilogTimeout = r.conf.epilogTimeout
	}
	if !c.OfJobs() && c.Health == "" {
		return nil
	}
	return &c
}

// checkPrograms: what is set for programs has one to be for.
func (r *reader) checkPrograms() {
	c := &r.conf.programs
	if at, ok := r.conf.said[healthKey]; ok && c.Health != "" && c.HealthEvery == 0 {
		r.impossible(at.at, at.pair, "HealthCheckInterval is not set: it runs when the daemon of a node starts, and never again", "write HealthCheckInterval=300")
	}
	if flags, ok := r.conf.said[prologFlagsKey]; ok && c.DeferBatch && !c.Alloc {
		r.impossible(flags.at, pair{"PrologFlags", "DeferBatch"}, "it has no effect without Alloc", "write PrologFlags=Alloc,DeferBatch")
	}
}
