package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// SuperviseOptions say which step Supervise runs.
type SuperviseOptions struct {
	Dir   string        // the run directory, which has the specification; absolute
	Node  string        // which of the step's nodes this is
	Lease time.Duration // how long it is kept prepared from now on; 0: for ever
	// Container makes the options of the container of a step that has one, and what
	// ends their use. Of an image that is pulled, pulled is told how many bytes of how many
	// there are.
	Container func(spec *job.StepSpec, pulled func(done, total int64)) (Options, func(), error)
	// Agent is the connection of who started this process; nil: it comes by the socket.
	Agent    *net.UnixConn
	Marker   string // by which the step's processes are found, NAME=VALUE
	Program  string // this program, for ranks that start others of their job
	Programs string // where links to it are kept for the steps of the node; it is made
	Log      *slog.Logger
}

// Supervise prepares a step's part of a node, starts its ranks when it is told to, and
// writes down how they ended. What it does it is told, and tells, over the socket in
// its directory, see package control. It returns when the step has ended and whoever has a
// claim to its output has it.
func Supervise(ctx context.Context, o SuperviseOptions) error {
	s, err := newSupervisor(o)
	if err != nil {
		return err
	}
	l, err := control.Listen(o.Dir)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Whatever ranks leave behind becomes this process's, and is ended with the step.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep children of ranks: %w", err)
	}
	if o.Agent != nil {
		go s.serve(ctx, o.Agent)
	}
	go s.listen(ctx, l)
	s.run(ctx)
	s.linger(ctx)
	return nil
}

// supervisor is one step on one node. Its life belongs to run, and what is behind mu to
// everybody.
type supervisor struct {
	SuperviseOptions
	spec    *job.StepSpec
	node    int
	life    life
	in      chan any
	over    chan struct{} // closed when in is not read any more
	runner  runner
	ranks   []*member
	spool   *stdio.Spool
	cwd     string   // where the step runs
	notes   []string // for its user
	input   *input
	output  *outputs
	port    *port
	binding rank.Binding
	near    [][]int            // CPUs near each GPU, where somebody has asked for what is near
	cpus    *fsx.Lock          // of the file that has the CPUs of the job
	cancel  context.CancelFunc // of the prepare
	alive   sync.WaitGroup     // ranks whose end is not noted yet

	watchers sync.WaitGroup // who is not told of the end yet

	mu       sync.Mutex
	changed  chan struct{} // closed, and made anew, when what follows changes
	events   []control.Event
	progress control.Progress
	moves    int       // of progress
	pulled   time.Time // when it was told how much of an image there is
	image    string    // that is prepared
	start    control.Start
	begun    bool       // START came
	started  bool       // all ranks have been
	early    []signalIn // came before that
	// signalled is the highest number of a signal that came.
	signalled uint64
	running   bool // the ranks have started, and not all have ended
	end       *job.StepEnd
	left      string // processes that could not be ended
	clients   clients
}

// member is a rank of this node.
type member struct {
	rank, local int
	args        []string   // its own command; nil: the step's
	process     process    // nil: it does not run
	early       []signalIn // came while it was not there, though the step has started
	end         job.RankEnd
	tail        tail
	files       *rankFiles
}

// launch is what is started.
type launch struct {
	m       *member
	files   *rankFiles
	args    []string // nil: the step's command
	environ []string // over the rank's
	unset   []string // of the rank's, what is left out
	cwd     string   // empty: the step's
}

// process is a rank that was started.
type process interface {
	// Signal sends to the rank and its children, until it has ended.
	Signal(s syscall.Signal) error
	// SignalAlone sends to the rank, and not to its children.
	SignalAlone(s syscall.Signal) error
	// Wait waits for the end of the rank.
	Wait() (exited, error)
	// Pid is its number, as this process sees it.
	Pid() int
	// Terminal is the master of its terminal, nil if it has none.
	Terminal() *os.File
	// PID is its number on the host.
	PID() int
}

// exited is how a rank ended.
type exited struct {
	code, signal int
	core, oom    bool
}

// runner starts the ranks of a step, in a container or without one.
type runner interface {
	// prepare does all that can be done before START, and says what image is used.
	prepare(ctx context.Context) (image string, err error)
	// ready is called once, before the first rank is started.
	ready(ctx context.Context) error
	// environment is what the ranks are told.
	environment() (*rank.Env, error)
	// start starts a rank, or something beside it. An error that isCommand is the
	// command's own.
	start(ctx context.Context, l launch, environ *rank.Env) (process, error)
	// close ends what is left, and waits until it is gone. It may be called without
	// prepare.
	close(ctx context.Context) error
}

