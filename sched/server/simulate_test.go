package server

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gangway-hpc/gangway/internal/job"
)

// A simulation is a whole cluster in one goroutine: the controller's core and committer, agents
// and the lives of their steps are those of production; the store, the network, the nodes'
// disks, supervisors and users are models that break. All that happens is an event of one queue
// in virtual time, and all chance comes from one seed, so that what was found is found again.

// sim is a simulation.
type sim struct {
	seed    uint64
	rng     *rand.Rand
	now     time.Duration // since the begin
	wall    time.Duration // by which the controller's clock of day is off
	queue   events
	order   uint64
	count   int  // events that have happened
	calm    bool // nothing breaks any more
	disk    *simDisk
	master  *simMaster // the newest controller; nil: none runs
	nodes   []*simNode
	user    *simUser
	cluster *job.Cluster
	images  string // a directory without any
	bug     planted
	doom    *doom

	started  map[onNode]int           // how often ranks were started
	prepared map[job.StepKey]int      // nodes on which a try was ever ready
	script   map[attempt]*scriptEnd   // how scripts ended by themselves
	placed   map[job.StepKey][]string // nodes of a try
	trace    [400]traced
	traces   int
	sum      uint64 // over all that was traced
	restarts int
	faults   map[string]int // by their kind
	meter    *meter         // nobody looks at it
}

type onNode struct {
	job     job.ID
	attempt int
	step    job.StepID
	node    string
}

type scriptEnd struct{ exit int }

// simEvent is something that happens at a time.
type simEvent struct {
	at    time.Duration
	order uint64
	f     func()
}

type events []simEvent

func (e events) Len() int { return len(e) }

func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(simEvent)) }

func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	(*e)[last] = simEvent{}
	*e = (*e)[:last]
	return x
}

// traced is what happened, written only if somebody wants to read it.
type traced struct {
	at   time.Duration
	what string
	who  string
	args [3]any
}

// note keeps what happens for who has to find out why it was wrong.
func (s *sim) note(who, what string, args ...any) {
	t := &s.trace[s.traces%len(s.trace)]
	*t = traced{at: s.now, what: what, who: who}
	copy(t.args[:], args)
	s.traces++
	h := fnv.New64a()
	_, _ = io.WriteString(h, who)
	_, _ = io.WriteString(h, what)
	s.sum = (s.sum ^ h.Sum64() ^ uint64(s.now)) * 0x100000001b3
}

// story is the end of the trace.
func (s *sim) story() string {
	var b strings.Builder
	for i := max(0, s.traces-len(s.trace)); i < s.traces; i++ {
		t := &s.trace[i%len(s.trace)]
		fmt.Fprintf(&b, "%12.6f %-4s %s", t.at.Seconds(), t.who, t.what)
		for _, a := range t.args {
			if a != nil {
				fmt.Fprintf(&b, " %v", a)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// broken is that something is so that must never be.
type broken struct{ what string }

func (b broken) Error() string { return b.what }

func (s *sim) fail(format string, args ...any) { panic(broken{fmt.Sprintf(format, args...)}) }

// after has something happen after a while.
func (s *sim) after(d time.Duration, f func()) {
	s.order++
	heap.Push(&s.queue, simEvent{s.now + d, s.order, f})
}

// between is a time between two, small ones more often than large ones.
func (s *sim) between(lo, hi time.Duration) time.Duration {
	f := s.rng.Float64()
	return lo + time.Duration(f*f*f*float64(hi-lo))
}

func (s *sim) chance(p float64) bool { return s.rng.Float64() < p }

// breaks says whether something that has a probability goes wrong.
func (s *sim) breaks(p float64) bool { return !s.calm && s.chance(p) }

func newSim(t testing.TB, seed uint64, bug planted) *sim {
	s := &sim{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 8)), images: t.TempDir(), bug: bug, started: map[onNode]int{}, prepared: map[job.StepKey]int{},
		script: map[attempt]*scriptEnd{}, placed: map[job.StepKey][]string{}, faults: map[string]int{}, meter: newMeter(prometheus.NewRegistry()),
		cluster: &job.Cluster{
			Name: "sim", Declared: true, SuspectAfter: 3 * job.Second, LostAfter: 10 * job.Second,
			Config: job.Config{MinJobAge: 60 * job.Second},
		},
	}
	part := job.Partition{Name: "main", Default: true}
	for i := range simNodes {
		name := fmt.Sprintf("n%d", i+1)
		s.cluster.Nodes = append(s.cluster.Nodes, job.Node{
			Name: name, Sockets: 1, CoresPerSocket: 8, ThreadsPerCore: 1, Addr: "127.0.0.1", GRES: []job.GRES{{Name: "gpu", Type: "h100", Count: 4}},
		})
		part.Nodes = append(part.Nodes, name)
		s.nodes = append(s.nodes, &simNode{s: s, name: name, spec: s.cluster.Nodes[i], dirs: map[job.StepKey]*simDir{}, sups: map[job.StepKey]*simStep{}})
	}
	s.cluster.Partitions = []job.Partition{part}
	s.disk = newSimDisk(s)
	s.user = newSimUser(s)
	return s
}

const simNodes = 5

// run has so many events happen, and then all become quiet. The error is what was wrong.
func (s *sim) run(limit int) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case broken:
			err = x
		default:
			err = fmt.Errorf("panic: %v\n%s", x, debug.Stack())
		}
	}()
	s.startMaster()
	for _, n := range s.nodes {
		n.boot()
	}
	s.user.begin()
	s.nextFault()
	for s.count < limit {
		s.step()
	}
	s.heal()
	for end := s.count + quietEvents; !s.quiet(); {
		for range 200 {
			s.step()
		}
		if s.count > end {
			s.fail("it does not get quiet: %s", s.unquiet())
		}
	}
	s.checkEnd()
	return nil
}

