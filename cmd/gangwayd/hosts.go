package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/forward"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

const (
	identityDir  = "identity"     // of a state directory
	publicSocket = "gangway.sock" // of a host's: the public API
)

// memberFlags are those of a daemon of another host than the controller's.
type memberFlags struct{ dir, token, controller string }

func (m *memberFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.token, "join", "", "the token to join the cluster by, of gangwayd token; - reads it from stdin")
	f.StringVar(&m.controller, "controller", "", "where the controller listens, as HOST:PORT (default where it was)")
}

// open is the member that the state directory holds, or becomes.
func (m *memberFlags) open(ctx context.Context, env *cli.Env) (*host.Member, error) {
	dir := filepath.Join(m.dir, identityDir)
	if m.token == "-" {
		b, err := io.ReadAll(io.LimitReader(env.Stdin, 4096)) // more is refused as no token
		if err != nil {
			return nil, fmt.Errorf("read join token: %w", err)
		}
		m.token = strings.TrimSpace(string(b))
		if m.token == "" {
			return nil, fault.Usage(errors.New("--join -: no token comes on standard input"), "gangwayd token ... | gangwayd agent --join - ...")
		}
	}
	if m.token != "" {
		if m.controller == "" {
			return nil, fault.Usage(errors.New("--join: where the controller is has to be named"), "--controller HOST:PORT")
		}
		if _, err := host.Join(ctx, dir, m.token, m.controller); err != nil {
			return nil, err
		}
	}
	member, err := host.OpenMember(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &fault.Error{
			What: fmt.Errorf("open identity of this host in %s: %w", dir, err),
			Hint: "join first, with a token of gangwayd token on the controller: --join TOKEN --controller HOST:PORT",
		}
	}
	if err == nil && m.controller != "" {
		err = member.Move(ctx, m.controller)
	}
	return member, err
}

// hinted is an error with its remedy in its text, for logs.
func hinted(err error) error {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Hint != "" {
		return fmt.Errorf("%w (%s)", err, f.Hint)
	}
	return err
}

// dialer makes connections of one protocol to the controller.
func dialer(m *host.Member, protocol string, seen func(net.Conn)) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := m.Dial(ctx, m.Controller, protocol, host.Controller, host.ControllerName)
		if err != nil {
			return nil, hinted(err)
		}
		if seen != nil {
			seen(c)
		}
		return c, nil
	}
}

