package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// maxMessage bounds a message: a program's environment and script travel in one.
const maxMessage = 64 << 20

// session keeps one to the controller, until ctx ends or they do not understand each
// other.
func (a *Agent) session(ctx context.Context) error {
	said := ""
	for pause := 10 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, time.Second) {
		began := time.Now()
		err := a.oneSession(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if status.Code(err) == codes.Unimplemented {
			return &fault.Error{
				What: fmt.Errorf("register node %s: %s", a.Node.Name, status.Convert(err).Message()),
				Hint: "use daemons of one release: install it, and start the cluster again; what runs goes on",
			}
		}
		if time.Since(began) > time.Second {
			pause, said = 10*time.Millisecond, ""
		}
		if why := status.Convert(err).Message(); why != said { // and not each time that it is tried
			a.Log.Info("session ended", "err", why)
			said = why
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

func (a *Agent) oneSession(ctx context.Context) error {
	target, options := a.reach()
	conn, err := grpc.NewClient(target, append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))...)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.lease.session(cancel)
	stream, err := wire.NewControllerClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	s := a.Open()
	defer s.Close()
	go func() {
		defer cancel()
		for {
			for _, m := range s.Take() {
				if stream.Send(m) != nil {
					return // Recv says why
				}
			}
			select {
			case <-s.outbox.ready:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := m.Message.(type) {
		case *wire.ControllerMessage_Answer:
			a.lease.answered(m.Answer)
			continue
		case *wire.ControllerMessage_Probe:
			go a.probe(ctx, m.Probe)
			continue
		}
		s.Hear(m) // the Welcome before heartbeats: what is said before it is not sent
		if w := m.GetWelcome(); w != nil {
			go a.heartbeats(ctx, time.Duration(w.HeartbeatMs)*time.Millisecond)
		}
	}
}

// Session is one to the controller, for who carries its messages.
type Session struct {
	agent  *Agent
	outbox *queue[*wire.AgentMessage]
}

// Open begins a session. What the controller has to be told first is there after a Turn.
func (a *Agent) Open() *Session {
	s := &Session{a, newQueue[*wire.AgentMessage]()}
	a.inputs.put(sessionIn{s.outbox})
	return s
}

// Take is what is to be sent.
func (s *Session) Take() []*wire.AgentMessage { return s.outbox.take() }

// Hear takes what the controller says.
func (s *Session) Hear(m *wire.ControllerMessage) { s.agent.inputs.put(messageIn{s.outbox, m}) }

// Close ends the session.
func (s *Session) Close() { s.agent.inputs.put(sessionIn{}) }

// hello says who this is and what it has.
func (a *Agent) hello() *wire.Hello {
	address, socket := a.where()
	a.saidCut = a.lease.cut()
	h := &wire.Hello{
		Protocol: wire.Protocol, Version: a.Version, Cluster: a.Name, Node: a.Node.Name, BootId: a.boot,
		Instance: a.instance, Epoch: a.epoch, Hardware: mustJSON(a.Node), Declared: a.Declared,
		Address: address, Socket: socket, Images: a.images.list(), Pid: int32(os.Getpid()), CutOff: a.saidCut,
	}
	for held := range a.all {
		h.Steps = append(h.Steps, &wire.StepState{Key: wire.KeyOf(held.key), Phase: held.state()})
	}
	return h
}

// message takes one of the controller's.
func (a *Agent) message(ctx context.Context, m *wire.ControllerMessage) {
	switch m := m.Message.(type) {
	case *wire.ControllerMessage_Welcome:
		a.welcome(ctx, m.Welcome)
	case *wire.ControllerMessage_Prepare:
		if a.seen(ctx, m.Prepare.Epoch) {
			a.prepare(ctx, m.Prepare)
		}
	case *wire.ControllerMessage_Start:
		span, ok := a.lease.start()
		if !ok {
			a.Log.Warn("step is not started: nothing was heard of the controller for too long", "step", m.Start.Key.Of())
			a.known(m.Start.Key, killIn{why: job.EndNodeFailure, fault: &job.Fault{What: "start the step on node " + a.Node.Name, Cause: "its lease has ended: it was cut off from the controller", Node: true}})
			return
		}
		if a.seen(ctx, m.Start.Epoch) {
			if span > 0 { // before the ranks run: the agent may be killed just then
				a.known(m.Start.Key, holdIn{span})
			}
			a.known(m.Start.Key, startIn{control.Start{Image: m.Start.Image, MasterAddr: m.Start.MasterAddr, MasterPort: int(m.Start.MasterPort)}})
		}
	case *wire.ControllerMessage_Renew:
		if a.seen(ctx, m.Renew.Epoch) {
			a.known(m.Renew.Key, renewIn{ms(m.Renew.LeaseMs)})
		}
	case *wire.ControllerMessage_Signal:
		if a.seen(ctx, m.Signal.Epoch) {
			a.known(m.Signal.Key, signalIn{int(m.Signal.Signal), m.Signal.Id})
		}
	case *wire.ControllerMessage_Kill:
		if a.seen(ctx, m.Kill.Epoch) {
			a.known(m.Kill.Key, killIn{grace: ms(m.Kill.GraceMs), why: m.Kill.Why})
		}
	case *wire.ControllerMessage_EndedAck:
		if h := a.steps[m.EndedAck.Key.Of()]; h != nil {
			a.happen(h, ackIn{})
		}
	case *wire.ControllerMessage_Release:
		if a.seen(ctx, m.Release.Epoch) {
			a.release(ctx, release{job.ID(m.Release.Job), int(m.Release.Attempt)}, m.Release.Env)
		}
	case *wire.ControllerMessage_Enter:
		if a.seen(ctx, m.Enter.Epoch) {
			a.enter(ctx, release{job.ID(m.Enter.Job), int(m.Enter.Attempt)}, m.Enter.Env, true)
		}
	case *wire.ControllerMessage_Configure:
		if a.seen(ctx, m.Configure.Epoch) {
			a.setPrograms(ctx, m.Configure.Programs, m.Configure.Address)
		}
	case *wire.ControllerMessage_CheckHealth:
		if a.seen(ctx, m.CheckHealth.Epoch) {
			a.checkHealth(ctx)
		}
	case *wire.ControllerMessage_Precache:
		go a.precache(ctx, m.Precache)
	}
}

// known lets something happen to a step. Of one that is not here the end is said.
func (a *Agent) known(k *wire.StepKey, in any) {
	key := k.Of()
	if h := a.steps[key]; h != nil {
		a.happen(h, in)
		return
	}
	switch in.(type) {
	case startIn, killIn:
		a.say(sayEnd(a.unknown(key)).message)
	}
}

// welcome is the controller's answer to what Hello said. What it does not keep is ended.
func (a *Agent) welcome(ctx context.Context, w *wire.Welcome) {
	if !a.seen(ctx, w.Epoch) {
		a.outbox = nil // its messages are not heard any more
		return
	}
	a.said = true
	if a.saidCut {
		a.lease.setCut(false)
	}
	a.setPrograms(ctx, w.Programs, w.Address)
	fate := map[job.StepKey]any{}
	for _, k := range w.Keep {
		fate[k.Of()] = restateIn{}
	}
	for _, k := range w.Ended {
		fate[k.Of()] = ackIn{}
	}
	for h := range a.all {
		in, ok := fate[h.key]
		if !ok {
			in = killIn{why: "the controller does not know it"}
		}
		a.happen(h, in)
	}
}

func (a *Agent) prepare(ctx context.Context, m *wire.Prepare) {
	key := m.Key.Of()
	h := a.steps[key]
	if h == nil {
		h = a.hold(ctx, key)
	}
	var spec job.StepSpec
	if err := json.Unmarshal(m.Spec, &spec); err != nil {
		a.happen(h, failedIn{job.Fault{What: fmt.Sprintf("read step %s", key), Cause: err.Error()}})
		return
	}
	if a.Hosts != nil {
		spec.Controller = a.Hosts.Public
	}
	waits := a.waitsForProlog(attemptOf(key))
	a.happen(h, prepareIn{&spec, ms(m.LeaseMs), ms(m.ProgressMs), ms(m.TotalMs), waits})
	if waits {
		a.enter(ctx, attemptOf(key), m.Env, false)
	}
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
