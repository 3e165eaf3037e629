package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// world is a controller with agents that only pretend: they say over real sockets what
// agents say, and run nothing.
type world struct {
	t       testing.TB
	dir     string
	cluster *job.Cluster
	store   *faultyStore
	server  *Server
	stop    func()
	agents  map[string]*fakeAgent
	client  *http.Client
	every   int // events between snapshots
	keep    int // events that are kept
	hosts   *Hosts
	now     func() time.Time

	configuration *Configuration
}

// faultyStore refuses batches while it is told to, or keeps them waiting.
type faultyStore struct {
	store.Store
	mu   sync.Mutex
	err  error
	gate sync.RWMutex // locked: nothing gets any further
}

func (f *faultyStore) Append(b *store.Batch) (uint64, error) {
	f.gate.RLock()
	defer f.gate.RUnlock()
	f.mu.Lock()
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return f.Store.Append(b)
}

func (f *faultyStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func newWorld(t testing.TB, nodes int) *world {
	return newWorldOf(t, nodes, func(*job.Cluster) {})
}

// newWorldOf is one with another configuration.
func newWorldOf(t testing.TB, nodes int, edit func(*job.Cluster)) *world {
	w := &world{t: t, dir: t.TempDir(), agents: map[string]*fakeAgent{}, cluster: &job.Cluster{Name: "test", Declared: true}}
	part := job.Partition{Name: "main", Default: true}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		w.cluster.Nodes = append(w.cluster.Nodes, job.Node{
			Name: name, Sockets: 1, CoresPerSocket: 8, ThreadsPerCore: 1, Addr: "127.0.0.1", GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 8}},
		})
		part.Nodes = append(part.Nodes, name)
	}
	w.cluster.Partitions = []job.Partition{part}
	edit(w.cluster)
	w.start()
	t.Cleanup(func() {
		w.stop()
		for _, a := range w.agents {
			a.close()
		}
	})
	for _, n := range w.cluster.Nodes {
		w.agents[n.Name] = newFakeAgent(w, n)
	}
	w.idle()
	return w
}

func (w *world) sockets() (public, daemons string) {
	return filepath.Join(w.dir, "c.sock"), filepath.Join(w.dir, "w.sock")
}

// start opens the store, and starts a controller on it.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	db, err := store.Open(ctx, filepath.Join(w.dir, "db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = &faultyStore{Store: db}
	log := slog.New(slog.NewTextHandler(testLog{w.t}, nil))
	public, daemons := w.sockets()
	// What profiles show with this label is the controller's, and all else the pretence.
	defer pprof.SetGoroutineLabels(ctx)
	pprof.SetGoroutineLabels(pprof.WithLabels(ctx, pprof.Labels("of", "controller")))
	w.server, err = New(ctx, Options{
		Cluster: w.cluster, Store: w.store, Log: log, Version: "test", Address: "unix:" + public,
		SnapshotEvery: w.every, KeepEvents: w.keep, Now: w.now, Hosts: w.hosts, Configuration: w.configuration,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	var listeners []net.Listener
	for _, path := range []string{public, daemons} {
		l, err := net.Listen("unix", path)
		if err != nil {
			w.t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, listeners[0], listeners[1]) }()
	w.client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", public)
	}}}
	var once sync.Once
	w.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-ended; err != nil && !store.IsFenced(err) {
				w.t.Errorf("serve: %v", err)
			}
			w.client.CloseIdleConnections()
			_ = db.Close()
		})
	}
}

// crash ends the controller as a crash does: nothing is saved that was not durable. Its
// store goes on to take nothing, as after a kill.
func (w *world) crash() {
	w.t.Helper()
	w.store.fail(fmt.Errorf("crashed: %w", store.ErrFenced))
	w.server.core.commit.setBroken(store.ErrFenced)
	w.server.cancel()
	<-w.server.stopped
	w.stop()
}

func (w *world) restart() {
	w.t.Helper()
	w.crash()
	w.start()
}