func newSupervisor(o SuperviseOptions) (*supervisor, error) {
	spec, err := readSpec(filepath.Join(o.Dir, control.SpecFile))
	if err != nil {
		return nil, err
	}
	node := slices.IndexFunc(spec.Nodes, func(n job.StepNode) bool { return n.Name == o.Node })
	if node < 0 {
		return nil, fmt.Errorf("run step %s: node %s is none of its nodes", spec.Key, o.Node)
	}
	s := &supervisor{
		SuperviseOptions: o, spec: spec, node: node, in: make(chan any), over: make(chan struct{}), changed: make(chan struct{}),
		clients: clients{arrived: make(chan struct{}), done: make(chan struct{})},
	}
	for local, rank := range spec.Nodes[node].Ranks {
		s.ranks = append(s.ranks, &member{rank: rank, local: local, end: job.RankEnd{Rank: rank, Node: o.Node}})
	}
	s.life = life{
		ranks: len(s.ranks), killOnBadExit: spec.Program.KillOnBadExit, waitAfterExit: span(spec.Program.WaitAfterExit),
		grace: span(spec.Grace),
	}
	s.life.step(renewIn{o.Lease}, time.Now())
	patience := readerPatience
	if !s.wanted() {
		patience = 0
	}
	s.spool = stdio.NewSpool(&spoolOf{name: filepath.Join(o.Dir, spoolFile)}, spoolSize, patience)
	if len(spec.Program.Container) > 0 {
		s.runner = &contained{s: s}
	} else {
		s.runner = newBare(s)
	}
	return s, nil
}

const (
	spoolFile = "spool"
	spoolSize = 64 << 20
	// readerPatience is how long ranks wait for a client that is not seen to read.
	readerPatience = time.Second
	// lingerTime is how long output is kept for clients after the end, and after the one whose
	// step it is was last seen to read.
	lingerTime = 30 * time.Second
	// connectedTime is that of one that is there but does not read, as before a pager.
	connectedTime = 10 * time.Minute
)

// span is a duration of the specification.
func span(d job.Duration) time.Duration {
	if d == job.Forever {
		return 0
	}
	return time.Duration(d) * time.Millisecond
}

// now is the time as events have it.
func now() job.Time { return job.Time(time.Now().UnixMilli()) }

// readSpec reads a specification and refuses one that cannot be run.
func readSpec(name string) (*job.StepSpec, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read step: %w", err)
	}
	return parseSpec(b)
}

func parseSpec(b []byte) (*job.StepSpec, error) {
	spec := &job.StepSpec{}
	if err := json.Unmarshal(b, spec); err != nil {
		return nil, fmt.Errorf("read step: %w", err)
	}
	seen := map[int]bool{}
	for _, n := range spec.Nodes {
		for _, r := range n.Ranks {
			if r < 0 || r >= spec.Tasks || seen[r] {
				return nil, fmt.Errorf("read step %s: rank %d on node %s, of %d", spec.Key, r, n.Name, spec.Tasks)
			}
			seen[r] = true
		}
		if len(n.Ranks) == 0 {
			return nil, fmt.Errorf("read step %s: node %s has no rank", spec.Key, n.Name)
		}
	}
	if len(spec.Program.Script) == 0 && (len(spec.Program.Args) == 0 || len(spec.Program.Args[0]) == 0) {
		return nil, fmt.Errorf("read step %s: it has no command", spec.Key)
	}
	return spec, nil
}

// isBatch says whether the step is a job's script.
func (s *supervisor) isBatch() bool { return s.spec.Key.Step == job.BatchStep }

// post tells run of something.
func (s *supervisor) post(in any) {
	select {
	case s.in <- in:
	case <-s.over:
	}
}

