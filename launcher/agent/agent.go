// Package agent is the daemon of a node: it holds one session to the controller, starts a
// supervisor ("gangway step") for each step that the controller sends, passes on what
// they say, finds them again when it was killed, and sees to it that nothing of a job is
// left when the job is over.
//
// First use: New(Options) and [Agent.Run], which returns when its context ends or it was
// asked to stop.
//
// One goroutine owns all lives of steps; what they become is decided by a pure function
// (life.go). Supervisors, the session and the HTTP service have goroutines of their own
// that post to it. The package runs no rank and no container itself, and decides nothing
// about nodes other than its own.
package agent

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Options say who the agent is.
type Options struct {
	Cluster string // its id, which it keeps under another name: no two of a machine have the same
	Name    string // of the cluster, for people and the controller
	Node    job.Node
	// Declared says that Node is as configured, whatever is there.
	Declared bool
	// Dir is the node's directory, of the agent alone. Steps have theirs below it.
	Dir string
	// Wire is the path of the controller's socket for daemons, and Socket that of the
	// agent's own for clients. They have at most 107 bytes.
	Wire, Socket string
	Gangway      string   // the program that supervises steps and fetches images
	Environ      []string // of supervisors
	Store        string   // of images
	Version      string
	Orphans      *Orphans // of the process; nil: it adopts none
	// Leftovers removes what containers whose supervisor was killed left on disk. Their first
	// process does so itself, if it lives long enough. Nil: there are none.
	Leftovers func() error
	// Hosts is set where the controller is on another host; nil: it is at Wire.
	Hosts *Hosts
	// Users is set where steps are of all users of the machine; nil: they are this user's.
	Users *Users
	Log   *slog.Logger
	// Ground is what the agent stands on; nil: this machine.
	Ground Ground
}

// Agent is the daemon of one node.
type Agent struct {
	Options
	instance string
	boot     string
	epoch    uint64
	inputs   *queue[any]
	steps    map[job.StepKey]*held
	releases map[release]*releasing
	stray    map[release]bool           // attempts of which something may run that no supervisor has
	outbox   *queue[*wire.AgentMessage] // of the session; nil: there is none
	said     bool                       // the controller's Welcome came on it
	stopping time.Time                  // zero: no
	images   *inventory
	lease    *holding      // nil: the node cannot be cut off
	saidCut  bool          // Hello said that ranks were ended since
	patience time.Duration // with images that are fetched
	programs programs      // of administrators
}

// held is a life with who does what it says.
type held struct {
	life
	work *Work
}

// stopGrace is how long ranks have when the agent ends with its steps.
const stopGrace = 5 * time.Second

// tick is how often deadlines are looked at.
const tick = 200 * time.Millisecond

// New makes an agent.
func New(o Options) *Agent {
	if o.Ground == nil {
		o.Ground = &machine{Options: o}
	}
	return &Agent{
		Options: o, instance: rand.Text(), boot: o.Ground.Boot(), inputs: newQueue[any](),
		steps: map[job.StepKey]*held{}, releases: map[release]*releasing{},
		stray: map[release]bool{}, images: newInventory(o.Store), patience: fetchPatience, programs: programs{stays: map[release]*stay{}},
	}
}

// Stop makes Run end all steps of the node, and return then. Their ends are kept for the
// controller.
func (a *Agent) Stop() { a.inputs.put(stopIn{}) }

