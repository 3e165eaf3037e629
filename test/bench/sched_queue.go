package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/sched"
)

// The queue that both get: a cluster filled by as many jobs of whole nodes, and others that
// wait behind them.
const (
	peerLeaf    = 25 // nodes below a leaf switch
	peerLeaves  = 10 // leaf switches below another
	peerFillers = 100
)

// queued is a job of that queue.
type queued struct{ nodes, gpus, minutes int }

// peerQueue makes the queue: fillers that end at different times, and jobs of Philly's
// sizes.
func peerQueue(nodes, pending int) (fill, wait []queued) {
	r := rand.New(rand.NewPCG(1, 2))
	for range peerFillers {
		fill = append(fill, queued{nodes / peerFillers, 8, 60 * (1 + r.IntN(48))})
	}
	for range pending {
		q := queued{1, 1, 60 * (1 + r.IntN(48))}
		switch x := r.IntN(1000); { // of 1,000 jobs of Philly
		case x < 22:
			q.gpus = 2
		case x < 45:
			q.gpus = 4
		case x < 65:
			q.gpus = 8
		case x < 69:
			q.nodes, q.gpus = 2<<r.IntN(4), 8
		}
		wait = append(wait, q)
	}
	return fill, wait
}

// looked is what one of both took.
type looked struct {
	submit, plan, repair time.Duration // ours
	backfill, main       time.Duration // Slurm's cycles
	tried, promised      int
	memory               int64
}

// planQueue gives the queue to the scheduler, on one processor.
func planQueue(nodes int, fill, wait []queued) (looked, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := sched.New()
	var l looked
	p := job.Partition{Name: "main", Default: true}
	var events []job.Event
	for i := range nodes {
		p.Nodes = append(p.Nodes, nodeName(i))
		events = append(events, job.NodeSet{Node: job.Node{Name: nodeName(i), CPUs: 128, Memory: 1_000_000, GRES: []job.GRES{{Name: "gpu", Count: 8}}}})
	}
	events = append(events, job.NetworkSet{Network: peerNetwork(nodes)}, job.PartitionSet{Partition: p})
	id := job.ID(0)
	for _, q := range append(append([]queued{}, fill...), wait...) {
		id++
		events = append(events, job.Submitted{At: 1, ID: id, Spec: job.Spec{
			MinNodes: q.nodes, GRES: []job.GRESRequest{{Name: "gpu", Count: int64(q.gpus), Per: job.PerNode}}, TimeLimit: job.Duration(q.minutes) * job.Minute,
		}})
	}
	setup := events[:len(events)-len(wait)]
	for _, e := range setup {
		if err := s.Apply(e); err != nil {
			return l, fmt.Errorf("the queue: %w", err)
		}
	}
	if n := len(s.Decide(1)); n < len(fill) {
		return l, fmt.Errorf("the queue: %d jobs of %d fill the cluster", n, len(fill))
	}
	from := time.Now()
	for _, e := range events[len(setup):] {
		if err := s.Apply(e); err != nil {
			return l, fmt.Errorf("the queue: %w", err)
		}
	}
	l.submit, from = time.Since(from), time.Now()
	for _, e := range s.Decide(1) {
		if e, ok := e.(job.Promised); ok {
			l.promised += len(e.Starts)
		}
	}
	l.plan, from = time.Since(from), time.Now()
	if err := s.Apply(job.Ended{At: 1000, ID: 1, State: job.Completed}); err != nil {
		return l, fmt.Errorf("the queue: %w", err)
	}
	s.Decide(1000)
	l.repair = time.Since(from)
	return l, s.Check()
}

func nodeName(i int) string { return fmt.Sprintf("n%05d", i) }

// peerNetwork is a tree of three levels.
func peerNetwork(nodes int) job.Network {
	var net job.Network
	top, middle := job.Switch{Name: "core"}, job.Switch{}
	for at := 0; at < nodes; at += peerLeaf {
		leaf := job.Switch{Name: fmt.Sprintf("leaf%d", at/peerLeaf)}
		for i := at; i < min(at+peerLeaf, nodes); i++ {
			leaf.Nodes = append(leaf.Nodes, nodeName(i))
		}
		net.Switches = append(net.Switches, leaf)
		middle.Switches = append(middle.Switches, leaf.Name)
		if len(middle.Switches) == peerLeaves || at+peerLeaf >= nodes {
			middle.Name = fmt.Sprintf("pod%d", len(top.Switches))
			net.Switches = append(net.Switches, middle)
			top.Switches = append(top.Switches, middle.Name)
			middle = job.Switch{}
		}
	}
	net.Switches = append(net.Switches, top)
	return net
}