// run lives the life.
func (s *supervisor) run(ctx context.Context) {
	defer close(s.over)
	prepare, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	defer cancel()
	go s.prepare(prepare)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for s.life.stage != stageOver {
		if at := s.life.wake(); at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
		var in any
		select {
		case in = <-s.in:
		case <-timer.C:
			in = timeIn{}
		case <-ctx.Done():
			// This process is to end: nothing of the step outlives it.
			in, ctx = killIn{why: "its supervisor was told to end"}, context.WithoutCancel(ctx)
		}
		if sig, ok := in.(signalIn); ok {
			if s.life.stage >= stageStarting || !sig.ends() {
				s.signal(sig.sig, sig.alone)
				continue
			}
			// There is nothing yet that could make something else of it.
			in = killIn{why: "it was sent " + unix.SignalName(sig.sig), code: fault.CodeSignal(sig.sig)}
		}
		for _, do := range s.life.step(in, time.Now()) {
			s.do(ctx, do)
		}
	}
}

// signalIn is a signal from outside, which changes nothing of the life.
type signalIn struct {
	sig   syscall.Signal
	alone bool // to the ranks, and not to what they started
}

// ends says whether the signal is one that is to end what it is sent to.
func (in signalIn) ends() bool {
	return in.sig == syscall.SIGTERM || in.sig == syscall.SIGINT || in.sig == syscall.SIGKILL
}

func (s *supervisor) do(ctx context.Context, do any) {
	switch do := do.(type) {
	case tellPreparedDo:
		s.tell(control.Event{Prepared: s.preparedEvent()})
	case startDo:
		go s.startRanks(ctx)
	case tellStartedDo:
		s.setRunning(s.life.stage == stageRunning)
		s.tell(control.Event{Started: &control.Started{At: s.life.started}})
	case signalDo:
		s.signal(do.sig, false)
	case sayEndDo:
		s.sayEnd(do.why)
	case cancelDo:
		s.cancel()
	case cleanDo:
		s.setRunning(false)
		go s.clean(ctx, s.life.told && !s.life.killed)
	case endDo:
		s.conclude(ctx)
	}
}

// signal sends a signal to the ranks that run, and to those that are being started as soon
// as they do.
func (s *supervisor) signal(sig syscall.Signal, alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := signalIn{sig, alone}
	if !s.started && !slices.Contains(s.early, in) {
		s.early = append(s.early, in)
	}
	for _, m := range s.ranks {
		switch {
		case m.process != nil:
			in.to(m.process)
		case s.started && s.spec.Program.TaskProlog != "" && !slices.Contains(m.early, in):
			m.early = append(m.early, in)
		}
	}
}

// to sends a signal to a rank, which may have ended.
func (in signalIn) to(p process) {
	if in.alone {
		_ = p.SignalAlone(in.sig)
		return
	}
	_ = p.Signal(in.sig)
}

// isThere notes that a rank runs, and gives it the signals that came before it did.
func (s *supervisor) isThere(m *member, p process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.process = p
	for _, in := range slices.Concat(s.early, m.early) {
		in.to(p)
	}
}

// isRunning says whether something can be run beside the ranks.
func (s *supervisor) isRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

func (s *supervisor) setRunning(running bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = running
}

// tell adds an event for those who watch.
func (s *supervisor) tell(e control.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	s.wake()
}

func (s *supervisor) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// prepare does all but the start.
func (s *supervisor) prepare(ctx context.Context) {
	stop := make(chan struct{})
	go s.tellWork(stop)
	defer close(stop)
	image, err := s.prepareAll(ctx)
	if err != nil {
		s.post(failedIn{*asFault(err, "prepare the step on node "+s.Node)})
		return
	}
	s.mu.Lock()
	s.image = image
	s.mu.Unlock()
	s.post(preparedIn{})
}

func (s *supervisor) prepareAll(ctx context.Context) (image string, err error) {
	s.tellProgress(control.Progress{Phase: "prepare"})
	if s.node == 0 && !s.isBatch() {
		if s.port, err = holdPort(s.Dir); err != nil {
			return "", err
		}
	}
	if s.spec.Program.Umask <= 0o777 {
		unix.Umask(int(s.spec.Program.Umask))
	}
	if err := s.bind(ctx); err != nil {
		return "", err
	}
	if err := s.enterDirectory(); err != nil {
		return "", err
	}
	if err := s.writeScript(); err != nil {
		return "", err
	}
	if err := s.readCommands(); err != nil {
		return "", err
	}
	if s.output, err = s.openOutputs(); err != nil {
		return "", err
	}
	in, err := newInput(s)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.input = in
	s.mu.Unlock()
	s.clients.poke()
	return s.runner.prepare(ctx)
}