// quietEvents is within how many events without faults all has to be over.
const quietEvents = 60_000

func (s *sim) step() {
	if len(s.queue) == 0 {
		s.fail("nothing happens any more")
	}
	e := heap.Pop(&s.queue).(simEvent)
	s.now = e.at
	s.count++
	e.f()
}

// simulate runs one, and says what was wrong with how to see it again.
func simulate(t testing.TB, seed uint64, limit int) *sim {
	t.Helper()
	s := newSim(t, seed, planted{})
	if err := s.run(limit); err != nil {
		t.Fatalf("seed %d, after %d events: %v\n%s\nfaults: %v\nagain: GANGWAY_TEST_SEED=%d GANGWAY_TEST_EVENTS=%d go test ./sched/server -run '^TestSimulateSeed$'",
			seed, s.count, err, s.story(), s.faults, seed, limit)
	}
	return s
}

// TestSimulate has a cluster break in every way for many events, and nothing that was promised
// is broken: no GPU is used twice, no gang starts in part, no attempt twice, nothing that was
// acknowledged is lost, and in the end all is quiet.
func TestSimulate(t *testing.T) {
	seeds, limit := 4, 25_000
	switch {
	case os.Getenv("GANGWAY_TEST_LONG") != "":
		seeds, limit = 100, 100_000
	case testing.Short():
		seeds, limit = 1, 10_000
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := simulate(t, seed, limit)
			t.Log(s.summary())
		})
	}
}

func (s *sim) summary() string {
	return fmt.Sprintf("%d events in %s of virtual time, %d starts of the controller, %d jobs, faults: %v", s.count, s.now.Round(time.Second), s.restarts, len(s.user.jobs), s.faults)
}

// TestSimulateIsRepeated: the same seed is the same story.
func TestSimulateIsRepeated(t *testing.T) {
	a, b, c := simulate(t, 77, 5000), simulate(t, 77, 5000), simulate(t, 78, 5000)
	if a.sum != b.sum || a.count != b.count || a.now != b.now {
		t.Errorf("seed 77 has %d events and then %d, of other kinds", a.count, b.count)
	}
	if a.sum == c.sum {
		t.Error("seed 78 is the same as seed 77")
	}
}

// TestSimulateSeed runs one seed, as a failure of another test says.
func TestSimulateSeed(t *testing.T) {
	seed, limit := uint64(1), 1000
	if text := os.Getenv("GANGWAY_TEST_SEED"); text != "" {
		if _, err := fmt.Sscan(text+" "+os.Getenv("GANGWAY_TEST_EVENTS"), &seed, &limit); err != nil {
			t.Fatalf("GANGWAY_TEST_SEED and GANGWAY_TEST_EVENTS: %v", err)
		}
	}
	t.Log(simulate(t, seed, limit).summary())
}

// BenchmarkSimulate is how many events of a simulation happen in a second.
func BenchmarkSimulate(b *testing.B) {
	events := 0
	for seed := uint64(0); b.Loop(); seed++ {
		events += simulate(b, seed, 50_000).count
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
