package tree

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/wire"
)

// maxMessage bounds a message: a program's environment and script travel in one.
const maxMessage = 64 << 20

// Dial opens a stream to an agent below, over a connection that connect makes, until ctx ends.
func Dial(ctx context.Context, connect func(context.Context) (net.Conn, error)) (Below, error) {
	conn, err := grpc.NewClient("passthrough:///agent", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	return wire.NewAgentClient(conn).Relay(ctx)
}

// service hears agents above.
type service struct {
	wire.UnimplementedAgentServer
	current func() *Relay
}

// NewServer hears agents above. Current is the Relay of the node's session; nil: it has none.
func NewServer(current func() *Relay) *grpc.Server {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	wire.RegisterAgentServer(s, &service{current: current})
	return s
}

// Relay implements wire.AgentServer.
func (v *service) Relay(stream grpc.BidiStreamingServer[wire.Down, wire.Up]) error {
	r := v.current()
	if r == nil {
		return status.Error(codes.Unavailable, "this node has no session with the controller")
	}
	r.Serve(stream)
	return status.Error(codes.Aborted, "this node's way to the controller has ended")
}