// renew starts a controller on an empty store: the configuration is taken once.
func (w *world) renew() {
	w.t.Helper()
	left, err := filepath.Glob(filepath.Join(w.dir, "db*"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			w.t.Fatal(err)
		}
	}
	w.start()
	w.idle()
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	if testing.Verbose() {
		fmt.Printf("%s %s", l.t.Name(), b)
	}
	return len(b), nil
}

// call makes a request and decodes the answer; a refusal comes back as an error.
func (w *world) call(method, path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://c"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		var e api.Error
		if err := json.Unmarshal(all, &e); err != nil || e.What == "" {
			return fmt.Errorf("%s: %s", resp.Status, all)
		}
		return &e
	}
	if out != nil {
		return json.Unmarshal(all, out)
	}
	return nil
}

func (w *world) get(path string, out any) {
	w.t.Helper()
	if err := w.call("GET", path, nil, out); err != nil {
		w.t.Fatalf("GET %s: %v", path, err)
	}
}

func (w *world) do(method, path string, in, out any) {
	w.t.Helper()
	if err := w.call(method, path, in, out); err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
}

// submit submits a script for some nodes.
func (w *world) submit(nodes int, edit func(*api.Submit)) job.ID {
	w.t.Helper()
	q := api.Submit{
		Spec:    job.Spec{Name: "t", MinNodes: nodes, Partitions: []string{"main"}, TimeLimit: job.Hour, CPUsPerTask: 1},
		Program: &job.Program{Script: []byte("#!/bin/sh\ntrue\n"), Args: [][]byte{[]byte("t.sh")}, Environ: [][]byte{[]byte("A=b")}},
	}
	if edit != nil {
		edit(&q)
	}
	var a api.Submitted
	w.do("POST", "/v1/jobs", &q, &a)
	return a.ID
}

// fakeAgent says what an agent says. What it says to a prepare, and when steps end, is up to
// the test.
type fakeAgent struct {
	w    *world
	node job.Node
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex
	relaying relaying
	paused   bool // it has no session and makes none
	silent   bool // as a process that is stopped: it says nothing, and makes no session
	cut      context.CancelFunc
	send     func(*wire.AgentMessage)
	steps    map[job.StepKey]*fakeStep
	starts   map[job.StepKey]int    // how often each was really started
	images   map[job.StepKey]string // that were prepared
	releases []attempt
	envs     [][]byte                     // of releases
	entered  []attempt                    // whose prolog it was to run
	checks   int                          // of its health
	found    *job.Node                    // by itself; nil: it says that it is as declared
	fetched  []string                     // images that it was to have ready
	script   func(*job.StepSpec) fakeStep // of steps to come
	dirty    bool                         // it does not say that it is clean
	deaf     bool                         // signals and orders to end do not reach it: it dies just then
	mute     bool                         // nor does it say that it has any
}

// fakeStep is a step on a node, and what becomes of it.
type fakeStep struct {
	spec    job.StepSpec
	phase   wire.StepState_Phase
	fault   *job.Fault    // of the prepare
	drain   string        // with it
	hang    bool          // in the prepare
	runs    time.Duration // how long; 0: until it is told to end
	at      time.Duration // how long the prepare takes
	exit    int
	image   string // its digest
	signals []int
	// signalled is the highest number of one that came.
	signalled uint64
	end       *job.StepEnd
}

