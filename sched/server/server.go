// Package server is the controller: it owns the scheduler, keeps what happens in the
// store, launches the steps of jobs by way of the agents, and answers the public API.
//
// First use: s, err := server.New(ctx, options), then [Server.Serve]. Its methods may be
// called by any number of goroutines.
//
// One goroutine (core.loop) has the state and waits for nothing: what others want is run by
// it, one after the other, and what it decides goes out once its events are durable, by
// way of another goroutine (committer.run). The state is a function of the events in the
// store, of which a snapshot is a cache; gangs (gang.decide) are pure.
//
// The package starts no process and opens no container: agents do.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Options is what a controller is made of.
type Options struct {
	Cluster *job.Cluster
	Store   store.Store
	Log     *slog.Logger
	Version string
	// Address is where programs of jobs reach the public API: unix:PATH.
	Address string
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// SnapshotEvery is after how many events a snapshot is made; 0: 10,000.
	SnapshotEvery int
}

// Server is a controller.
type Server struct {
	opts     Options
	inputs   chan func(*core)
	core     *core
	registry *prometheus.Registry
	users    users

	stopOnce sync.Once
	stopped  chan struct{} // closed when the core has ended
	cancel   context.CancelFunc
	ctx      context.Context
	fatal    chan error
}

// New restores the state from the store, and has the core run.
func New(ctx context.Context, opts Options) (*Server, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.SnapshotEvery == 0 {
		opts.SnapshotEvery = 10000
	}
	s := &Server{
		opts: opts, inputs: make(chan func(*core), maxInputs), stopped: make(chan struct{}), registry: prometheus.NewRegistry(),
		fatal: make(chan error, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m := newMeter(s.registry)
	c := &core{
		state: *newState(), opts: &s.opts, log: opts.Log, store: opts.Store, inputs: s.inputs, nodes: map[string]*node{},
		holders: map[job.ID]*holding{}, precaches: map[string]*precaching{}, touched: map[job.ID]bool{}, stored: map[string]bool{}, meter: m,
		commit: newCommitter(opts.Store, opts.Log, m), stopped: s.stopped,
	}
	s.core = c
	if err := c.restore(ctx); err != nil {
		return nil, err
	}
	if err := c.declare(opts.Cluster); err != nil {
		return nil, err
	}
	c.commit.failed = s.unstored
	c.commit.fatal = func(err error) {
		select {
		case s.fatal <- err:
		default:
		}
	}
	go c.commit.run()
	go func() {
		defer close(s.stopped)
		c.loop(s.ctx)
	}()
	return s, nil
}

// unstored has the core refuse and cancel the jobs of batches that the store did not take.
func (s *Server) unstored(queue []output, err error) {
	done := make(chan struct{})
	f := func(c *core) {
		defer close(done)
		for i := range queue {
			for _, w := range queue[i].submits {
				w.refuse(err)
				c.cancelUnstored(w)
			}
			queue[i].submits = nil
		}
		for _, w := range c.out.submits {
			w.refuse(err)
			c.cancelUnstored(w)
		}
		c.out.submits = nil
		c.flush()
	}
	select {
	case s.inputs <- f:
		select {
		case <-done:
		case <-s.stopped:
		}
	case <-s.stopped:
	}
}

// Serve answers the public API on one listener and agents on others, until ctx ends or the
// store is taken over. It stops the server.
func (s *Server) Serve(ctx context.Context, public net.Listener, agents ...net.Listener) error {
	web := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ConnContext: peerOf,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog:    slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn),
	}
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage))
	wire.RegisterControllerServer(calls, &service{server: s})
	failed := make(chan error, 1+len(agents))
	go func() { failed <- web.Serve(public) }()
	for _, l := range agents {
		go func() { failed <- calls.Serve(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("serve: %w", err)
	case err = <-s.fatal:
	}
	s.Stop()
	calls.Stop()
	return errors.Join(err, web.Close())
}

// Stop ends the core, makes what it decided durable, and saves a snapshot. Jobs are left
// as they are.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		s.cancel()
		<-s.stopped
		s.core.commit.close()
		s.core.saveNow()
	})
}
