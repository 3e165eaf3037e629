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
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/gangway-hpc/gangway/internal/account"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/socket"
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
	// Hosts is how daemons of other hosts are heard; nil: there are none.
	Hosts *Hosts
	// Users is who this machine knows; nil: as its files and getent say.
	Users *account.Database
	// Multiuser: the cluster is that of all users whom the machine knows, each with his own
	// rights. Else it is this user's, whoever that is.
	Multiuser bool
	// Configuration is where Cluster is from; nil: it cannot be read again.
	Configuration *Configuration
	// Now is the machine's clock, which may be set; nil: the system's.
	Now func() time.Time
	// SnapshotEvery is after how many events a snapshot is made; 0: 10,000.
	SnapshotEvery int
	// KeepEvents is how many events are kept at most that no restart needs any more, for
	// those who ask what happened to a job; 0: 200,000.
	KeepEvents int
}

// Server is a controller.
type Server struct {
	opts     Options
	inputs   chan func(*core)
	large    chan struct{} // a token for each long request that is being read
	core     *core
	registry *prometheus.Registry

	reading  sync.Mutex // while the configuration is read again
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
	if opts.Users == nil {
		opts.Users = &account.Database{}
	}
	if opts.SnapshotEvery == 0 {
		opts.SnapshotEvery = 10000
	}
	if opts.KeepEvents == 0 {
		opts.KeepEvents = 200000
	}
	s := &Server{
		opts: opts, inputs: make(chan func(*core), maxInputs), large: make(chan struct{}, largeBodies), stopped: make(chan struct{}), registry: prometheus.NewRegistry(),
		fatal: make(chan error, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c := newCore(&s.opts, s.inputs, s.stopped, newMeter(s.registry))
	s.core = c
	if err := c.begin(ctx); err != nil {
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

// unstored has the core refuse and cancel the jobs of batches that the store did not take,
// and of all that came since, and returns these with those.
func (s *Server) unstored(queue []output, err error) []output {
	done := make(chan []output, 1)
	f := func(c *core) { done <- c.unstored(queue, err) }
	select {
	case s.inputs <- f:
		select {
		case all := <-done:
			return all
		case <-s.stopped:
		}
	case <-s.stopped:
	}
	select {
	case all := <-done: // it was the last that the core did
		return all
	default:
		return queue
	}
}

// unstored is [Server.unstored], in the core.
func (c *core) unstored(queue []output, err error) []output {
	more, _ := c.commit.take() // nothing comes while this runs
	all := append(queue, more...)
	for i := range all {
		c.refuseAll(&all[i], err)
	}
	c.refuseAll(&c.out, err)
	c.dropRows(&c.out)
	for i := range all {
		c.dropRows(&all[i])
	}
	c.flush()
	return all
}

// dropRows takes out of a batch what it accounts of refused jobs: such a one may have begun,
// and lost its nodes, before it was stored.
func (c *core) dropRows(o *output) {
	o.batch.Jobs = slices.DeleteFunc(o.batch.Jobs, func(r store.JobRow) bool { return c.commit.refused(r.Job) })
	o.batch.Steps = slices.DeleteFunc(o.batch.Steps, func(r store.StepRow) bool { return c.commit.refused(r.Key.Job) })
}

// refuseAll refuses and cancels the jobs of a batch, and takes out of it what is stored for
// them only: what is needed may fit where a large environment does not.
func (c *core) refuseAll(o *output, err error) {
	submits := o.submits
	o.submits = nil
	for _, w := range submits {
		w.refuse(err)
		c.cancelUnstored(w)
		for _, digest := range w.blobs {
			if !c.inSteps(digest) {
				delete(c.stored, digest)
				o.batch.Blobs = slices.DeleteFunc(o.batch.Blobs, func(b store.Blob) bool { return b.Digest == digest })
			}
		}
	}
}

// inSteps says whether a step that has not ended has a blob, of a job that was not refused.
func (c *core) inSteps(digest string) bool {
	for _, r := range c.runs {
		if c.commit.refused(r.Of.Job) {
			continue
		}
		for _, st := range r.Steps {
			if st.Env == digest || st.Text == digest {
				return true
			}
		}
	}
	return false
}

// Serve answers the public API on one listener and agents on others, until ctx ends or the
// store is taken over. It stops the server.
func (s *Server) Serve(ctx context.Context, public net.Listener, agents ...net.Listener) error {
	web := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleSpan, ConnContext: peerOf,
		BaseContext: func(net.Listener) context.Context { return s.ctx },
		ErrorLog:    slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn),
	}
	calls := grpc.NewServer(grpc.MaxRecvMsgSize(MaxMessage), grpc.MaxSendMsgSize(MaxMessage))
	wire.RegisterControllerServer(calls, &service{server: s})
	failed := make(chan error, 4+len(agents))
	if s.opts.Hosts != nil {
		defer s.serveHosts(failed)()
	}
	go func() { failed <- web.Serve(limitConnections(public)) }()
	for _, l := range agents {
		go func() { failed <- calls.Serve(socket.Ours{Listener: l}) }() // agents are root's, or this user's
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
