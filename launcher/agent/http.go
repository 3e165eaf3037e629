package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gangway-hpc/gangway/launcher/control"
)

// listen makes the agent's socket, and returns what begins to serve it, which returns what
// ends that.
func (a *Agent) listen() (serve func() func(), err error) {
	l, err := a.listenAt()
	if err != nil {
		return nil, fmt.Errorf("make socket of node %s: %w", a.Node.Name, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /v1/steps", a.serveSteps)
	mux.HandleFunc("GET /v1/steps/{key}/io", a.serveIO)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ConnContext: askerOf}
	return func() func() {
		done := make(chan struct{})
		if a.Hosts != nil {
			go func() { _ = server.Serve(a.Hosts.Steps) }() // likewise
		}
		go func() {
			defer close(done)
			_ = server.Serve(l) // its end is asked for
		}()
		return func() {
			_ = server.Close()
			<-done
		}
	}, nil
}

// serveSteps lists the run directories: the keys of what is here.
func (a *Agent) serveSteps(w http.ResponseWriter, r *http.Request) {
	entries, err := os.ReadDir(a.stepsDir())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	names := []string{}
	for _, e := range entries {
		if a.mayList(r, e.Name()) {
			names = append(names, e.Name())
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(names) // who asked may be gone
}

// serveIO makes the connection the supervisor's: bytes go both ways until one of the two
// has enough. The client sends the first line.
func (a *Agent) serveIO(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("key")
	key, err := control.ParseDir(name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.Header.Get("Upgrade") != "gangway-stdio" {
		http.Error(w, "the protocol is gangway-stdio: ask with Connection: Upgrade, Upgrade: gangway-stdio", http.StatusUpgradeRequired)
		return
	}
	s, ok := a.ownedStep(w, r, key)
	if !ok {
		return
	}
	step, err := dialSoon(r.Context(), s)
	if err != nil {
		refuseIO(w, s, err)
		return
	}
	defer step.Close()
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	if err := c.SetDeadline(time.Time{}); err != nil {
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: gangway-stdio\r\n\r\n"); err != nil {
		return
	}
	client, ok := c.(halves)
	if !ok {
		return
	}
	early, err := buffered.Reader.Peek(buffered.Reader.Buffered())
	if err == nil && len(early) > 0 {
		_, err = step.Write(early)
	}
	if err != nil {
		return
	}
	join(client, step.UnixConn)
}

// The waits for a step that was just made: it is asked for before this agent knows it, and
// to ask again would cost the client and this agent far more.
const (
	soonWait  = time.Second // in all
	firstLook = 2 * time.Millisecond
	lastLook  = 10 * time.Millisecond
)

// dialSoon connects to a step that is there, or is going to be within a moment.
func dialSoon(ctx context.Context, s *supervisor) (*control.Conn, error) {
	until := time.Now().Add(soonWait)
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		c, err := s.dial()
		if err == nil || time.Now().After(until) {
			return c, err
		}
		if _, ended := s.lastWord(); ended == nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

// refuseIO says why there is no connection: 404 where the step is not known (yet), 503
// where it is not ready, 410 with its end where it has ended.
func refuseIO(w http.ResponseWriter, s *supervisor, why error) {
	if end, err := s.lastWord(); err == nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusGone)
		_ = json.NewEncoder(w).Encode(end) // who asked may be gone
		return
	}
	code := http.StatusServiceUnavailable
	if _, err := os.Stat(s.dir); err != nil {
		code = http.StatusNotFound
	}
	http.Error(w, why.Error(), code)
}

// halves is a connection of which one way can end before the other.
type halves interface {
	net.Conn
	CloseWrite() error
}

// join passes bytes both ways. The end of one way is passed on; both ends are the end.
func join(a, b halves) {
	done := make(chan struct{})
	pass := func(to, from halves) {
		_, _ = io.Copy(to, from) // whichever end went away
		_ = to.CloseWrite()
		done <- struct{}{}
	}
	go pass(a, b)
	go pass(b, a)
	<-done
	<-done
}
