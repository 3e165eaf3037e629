package step

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// mayUse are the CPUs that this process may run on, ascending.
func mayUse() []int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return []int{0}
	}
	var all []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all
}

// bind finds out to which CPUs the ranks are to be bound, and which GPUs are near them.
func (s *supervisor) bind(ctx context.Context) error {
	n := &s.spec.Nodes[s.node]
	kind, gpus := strings.ToLower(s.spec.CPUBind), strings.ToLower(s.spec.GPUBind)
	if strings.HasSuffix(kind, "closest") || strings.HasSuffix(gpus, "closest") {
		s.near = s.nearGPUs(ctx, nvidia.Options{})
	}
	if kind == "" && len(s.near) == 0 {
		s.noteGPUs()
		return nil
	}
	may := whereAre("/sys", mayUse())
	d, _ := rank.ParseDistribution(s.spec.Distribution) // which was done where the step was made
	r := rank.BindRequest{Kind: kind, Tasks: len(n.Ranks), PerTask: s.spec.CPUsPerTask, Sockets: d.Sockets, May: may, Near: s.nearRanks()}
	var err error
	if needsOwn(kind) {
		if r.Own, err = s.ownCPUs(ctx, may); err != nil {
			return err
		}
	}
	if s.binding, err = rank.Bind(r); err != nil {
		return fault.Usage(err, "leave it out, or see which CPUs there are: srun cat /proc/self/status")
	}
	if s.binding.Note != "" {
		s.notes = append(s.notes, s.binding.Note)
	}
	s.noteGPUs()
	return nil
}

// noteGPUs says where GPUs are not dealt as was asked for.
func (s *supervisor) noteGPUs() {
	if note := rank.NotBound(s.spec.GPUBind, len(s.indices()), s.binding, s.near); note != "" {
		s.notes = append(s.notes, note)
	}
}

// needsOwn says whether a way to bind is about the CPUs that the job has.
func needsOwn(kind string) bool {
	kind = kind[strings.LastIndexByte(kind, ',')+1:]
	return slices.Contains([]string{"threads", "thread", "cores", "core", "sockets", "socket", "ldoms", "ldom", "one_thread"}, kind)
}

// cpusOf are the CPUs of a rank; nil: it is not bound.
func (s *supervisor) cpusOf(m *member) []int {
	if len(s.binding.CPUs) == 0 {
		return nil
	}
	return s.binding.CPUs[m.local]
}

// sayBinding tells of a rank's binding in its output, where that was asked for.
func (s *supervisor) sayBinding(m *member, pid int) {
	if line := s.binding.Line(s.Node, m.rank, m.local, pid); line != "" {
		m.files.put(line)
	}
}

// whereAre reads from the kernel's files where CPUs are. What they do not say is 0.
func whereAre(sys string, cpus []int) []rank.CPU {
	domain := map[int]int{}
	dirs, _ := filepath.Glob(filepath.Join(sys, "devices/system/node/node[0-9]*")) // the pattern is fine
	for _, dir := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		for _, cpu := range readCPUs(filepath.Join(dir, "cpulist")) {
			domain[cpu] = n
		}
	}
	all := make([]rank.CPU, len(cpus))
	for i, cpu := range cpus {
		dir := filepath.Join(sys, "devices/system/cpu", fmt.Sprint("cpu", cpu), "topology")
		all[i] = rank.CPU{ID: cpu, Core: readNumber(filepath.Join(dir, "core_id"), cpu), Socket: readNumber(filepath.Join(dir, "physical_package_id"), 0), Domain: domain[cpu]}
	}
	return all
}

