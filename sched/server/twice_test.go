package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gangway-hpc/gangway/internal/wire"
)

// refusal is what the controller says to an agent that says hello.
func (w *world) refusal(change func(*wire.Hello)) error {
	w.t.Helper()
	_, path := w.sockets()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := wire.NewControllerClient(conn).Session(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	h := &wire.Hello{Protocol: wire.Protocol, Version: "v1", Cluster: "test", Node: "n1", Declared: true, Address: "10.0.0.9"}
	change(h)
	if err := stream.Send(&wire.AgentMessage{Message: &wire.AgentMessage_Hello{Hello: h}}); err != nil {
		w.t.Fatal(err)
	}
	_, err = stream.Recv()
	return err
}

// safeLog is a log that may be read while it is written.
type safeLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *safeLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRefusedAgents: who may not be a node is told why and what to do, and so is the
// controller's log, once; the node that is there does not notice.
func TestRefusedAgents(t *testing.T) {
	w := newWorld(t, 1)
	log := &safeLog{}
	if err := w.server.do(t.Context(), func(c *core) { c.log = slog.New(slog.NewTextHandler(log, nil)) }); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*wire.Hello)
		code   codes.Code
		want   string
	}{
		{"protocol", func(h *wire.Hello) { h.Protocol = wire.Protocol + 1 }, codes.Unimplemented, fmt.Sprintf("the agent speaks protocol %d, version v1; this controller speaks %d, version test: install one release on both", wire.Protocol+1, wire.Protocol)},
		{"twice", func(h *wire.Hello) { h.BootId = "another machine" }, codes.FailedPrecondition, "node n1 is here already, at 127.0.0.1: another host has its name, or a copy of its state directory; end one of the two agents"},
		{"cluster", func(h *wire.Hello) { h.Cluster = "other" }, codes.FailedPrecondition, "the agent is of cluster other, this is test"},
		{"epoch", func(h *wire.Hello) { h.Epoch = 1 << 40 }, codes.FailedPrecondition, "it is an old one"},
	} {
		for range 2 {
			err := w.refusal(c.change)
			if status.Code(err) != c.code || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %v: %s", c.name, err, c.code, c.want)
			}
		}
		if n := strings.Count(log.String(), c.want); n != 1 {
			t.Errorf("%s: it is %d times in the log:\n%s", c.name, n, log)
		}
	}
	if err := w.refusal(func(h *wire.Hello) { h.Node = "n9" }); !strings.Contains(err.Error(), "there is no node n9") {
		t.Error(err)
	}
	if n := w.node("n1"); n.StateText != "idle" || n.Addr != "127.0.0.1" {
		t.Errorf("n1 is %s at %s", n.StateText, n.Addr)
	}
}
