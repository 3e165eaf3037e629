package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/socket"
	"github.com/gangway-hpc/gangway/launcher/agent"
	"github.com/gangway-hpc/gangway/launcher/step"
)

// state is the state directory of a cluster that "up" runs.
type state struct {
	dir      string
	sockets  string // where the sockets are: dir, unless its name is too long for them
	lock     *fsx.Lock
	warnings []string
}

// holder is who has a state directory.
type holder struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
}

// openState takes a state directory, or says who has it.
func openState(ctx context.Context, dir string) (*state, error) {
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	lock, err := fsx.TryAcquire(filepath.Join(dir, "lock"), fsx.Exclusive)
	if errors.Is(err, fsx.ErrLocked) {
		return nil, heldBy(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	s := &state{dir: dir, lock: lock}
	if err := s.write(ctx, "up.json", holder{os.Getpid(), time.Now()}); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// ownDir makes a state directory, or makes one that is there this user's alone.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("take state directory: %w", err)
	}
	return nil
}

func heldBy(dir string) error {
	f := &fault.Error{
		What: fmt.Errorf("use state directory %s: another gangway up has it", dir),
		Hint: "use that one; or another directory: gangway up --state-dir DIR --name NAME",
	}
	var h holder
	if b, err := os.ReadFile(filepath.Join(dir, "up.json")); err == nil && json.Unmarshal(b, &h) == nil && h.PID > 0 {
		f.Cause = fmt.Sprintf("process %d has run it since %s", h.PID, h.Since.Local().Format("2006-01-02 15:04:05"))
	}
	return f
}

func (s *state) close() { _ = s.lock.Release() } // it ends with the process

func (s *state) write(ctx context.Context, name string, v any) error {
	err := fsx.WriteFile(ctx, filepath.Join(s.dir, name), fsx.Options{Mode: 0o600}, func(f *os.File) error {
		e := json.NewEncoder(f)
		e.SetIndent("", "  ")
		return e.Encode(v)
	})
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &fault.Error{What: err, Hint: "make room there, or have the cluster elsewhere: gangway up --state-dir DIR"}
	}
	return err
}

func (s *state) controller() string { return filepath.Join(s.sockets, "controller.sock") }
func (s *state) wire() string       { return filepath.Join(s.sockets, "wire.sock") }
func (s *state) agent(node string) string {
	return filepath.Join(s.sockets, "nodes", node, "agent.sock")
}

// makeSockets finds where sockets go, and makes the directories. Where the state
// directory's name is too long they go below the run directory, and the state directory
// has links to them.
func (s *state) makeSockets(getenv func(string) string, c *job.Cluster) error {
	s.sockets = s.dir
	longest := len(s.controller())
	for _, n := range c.Nodes {
		longest = max(longest, len(s.agent(n.Name)))
	}
	if longest > socket.Longest {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s.dir)) // never fails
		s.sockets = filepath.Join(step.RunDirs(getenv)[0], "up-"+hex.EncodeToString(h.Sum(nil)))
	}
	for _, n := range c.Nodes {
		for _, dir := range []string{s.sockets, s.dir} {
			if err := os.MkdirAll(filepath.Join(dir, "nodes", n.Name), 0o700); err != nil {
				return fmt.Errorf("make directory of node %s: %w", n.Name, err)
			}
		}
	}
	if s.sockets == s.dir {
		return nil
	}
	if len(s.sockets)+longest-len(s.dir) > socket.Longest {
		return &fault.Error{
			What: fmt.Errorf("make sockets in %s: the name is longer than %d bytes", s.sockets, socket.Longest),
			Hint: "choose a shorter state directory: --state-dir DIR, or run directory: GANGWAY_RUNTIME_DIR=DIR",
		}
	}
	for _, path := range []string{s.controller(), s.wire()} {
		link := filepath.Join(s.dir, filepath.Base(path))
		if err := gone(link); err != nil {
			return err
		}
		if err := os.Symlink(path, link); err != nil {
			return fmt.Errorf("link sockets: %w", err)
		}
	}
	return nil
}

