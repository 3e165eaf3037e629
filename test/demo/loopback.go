package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// place is where the cluster is.
type place interface {
	// start starts registry and cluster; where the cluster is, commands know by environ.
	start(ctx context.Context) error
	environ() []string
	registry() string                                   // its address, for nodes
	enter(ctx context.Context, cmd *exec.Cmd) *exec.Cmd // has a program run where the registry is
	lose(ctx context.Context, node string) error        // as by a power cut
	back(ctx context.Context, node string) error
	stop() error
	words() string
}

// nodes are the cluster's: one more than the training needs.
const nodes = 5

// loopback is "gangway up": nodes are processes, with the machine's addresses and name.
type loopback struct {
	d            *demo
	address      string
	up, register *daemon
	frozen       []int // processes of the node that is lost
	agents       []int // those of them that come back
}

func (l *loopback) words() string { return fmt.Sprintf("gangway up --nodes %d", nodes) }

func (l *loopback) registry() string                                   { return l.address }
func (l *loopback) enter(ctx context.Context, cmd *exec.Cmd) *exec.Cmd { return cmd }
func (l *loopback) state() string                                      { return filepath.Join(l.d.dir, "state") }

func (l *loopback) environ() []string {
	return []string{"GANGWAY_RUNTIME_DIR=" + filepath.Join(l.d.dir, "rt"), "GANGWAY_CLUSTER=unix:" + filepath.Join(l.state(), "controller.sock")}
}

func (l *loopback) start(ctx context.Context) (err error) {
	if l.address, err = freeAddress(); err != nil {
		return err
	}
	if l.register, err = l.d.startRegistry(ctx, l.address, l.enter); err != nil {
		return err
	}
	args := []string{"up", "--nodes", strconv.Itoa(nodes), "--lost-after", l.d.lostAfter.String(), "--state-dir", l.state(), "--name", filepath.Base(l.d.dir)}
	l.d.say.typed(append([]string{"gangway"}, args...))
	cmd := exec.Command(filepath.Join(l.d.bin, "gangway"), args...)
	cmd.Env = l.d.environ("GANGWAY_RUNTIME_DIR=" + filepath.Join(l.d.dir, "rt"))
	if err := os.MkdirAll(filepath.Join(l.d.dir, "rt"), 0o700); err != nil {
		return err
	}
	log := filepath.Join(l.d.dir, "up.log")
	if l.up, err = l.d.starter.start("gangway up", cmd, log, syscall.SIGTERM); err != nil {
		return err
	}
	for {
		said, err := os.ReadFile(log)
		if err == nil && strings.Contains(string(said), " is ready after ") {
			for line := range strings.Lines(string(said)) {
				l.d.say.note("%s", strings.TrimSpace(line))
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.up.done:
			return fmt.Errorf("gangway up ended: %w: %s", l.up.err, said)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lose stops all processes of a node, so that nobody hears of it and nothing there goes on: they
// cannot be killed, because the kernel would tell the other ranks at once, and "up" would start
// the agent again.
func (l *loopback) lose(_ context.Context, node string) error {
	all, err := processes()
	if err != nil {
		return err
	}
	of := map[int]bool{}
	for _, p := range all {
		switch args := strings.Join(p.args, " "); {
		case strings.Contains(args, " agent ") && strings.Contains(args, l.state()) && strings.Contains(args, "--node "+node+" "):
			l.agents = append(l.agents, p.pid)
			of[p.pid] = true
		case strings.Contains(args, " step ") && strings.Contains(args, filepath.Join(l.state(), "nodes", node)+"/"):
			of[p.pid] = true
		}
	}
	if len(l.agents) == 0 {
		return fmt.Errorf("no agent of node %s runs", node)
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if of[p.parent] && !of[p.pid] {
				of[p.pid], grown = true, true
			}
		}
	}
	for pid := range of {
		l.frozen = append(l.frozen, pid)
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
	}
	return nil
}

// back has the node come back, with nothing of what ran there.
func (l *loopback) back(context.Context, string) error {
	for _, pid := range l.frozen {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended; "up" starts the agent again
	}
	l.frozen, l.agents = nil, nil
	return nil
}

func (l *loopback) stop() error {
	err := l.back(context.Background(), "")
	for _, b := range []*daemon{l.up, l.register} {
		if b != nil {
			err = errors.Join(err, b.end(syscall.SIGINT, 30*time.Second))
		}
	}
	return err
}

// process is one of this machine.
type process struct {
	pid, parent int
	args        []string
}

func processes() ([]process, error) {
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, name := range names {
		p := process{}
		if p.pid, err = strconv.Atoi(filepath.Base(name)); err != nil {
			continue
		}
		stat, err := os.ReadFile(name + "/stat")
		if err != nil {
			continue // it ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		p.parent, _ = strconv.Atoi(fields[1]) // the kernel writes numbers
		args, _ := os.ReadFile(name + "/cmdline")
		p.args = strings.Split(string(args), "\x00")
		all = append(all, p)
	}
	return all, nil
}
