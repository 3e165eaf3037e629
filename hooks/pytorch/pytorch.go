// Package pytorch computes what the ranks of a step find in their environment, from a
// description of the step: the variables of torch.distributed's "env://", those of
// torchrun, and CUDA's list of devices.
//
// First call: [Step.Layout], which checks the description; then [Layout.Rank] for each
// rank and [Layout.Edits] for what all ranks of a node share. The package is pure: it
// opens nothing and asks nobody, so its functions may be called by any number of
// goroutines.
//
// It does not choose a port: MASTER_PORT is one that the caller holds on the first
// node, because a number computed from the job's collides with the next job's. It
// claims nothing that is not so: TORCHELASTIC_* are torchrun's own and stay unset, and
// without them rank 0 serves the store.
package pytorch

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Distribution is how ranks are dealt to nodes.
type Distribution string

// The distributions, in Slurm's words. The empty one is Block.
const (
	Block  Distribution = "block"  // node 0 gets the first ones, node 1 the next
	Cyclic Distribution = "cyclic" // one each in turn, as long as a node has room
)

// Step describes a step. The zero value of a field that may be unknown means unknown.
type Step struct {
	Nodes        []string     // names, in order; the first is node 0
	Tasks        []int        // ranks on each node; all positive
	Distribution Distribution //
	MasterAddr   string       // how the ranks reach node 0; empty: its name
	MasterPort   int          // held free on node 0; 0: unknown, then MASTER_PORT is not set
	CPUs         int          // for each task; 0: unknown
	GPUs         [][]string   // of each node, by their names inside the container: 0, 1, ... or MIG UUIDs; nil: none
	GPUsPerTask  int          // each rank sees its own share only; 0: all of the node's
	Torchrun     int          // the command is torchrun, once a node, and starts so many; 0: the tasks are the ranks
	ID           string       // of the rendezvous: job, step and attempt, so that none meets an earlier one
	Trace        string       // host directory for the flight recorder's dumps; empty: off
	Environ      []string     // what the person set: some of it stays
	Image        []string     // the image's environment: OMP_NUM_THREADS of it stays
}

// maxTasks bounds a step; a rank is a 32-bit number in torch.
const maxTasks = 1 << 24

// Layout is a step that was checked, with the place of every rank.
type Layout struct {
	step  Step
	first []int // Block: rank of each node's first task; then the number of all
	ranks [][]int32
	user  map[string]string
	notes []string
}

// Layout checks the description and deals the ranks. With Cyclic it takes memory by the
// number of ranks, with Block by the number of nodes.
func (s Step) Layout() (*Layout, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("lay out ranks: %w", err)
	}
	l := &Layout{step: s, first: make([]int, len(s.Tasks)+1), user: map[string]string{}}
	for i, n := range s.Tasks {
		l.first[i+1] = l.first[i] + n
	}
	if s.Distribution == Cyclic {
		l.deal()
	}
	for _, e := range s.Environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			l.user[name] = value
		}
	}
	for _, name := range []string{"MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"} {
		if _, ok := l.user[name]; ok {
			l.notes = append(l.notes, name+" is as you set it")
		}
	}
	return l, nil
}

func (s Step) check() error {
	total := 0
	for i, n := range s.Tasks {
		if n < 1 {
			return fmt.Errorf("node %d has %d tasks", i, n)
		}
		if total += n; total > maxTasks || n > maxTasks {
			return fmt.Errorf("there are more than %d tasks", maxTasks)
		}
	}
	switch {
	case len(s.Nodes) == 0:
		return errors.New("the step has no nodes")
	case len(s.Tasks) != len(s.Nodes):
		return fmt.Errorf("%d nodes have tasks, of %d", len(s.Tasks), len(s.Nodes))
	case s.GPUs != nil && len(s.GPUs) != len(s.Nodes):
		return fmt.Errorf("%d nodes have GPUs, of %d", len(s.GPUs), len(s.Nodes))
	case s.Distribution != "" && s.Distribution != Block && s.Distribution != Cyclic:
		return fmt.Errorf("distribution %q is not known: block or cyclic", s.Distribution)
	case s.MasterPort < 0 || s.MasterPort > math.MaxUint16:
		return fmt.Errorf("port %d is not between 1 and 65535", s.MasterPort)
	case s.CPUs < 0 || s.GPUsPerTask < 0 || s.Torchrun < 0 || s.Torchrun > maxTasks:
		return errors.New("a number is negative or too large")
	case s.Torchrun > 0 && slices.Max(s.Tasks) > 1:
		return fmt.Errorf("torchrun starts the ranks of a node, so there is one task a node, not %d: ask for --ntasks-per-node=1, or leave torchrun out", slices.Max(s.Tasks))
	}
	for i, gpus := range s.GPUs {
		if need := s.GPUsPerTask * s.Tasks[i]; need > len(gpus) {
			return fmt.Errorf("node %s has %d GPUs, and %d tasks with %d each need %d", s.Nodes[i], len(gpus), s.Tasks[i], s.GPUsPerTask, need)
		}
	}
	for _, value := range append([]string{s.MasterAddr, s.ID, s.Trace, s.Nodes[0]}, slices.Concat(s.GPUs...)...) {
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("%q has a control character", value)
		}
	}
	return nil
}