// hostAgent is the agent of a host of its own.
func hostAgent(ctx context.Context, env *cli.Env, m *memberFlags, mode *modeFlags, listen, address string) (*agent.Agent, func(), error) {
	member, err := m.open(ctx, env)
	if err != nil {
		return nil, nil, err
	}
	self := member.Self()
	if self.Role != host.Node {
		return nil, nil, &fault.Error{What: fmt.Errorf("be the agent of a node: this host has joined as %s %s", self.Role, self.Name), Hint: "gangwayd " + string(self.Role) + " --state-dir " + m.dir}
	}
	node, notes, err := agent.Hardware(ctx, self.Name)
	if err != nil {
		return nil, nil, err
	}
	o, err := programs(env)
	if err != nil {
		return nil, nil, err
	}
	o.Dir, o.Socket = m.dir, filepath.Join(m.dir, "agent.sock")
	sockets, system, err := mode.memberSockets(m.dir, member.Cluster, self.Name)
	if err == nil && system {
		err = mode.users(&o, sockets)
	}
	if err != nil {
		return nil, nil, err
	}
	if o.Orphans, err = agent.AdoptOrphans(nil); err != nil {
		return nil, nil, err
	}
	o = optionsOf(&job.Cluster{Name: member.Cluster, ID: member.ID}, node, o)
	log := o.Log
	for _, note := range notes {
		log.Warn(note)
	}
	listener, err := member.Listen(ctx, listen, host.Rules{
		Roles: map[string][]host.Role{host.StepProtocol: {host.Controller}, host.PeerProtocol: {host.Node}}, Log: log, Now: env.Now,
	})
	if err != nil {
		return nil, nil, err
	}
	at := &whereabouts{fixed: address, port: listener.Addr().(*net.TCPAddr).Port}
	public := filepath.Join(sockets, publicSocket)
	o.Hosts = &agent.Hosts{
		Dial: dialer(member, host.SessionProtocol, at.saw), Where: at.now,
		Steps: listener.For(host.StepProtocol), Peers: listener.For(host.PeerProtocol),
		DialPeer: func(ctx context.Context, node, address string) (net.Conn, error) {
			return member.Dial(ctx, address, host.PeerProtocol, host.Node, node)
		},
		Public: "unix:" + public,
	}
	l, err := listenFor(system, public)
	if err != nil {
		return nil, nil, errors.Join(err, listener.Close())
	}
	withdraw := func() {}
	if system {
		if withdraw, err = mode.announce(ctx, member.Cluster, self.Name, public); err != nil {
			return nil, nil, errors.Join(err, listener.Close(), l.Close())
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &forward.Forwarder{Dial: dialer(member, host.APIProtocol, nil), Node: self.Name, Agent: o.Socket, Everybody: system, Log: log}
	go member.Keep(ctx, log)
	go func() {
		if err := f.Serve(ctx, l); err != nil {
			log.Error("users of this host are not heard any more", "err", err)
		}
	}()
	return agent.New(o), func() {
		withdraw()
		cancel()
		_ = listener.Close() // with the agent
	}, nil
}

// runHostAgent is the agent verb on a host of its own.
func runHostAgent(ctx context.Context, env *cli.Env, dir string, m *memberFlags, mode *modeFlags, listen, address string) (err error) {
	if m.dir, err = makeStateDir(dir); err != nil {
		return err
	}
	lock, err := m.lock()
	if err != nil {
		return err
	}
	defer func() { _ = lock.Release() }() // it ends with the process
	a, end, err := hostAgent(ctx, env, m, mode, listen, address)
	if err != nil {
		return err
	}
	defer end()
	return runAgent(ctx, a)
}

func clientVerb(env *cli.Env) *cobra.Command {
	m, mode := &memberFlags{}, &modeFlags{}
	cmd := &cobra.Command{
		Use:   "client",
		Short: "be the cluster on a host that runs none of its jobs",
		Long: `Be the cluster on a host that runs none of its jobs, as one where people log in: take
what its users ask to the controller, and say who they are.

Commands find it by GANGWAY_CLUSTER=unix:STATE/` + publicSocket + `. As root it is that of
all users of the machine (--mode=system), whose commands find it without any setting.`,
		Example: "gangwayd client --state-dir DIR --join TOKEN --controller HOST:PORT",
	}
	cmd.Flags().StringVar(&m.dir, "state-dir", "", "this host's state directory")
	m.add(cmd)
	mode.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if m.dir == "" {
			return fault.Usage(errors.New("client: the state directory is to be named"), cmd.Example)
		}
		ctx, stop := signal.NotifyContext(context.WithoutCancel(cmd.Context()), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		var err error
		if m.dir, err = makeStateDir(m.dir); err != nil {
			return err
		}
		lock, err := m.lock()
		if err != nil {
			return err
		}
		defer func() { _ = lock.Release() }() // it ends with the process
		member, err := m.open(ctx, env)
		if err != nil {
			return err
		}
		if self := member.Self(); self.Role != host.Client {
			return &fault.Error{What: fmt.Errorf("be a client: this host has joined as %s %s", self.Role, self.Name), Hint: "gangwayd agent --state-dir " + m.dir}
		}
		log := slog.New(slog.NewTextHandler(env.Stderr, nil))
		sockets, system, err := mode.memberSockets(m.dir, member.Cluster, member.Self().Name)
		if err != nil {
			return err
		}
		public := filepath.Join(sockets, publicSocket)
		l, err := listenFor(system, public)
		if err != nil {
			return err
		}
		if system {
			withdraw, err := mode.announce(ctx, member.Cluster, member.Self().Name, public)
			if err != nil {
				return err
			}
			defer withdraw()
		}
		go member.Keep(ctx, log)
		log.Info("users of this host are heard", "address", l.Addr().String())
		return (&forward.Forwarder{Dial: dialer(member, host.APIProtocol, nil), Everybody: system, Log: log}).Serve(ctx, l)
	}
	return cmd
}

// certificateLife is how long certificates live, unless it is said.
const certificateLife = 24 * time.Hour

// checkLife refuses lives that cannot be kept up.
func checkLife(life time.Duration) error {
	if life < 10*time.Second || life > 90*24*time.Hour {
		return fault.Usage(fmt.Errorf("--certificate-life %s: from 10s to 90 days", life), "--certificate-life 24h")
	}
	return nil
}

// makeStateDir makes a directory that is its owner's alone.
func makeStateDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, ownDir(dir)
}

// memberLock is held by the one daemon that a host's state directory has.
const memberLock = "daemon.lock"

// lock takes the state directory.
func (m *memberFlags) lock() (*fsx.Lock, error) {
	lock, err := fsx.TryAcquire(filepath.Join(m.dir, memberLock), fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) {
		return nil, &fault.Error{What: fmt.Errorf("use state directory %s: another daemon of this host has it", m.dir), Hint: "it runs already; another one needs a directory of its own: --state-dir DIR"}
	}
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	return lock, nil
}