func newFakeAgent(w *world, n job.Node) *fakeAgent {
	ctx, cancel := context.WithCancel(context.Background())
	a := &fakeAgent{
		w: w, node: n, stop: cancel, done: make(chan struct{}), steps: map[job.StepKey]*fakeStep{}, starts: map[job.StepKey]int{}, images: map[job.StepKey]string{},
		script: func(*job.StepSpec) fakeStep { return fakeStep{runs: time.Millisecond} },
	}
	stop := a.hearAbove()
	go func() {
		defer close(a.done)
		defer stop()
		for ctx.Err() == nil {
			a.mu.Lock()
			paused := a.paused || a.silent
			a.mu.Unlock()
			if !paused {
				_ = a.session(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return a
}

func (a *fakeAgent) close() {
	a.stop()
	<-a.done
}

// pause cuts the agent off, or lets it come back.
func (a *fakeAgent) pause(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paused = on
	if on && a.cut != nil {
		a.cut()
	}
}

// silence stops the agent as SIGSTOP does, or lets it go on.
func (a *fakeAgent) silence(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.silent = on
}

func (a *fakeAgent) session(ctx context.Context) error {
	_, path := a.w.sockets()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := wire.NewControllerClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	hello := &wire.Hello{Protocol: wire.Protocol, Version: "test", Cluster: "test", Node: a.node.Name, Declared: true, Address: "127.0.0.1", Socket: "unix:/nowhere"}
	a.mu.Lock()
	a.finds(hello)
	a.cut = cancel
	direct := pump(ctx, func(m *wire.AgentMessage) { _ = stream.Send(m) })
	a.send = func(m *wire.AgentMessage) {
		if !a.silent {
			direct(m)
		}
	}
	hello.Relay = a.relaying.address
	for key, st := range a.steps {
		hello.Steps = append(hello.Steps, &wire.StepState{Key: wire.KeyOf(key), Phase: st.phase})
	}
	a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Hello{Hello: hello}})
	a.mu.Unlock()
	go func() {
		for ctx.Err() == nil {
			time.Sleep(500 * time.Millisecond)
			a.mu.Lock()
			a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Heartbeat{Heartbeat: &wire.Heartbeat{}}})
			a.mu.Unlock()
		}
	}()
	for {
		m, err := stream.Recv()
		if err != nil {
			a.mu.Lock()
			a.send = func(*wire.AgentMessage) {}
			a.mu.Unlock()
			return err
		}
		a.mu.Lock()
		if m.GetWelcome() != nil && hello.Relay != "" {
			defer a.join(ctx, m.GetWelcome(), direct)()
		}
		a.message(m)
		a.mu.Unlock()
		if r := a.relaying.current.Load(); r != nil && (m.GetForward() == nil || !a.relaying.keeps.Load()) {
			r.Session(m)
		}
	}
}

func (a *fakeAgent) message(m *wire.ControllerMessage) {
	switch m := m.Message.(type) {
	case *wire.ControllerMessage_Welcome:
		keep := map[job.StepKey]bool{}
		for _, k := range m.Welcome.Keep {
			keep[k.Of()] = true
		}
		for _, k := range m.Welcome.Ended {
			delete(a.steps, k.Of())
		}
		for key := range a.steps {
			if keep[key] {
				a.restate(key)
			} else {
				a.finish(key, 9)
			}
		}
	case *wire.ControllerMessage_Prepare:
		key := m.Prepare.Key.Of()
		if a.steps[key] != nil {
			a.restate(key)
			return
		}
		var spec job.StepSpec
		if err := json.Unmarshal(m.Prepare.Spec, &spec); err != nil {
			a.w.t.Errorf("prepare: %v", err)
			return
		}
		st := a.script(&spec)
		st.spec, st.phase = spec, wire.StepState_PREPARING
		a.steps[key] = &st
		if !st.hang {
			time.AfterFunc(st.at, func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.prepared(key)
			})
		}
	case *wire.ControllerMessage_Start:
		a.start(m.Start.Key.Of())
	case *wire.ControllerMessage_Signal:
		a.signal(m.Signal)
	case *wire.ControllerMessage_Kill:
		if !a.deaf {
			a.finish(m.Kill.Key.Of(), 15)
		}
	case *wire.ControllerMessage_Enter:
		a.entered = append(a.entered, attempt{job.ID(m.Enter.Job), int(m.Enter.Attempt)})
	case *wire.ControllerMessage_CheckHealth:
		a.checks++
	case *wire.ControllerMessage_Precache:
		a.fetched = append(a.fetched, m.Precache.Images...)
	case *wire.ControllerMessage_EndedAck:
		delete(a.steps, m.EndedAck.Key.Of())
	case *wire.ControllerMessage_Release:
		at := attempt{job.ID(m.Release.Job), int(m.Release.Attempt)}
		a.releases, a.envs = append(a.releases, at), append(a.envs, m.Release.Env)
		for key := range a.steps {
			if key.Job == at.Job && key.Attempt == at.Attempt {
				a.finish(key, 9)
			}
		}
		if !a.dirty {
			a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: m.Release.Job, Attempt: m.Release.Attempt}}})
		}
	}
}