// enterDirectory goes to where the step was submitted from. Where that is not there, as
// for srun in a container, ranks start in /tmp, as Slurm's do, which is said; those in
// containers start where their image says anyway. A script, whose output would be lost, does
// not start.
func (s *supervisor) enterDirectory() error {
	s.cwd = s.givenDirectory()
	err := os.Chdir(s.cwd)
	if err == nil {
		return nil
	}
	if s.isBatch() { // whose fault it is, others decide
		return fileFault(fmt.Errorf("enter working directory of the job on node %s: %w", s.Node, err),
			"submit from a directory that all nodes have, or name one: --chdir=DIR")
	}
	if len(s.spec.Program.Container) == 0 {
		s.notes = append(s.notes, fmt.Sprintf("couldn't %v: going to %s instead", err, elsewhere))
	}
	s.cwd = elsewhere
	return os.Chdir(s.cwd)
}

// elsewhere is where ranks start whose directory is not there.
const elsewhere = "/tmp"

// givenDirectory is the step's directory, as it was asked for.
func (s *supervisor) givenDirectory() string {
	dir := string(s.spec.Program.Cwd)
	if filepath.IsAbs(dir) {
		return dir
	}
	for _, v := range s.spec.Program.Environ {
		if home, ok := cutVariable(v, "HOME"); ok && filepath.IsAbs(home) {
			return filepath.Join(home, dir)
		}
	}
	return filepath.Join("/", dir)
}

func cutVariable(v []byte, name string) (string, bool) {
	if len(v) > len(name) && string(v[:len(name)]) == name && v[len(name)] == '=' {
		return string(v[len(name)+1:]), true
	}
	return "", false
}

// preparedEvent is what is known once all is prepared.
func (s *supervisor) preparedEvent() *control.Prepared {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &control.Prepared{Image: s.image, Notes: s.notes}
	if s.port != nil {
		p.Port = s.port.number
	}
	return p
}

// conclude writes down the end, and tells it.
func (s *supervisor) conclude(ctx context.Context) {
	end := &job.StepEnd{Key: s.spec.Key, Node: s.Node, Start: s.life.started, End: now(), Fault: s.life.fault, Usage: usage()}
	if s.life.started != 0 || s.life.ended > 0 {
		for _, m := range s.ranks {
			r := m.end
			r.Out, r.Err = s.spool.Size(uint32(m.rank), stdio.Stdout), s.spool.Size(uint32(m.rank), stdio.Stderr)
			end.Ranks = append(end.Ranks, r)
		}
	}
	err := fsx.WriteFile(context.WithoutCancel(ctx), filepath.Join(s.Dir, control.EndFile), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(end)
	})
	if err != nil {
		s.Log.Error("the end of the step is not on disk", "err", err)
	}
	b, err := json.Marshal(end)
	if err == nil {
		s.spool.Mark(stdio.Frame{Type: stdio.StepEnd, Data: b})
	}
	s.spool.Close()
	if in := s.inputNow(); in != nil {
		in.close()
	}
	s.mu.Lock()
	s.end = end
	left := s.left
	s.mu.Unlock()
	s.tell(control.Event{Ended: end, Left: left})
}

// asFault is an error as it is told.
func asFault(err error, what string) *job.Fault {
	f := &job.Fault{What: err.Error(), Code: fault.Code(err), Node: true}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		f.Cause, f.Hint = e.Cause, e.Hint
		// Who asks for what cannot be gets the same everywhere.
		f.Node = e.Code != fault.CodeUsage
		_, f.Doubtful = errors.AsType[doubtful](err)
	}
	if f.What == "" {
		f.What = what
	}
	return f
}

// listen answers connections until the process ends.
func (s *supervisor) listen(ctx context.Context, l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			go s.accept(ctx, c)
		case errors.Is(err, net.ErrClosed):
			return
		case !pause(ctx, acceptPause):
			return
		}
	}
}

// environment is what ranks are told.
func (s *supervisor) environment(cluster string, gpus []string, cwd string) (*rank.Env, error) {
	s.mu.Lock()
	start := s.start
	s.mu.Unlock()
	return rank.New(rank.Options{
		Spec: s.spec, Node: s.node, MasterAddr: start.MasterAddr, MasterPort: start.MasterPort,
		GPUs: gpus, Cluster: cluster, Marker: s.Marker, Cwd: cwd, Group: groupName(int(s.spec.GID)), Binding: s.binding, Near: s.near,
	})
}
