package server

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

// pump has values taken by f, one after the other, without who gives them waiting.
func pump[T any](ctx context.Context, f func(T)) (put func(T)) {
	var mu sync.Mutex
	var queue []T
	ready := make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			mu.Lock()
			items := queue
			queue = nil
			mu.Unlock()
			for _, item := range items {
				f(item)
			}
			select {
			case <-ready:
			case <-ctx.Done():
			}
		}
	}()
	return func(item T) {
		mu.Lock()
		queue = append(queue, item)
		mu.Unlock()
		select {
		case ready <- struct{}{}:
		default:
		}
	}
}

// relaying is a fake agent's part of trees: it is that of real ones.
type relaying struct {
	current atomic.Pointer[tree.Relay]
	address string
	keeps   atomic.Bool // what it is to pass on, down and up
}

// hearAbove lets an agent take part in trees, until the function is called.
func (a *fakeAgent) hearAbove() (stop func()) {
	path := filepath.Join(a.w.dir, a.node.Name+".t")
	l, err := net.Listen("unix", path)
	if err != nil {
		a.w.t.Error(err)
		return func() {}
	}
	a.relaying.address = "unix:" + path
	s := tree.NewServer(a.relaying.current.Load)
	go func() { _ = s.Serve(l) }()
	return s.Stop
}

// join begins an agent's part of trees for a session. Its lock is held.
func (a *fakeAgent) join(ctx context.Context, w *wire.Welcome, direct func(*wire.AgentMessage)) (leave func()) {
	r := tree.New(ctx, tree.Options{
		Node: a.node.Name, Secret: w.Secret, Log: slog.New(slog.NewTextHandler(testLog{a.w.t}, nil)),
		Deliver: pump(ctx, func(m *wire.ControllerMessage) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.message(m)
		}),
		Direct: func(m *wire.AgentMessage) {
			if m.GetRelayed() == nil || !a.relaying.keeps.Load() {
				direct(m)
			}
		},
		Dial: func(ctx context.Context, _, address string) (tree.Below, error) {
			return tree.Dial(ctx, func(ctx context.Context) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, "unix", address[len("unix:"):])
			})
		},
	})
	a.relaying.current.Store(r)
	a.send = func(m *wire.AgentMessage) {
		if a.silent {
			return
		}
		if id, ok := wire.AnsweredOf(m); !ok || !r.Say(id, m, id == 0) {
			direct(m)
		}
	}
	return func() {
		a.relaying.current.Store(nil)
		r.Close()
	}
}

// counter is the value of one of the controller's.
func (w *world) counter(name string) float64 {
	w.t.Helper()
	all, err := w.server.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	w.t.Fatalf("there is no counter %s", name)
	return 0
}
