package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// stepSpec is what all steps of a run have in common.
func (c *core) stepSpec(r *run, id job.StepID, try int) *job.StepSpec {
	v, _ := c.sched.Job(r.Of.Job)
	s := &job.StepSpec{
		Key:     job.StepKey{Job: r.Of.Job, Attempt: r.Of.Attempt, Step: id, Try: try},
		Cluster: c.opts.Cluster.Name, GID: r.Facts.GID, Groups: r.Facts.Groups, Controller: c.opts.Address, Grace: killWait,
	}
	if v.Spec != nil {
		s.UID, s.User, s.Job, s.CPUsPerTask, s.Name = v.Spec.UID, v.Spec.User, c.jobFacts(r, v.Spec), v.Spec.CPUsPerTask, v.Spec.Name
	}
	s.Job.Array = c.arrayFacts(r.Of.Job)
	s.Job.Restarts = max(0, r.Of.Attempt-1)
	return s
}

// jobFacts are what a job's steps are told of it.
func (c *core) jobFacts(r *run, spec *job.Spec) job.JobFacts {
	f := job.JobFacts{
		Name: spec.Name, Partition: r.Alloc.Partition, Account: spec.Account, QOS: spec.QOS,
		Tasks: spec.Tasks, NTasksPerNode: spec.TasksPerNode, CPUsPerTask: spec.CPUsPerTask, Memory: spec.Memory,
		GPUs: r.Facts.GPUs, GPUsPerNode: r.Facts.GPUsPerNode, GPUsPerTask: r.Facts.GPUsPerTask,
		Start: r.Start, End: r.Start.Add(r.Alloc.Limit), SubmitDir: r.Facts.SubmitDir, SubmitHost: r.Facts.SubmitHost,
		Dependency: r.Facts.Dependency,
	}
	for i := range r.Alloc.Nodes {
		n := &r.Alloc.Nodes[i]
		f.Nodes = append(f.Nodes, n.Node)
		f.Addrs = append(f.Addrs, c.addressOf(n.Node))
		f.CPUsPerNode = append(f.CPUsPerNode, n.CPUs)
		f.TasksPerNode = append(f.TasksPerNode, n.Tasks)
		if len(c.places) > 0 {
			f.Switches = append(f.Switches, c.places[n.Node])
		}
	}
	return f
}

// stepNode is a whole share of a job as a step's.
func (c *core) stepNode(share *job.NodeShare) job.StepNode {
	return job.StepNode{
		Name: share.Node, Addr: c.addressOf(share.Node), CPUs: share.CPUs, Memory: share.Memory, Devices: share.Devices,
		JobCPUs: share.CPUs, JobMemory: share.Memory, JobDevices: share.Devices,
	}
}

// make takes in a step that has its place, and has it prepared.
func (c *core) make(r *run, e stepMade) {
	c.emit(e)
	st := r.Steps[e.Spec.Key.Step]
	if st == nil {
		return
	}
	st.told = c.now
	c.watch.step(r, st)
	c.touch(r.Of.Job)
	for i := range st.Gang.Nodes {
		c.sendPrepare(st, st.Gang.Nodes[i].Name)
	}
}

// driveStep does what a step's gang wants.
func (c *core) driveStep(r *run, st *step) {
	before := st.Gang.held
	if st.Gang.held = ""; !st.Gang.Starting {
		st.Gang.held = c.lingers(r)
	}
	if st.Gang.held != before && st.Gang.held != "" {
		c.log.Info("step waits until no rank of the attempt before can run any more", "step", st.Spec.Key, "node", st.Gang.held)
	}
	c.act(r, st, st.Gang.decide(&st.Spec.Program, c.now))
}

