package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// farWorld is a world whose controller hears other hosts too: a node, and a client.
type farWorld struct {
	*world
	n1, login *host.Member
}

func newFarWorld(t *testing.T) *farWorld {
	t.Helper()
	w := newWorld(t, 2)
	w.stop()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	a, err := host.Create(ctx, t.TempDir(), "test", "id", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	self, err := a.Controller(time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := self.Listen(ctx, "127.0.0.1:0", host.Rules{Roles: HostRules(), Alive: a.Alive, Stays: func(p host.Peer) error { return a.Stays(p, time.Now()) }, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	w.hosts = &Hosts{Listener: l, Identity: self, Service: &host.Service{Authority: a, Life: time.Hour, Now: time.Now}}
	w.start()
	join := func(role host.Role, name string) *host.Member {
		token, err := a.NewToken(ctx, role, name, time.Hour, false, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		m, err := host.Join(ctx, t.TempDir(), token, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	return &farWorld{w, join(host.Node, "n1"), join(host.Client, "login")}
}

// session says Hello in a session of a member, and returns what comes of it.
func (w *farWorld) session(m *host.Member, hello *wire.Hello) error {
	w.t.Helper()
	conn, err := grpc.NewClient("passthrough:///c", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return m.Dial(ctx, m.Controller, host.SessionProtocol, host.Controller, host.ControllerName)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stream, err := wire.NewControllerClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	hello.Protocol, hello.Cluster, hello.Declared = wire.Protocol, "test", true
	if err := stream.Send(&wire.AgentMessage{Message: &wire.AgentMessage_Hello{Hello: hello}}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// asks makes a request on a connection of a member, and returns its refusal.
func (w *farWorld) asks(m *host.Member, method, path string, headers ...string) error {
	w.t.Helper()
	return w.sends(m, method, path, `{"State":"drain"}`, nil, headers...)
}

// sends is asks with a body, and where the answer goes.
func (w *farWorld) sends(m *host.Member, method, path, text string, into any, headers ...string) error {
	w.t.Helper()
	c := host.HTTP(func(ctx context.Context) (net.Conn, error) {
		return m.Dial(ctx, m.Controller, host.APIProtocol, host.Controller, host.ControllerName)
	})
	defer c.CloseIdleConnections()
	req, err := http.NewRequest(method, "http://c"+path, strings.NewReader(text))
	if err != nil {
		return err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 300 && into != nil {
		return json.NewDecoder(resp.Body).Decode(into)
	}
	if resp.StatusCode < 300 {
		_, err := io.Copy(io.Discard, resp.Body)
		return err
	}
	var e api.Error
	if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	return fmt.Errorf("%d %s %s %s %s", resp.StatusCode, e.Kind, e.What, e.Cause, e.Hint)
}

// as are the headers of a user.
func as(uid, gid any) []string {
	return []string{api.UIDHeader, fmt.Sprint(uid), api.GIDHeader, fmt.Sprint(gid)}
}

// TestHostAttacks: a host that has a certificate does nothing but what its role and its
// jobs let it do.
func TestHostAttacks(t *testing.T) {
	t.Parallel()
	w := newFarWorld(t)
	w.runFor(time.Hour)
	mine := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n1"} })
	w.waitState(mine, job.Running)
	var page api.Page[api.Step]
	w.until("the script is there", func() bool {
		w.get("/v1/jobs/"+mine.String()+"/steps", &page)
		return len(page.Items) == 1
	})
	key := page.Items[0].Key
	elsewhere := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n2"} })
	w.waitState(elsewhere, job.Running)
	path := "/v1/jobs/" + elsewhere.String()
	io := func(node string) string {
		return fmt.Sprintf("/v1/nodes/%s/steps/%d.%d.%s.%d/io", node, key.Job, key.Attempt, key.Step, key.Try)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	const other = 4711 // a user without jobs
	for _, c := range []struct {
		name string
		try  func() error
		want string
	}{
		{"another node's session", func() error { return w.session(w.n1, &wire.Hello{Node: "n2", Socket: "tls:127.0.0.1:1"}) }, `PermissionDenied.*certificate is of node n1.*"n2"`},
		{"the session of a name that goes on", func() error { return w.session(w.n1, &wire.Hello{Node: "n1 ", Socket: "tls:127.0.0.1:1"}) }, `PermissionDenied`},
		{"a service at a socket of the controller's host", func() error { return w.session(w.n1, &wire.Hello{Node: "n1", Socket: "unix:/run/x"}) }, `PermissionDenied.*not on another host`},
		{"a client's session", func() error { return w.session(w.login, &wire.Hello{Node: "n1", Socket: "tls:127.0.0.1:1"}) }, `client login may not use`},
		{"nobody asks", func() error { return w.asks(w.n1, "GET", "/v1/jobs") }, `403 ACCESS_DENIED.*Gangway-Uid is there 0 times`},
		{"two ask", func() error { return w.asks(w.login, "GET", "/v1/jobs", append(as(other, other), as(0, 0)...)...) }, `403 ACCESS_DENIED.*2 times`},
		{"an id that is none", func() error { return w.asks(w.login, "GET", "/v1/jobs", as("+4711", other)...) }, `403 ACCESS_DENIED.*no id`},
		{"an id with a zero", func() error { return w.asks(w.login, "GET", "/v1/jobs", as("04711", other)...) }, `403 ACCESS_DENIED.*no id`},
		{"an id that is too large", func() error { return w.asks(w.login, "GET", "/v1/jobs", as(1<<32, other)...) }, `403 ACCESS_DENIED.*no id`},
		{"the id that means none", func() error { return w.asks(w.login, "GET", "/v1/jobs", as(uint32(1<<32-1), other)...) }, `403 ACCESS_DENIED.*no id`},
		{"root of a client", func() error { return w.asks(w.login, "GET", "/v1/jobs", as(0, 0)...) }, `403 ACCESS_DENIED.*may not speak for user 0.*where the controller is`},
		{"a node for a user without jobs there", func() error { return w.asks(w.n1, "GET", "/v1/jobs", as(other, other)...) }, `403 ACCESS_DENIED.*node n1 may not speak for user 4711.*no job`},
		{"a node for another group of its job's user", func() error { return w.asks(w.n1, "GET", "/v1/jobs", as(uid, gid+1)...) }, `403 ACCESS_DENIED.*may not speak`},
		{"a node that drains another, for the administrator's job", func() error { return w.asks(w.n1, "POST", "/v1/nodes/n2", as(uid, gid)...) }, `403 ACCESS_DENIED`},
		{"another user's job cancelled", func() error { return w.asks(w.login, "DELETE", "/v1/jobs/"+mine.String(), as(other, other)...) }, `403 ACCESS_DENIED.*it is `},
		{"another user's output", func() error { return w.asks(w.login, "GET", io("n1"), as(other, other)...) }, `403 ACCESS_DENIED.*it is `},
		{"output from where the step is not", func() error { return w.asks(w.n1, "GET", io("n2"), as(uid, gid)...) }, `404 INVALID_JOB_ID.*not on node n2`},
		{"a node that cancels its user's job on another", func() error { return w.asks(w.n1, "DELETE", path, as(uid, gid)...) }, `403 ACCESS_DENIED.*node n1 may not speak for it.*gangwayd client`},
		{"a node that signals there", func() error { return w.sends(w.n1, "POST", path+"/signal", `{"Signal":"KILL"}`, nil, as(uid, gid)...) }, `403 ACCESS_DENIED.*may not speak for it`},
		{"a node that reads the script of another", func() error { return w.asks(w.n1, "GET", path+"/script", as(uid, gid)...) }, `403 ACCESS_DENIED.*may not speak for it`},
		{"a node that reads what happened to another", func() error { return w.asks(w.n1, "GET", path+"/events", as(uid, gid)...) }, `403 ACCESS_DENIED.*may not speak for it`},
		{"a node that starts a step on another", func() error {
			return w.sends(w.n1, "POST", path+"/steps", `{"Program":{"Args":["dHJ1ZQ=="]},"Tasks":1}`, nil, as(uid, gid)...)
		}, `403 ACCESS_DENIED.*may not speak for it`},
		{"output of another node's job", func() error {
			return w.asks(w.n1, "GET", strings.Replace(io("n2"), fmt.Sprintf("/%d.", key.Job), "/"+elsewhere.String()+".", 1), as(uid, gid)...)
		}, `403 ACCESS_DENIED.*may not speak for it`},
		{"output of another try", func() error {
			return w.asks(w.n1, "GET", strings.Replace(io("n1"), fmt.Sprintf("%d.%d.", key.Job, key.Attempt), fmt.Sprintf("%d.%d.", key.Job, key.Attempt+1), 1), as(uid, gid)...)
		}, `404 INVALID_JOB_ID.*not on node n1`},
		{"output of what is no step", func() error { return w.asks(w.n1, "GET", "/v1/nodes/n1/steps/01.1.0.0/io", as(uid, gid)...) }, `404 INVALID_JOB_ID`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.try(); err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
	// What they may do.
	if err := w.asks(w.n1, "GET", "/v1/jobs", as(uid, gid)...); err != nil {
		t.Errorf("a node for its job's user: %v", err)
	}
	if err := w.asks(w.login, "GET", "/v1/jobs", as(other, other)...); err != nil {
		t.Errorf("a client for its user: %v", err)
	}
	if err := w.asks(w.n1, "GET", "/v1/jobs/"+mine.String()+"/script", as(uid, gid)...); err != nil {
		t.Errorf("a node for a job that runs there: %v", err)
	}
	var sent api.Submitted
	if err := w.sends(w.n1, "POST", "/v1/jobs", `{"Spec":{"MinNodes":1,"Partitions":["main"],"NodeList":["n2"],"TimeLimit":60000,"CPUsPerTask":1},"Allocation":true,"Unheld":true}`, &sent, as(uid, gid)...); err != nil {
		t.Errorf("a node submits for its job's user: %v", err)
	}
	if err := w.asks(w.n1, "DELETE", "/v1/jobs/"+sent.ID.String(), as(uid, gid)...); err != nil {
		t.Errorf("a node cancels what was submitted there: %v", err)
	}
	if err := w.session(w.n1, &wire.Hello{Node: "n1", Socket: "tls:127.0.0.1:1"}); err != nil && !strings.Contains(err.Error(), "has opened another session") { // the near agent
		t.Errorf("a node's own session: %v", err)
	}
	var step api.Step
	w.get("/v1/jobs/"+mine.String()+"/steps/batch", &step)
	if len(step.Agents) != 1 || step.Agents[0] != "node:n1" && step.Agents[0] != "unix:/nowhere" { // the near agent may be back already
		t.Errorf("its steps are at %q", step.Agents)
	}
}

// TestLostSession: a node that is heard of again after it was lost says anew what it has.
func TestLostSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if err := w.server.do(t.Context(), func(c *core) { c.lose("n1", c.nodes["n1"]) }); err != nil {
		t.Fatal(err)
	}
	w.until("the node is idle again", func() bool {
		var n api.Node
		w.get("/v1/nodes/n1", &n)
		return n.StateText == "idle"
	})
}
