package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/job"
)

// Hardware finds out what this machine has that this process may use: CPUs by its
// affinity, memory, NVIDIA's GPUs by their driver's files. Notes say what is not as it
// should be.
func Hardware(ctx context.Context, name string) (n job.Node, notes []string, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return n, nil, fmt.Errorf("count CPUs of node %s: %w", name, err)
	}
	n = job.Node{Name: name, Sockets: 1, CoresPerSocket: set.Count(), ThreadsPerCore: 1, CPUs: set.Count(), Addr: "127.0.0.1"}
	if n.Memory = MemoryOf("/proc/meminfo", "MemTotal") >> 20; n.Memory == 0 {
		return n, nil, fmt.Errorf("measure memory of node %s: /proc/meminfo does not say", name)
	}
	driver, err := nvidia.Discover(ctx, nvidia.Options{})
	switch {
	case errors.Is(err, nvidia.ErrNoDriver):
		return n, nil, nil
	case err != nil:
		return n, []string{"GPUs are not used: " + err.Error()}, nil
	}
	n.GRES = gpus(driver.GPUs)
	return n, driver.Warnings, nil
}

// gpus are GPUs as generic resources, a type for each model: "NVIDIA H100 80GB HBM3" is
// h100, as administrators call it.
func gpus(all []nvidia.GPU) []job.GRES {
	var found []job.GRES
	for _, gpu := range all {
		kind := gpuType(gpu.Model)
		if i := len(found) - 1; i >= 0 && found[i].Type == kind {
			found[i].Count++
			continue
		}
		found = append(found, job.GRES{Name: "gpu", Type: kind, Count: 1})
	}
	return found
}

// gpuType is the first word of a model that has a digit in it, in lower case.
func gpuType(model string) string {
	for word := range strings.FieldsSeq(strings.ToLower(model)) {
		word, _, _ = strings.Cut(word, "-")
		if strings.ContainsAny(word, "0123456789") && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz0123456789") == "" {
			return word
		}
	}
	return ""
}