// act carries out what a gang wants.
func (c *core) act(r *run, st *step, actions []action) {
	for _, a := range actions {
		switch a.do {
		case doStarting:
			c.emit(stepStarting{At: c.now, Key: st.Spec.Key})
			for i := range st.Gang.Nodes {
				c.sendStart(st, st.Gang.Nodes[i].Name)
			}
			c.watch.step(r, st)
		case doStart:
			c.sendStart(st, a.node)
		case doFail:
			c.emit(stepFailing{At: c.now, Key: st.Spec.Key, failing: *a.failing})
		case doKill:
			c.sendKill(st, a)
		case doRenew:
			c.send(a.node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Renew{Renew: &wire.Renew{
				Key: wire.KeyOf(st.Spec.Key), Epoch: c.store.Epoch(), LeaseMs: int64(leaseSpan),
			}}})
		case doDone:
			c.stepOver(r, st)
		}
	}
}

// stepOver is that all nodes of a step have ended: the step ends, or is tried again.
func (c *core) stepOver(r *run, st *step) {
	res := st.Gang.result(c.now, c.triedElsewhere(r, st))
	if res.Start > 0 { // by its nodes' clocks, which may be wrong
		res.Start = min(max(res.Start, st.Begun), c.now)
	}
	if r.Fate != nil && r.now.killed && res.State == job.Failed && r.Fate.State != job.Failed {
		res.State = r.Fate.State
		if res.State == job.Completed { // the script did, and left this step behind
			res.State = job.CancelledState
		}
	}
	if r.Fate == nil && (c.anew(r, st) || c.again(r, st, &res)) {
		return
	}
	if res.Start == 0 && res.Fault == nil {
		res.State = job.CancelledState
	}
	c.emit(stepDone{At: c.now, Key: st.Spec.Key, Result: res})
	c.accountStep(r, st)
	c.watch.step(r, st)
	c.touch(r.Of.Job)
	if st.Spec.Key.Step == job.BatchStep && r.Fate == nil {
		c.batchDone(r, st)
	}
}

// triedElsewhere says whether a step, or its job, was moved from nodes where it failed.
func (c *core) triedElsewhere(r *run, st *step) bool {
	v, _ := c.sched.Job(r.Of.Job)
	return len(st.Avoid) > 0 || v.Spec != nil && len(v.Spec.Exclude) > len(r.Facts.Exclude)
}

// again tries a step once more on other nodes of its job, where that may help.
func (c *core) again(r *run, st *step, res *result) bool {
	key := st.Spec.Key
	if res.Fault == nil || !res.Fault.Node || st.Want == nil || key.Try >= maxAttempts || st.Gang.Starting {
		return false
	}
	avoid := append(slices.Clone(st.Avoid), res.FaultNodes...)
	delete(r.Steps, key.Step) // what it has is free for the next try
	spec, err := c.place(r, &st.Want.Request, key.Step, avoid)
	r.Steps[key.Step] = st
	if err != nil {
		return false
	}
	spec.Key.Try = key.Try + 1
	spec.Program = st.Spec.Program
	spec.Image = c.imageFor(spec, res.Image)
	c.log.Info("step is tried on other nodes", "step", key, "err", res.Fault.What)
	c.make(r, stepMade{At: c.now, Spec: spec, Env: st.Env, Text: st.Text, Old: key, Want: st.Want, Avoid: avoid})
	return true
}

// heard takes what a node says of a step, by f, and does what follows.
func (c *core) heard(node string, k *wire.StepKey, f func(*step, *gangNode)) {
	key := k.Of()
	st := c.step(key)
	if st == nil {
		return
	}
	n := st.Gang.node(node)
	if n == nil || n.Phase == ended {
		return
	}
	before, starting := n.Phase, st.Gang.Starting
	f(st, n)
	r := c.runs[key.Job]
	if before == n.Phase || starting {
		c.act(r, st, st.Gang.again(n)) // what we said to that may have been lost
	}
	c.driveStep(r, st)
	c.touch(key.Job)
	c.watch.step(r, st)
}

