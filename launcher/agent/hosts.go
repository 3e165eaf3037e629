package agent

import (
	"context"
	"net"

	"google.golang.org/grpc"
)

// Hosts is what an agent has whose controller is on another host.
type Hosts struct {
	// Dial makes a connection for a session, on which both ends know each other.
	Dial func(context.Context) (net.Conn, error)
	// Where says by which address ranks reach this host now, and where the controller
	// reaches the agent: tls:HOST:PORT.
	Where func() (address, socket string)
	// Steps has connections of the controller, and of nobody else, that ask for the input
	// and output of steps.
	Steps net.Listener
	// Peers has connections of other nodes' agents, and of nobody else. DialPeer makes one to
	// the agent of a node at an address. Nil: the node has no lease.
	Peers    net.Listener
	DialPeer func(ctx context.Context, node, address string) (net.Conn, error)
	// Public is where programs of jobs reach the public API on this host: unix:PATH.
	Public string
}

// reach is how gRPC finds the controller.
func (a *Agent) reach() (target string, options []grpc.DialOption) {
	if a.Hosts == nil {
		return "unix:" + a.Wire, nil
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return a.Hosts.Dial(ctx) }
	return "passthrough:///controller", []grpc.DialOption{grpc.WithContextDialer(dial)}
}

// where is by which address ranks reach this node, and where clients reach the agent.
func (a *Agent) where() (address, socket string) {
	if a.Hosts == nil {
		return a.Node.Addr, "unix:" + a.Socket
	}
	return a.Hosts.Where()
}
