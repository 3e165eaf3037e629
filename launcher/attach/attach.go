// Package attach connects a client to the input and output of a step: one connection to
// the agent of each node, which is made again, at the place where it was, when it breaks.
// Output comes to one function, in the order of each rank's stream; input goes to the
// ranks that read it, and never more than they take.
//
// First use: s := attach.Open(ctx, attach.Config{...}); then s.Wait(), while s.Signal and
// s.Resize may be called by any goroutine. The functions of the Config are called by one
// goroutine at a time.
//
// The package decides nothing about the step: it does not know whether a step that failed
// is tried again, and prints nothing.
package attach

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// Config says what a session is for.
type Config struct {
	Step  api.Step // its Key, Nodes, Agents and Ranks
	Hello stdio.Hello
	// Stdin is for the ranks that Input says, as job.Program has it; nil: there is none.
	Stdin io.Reader
	Input string
	// Exec runs a further program where its rank is, instead of being connected to the
	// step; the session ends with the program, or with its connection.
	Exec *stdio.Exec

	// Output gets what a rank wrote. Its error ends the session.
	Output func(rank int, stream stdio.Type, data []byte) error
	// Lost says that bytes of a rank's stream are gone, and why; nil: it is of no interest.
	Lost func(rank int, stream stdio.Type, count uint64, why stdio.Reason)
	// RankExit and StepEnd say how a rank, and the step on a node, ended; once each.
	RankExit func(end job.RankEnd)
	StepEnd  func(end *job.StepEnd)
	// Trouble says, once a breakdown, that a node's agent does not answer.
	Trouble func(node string, err error)
}

// Session is a client's connections to a step.
type Session struct {
	config Config
	nodes  []*node
	input  *input
	stop   context.CancelCauseFunc
	group  sync.WaitGroup
	moved  atomic.Uint64 // counts what Output took

	mu  sync.Mutex // of the functions of config, and what follows
	err error
}

// Open connects to all nodes of the step, until it has ended everywhere or ctx ends.
func Open(ctx context.Context, c Config) *Session {
	ctx, stop := context.WithCancelCause(ctx)
	s := &Session{config: c, stop: stop}
	for i, name := range c.Step.Nodes {
		if i >= len(c.Step.Agents) {
			break
		}
		n := newNode(s, name, c.Step.Agents[i])
		if i < len(c.Step.Ranks) {
			n.ranks = c.Step.Ranks[i]
		}
		if c.Exec == nil || slices.Contains(n.ranks, c.Exec.Rank) {
			s.nodes = append(s.nodes, n)
		}
	}
	s.input = newInput(c.Stdin, s.readers())
	for _, n := range s.nodes {
		s.group.Go(func() { n.run(ctx) })
	}
	if c.Stdin != nil {
		go s.input.fill() // ends with the process, if the reader blocks
	}
	return s
}

// readers are the nodes with ranks that read the input.
func (s *Session) readers() []*node {
	if s.config.Exec != nil {
		return s.nodes
	}
	rank := 0
	switch s.config.Input {
	case "", "0":
	case "all":
		return s.nodes
	default:
		n, err := strconv.Atoi(s.config.Input)
		if err != nil {
			return nil // none, or a file, which the ranks read themselves
		}
		rank = n
	}
	for _, n := range s.nodes {
		if slices.Contains(n.ranks, rank) {
			return []*node{n}
		}
	}
	return nil
}

// Wait returns when the step has ended on all nodes and its output was handed on, or the
// session was stopped. The error is that of Output, or of the context.
func (s *Session) Wait() error {
	s.group.Wait()
	s.input.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	for _, n := range s.nodes {
		if !n.ended {
			return context.Canceled
		}
	}
	return nil
}

// Stop ends the session.
func (s *Session) Stop() { s.stop(context.Canceled) }

// Signal sends a signal to all ranks, on nodes that can be reached.
func (s *Session) Signal(sig syscall.Signal) {
	s.send(stdio.Frame{Type: stdio.Signal, Offset: uint64(sig)})
}