// declare is the cluster of the state directory: what it was, or what the flags say.
func (u *upFlags) declare(ctx context.Context, s *state) (*job.Cluster, error) {
	old, err := readCluster(s.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = job.Cluster{ID: strings.ToLower(rand.Text()[:12])}
	case err != nil:
		return nil, err
	case !u.given && (u.name == "" || u.name == old.Name):
		return &old, fits(len(old.Nodes), rooms())
	}
	c := old
	if u.given || len(old.Nodes) == 0 {
		if c, err = u.cluster(ctx, s); err != nil {
			return nil, err
		}
		c.ID, c.LostAfter = old.ID, job.Duration(u.lostAfter.Milliseconds())
	}
	for _, name := range []string{old.Name, c.Name, u.name} {
		if name != "" {
			c.Name = name // the last that there is
		}
	}
	if u.name == "" && old.Name != "" {
		c.Name = old.Name
	}
	if c.Name == "" {
		c.Name = filepath.Base(s.dir)
	}
	if err := errors.Join(checkName(c.Name), fits(len(c.Nodes), rooms())); err != nil {
		return nil, err
	}
	return &c, s.write(ctx, clusterFile, c)
}

// checkName refuses names that are no names of files, or mean something in addresses.
func checkName(name string) error {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" || strings.HasPrefix(name, ".") || len(name) > 40 {
		return fault.Usage(fmt.Errorf("cluster name %q: letters, digits and . _ - only, at most 40", name), "--name NAME")
	}
	return nil
}

// cluster is what the flags say.
func (u *upFlags) cluster(ctx context.Context, s *state) (job.Cluster, error) {
	if u.slurmConf != "" {
		c, warnings, err := fromSlurm(u.slurmConf)
		s.warnings = append(s.warnings, warnings...)
		return c, err
	}
	if u.nodes < 1 {
		return job.Cluster{}, fault.Usage(fmt.Errorf("--nodes %d: a cluster has at least one node", u.nodes), "gangway up --nodes 4")
	}
	if err := fits(u.nodes, rooms()); err != nil {
		return job.Cluster{}, err
	}
	machine, notes, err := agent.Hardware(ctx, "")
	if err != nil {
		return job.Cluster{}, err
	}
	node := machine
	node.Memory = max(1, machine.Memory/int64(u.nodes))
	if u.memory != "" {
		if node.Memory, err = slurm.ParseSize(u.memory); err != nil || node.Memory < 1 {
			return job.Cluster{}, fault.Usage(fmt.Errorf("--mem %s: a size of at least 1M", u.memory), "--mem 64G")
		}
	}
	if u.cpus < 0 {
		return job.Cluster{}, fault.Usage(fmt.Errorf("--cpus-per-node %d: it must not be negative", u.cpus), "--cpus-per-node 8")
	}
	if u.cpus > 0 {
		node.CPUs, node.CoresPerSocket = u.cpus, u.cpus
	}
	switch {
	case u.gres != "":
		if node.GRES, err = slurm.ParseGRES(u.gres); err != nil {
			return job.Cluster{}, fault.Usage(fmt.Errorf("--gres: %w", err), "--gres gpu:h100:8")
		}
		s.warnings = append(s.warnings, oddGRES(node.GRES)...)
	case u.nodes > 1 && len(machine.GRES) > 0:
		s.warnings = append(s.warnings, fmt.Sprintf("the nodes have no GPUs: %d nodes would share the machine's; declare them: --gres", u.nodes))
		node.GRES = nil
	default:
		s.warnings = append(s.warnings, notes...)
	}
	c := job.Cluster{Declared: true}
	part := job.Partition{Name: "main", Default: true, Priority: 1, Tier: 1}
	for i := range u.nodes {
		n := node
		n.Name = fmt.Sprintf("n%0*d", len(fmt.Sprint(u.nodes)), i+1)
		c.Nodes = append(c.Nodes, n)
		part.Nodes = append(part.Nodes, n.Name)
	}
	// Jobs that ask for no memory get their CPUs' share, so that several fit on a node.
	part.MemoryPerCPU = max(1, node.Memory/int64(node.CPUs))
	c.Partitions = []job.Partition{part}
	return c, nil
}

// oddGRES is about resources that are no devices of a node: "h100:8" declares something of that
// name, which is not what was meant, more often than not.
func oddGRES(all []job.GRES) []string {
	var odd []string
	for _, g := range all {
		if g.Name != "gpu" {
			odd = append(odd, fmt.Sprintf("--gres: each node has %d of a resource named %s, to which no device belongs; if that was to be GPUs: --gres gpu:8, or gpu:h100:8", g.Count, g.Name))
		}
	}
	return odd
}