// nodeEnd takes the end of a step on a node. It is acknowledged once it is durable, or if
// it is known already.
func (c *core) nodeEnd(node string, end job.StepEnd) {
	end.Node = node
	if st := c.step(end.Key); st != nil {
		if n := st.Gang.node(node); n != nil && n.Phase != ended {
			c.emit(nodeEnded{At: c.now, End: end})
			c.driveStep(c.runs[end.Key.Job], st)
			c.touch(end.Key.Job)
		}
	}
	c.send(node, &wire.ControllerMessage{Message: &wire.ControllerMessage_EndedAck{EndedAck: &wire.EndedAck{Key: wire.KeyOf(end.Key)}}})
}

// sendPrepare sends a step to a node, unless something of an earlier job has to be cleaned
// there first: then it is sent when that was done.
func (c *core) sendPrepare(st *step, name string) {
	if c.blocked(name) {
		return
	}
	n := c.nodes[name]
	if n == nil || n.session == nil {
		return // it gets it when it comes
	}
	session, epoch, env := n.session, c.store.Epoch(), c.jobEnv(attempt{st.Spec.Key.Job, st.Spec.Key.Attempt}, name)
	c.after(func() {
		if c.commit.refused(st.Spec.Key.Job) {
			return
		}
		spec, err := c.wholeSpec(st)
		if err != nil {
			c.log.Error("read the program of a step", "step", st.Spec.Key, "err", err)
			c.later(func(c *core) {
				c.nodeEnd(name, job.StepEnd{Key: st.Spec.Key, End: c.now, Fault: &job.Fault{What: "read the program of the step: " + err.Error()}})
			})
			return
		}
		session.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Prepare{Prepare: &wire.Prepare{
			Key: wire.KeyOf(st.Spec.Key), Epoch: epoch, Spec: spec, LeaseMs: int64(leaseSpan), ProgressMs: int64(progressSpan), TotalMs: int64(prepareSpan), Env: env,
		}}})
	})
}

// wholeSpec is a step's specification with its script and environment, as JSON.
func (c *core) wholeSpec(st *step) ([]byte, error) {
	st.whole.once.Do(func() {
		spec := *st.Spec
		st.whole.err = c.fill(&spec.Program, st.Env, st.Text)
		if st.whole.err == nil {
			st.whole.data, st.whole.err = json.Marshal(&spec)
		}
	})
	return st.whole.data, st.whole.err
}

// wholeText is a specification as it is sent. Its nodes are prepared by one text.
type wholeText struct {
	once sync.Once
	data []byte
	err  error
}

// sendStart lets the ranks of a node go, and sends them the signals that came before.
func (c *core) sendStart(st *step, name string) {
	m := &wire.Start{Key: wire.KeyOf(st.Spec.Key), Epoch: c.store.Epoch()}
	first := st.Gang.Nodes[0]
	m.Image, m.MasterPort, m.MasterAddr = first.Image, int32(first.Port), st.Spec.Nodes[0].Addr
	c.send(name, &wire.ControllerMessage{Message: &wire.ControllerMessage_Start{Start: m}})
	c.sendDue(st, name)
}

func (c *core) sendKill(st *step, a action) {
	c.send(a.node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Kill{Kill: &wire.Kill{
		Key: wire.KeyOf(st.Spec.Key), Epoch: c.store.Epoch(), GraceMs: int64(a.grace), Why: a.why,
	}}})
}

func (c *core) sendRelease(name string, a attempt) {
	c.send(name, &wire.ControllerMessage{Message: &wire.ControllerMessage_Release{Release: &wire.Release{
		Job: uint32(a.Job), Attempt: int32(a.Attempt), Epoch: c.store.Epoch(), Env: c.jobEnv(a, name),
	}}})
}

// stopStep has a step end that somebody wants to end, and nothing that happens to this
// process or to an agent makes that forgotten.
func (c *core) stopStep(r *run, st *step, grace job.Duration, why string) {
	c.emit(stepStopped{At: c.now, Key: st.Spec.Key, Grace: grace, Why: why})
	c.act(r, st, st.Gang.stop(grace, why))
	c.watch.step(r, st)
}