// Resize says how large the terminal is.
func (s *Session) Resize(rows, columns uint16) { s.send(stdio.NewWinSize(rows, columns)) }

func (s *Session) send(f stdio.Frame) {
	for _, n := range s.nodes {
		n.send(f)
	}
}

// fail ends the session with an error.
func (s *Session) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	s.stop(err)
}

// deliver hands a frame of a node on. It says whether the connection goes on.
func (s *Session) deliver(n *node, f stdio.Frame) (more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch f.Type {
	case stdio.Stdout, stdio.Stderr:
		return true, s.output(n, f)
	case stdio.Gap:
		stream, count, why, err := f.Lost()
		if err != nil {
			return false, err
		}
		n.advance(int(f.Rank), stream, f.Offset+count)
		if s.config.Lost != nil {
			s.config.Lost(int(f.Rank), stream, count, why)
		}
	case stdio.Taken:
		s.input.taken(n, f.Offset)
	case stdio.RankExit:
		var end job.RankEnd
		if err := json.Unmarshal(f.Data, &end); err != nil {
			return false, fmt.Errorf("read end of rank: %w", err)
		}
		if !n.exited[end.Rank] {
			n.exited[end.Rank] = true
			s.config.RankExit(end)
		}
		if s.config.Exec != nil {
			n.ended = true
			return false, nil
		}
	case stdio.StepEnd:
		var end job.StepEnd
		if err := json.Unmarshal(f.Data, &end); err != nil {
			return false, fmt.Errorf("read end of step: %w", err)
		}
		s.settle(n, &end)
		return false, nil
	}
	return true, nil
}

// settle takes the end of the step on a node. What its ranks wrote and did not come is lost: the
// end may come from elsewhere than from where their output was.
func (s *Session) settle(n *node, end *job.StepEnd) {
	for i := range end.Ranks {
		e := &end.Ranks[i]
		if s.config.Exec != nil {
			break // they are not its
		}
		for _, o := range []stdio.Offset{{Rank: e.Rank, Stream: stdio.Stdout, Offset: e.Out}, {Rank: e.Rank, Stream: stdio.Stderr, Offset: e.Err}} {
			had := n.had(o.Rank, o.Stream)
			if o.Offset <= had || len(s.config.Hello.Ranks) > 0 && !slices.Contains(s.config.Hello.Ranks, o.Rank) {
				continue
			}
			n.advance(o.Rank, o.Stream, o.Offset)
			if s.config.Lost != nil {
				s.config.Lost(o.Rank, o.Stream, o.Offset-had, stdio.NotThere)
			}
		}
		if !n.exited[e.Rank] {
			n.exited[e.Rank] = true
			s.config.RankExit(*e)
		}
	}
	n.ended = true
	s.config.StepEnd(end)
}

// Settle takes, after Wait, the ends of the step on nodes of which the session has not heard it,
// from who knows them.
func (s *Session) Settle(ends []job.StepEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range ends {
		for _, n := range s.nodes {
			if n.name == ends[i].Node && !n.ended {
				s.settle(n, &ends[i])
			}
		}
	}
}

// Whole says, after Wait, whether the end of the step was heard from all nodes.
func (s *Session) Whole() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(s.nodes, func(n *node) bool { return !n.ended })
}

// maxOutput bounds what Output gets at once, so that slow output is seen to go on.
const maxOutput = 4 << 10

// output hands on what is new of a frame of output.
func (s *Session) output(n *node, f stdio.Frame) error {
	data := f.Data
	if had := n.had(int(f.Rank), f.Type); f.Offset < had {
		data = data[min(uint64(len(data)), had-f.Offset):]
	}
	for part := range slices.Chunk(data, maxOutput) {
		if err := s.config.Output(int(f.Rank), f.Type, part); err != nil {
			s.fail(err)
			return err
		}
		s.moved.Add(1)
	}
	n.advance(int(f.Rank), f.Type, f.Offset+uint64(len(f.Data)))
	return nil
}
