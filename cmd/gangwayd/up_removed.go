package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// removed are the nodes that have a directory and that the cluster has not any more.
func (s *state) removed(c *job.Cluster) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "nodes"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find nodes that were removed: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !slices.ContainsFunc(agentsOf(c), func(n job.Node) bool { return n.Name == e.Name() }) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// remove ends what runs on nodes that the cluster has not any more, and removes their
// directories. The controller takes such jobs for lost and runs them elsewhere, so this is
// done before there is one. Each node's agent does it, in this process: it alone knows how.
func (s *state) remove(ctx context.Context, c *job.Cluster, names []string, o agent.Options) error {
	done := make(chan error, len(names))
	for i, name := range names {
		// Nobody asks for anything there. The name is short, whatever the node's is.
		o.Socket = filepath.Join(s.sockets, fmt.Sprintf("end%d.sock", i))
		go func() { done <- errors.Join(s.removeNode(ctx, c, name, o), gone(o.Socket)) }()
	}
	var all error
	for range names {
		all = errors.Join(all, <-done)
	}
	return all
}

func (s *state) removeNode(ctx context.Context, c *job.Cluster, name string, o agent.Options) error {
	dir := filepath.Join(s.dir, "nodes", name)
	steps, err := os.ReadDir(filepath.Join(dir, "steps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("end what runs on node %s, which was removed: %w", name, err)
	}
	if len(steps) > 0 {
		log, err := openLog(filepath.Join(s.dir, "log", name+".log"))
		if err != nil {
			return err
		}
		defer log.Close()
		o.Dir, o.Wire, o.Log = dir, s.wire(), slog.New(slog.NewTextHandler(log, nil))
		a := agent.New(optionsOf(c, job.Node{Name: name}, o))
		a.Stop()
		if err := a.Run(ctx); err != nil {
			return &fault.Error{
				What: fmt.Errorf("end what runs on node %s, which was removed: %w", name, err),
				Hint: "see " + log.Name() + "; with the node in it again the cluster takes up what runs there",
			}
		}
	}
	for _, base := range slices.Compact([]string{s.dir, s.sockets}) {
		if err := os.RemoveAll(filepath.Join(base, "nodes", name)); err != nil {
			return fmt.Errorf("remove directory of node %s: %w", name, err)
		}
	}
	return nil
}

// gone removes a file, if it is there.
func gone(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
