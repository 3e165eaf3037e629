package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/control"
)

// TestMain is this test, or the supervisor that agents of these tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "step" {
		if err := supervise(os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "image" {
		os.Exit(fetch(os.Args[len(os.Args)-1]))
	}
	os.Exit(m.Run())
}

// fetch is "gangway image precache --json" of an image; what is called bad cannot be had,
// what is called slow takes its time, and what is called stuck gets no further.
func fetch(name string) int {
	fmt.Printf(`{"event":"layer","image":%q,"done":5,"total":10}`+"\n", name)
	for i := 5; name == "slow" && i < 10; i++ {
		time.Sleep(800 * time.Millisecond)
		fmt.Printf(`{"event":"layer","image":%q,"done":%d,"total":10}`+"\n", name, i)
	}
	for name == "stuck" { // and says so
		time.Sleep(100 * time.Millisecond)
		fmt.Printf(`{"event":"layer","image":%q,"done":5,"total":10}`+"\n", name)
	}
	if name == "bad" {
		fmt.Fprintf(os.Stderr, "gangway: error: pull %s: no such image\ngangway: hint: x\n", name)
		return 125
	}
	fmt.Printf(`{"event":"image","manifest":"sha256:77"}` + "\n")
	return 0
}

// supervise is a supervisor with one rank: the program of the step as it is. The step's
// name chooses what goes wrong: "hang" never has any progress, "leaves" says that it could
// not end everything.
func supervise(dir string) error {
	l, err := control.Listen(dir)
	if err != nil {
		return err
	}
	first, err := control.Inherited(3)
	if err != nil {
		return err
	}
	spec, err := readJSON[job.StepSpec](filepath.Join(dir, control.SpecFile))
	if err != nil {
		return err
	}
	s := &fakeStep{dir: dir, spec: spec, over: make(chan struct{})}
	if spec.Name != "hang" {
		s.say(control.Event{Prepared: &control.Prepared{Image: "sha256:1", Port: 29_000}})
	}
	go s.serve(control.New(first))
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go s.serve(control.New(c))
		}
	}()
	<-s.over
	time.Sleep(50 * time.Millisecond) // for what is on its way
	return nil
}

type fakeStep struct {
	dir      string
	spec     job.StepSpec
	mu       sync.Mutex
	said     []control.Event
	watchers []*control.Conn
	cmd      *exec.Cmd
	ended    bool
	over     chan struct{}
}

func (s *fakeStep) say(e control.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = append(s.said, e)
	for _, w := range s.watchers {
		_ = w.Send(e) // one that was killed
	}
}

func (s *fakeStep) serve(c *control.Conn) {
	for {
		var r control.Request
		if c.Receive(&r) != nil {
			return
		}
		switch {
		case r.Watch:
			s.mu.Lock()
			for _, e := range s.said {
				_ = c.Send(e)
			}
			s.watchers = append(s.watchers, c)
			s.mu.Unlock()
		case r.Start != nil:
			s.start()
		case r.IO != nil:
			_, _ = fmt.Fprintf(c, "input and output of %s: %s\n", s.spec.Key, r.IO)
			_ = c.Close()
			return
		case r.Kill != nil:
			s.end(&job.Fault{What: r.Kill.Why})
		}
	}
}

func (s *fakeStep) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		return
	}
	var args []string
	for _, a := range s.spec.Program.Args {
		args = append(args, string(a))
	}
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		panic(err)
	}
	go s.say(control.Event{Started: &control.Started{At: 5}})
	go func() {
		_ = s.cmd.Wait()
		s.end(nil)
	}()
}

func (s *fakeStep) end(f *job.Fault) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.ended = true
	if s.cmd != nil {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	}
	s.mu.Unlock()
	e := job.StepEnd{Key: s.spec.Key, Node: "n1", End: 9, Fault: f}
	if s.cmd != nil {
		e.Start = 5
	}
	if err := writeJSON(context.Background(), filepath.Join(s.dir, control.EndFile), e); err != nil {
		panic(err)
	}
	left := ""
	if s.spec.Name == "leaves" {
		left = "processes"
	}
	s.say(control.Event{Ended: &e, Left: left})
	close(s.over)
}

// master is a controller that says what a test says.
type master struct {
	wire.UnimplementedControllerServer
	t    *testing.T
	path string
	// keep and ended are what becomes of the steps of a Hello.
	mu      sync.Mutex
	ended   []job.StepKey
	hello   chan *wire.Hello
	said    chan *wire.AgentMessage
	session wire.Controller_SessionServer
	server  *grpc.Server
	other   bool // speaks another protocol
	// programs are those that agents are told to run.
	programs []byte
}

func newMaster(t *testing.T, dir string) *master { return newMasterOf(t, dir, false) }

func newMasterOf(t *testing.T, dir string, other bool) *master {
	m := &master{t: t, other: other, path: filepath.Join(dir, "wire.sock"), hello: make(chan *wire.Hello, 16), said: make(chan *wire.AgentMessage, 1024)}
	m.serve()
	t.Cleanup(func() { m.server.Stop() })
	return m
}

