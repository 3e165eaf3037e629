package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/launcher/agent"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// discovery is the file by which commands find the cluster, and the lock by which it has
// its name.
type discovery struct {
	path string
	file api.Found
	lock *fsx.Lock
}

// newDiscovery takes a name, and refuses one that a cluster which runs has. That is in its
// file once it is ready, so the name is locked until then, too.
func newDiscovery(getenv func(string) string, name, socket string) (*discovery, error) {
	dirs := step.RunDirs(getenv)
	d := &discovery{path: filepath.Join(dirs[0], "clusters", name+".json")}
	if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
		return nil, fmt.Errorf("take the cluster's name: %w", err)
	}
	var err error
	if d.lock, err = fsx.TryAcquire(d.lockFile(), fsx.Exclusive); errors.Is(err, fsx.ErrLocked) {
		return nil, taken(dirs, name, "it is starting, or ending")
	} else if err != nil {
		return nil, fmt.Errorf("take the cluster's name: %w", err)
	}
	if err := taken(dirs, name, ""); err != nil { // in another of the directories
		return nil, errors.Join(err, d.free())
	}
	start, err := agent.StartOf(os.Getpid())
	if err != nil {
		return nil, errors.Join(err, d.free())
	}
	d.file = api.Found{Name: name, Socket: "unix:" + socket, PID: os.Getpid(), Start: start}
	if err := d.forget(); err != nil {
		return nil, errors.Join(err, d.free())
	}
	return d, nil
}

// forget removes the files of other names that this cluster had when it was killed.
func (d *discovery) forget() error {
	names, err := filepath.Glob(filepath.Join(filepath.Dir(d.path), "*.json"))
	if err != nil {
		return fmt.Errorf("forget the cluster's other names: %w", err)
	}
	for _, path := range names {
		other := &discovery{path: path}
		if path == d.path || !other.left(d.file.Socket) {
			continue
		}
		if other.lock, err = fsx.TryAcquire(other.lockFile(), fsx.Exclusive); errors.Is(err, fsx.ErrLocked) {
			continue // another cluster takes the name just now
		} else if err != nil {
			return fmt.Errorf("forget the cluster's other names: %w", err)
		}
		end := other.free
		if other.left(d.file.Socket) { // still
			end = other.remove
		}
		if err := end(); err != nil {
			return fmt.Errorf("forget the cluster's other names: %w", err)
		}
	}
	return nil
}

// left says whether the file is of a cluster that had a socket and does not run.
func (d *discovery) left(socket string) bool {
	var f api.Found
	b, err := os.ReadFile(d.path)
	return err == nil && json.Unmarshal(b, &f) == nil && f.Socket == socket && !f.Alive()
}

// taken is the error of a name that a cluster has: one that is found, or else one of which
// only this is known; nil where nothing is.
func taken(dirs []string, name, known string) error {
	for _, f := range api.Discover(dirs) {
		if f.Name == name {
			known = fmt.Sprintf("process %d runs it, at %s", f.PID, f.Socket)
		}
	}
	if known == "" {
		return nil
	}
	return &fault.Error{
		What:  fmt.Errorf("run cluster %s: another one of that name runs", name),
		Cause: known,
		Hint:  "give this one another name: --name NAME",
	}
}

func (d *discovery) lockFile() string { return strings.TrimSuffix(d.path, ".json") + ".lock" }

// publish lets commands find the cluster.
func (d *discovery) publish() error {
	return fsx.WriteFile(context.Background(), d.path, fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(d.file)
	})
}

// hide is the end of that. The name stays taken.
func (d *discovery) hide() error { return gone(d.path) }

// remove is the end of both: what was published just now goes too.
func (d *discovery) remove() error { return errors.Join(d.hide(), d.free()) }

// free lets others have the name.
func (d *discovery) free() error { return errors.Join(gone(d.lockFile()), d.lock.Release()) }

// waitReady waits until the controller answers, then publishes it, and waits until all
// nodes have registered.
func waitReady(ctx context.Context, socket string, nodes int, publish func() error) error {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	published := false
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		n, err := registered(ctx, client)
		if err == nil && !published {
			if err := publish(); err != nil {
				return err
			}
			published = true
		}
		if err == nil && n >= nodes {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// registered counts the nodes whose agents have a session.
func registered(ctx context.Context, client *http.Client) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://gangway/v1/nodes", nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var page api.Page[api.Node]
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		return 0, err
	}
	n := 0
	for _, node := range page.Items {
		if node.SocketPath != "" && !strings.HasPrefix(node.StateText, "unknown") && !strings.HasSuffix(node.StateText, "*") {
			n++
		}
	}
	return n, nil
}