// Run works until ctx ends, which leaves the steps as they are, or until it was stopped. It
// fails where the controller speaks by another contract: the program was replaced, and who
// starts it again starts the new one.
func (a *Agent) Run(ctx context.Context) error {
	lock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }() // it ends with the process
	ctx, cancel := context.WithCancel(ctx)
	if m, ok := a.Ground.(*machine); ok {
		defer m.workers.Wait()
	}
	defer a.programs.group.Wait()
	defer cancel()
	if a.Orphans != nil {
		go a.Orphans.Watch(ctx)
	}
	if a.Users != nil {
		if err := a.Users.make(); err != nil {
			return err
		}
	}
	if err := a.findStays(); err != nil {
		return err
	}
	if err := a.Begin(ctx); err != nil {
		return err
	}
	if a.Hosts != nil && a.Hosts.Peers != nil {
		a.lease = a.newHolding()
		go a.lease.keep(ctx)
		go a.servePeers()
	}
	serve, err := a.listen()
	if err != nil {
		return err
	}
	defer serve()()
	failed := make(chan error, 1)
	go func() { failed <- a.session(ctx) }()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if a.Turn(ctx) {
			return nil
		}
		select {
		case <-a.inputs.ready:
		case <-ticker.C:
			a.Tick(ctx)
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// Begin takes up what an earlier agent left. It is the first that a loop does.
func (a *Agent) Begin(ctx context.Context) error {
	a.epoch = a.Ground.Epoch()
	return a.findSteps(ctx)
}

// Turn takes what was posted and sees to what follows from it. It says whether that was all
// that this agent will ever do.
func (a *Agent) Turn(ctx context.Context) (stopped bool) {
	for _, in := range a.inputs.take() {
		a.input(ctx, in)
	}
	a.driveReleases(ctx)
	return !a.stopping.IsZero() && a.stopped()
}

// Tick sees to deadlines. What follows from them a Turn does.
func (a *Agent) Tick(ctx context.Context) { a.everyStep(ctx, tickIn{}) }

// What is posted to the loop, besides what is a life's.
type (
	stepIn struct {
		key job.StepKey
		in  any
	}
	sessionIn struct{ outbox *queue[*wire.AgentMessage] } // nil: it ended
	messageIn struct {
		outbox  *queue[*wire.AgentMessage] // of the session it came by
		message *wire.ControllerMessage
	}
	sayIn     struct{ message *wire.AgentMessage }
	cleanedIn struct {
		release release
		left    string
	}
	stopIn struct{}
)

// input takes one.
func (a *Agent) input(ctx context.Context, in any) {
	switch in := in.(type) {
	case stepIn:
		if h := a.steps[in.key]; h != nil {
			a.happen(h, in.in)
		}
	case sessionIn:
		a.outbox, a.said = in.outbox, false
		if in.outbox != nil {
			in.outbox.put(&wire.AgentMessage{Message: &wire.AgentMessage_Hello{Hello: a.hello()}})
		}
	case messageIn:
		if in.outbox == a.outbox {
			a.message(ctx, in.message)
		}
	case sayIn:
		a.say(in.message)
	case cleanedIn:
		a.toStay(ctx, in.release, emptyIn{in.left, len(a.programs.Epilog) > 0})
	case stayIn:
		a.toStay(ctx, in.release, in.in)
	case checkedIn:
		a.programs.checking = false
	case cutOffIn:
		a.cutOff(ctx, in.spans)
	case holdIn:
		a.everyStep(ctx, in)
	case stopIn:
		if !a.stopping.IsZero() {
			return
		}
		a.stopping = a.Ground.Now()
		fault := &job.Fault{What: "the cluster was stopped", Hint: "start it again with the same state directory: gangway up", Node: true}
		a.everyStep(ctx, killIn{grace: stopGrace, why: fault.What, fault: fault})
	}
}

// say sends a message, if there is a session. What has to be known later too is said
// again by then.
func (a *Agent) say(m *wire.AgentMessage) {
	if a.outbox != nil && a.said {
		a.outbox.put(m)
	}
}

// happen lets something happen to a life, and has done what follows.
func (a *Agent) happen(h *held, in any) {
	life, todo := h.step(in, a.Ground.Now())
	h.life = life
	for _, do := range todo {
		switch do := do.(type) {
		case sayDo:
			a.say(do.message)
		case tellDo:
			if k := do.request.Kill; k != nil {
				a.Log.Info("step is ended", "step", h.key, "why", k.Why)
			}
			h.work.todo.put(do)
		case destroyDo:
			a.stray[attemptOf(h.key)] = true
			// Not in the supervisor's queue: that may be stuck with what is destroyed.
			h.work.hands.Destroy()
		case discardDo:
			delete(a.steps, h.key)
			h.work.todo.put(do)
		default:
			h.work.todo.put(do)
		}
	}
}

func (a *Agent) everyStep(ctx context.Context, in any) {
	if ctx.Err() != nil {
		return
	}
	for h := range a.all {
		a.happen(h, in)
	}
}

// all yields the steps in the order of their keys.
func (a *Agent) all(yield func(*held) bool) {
	for _, key := range slices.SortedFunc(maps.Keys(a.steps), job.StepKey.Compare) {
		if h := a.steps[key]; h != nil && !yield(h) {
			return
		}
	}
}

// stopped says whether all steps have ended, or were given time enough for it.
func (a *Agent) stopped() bool {
	for _, h := range a.steps {
		if h.phase != ended && a.Ground.Now().Sub(a.stopping) < stopGrace+slack {
			return false
		}
	}
	a.Ground.End()
	return true
}

// hold makes a life that does not know anything yet.
func (a *Agent) hold(ctx context.Context, key job.StepKey) *held {
	w := &Work{Key: key, node: a.Node.Name, todo: newQueue[any](), post: func(in any) { a.inputs.put(stepIn{key, in}) }}
	h := &held{life: life{key: key, node: a.Node.Name}, work: w}
	a.steps[key] = h
	w.hands = a.Ground.Hands(w)
	a.Ground.Do(ctx, w)
	return h
}

func (o *Options) stepsDir() string { return filepath.Join(o.Dir, "steps") }

// unknown is the end of a step that is not here.
func (a *Agent) unknown(key job.StepKey) job.StepEnd {
	return job.StepEnd{Key: key, Node: a.Node.Name, End: job.Time(a.Ground.Now().UnixMilli()), Fault: &job.Fault{
		What: fmt.Sprintf("node %s does not know step %s", a.Node.Name, key), Node: true,
	}}
}
