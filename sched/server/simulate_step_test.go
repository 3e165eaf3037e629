package server

import (
	"strconv"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// simStep is a supervisor with its ranks.
type simStep struct {
	n       *simNode
	key     job.StepKey
	spec    *job.StepSpec
	gpus    uint64
	phase   phase
	alive   bool      // the supervisor
	watcher *simHands // nil: no agent listens
	said    []control.Event
	lease   time.Duration // when it ends
	start   job.Time
	signals uint64 // the highest that came
	early   []int  // that came before the ranks ran
	told    time.Duration
	heard   time.Duration
}

func (s *sim) time() job.Time { return job.Time(simBegin.Add(s.now).UnixMilli()) }

// launch starts a supervisor.
func (n *simNode) launch(spec *job.StepSpec, lease time.Duration, h *simHands) {
	s := n.s
	st := &simStep{n: n, key: spec.Key, spec: spec, alive: true, watcher: h, lease: s.now + lease}
	for i := range spec.Nodes {
		s.placed[spec.Key] = append(s.placed[spec.Key][:i:i], spec.Nodes[i].Name)
		if spec.Nodes[i].Name == n.name {
			for _, d := range spec.Nodes[i].Devices {
				st.gpus |= d.Mask
			}
		}
	}
	if n.drained > 0 && spec.Job.Start > n.drained {
		s.fail("node %s was drained at %d, and step %v of a job that started at %d is there", n.name, n.drained, spec.Key, spec.Job.Start)
	}
	n.sups[spec.Key] = st
	s.note(n.name, "supervisor starts", spec.Key)
	if s.breaks(0.003) {
		return // it never gets ready
	}
	s.after(s.between(time.Millisecond, 2*time.Second), func() {
		if !st.alive || st.phase != unheard {
			return
		}
		if s.breaks(0.02) {
			st.end(&job.Fault{What: "prepare the step", Node: s.chance(0.5)}, 0, 0)
			return
		}
		st.phase = prepared
		s.prepared[st.key]++
		st.say(control.Event{Prepared: &control.Prepared{Port: 29_000}})
		st.watchLease()
	})
}

// watchLease ends a step that is prepared and that nobody wants any more.
func (st *simStep) watchLease() {
	s := st.n.s
	s.after(max(0, st.lease-s.now), func() {
		switch {
		case !st.alive || st.phase != prepared:
		case s.now >= st.lease:
			st.end(&job.Fault{What: "the lease ended"}, 0, 0)
		default:
			st.watchLease()
		}
	})
}

// say tells the agent something.
func (st *simStep) say(e control.Event) {
	st.said = append(st.said, e)
	st.pass(e)
}

func (st *simStep) pass(e control.Event) {
	if h := st.watcher; h != nil {
		st.n.s.after(st.soon(&st.told), func() {
			h.do(h.own, func() { h.work.Said(e); h.kick() })
		})
	}
}

func (st *simStep) soon(last *time.Duration) time.Duration {
	s := st.n.s
	*last = max(s.now+s.between(20*time.Microsecond, 2*time.Millisecond), *last+1)
	return *last - s.now
}

// watch has another agent listen.
func (st *simStep) watch(h *simHands) {
	st.watcher = h
	for _, e := range st.said {
		st.pass(e)
	}
}

// tell is a request of the agent.
func (st *simStep) tell(r control.Request) {
	st.n.s.after(st.soon(&st.heard), func() {
		if st.alive {
			st.hear(r)
		}
	})
}

func (st *simStep) hear(r control.Request) {
	s := st.n.s
	switch {
	case r.Start != nil:
		if st.phase == prepared || s.bug.startTwice && st.phase == running {
			st.begin()
		}
	case r.Renew > 0:
		st.lease = s.now + time.Duration(r.Renew)*time.Millisecond
	case r.Signal != 0:
		if r.SignalID <= st.signals {
			return
		}
		st.signals = r.SignalID
		if st.phase == running {
			st.signal(r.Signal)
		} else {
			st.early = append(st.early, r.Signal)
		}
	case r.Kill != nil && st.phase < running:
		st.end(&job.Fault{What: r.Kill.Why}, 0, 0)
	case r.Kill != nil && st.phase == running:
		grace := time.Duration(r.Kill.GraceMS) * time.Millisecond
		took, signal := s.between(0, 3*time.Second), 15
		if took > grace {
			took, signal = grace, 9
		}
		s.after(took, func() { st.end(nil, 0, signal) })
	}
}

// begin starts the ranks, if that may be.
func (st *simStep) begin() {
	s, at := st.n.s, onNode{st.key.Job, st.key.Attempt, st.key.Step, st.n.name}
	if s.started[at]++; s.started[at] > 1 {
		s.fail("step %v is started a second time on node %s", st.key, st.n.name)
	}
	if have, want := s.prepared[st.key], len(st.spec.Nodes); have < want {
		s.fail("step %v is started on node %s, and ready on %d of %d nodes", st.key, st.n.name, have, want)
	}
	if d := st.n.dirs[st.key]; d == nil || d.intent == nil {
		s.fail("step %v is started on node %s, and that it is to be is not on stable storage", st.key, st.n.name)
	}
	for other := range st.n.running {
		if other.gpus&st.gpus != 0 && attemptOf(other.key) != attemptOf(st.key) {
			s.fail("GPUs %x of node %s are used by step %v and by step %v", other.gpus&st.gpus, st.n.name, other.key, st.key)
		}
	}
	s.user.mayRun(st.key)
	st.phase, st.start = running, s.time()
	s.note(st.n.name, "ranks start", st.key)
	st.say(control.Event{Started: &control.Started{At: st.start}})
	switch args := st.spec.Program.Args; string(args[0]) {
	case "run":
		ms, _ := strconv.Atoi(string(args[1]))
		exit, _ := strconv.Atoi(string(args[2]))
		s.after(time.Duration(ms)*time.Millisecond, func() { st.end(nil, exit, 0) })
	case "gang":
		s.user.srun(st)
	}
	for _, signal := range st.early {
		st.signal(signal)
	}
}

// signal is one that the ranks get: what waits for one ends.
func (st *simStep) signal(n int) {
	st.n.s.note(st.n.name, "signal", st.key, n)
	if string(st.spec.Program.Args[0]) == "wait" {
		st.end(nil, 0, 0)
	}
}

// end is the end of the ranks, or of what never had any.
func (st *simStep) end(fault *job.Fault, exit, signal int) {
	if !st.alive || st.phase == ended {
		return
	}
	s := st.n.s
	end := &job.StepEnd{Key: st.key, Node: st.n.name, Start: st.start, End: s.time(), Fault: fault}
	e := control.Event{Ended: end}
	if st.phase == running {
		end.Ranks = []job.RankEnd{{Rank: 0, Node: st.n.name, Exit: exit, Signal: signal, At: end.End}}
		if signal == 0 && st.key.Step == job.BatchStep {
			s.script[attemptOf(st.key)] = &scriptEnd{exit}
		}
		if s.breaks(0.03) {
			e.Left = "processes"
			st.leave()
		}
	}
	s.note(st.n.name, "step ends", st.key, exit, signal)
	st.phase = ended
	if d := st.n.dirs[st.key]; d != nil {
		d.end = end
	}
	st.say(e)
	s.after(s.between(time.Millisecond, 2*time.Second), func() {
		if st.alive {
			st.exit()
		}
	})
}

// leave has something of the ranks go on without the supervisor.
func (st *simStep) leave() {
	st.n.strays = append(st.n.strays, &simStep{n: st.n, key: st.key, gpus: st.gpus, phase: running})
}

func (st *simStep) exit() {
	st.alive = false
	delete(st.n.sups, st.key)
	if h := st.watcher; h != nil {
		st.n.s.after(st.soon(&st.told), func() {
			h.do(h.own, func() { h.work.Gone(st.n.dirs[st.key].endOf()); h.kick() })
		})
	}
}

// killed is the end of the supervisor by SIGKILL, which may leave something behind.
func (st *simStep) killed(leaves bool) {
	st.n.s.note(st.n.name, "supervisor is killed", st.key)
	if leaves && st.phase == running {
		st.leave()
	}
	st.exit()
}
