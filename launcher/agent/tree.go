package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/gangway-hpc/gangway/internal/socket"
	"github.com/gangway-hpc/gangway/internal/wire"
	"github.com/gangway-hpc/gangway/launcher/tree"
)

// relayIn is this node's part of trees; nil: the session has ended.
type relayIn struct{ relay *tree.Relay }

// joinTrees begins this node's part of trees, for a session that was welcomed.
func (a *Agent) joinTrees(ctx context.Context, w *wire.Welcome, s *Session) *tree.Relay {
	r := tree.New(ctx, tree.Options{
		Node: a.Node.Name, Secret: w.Secret, Log: a.Log, Dial: a.dialBelow,
		Deliver: s.Hear, Direct: func(m *wire.AgentMessage) { s.outbox.put(m) },
	})
	a.trees.Store(r)
	a.inputs.put(relayIn{r})
	return r
}

// leaveTrees ends that.
func (a *Agent) leaveTrees() {
	if r := a.trees.Swap(nil); r != nil {
		r.Close()
		a.inputs.put(relayIn{})
	}
}

// up says something by way of other agents, if its job has one. A heartbeat that renews a lease
// goes by the session: what it proves is that the node itself reaches the controller, and soon.
func (a *Agent) up(m *wire.AgentMessage) bool {
	if a.relay == nil || m.GetHeartbeat().GetSeq() != 0 {
		return false
	}
	id, ok := wire.AnsweredOf(m)
	if !ok || !a.relay.Say(id, m, id == 0) {
		return false
	}
	if m.GetCleaned() != nil {
		a.relay.Forget(id)
	}
	return true
}

// relayAddress is where other agents reach this one; empty: nowhere.
func (a *Agent) relayAddress() string {
	if a.Hosts != nil {
		_, address := a.Hosts.Where()
		return address
	}
	if a.Relay == "" {
		return ""
	}
	return "unix:" + a.Relay
}

// dialBelow opens a stream to another agent: over hosts by its certificate, else on this
// machine, where all agents are one user's.
func (a *Agent) dialBelow(ctx context.Context, node, address string) (tree.Below, error) {
	if a.Hosts != nil {
		return tree.Dial(ctx, func(ctx context.Context) (net.Conn, error) { return a.Hosts.Reach(ctx, node, address) })
	}
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return nil, fmt.Errorf("reach node %s: %q is not on this machine", node, address)
	}
	return tree.Dial(ctx, func(ctx context.Context) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if cred, err := socket.Peer(c); err != nil || !socket.IsOurs(cred.Uid) {
			return nil, errors.Join(fmt.Errorf("reach node %s: %s is another user's", node, path), c.Close())
		}
		return c, nil
	})
}

// hearAbove returns what begins to hear other agents, which returns what ends that.
func (a *Agent) hearAbove() (serve func() func(), err error) {
	var l net.Listener
	switch {
	case a.Hosts != nil:
		l = a.Hosts.Relays
	case a.Relay != "":
		if l, err = socket.Listen(a.Relay); err != nil {
			return nil, fmt.Errorf("make socket of node %s for other agents: %w", a.Node.Name, err)
		}
		l = socket.Ours{Listener: l}
	}
	if l == nil {
		return func() func() { return func() {} }, nil
	}
	s := tree.NewServer(a.trees.Load)
	return func() func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.Serve(l) // its end is asked for
		}()
		return func() {
			s.Stop()
			<-done
		}
	}, nil
}