// refuse waits until an agent has come in vain.
func (m *master) refuse() {
	m.t.Helper()
	_ = os.Remove(m.path)
	l, err := net.Listen("unix", m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		m.t.Fatal(err)
	}
	_ = errors.Join(c.Close(), l.Close())
}

func (m *master) serve() {
	_ = os.Remove(m.path)
	l, err := net.Listen("unix", m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	m.server = grpc.NewServer()
	wire.RegisterControllerServer(m.server, m)
	server := m.server
	go func() { _ = server.Serve(l) }()
}

// Session implements wire.ControllerServer.
func (m *master) Session(s wire.Controller_SessionServer) error {
	if m.other {
		return status.Error(codes.Unimplemented, "the agent speaks protocol 1, version test; this controller speaks 2, version v9.9")
	}
	for {
		msg, err := s.Recv()
		if err != nil {
			return err
		}
		h := msg.GetHello()
		if h == nil {
			if msg.GetHeartbeat() == nil {
				m.said <- msg
			}
			continue
		}
		w := &wire.Welcome{Protocol: 1, Epoch: 3, HeartbeatMs: 100}
		m.mu.Lock()
		w.Programs = m.programs
		m.session = s
		for _, k := range m.ended {
			w.Ended = append(w.Ended, wire.KeyOf(k))
		}
		m.mu.Unlock()
		for _, st := range h.Steps {
			w.Keep = append(w.Keep, st.Key)
		}
		if err := s.Send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Welcome{Welcome: w}}); err != nil {
			return err
		}
		m.hello <- h
	}
}

func (m *master) send(msg *wire.ControllerMessage) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.session.Send(msg); err != nil {
		m.t.Fatal(err)
	}
}

func (m *master) prepare(k job.StepKey, name string, args ...string) {
	spec := job.StepSpec{Key: k, Name: name, UID: uint32(os.Geteuid())}
	for _, a := range args {
		spec.Program.Args = append(spec.Program.Args, []byte(a))
	}
	b, err := json.Marshal(spec)
	if err != nil {
		m.t.Fatal(err)
	}
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Prepare{Prepare: &wire.Prepare{
		Key: wire.KeyOf(k), Epoch: 3, Spec: b, LeaseMs: 30_000, ProgressMs: 1000,
	}}})
}

func (m *master) start(k job.StepKey) {
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_Start{Start: &wire.Start{Key: wire.KeyOf(k), Epoch: 3}}})
}

func (m *master) ack(k job.StepKey) {
	m.send(&wire.ControllerMessage{Message: &wire.ControllerMessage_EndedAck{EndedAck: &wire.EndedAck{Key: wire.KeyOf(k)}}})
}

// patience is how long tests wait for what has to come.
const patience = 20 * time.Second

// expect waits for a message that f says yes to.
func (m *master) expect(what string, f func(*wire.AgentMessage) bool) *wire.AgentMessage {
	m.t.Helper()
	for late := time.After(patience); ; {
		select {
		case msg := <-m.said:
			if f(msg) {
				return msg
			}
		case <-late:
			m.t.Fatalf("%s does not come", what)
		}
	}
}

func (m *master) prepared(k job.StepKey) {
	m.t.Helper()
	msg := m.expect("Prepared", func(a *wire.AgentMessage) bool { return a.GetPrepared().GetKey().Of() == k })
	if f := msg.GetPrepared().Fault; f != nil {
		m.t.Fatalf("not prepared: %s", f)
	}
}

func (m *master) started(k job.StepKey) {
	m.t.Helper()
	m.expect("Started", func(a *wire.AgentMessage) bool { return a.GetStarted().GetKey().Of() == k })
}

func (m *master) end(k job.StepKey) job.StepEnd {
	m.t.Helper()
	var e job.StepEnd
	m.expect("Ended", func(a *wire.AgentMessage) bool {
		return a.GetEnded() != nil && json.Unmarshal(a.GetEnded().End, &e) == nil && e.Key == k
	})
	return e
}

func (m *master) greeted() *wire.Hello {
	m.t.Helper()
	select {
	case h := <-m.hello:
		return h
	case <-time.After(patience):
		m.t.Fatal("no agent comes")
		return nil
	}
}

// newAgent is an agent that runs until the function is called, as if it were killed: it
// leaves everything as it is.
func newAgent(t *testing.T, dir string, change ...func(*Agent)) (a *Agent, end func()) {
	t.Helper()
	a = agentIn(dir)
	for _, f := range change {
		f(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		end()
		kill(a.Cluster+"/", nil, 5*time.Second)
	})
	return a, end
}

// agentIn is an agent that does not run yet.
func agentIn(dir string) *Agent {
	return New(Options{
		Cluster: "c-" + filepath.Base(dir), Name: "c", Node: job.Node{Name: "n1", CPUs: 1}, Declared: true, Dir: dir,
		Wire: filepath.Join(dir, "wire.sock"), Socket: filepath.Join(dir, "agent.sock"), Gangway: "/proc/self/exe",
		Environ: Basic(os.Environ()), Store: dir, Version: "test", Log: slog.New(slog.DiscardHandler),
	})
}

// shortDir is a directory whose name leaves room for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ag")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