// deal deals the ranks one to a node in turn.
func (l *Layout) deal() {
	l.ranks = make([][]int32, len(l.step.Tasks))
	left := make([]int, 0, len(l.step.Tasks)) // nodes with room
	for i, n := range l.step.Tasks {
		l.ranks[i] = make([]int32, 0, n)
		left = append(left, i)
	}
	for rank := int32(0); len(left) > 0; {
		for _, i := range left {
			l.ranks[i] = append(l.ranks[i], rank)
			rank++
		}
		left = slices.DeleteFunc(left, func(i int) bool { return len(l.ranks[i]) == l.step.Tasks[i] })
	}
}

// World is the number of tasks.
func (l *Layout) World() int { return l.first[len(l.first)-1] }

// Notes say what of the person's was kept, a line each.
func (l *Layout) Notes() []string { return l.notes }

// RankOf returns the rank of a node's task.
func (l *Layout) RankOf(node, local int) (int, error) {
	if node < 0 || node >= len(l.step.Tasks) || local < 0 || local >= l.step.Tasks[node] {
		return 0, fmt.Errorf("find rank: there is no task %d on node %d", local, node)
	}
	if l.ranks != nil {
		return int(l.ranks[node][local]), nil
	}
	return l.first[node] + local, nil
}

// Rank returns the variables of a node's task, NAME=VALUE, over those that Edits gives
// to the whole node. Who one is, is never the person's to set: RANK and the like come
// from a login shell or an outer job by accident.
func (l *Layout) Rank(node, local int) ([]string, error) {
	rank, err := l.RankOf(node, local)
	if err != nil {
		return nil, err
	}
	var env []string
	set := func(name string, value int) { env = append(env, name+"="+strconv.Itoa(value)) }
	if l.step.Torchrun == 0 {
		set("RANK", rank)
		set("LOCAL_RANK", local)
		set("WORLD_SIZE", l.World())
		set("LOCAL_WORLD_SIZE", l.step.Tasks[node])
		set("NODE_RANK", node)
		set("GROUP_RANK", node)
		set("GROUP_WORLD_SIZE", len(l.step.Nodes))
	}
	if l.step.GPUs != nil {
		gpus := l.step.GPUs[node]
		if n := l.step.GPUsPerTask; n > 0 {
			gpus = gpus[local*n : (local+1)*n]
		}
		env = append(env, "CUDA_VISIBLE_DEVICES="+strings.Join(gpus, ","))
	}
	return env, nil
}

// master is how node 0 is reached.
func (l *Layout) master() (addr string, port string) {
	addr, port = l.step.MasterAddr, ""
	if addr == "" {
		addr = l.step.Nodes[0]
	}
	if l.step.MasterPort > 0 {
		port = strconv.Itoa(l.step.MasterPort)
	}
	if value := l.user["MASTER_ADDR"]; value != "" {
		addr = value
	}
	if value := l.user["MASTER_PORT"]; value != "" {
		port = value
	}
	return addr, port
}

// threads is how many OpenMP threads a rank has; 0: unknown. The default of OpenMP is
// all cores of the machine in every rank, which is why torchrun says 1.
func (l *Layout) threads(node int) int {
	ranks, cpus := l.step.Tasks[node], l.step.CPUs
	if l.step.Torchrun > 0 {
		ranks = l.step.Torchrun
		cpus /= ranks
	}
	switch {
	case cpus > 0:
		return cpus
	case ranks > 1:
		return 1
	}
	return 0
}

// torchrun returns the variables from which torchrun takes its options: PET_ and the
// option's name. The rendezvous is the static one: node 0 is who serves, instead of who
// finds its own address in the endpoint's, which containers get wrong.
func (l *Layout) torchrun(node int) []string {
	addr, port := l.master()
	env := []string{
		"PET_NNODES=" + strconv.Itoa(len(l.step.Nodes)),
		"PET_NPROC_PER_NODE=" + strconv.Itoa(l.step.Torchrun),
		"PET_NODE_RANK=" + strconv.Itoa(node),
		"PET_RDZV_BACKEND=static",
		"PET_MASTER_ADDR=" + addr,
	}
	if port != "" {
		env = append(env, "PET_MASTER_PORT="+port, "PET_RDZV_ENDPOINT="+net.JoinHostPort(strings.Trim(addr, "[]"), port))
	}
	if l.step.ID != "" {
		env = append(env, "PET_RDZV_ID="+l.step.ID)
	}
	return env
}
