package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// discovery is the file by which commands find the cluster.
type discovery struct {
	path string
	file api.Found
}

// newDiscovery refuses a name that a cluster which runs has.
func newDiscovery(getenv func(string) string, name, socket string) (*discovery, error) {
	dirs := step.RunDirs(getenv)
	for _, f := range api.Discover(dirs) {
		if f.Name == name {
			return nil, &fault.Error{
				What:  fmt.Errorf("run cluster %s: another one of that name runs", name),
				Cause: fmt.Sprintf("process %d runs it, at %s", f.PID, f.Socket),
				Hint:  "give this one another name: --name NAME",
			}
		}
	}
	start, err := agent.StartOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	return &discovery{
		filepath.Join(dirs[0], "clusters", name+".json"),
		api.Found{Name: name, Socket: "unix:" + socket, PID: os.Getpid(), Start: start},
	}, nil
}

func (d *discovery) publish() error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o700); err != nil {
		return fmt.Errorf("make the cluster known: %w", err)
	}
	return fsx.WriteFile(context.Background(), d.path, fsx.Options{Mode: 0o600}, func(f *os.File) error {
		return json.NewEncoder(f).Encode(d.file)
	})
}

func (d *discovery) remove() error {
	if err := os.Remove(d.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

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