// readNumber reads a file that has a number; other is the answer where it has none.
func readNumber(name string, other int) int {
	b, err := os.ReadFile(name)
	if err != nil {
		return other
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 {
		return other
	}
	return n
}

// readCPUs reads a file that has a list such as 0-3,8; none if it has not.
func readCPUs(name string) []int {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	set, err := cgroup.ParseSet(strings.TrimSpace(string(b)))
	if err != nil {
		return nil
	}
	return set
}

// nearGPUs are the CPUs near each of the step's GPUs, in their order; nil: that is not known.
func (s *supervisor) nearGPUs(ctx context.Context, driver nvidia.Options) [][]int {
	indices := s.indices()
	if len(indices) == 0 {
		return nil
	}
	found, err := nvidia.Discover(ctx, driver)
	if err != nil {
		s.Log.Warn("which CPUs are near the GPUs is not known", "err", err)
		return nil
	}
	var all [][]int
	for _, i := range indices {
		if i >= len(found.GPUs) {
			return nil
		}
		set, err := cgroup.ParseSet(found.GPUs[i].Cores)
		if err != nil || len(set) == 0 {
			return nil
		}
		all = append(all, set)
	}
	return all
}

// nearRanks are the CPUs near the GPUs that each rank sees.
func (s *supervisor) nearRanks() [][]int {
	if len(s.near) == 0 {
		return nil
	}
	all := make([][]int, len(s.ranks))
	for local := range all {
		for _, at := range rank.Share(s.spec, len(s.near), len(s.ranks), local) {
			all[local] = append(all[local], s.near[at]...)
		}
		slices.Sort(all[local])
		all[local] = slices.Compact(all[local])
	}
	return all
}

// ownCPUs are the CPUs of the job on this node, for as long as this process lives; none: there are
// not as many left. Who allots CPUs counts them, so which these are is found out here, among the
// steps of the node that bind their ranks: the first of a job takes CPUs that no other job has,
// whole cores of one socket if it can, and the others of the job have the same. A file of the job
// has them, which is locked by its steps.
func (s *supervisor) ownCPUs(ctx context.Context, may []rank.CPU) ([]rank.CPU, error) {
	want := s.spec.Nodes[s.node].JobCPUs
	if want >= len(may) {
		return may, nil
	}
	dir := filepath.Join(filepath.Dir(s.Programs), "cpus")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("take CPUs: %w", err)
	}
	all, err := fsx.Acquire(ctx, filepath.Join(dir, "lock"), fsx.Exclusive)
	if err != nil {
		return nil, fmt.Errorf("take CPUs: %w", err)
	}
	defer func() { _ = all.Release() }()
	mine := filepath.Join(dir, fmt.Sprintf("%s.%d", s.spec.Key.Job, s.spec.Key.Attempt))
	taken, err := takenCPUs(dir, mine)
	if err != nil {
		return nil, err
	}
	lock, err := fsx.TryAcquire(mine, fsx.Shared)
	if err != nil {
		return nil, fmt.Errorf("take CPUs: %w", err)
	}
	s.cpus = lock // until this process ends
	own := readCPUs(mine)
	if len(own) == 0 {
		if own = rank.Choose(may, taken, want); own == nil {
			return nil, nil
		}
		if err := os.WriteFile(mine, []byte(cgroup.Set(own).String()), 0o600); err != nil {
			return nil, fmt.Errorf("take CPUs: %w", err)
		}
	}
	return slices.DeleteFunc(slices.Clone(may), func(c rank.CPU) bool { return !slices.Contains(own, c.ID) }), nil
}

// takenCPUs are those that other jobs have. Files of jobs that have no step any more are removed.
func takenCPUs(dir, mine string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("take CPUs: %w", err)
	}
	var taken []int
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if e.Name() == "lock" {
			continue
		}
		l, err := fsx.TryAcquire(name, fsx.Exclusive)
		switch {
		case err == nil:
			err = os.Remove(name)
			_ = l.Release()
		case errors.Is(err, fsx.ErrLocked):
			if err = nil; name != mine {
				taken = append(taken, readCPUs(name)...)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("take CPUs: %w", err)
		}
	}
	return taken, nil
}
