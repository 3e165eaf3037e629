package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/socket"
	"github.com/gangway-hpc/gangway/launcher/agent"
)

// keeper has the daemons run that the cluster is declared to have, while that changes.
type keeper struct {
	*daemons
	state   *state
	cluster *job.Cluster
	remains agent.Options // of those who end what is left of a node
	changes <-chan struct{}
}

// heed makes the pipe by which the controller says that cluster.json has changed. Several
// changes that come at once are one.
func (d *daemons) heed() (<-chan struct{}, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the pipe of the controller: %w", err)
	}
	d.tell = w
	changes := make(chan struct{}, 1)
	go func() {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			select {
			case changes <- struct{}{}:
			default:
			}
		}
	}()
	return changes, nil
}

func (d *daemons) startAgent(s *state, node string) {
	d.start(node, "agent", "--mode", modeUser, "--state-dir", s.dir, "--node", node, "--wire", s.wire(), "--socket", s.agent(node))
}

// follow starts agents of nodes that the cluster has now, and ends those of nodes that have
// left it. The controller has said before that nothing runs there any more.
func (k *keeper) follow(ctx context.Context) {
	cluster, err := readCluster(k.state.dir)
	if err != nil {
		k.say("the cluster's nodes stay as they are: " + err.Error())
		return
	}
	was, now := agentsOf(k.cluster), agentsOf(&cluster)
	k.cluster = &cluster
	for _, n := range now {
		if has(was, n.Name) {
			continue
		}
		if err := k.enter(n.Name); err != nil {
			k.say("start agent of node " + n.Name + ": " + err.Error())
			continue
		}
		k.say("node " + n.Name + " is new")
	}
	var gone []string
	for _, n := range was {
		if !has(now, n.Name) {
			k.leave(n.Name)
			gone = append(gone, n.Name)
		}
	}
	if err := k.state.remove(ctx, &cluster, gone, k.remains); err != nil {
		k.say(err.Error())
	}
}

func has(nodes []job.Node, name string) bool {
	return slices.ContainsFunc(nodes, func(n job.Node) bool { return n.Name == name })
}

// enter starts the agent of a node that is new.
func (k *keeper) enter(name string) error {
	if n := len(k.state.agent(name)); n > socket.Longest {
		return fmt.Errorf("the name of its socket is %d bytes long, and %d is the most; start the cluster again, with a shorter --state-dir", n, socket.Longest)
	}
	for _, dir := range []string{k.state.sockets, k.state.dir} {
		if err := os.MkdirAll(filepath.Join(dir, "nodes", name), 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	k.startAgent(k.state, name)
	return nil
}

// leave ends the agent of a node.
func (k *keeper) leave(name string) {
	at := slices.IndexFunc(k.all, func(one *daemon) bool { return one.name == name })
	if at < 0 {
		return
	}
	one := k.all[at]
	k.all = slices.Delete(k.all, at, at+1)
	one.mu.Lock()
	one.over = true
	one.mu.Unlock()
	one.signal(syscall.SIGINT)
	one.wait(nil, controllerPatience)
	k.say("node " + name + " has left the cluster")
}
