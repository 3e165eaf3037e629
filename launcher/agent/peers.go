package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/lease"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// peers is how an agent asks those of other hosts.
type peers struct {
	hosts *Hosts
	once  sync.Once
	web   *http.Client

	mu sync.Mutex
	at map[string]string // by name
}

// votePath is where an agent is asked by others whether it has lost the controller.
const votePath = "/v1/lost"

// ballot is the answer.
type ballot struct {
	Lost    bool
	Silence time.Duration // since it last heard of the controller
}

// client makes connections by the name of a node.
func (p *peers) client() *http.Client {
	p.once.Do(func() {
		p.at = map[string]string{}
		p.web = &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, hostPort string) (net.Conn, error) {
				name, _, err := net.SplitHostPort(hostPort)
				if err != nil {
					return nil, err
				}
				p.mu.Lock()
				address := p.at[name]
				p.mu.Unlock()
				return p.hosts.DialPeer(ctx, name, address)
			},
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DisableCompression: true,
		}}
	})
	return p.web
}

// vote asks one, who has so long to answer.
func (p *peers) vote(ctx context.Context, m lease.Member, within time.Duration) (silence time.Duration, lost bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	web := p.client()
	p.mu.Lock()
	p.at[m.Name] = addressOf(m.Address)
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.Name+votePath, nil)
	if err != nil {
		return 0, false, err
	}
	resp, err := web.Do(req)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	var b ballot
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1024)).Decode(&b); err != nil || resp.StatusCode != http.StatusOK {
		return 0, false, fmt.Errorf("node %s answers %s: %w", m.Name, resp.Status, err)
	}
	return b.Silence, b.Lost && b.Silence >= 0, nil
}

// addressOf is HOST:PORT of where an agent is.
func addressOf(at string) string { return strings.TrimPrefix(at, "tls:") }

// serve answers other agents until the listener is closed.
func (a *Agent) servePeers() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+votePath, func(w http.ResponseWriter, _ *http.Request) {
		silence, lost := a.lease.vote()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(ballot{lost, silence}) // who asked may be gone
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	_ = server.Serve(a.Hosts.Peers) // its end is asked for
}

// Tries of a probe: the node is given each as long as this.
const (
	probeTries = 2
	probeSpan  = 900 * time.Millisecond
)

// probe finds out whether another node is reached from here, and says so.
func (a *Agent) probe(ctx context.Context, m *wire.Probe) {
	if a.Hosts == nil || m.Node == nil {
		return
	}
	reach, why := wire.Probed_NONE, ""
	for range probeTries {
		r, err := a.reached(ctx, m.Node)
		if err != nil {
			why = err.Error()
		}
		if reach = max(reach, r); reach > wire.Probed_NONE {
			break
		}
	}
	a.inputs.put(sayIn{&wire.AgentMessage{Message: &wire.AgentMessage_Probed{Probed: &wire.Probed{Id: m.Id, Reach: reach, Why: why}}}})
}

// reached tries once. A host that refuses a connection is there, as is one that makes it and
// then says nothing: its agent is dead, or was stopped.
func (a *Agent) reached(ctx context.Context, m *wire.Member) (wire.Probed_Reach, error) {
	address := addressOf(m.Address)
	ctx, cancel := context.WithTimeout(ctx, probeSpan)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return wire.Probed_HOST, err
	}
	if err != nil {
		return wire.Probed_NONE, err
	}
	_ = c.Close() // it was made
	known, err := a.Hosts.DialPeer(ctx, m.Name, address)
	if err != nil {
		return wire.Probed_HOST, err
	}
	return wire.Probed_AGENT, known.Close()
}