// signal takes a signal for a step as agents and supervisors do: none twice.
func (a *fakeAgent) signal(m *wire.Signal) {
	st := a.steps[m.Key.Of()]
	if a.deaf || st == nil {
		return
	}
	if m.Id > st.signalled {
		st.signalled = m.Id
		st.signals = append(st.signals, int(m.Signal))
	}
	if !a.mute {
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Signalled{Signalled: &wire.Signalled{Key: m.Key, Id: m.Id}}})
	}
}

func (a *fakeAgent) prepared(key job.StepKey) {
	st := a.steps[key]
	if st == nil || st.phase != wire.StepState_PREPARING {
		return
	}
	if st.fault != nil {
		st.end = &job.StepEnd{Key: key, Node: a.node.Name, End: job.Time(time.Now().UnixMilli()), Fault: st.fault}
		st.phase = wire.StepState_ENDED
		a.restate(key)
		return
	}
	st.phase = wire.StepState_PREPARED
	if st.image != "" {
		a.images[key] = st.image
	}
	a.restate(key)
}

func (a *fakeAgent) start(key job.StepKey) {
	st := a.steps[key]
	if st == nil || st.phase != wire.StepState_PREPARED {
		return
	}
	a.starts[key]++
	st.phase = wire.StepState_RUNNING
	a.restate(key)
	if st.runs > 0 {
		time.AfterFunc(st.runs, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.finish(key, 0)
		})
	}
}

// finish ends a step, by a signal if one is given.
func (a *fakeAgent) finish(key job.StepKey, signal int) {
	st := a.steps[key]
	if st == nil || st.phase == wire.StepState_ENDED {
		return
	}
	now := job.Time(time.Now().UnixMilli())
	end := &job.StepEnd{Key: key, Node: a.node.Name, End: now}
	if st.phase == wire.StepState_RUNNING {
		end.Start = now
		for _, n := range st.spec.Nodes {
			for _, r := range n.Ranks {
				if n.Name == a.node.Name {
					one := job.RankEnd{Rank: r, Node: n.Name, Signal: signal, At: now}
					if signal == 0 {
						one.Exit = st.exit
					}
					end.Ranks = append(end.Ranks, one)
				}
			}
		}
	} else {
		end.Fault = &job.Fault{What: "it was ended before it began"}
	}
	st.end, st.phase = end, wire.StepState_ENDED
	a.restate(key)
}

// restate says how far a step is.
func (a *fakeAgent) restate(key job.StepKey) {
	st := a.steps[key]
	if st.phase == wire.StepState_ENDED {
		b, err := json.Marshal(st.end)
		if err != nil {
			a.w.t.Error(err)
		}
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: b, Drain: st.drain, Key: wire.KeyOf(key)}}})
		return
	}
	if st.phase >= wire.StepState_PREPARED {
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Prepared{Prepared: &wire.Prepared{Key: wire.KeyOf(key), Port: 20000, Image: st.image}}})
	}
	if st.phase >= wire.StepState_RUNNING {
		a.send(&wire.AgentMessage{Message: &wire.AgentMessage_Started{Started: &wire.Started{Key: wire.KeyOf(key)}}})
	}
}