// signalStep sends a signal to all processes of a step's ranks, or to a batch script's shell
// alone, as Slurm does: what that runs in the foreground would die of it. It is sent until the
// nodes have it, whatever happens to them or to this process. Before ranks are to run it is kept
// for them, but for one that would end them: that ends the step.
func (c *core) signalStep(st *step, n int, shell bool) {
	sig := syscall.Signal(n)
	if !st.Gang.Starting && (sig == syscall.SIGKILL || sig == syscall.SIGTERM || sig == syscall.SIGINT) {
		c.stopStep(c.runs[st.Spec.Key.Job], st, 0, "it was sent SIG"+slurm.SignalName(sig))
		return
	}
	if shell && st.Spec.Key.Step == job.BatchStep {
		n = -n
	}
	var to []string
	all := true
	for node := range st.Gang.each {
		// What is pending at a node that is away comes once, as at a process.
		if c.away(node.Name) && slices.ContainsFunc(node.Due, func(d dueSignal) bool { return d.Signal == n }) {
			all = false
			continue
		}
		to = append(to, node.Name)
	}
	if all {
		c.emit(signalKept{At: c.now, Key: st.Spec.Key, Signal: n})
	} else {
		for _, name := range to {
			c.emit(signalKept{At: c.now, Key: st.Spec.Key, Node: name, Signal: n})
		}
	}
	for _, name := range to {
		if due := st.Gang.node(name).Due; st.Gang.Starting && len(due) > 0 {
			c.sendSignal(st, name, due[len(due)-1])
		}
	}
}

// sendDue sends a node the signals of a step that it is not known to have.
func (c *core) sendDue(st *step, name string) {
	for _, d := range st.Gang.node(name).Due {
		c.sendSignal(st, name, d)
	}
}

func (c *core) sendSignal(st *step, node string, d dueSignal) {
	c.send(node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Signal{Signal: &wire.Signal{
		Key: wire.KeyOf(st.Spec.Key), Epoch: c.store.Epoch(), Signal: int32(d.Signal), Id: d.ID,
	}}})
}

// signalled takes that a node has the signals of a step up to one.
func (c *core) signalled(node string, m *wire.Signalled) {
	key := m.Key.Of()
	if n := c.gangNode(key, node); n != nil && len(n.Due) > 0 && n.Due[0].ID <= m.Id {
		c.emit(signalsSent{At: c.now, Key: key, Node: node, UpTo: m.Id})
	}
}

// stepWait is a request for a step that waits for resources.
type stepWait struct {
	request *api.StepRequest
	env     string
	text    string
	blobs   []store.Blob
	note    string // for who asked
	until   job.Time
	gone    func() bool // who asked has gone away
	answer  func(*step, error)
}

// driveWaiting gives steps their places as far as there is room.
func (c *core) driveWaiting(r *run) {
	r.now.waiting = slices.DeleteFunc(r.now.waiting, func(w *stepWait) bool {
		if w.gone() {
			return true
		}
		spec, err := c.place(r, w.request, c.nextStep(r, w.request), nil)
		if busy, ok := err.(*busyError); ok && c.now < w.until {
			_ = busy
			return false
		}
		if err != nil {
			w.answer(nil, err)
			return true
		}
		spec.Program = w.request.Program
		spec.Image = c.imageFor(spec, "")
		req := *w.request
		req.Program = job.Program{}
		c.keep(w.blobs)
		c.make(r, stepMade{At: c.now, Spec: spec, Env: w.env, Text: w.text, Want: &want{req}})
		st := r.Steps[spec.Key.Step]
		if w.note != "" {
			st.notes = append(st.notes, w.note)
		}
		w.answer(st, nil)
		return true
	})
}

func (c *core) nextStep(r *run, q *api.StepRequest) job.StepID {
	if q.Interactive && r.Steps[job.InteractiveStep] == nil {
		return job.InteractiveStep
	}
	return r.Next
}

// busyError is that a step has to wait for others.
type busyError struct{ why string }

func (b *busyError) Error() string { return b.why }

func refuseStep(kind, format string, args ...any) *api.Error {
	return &api.Error{What: "create step: " + fmt.Sprintf(format, args...), Kind: kind}
}
