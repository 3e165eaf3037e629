package step

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/rdma"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// rdma finds the adapters that the container gets, those near its GPUs if no others are
// named, and hides the rest.
func (s *step) rdma(ctx context.Context) (*cdispecs.ContainerEdits, error) {
	asked := s.Devices.RDMA
	if asked == "" {
		return nil, nil
	}
	host, err := rdma.Discover(ctx, rdma.Options{})
	if err != nil {
		return nil, err
	}
	r := rdma.Request{Devices: rdma.ParseDevices(asked)}
	for _, g := range s.given.gpus {
		r.GPUs = append(r.GPUs, rdma.Address(g.GPU.Bus))
	}
	choice, err := host.Choose(r)
	if err != nil {
		return nil, err
	}
	dir := "/run/gangway" // of a plan, in which nothing is made
	if !s.dry {
		if dir, err = s.dir.private("rdma"); err != nil {
			return nil, err
		}
	}
	edits, err := host.Edits(choice, dir)
	if err != nil {
		return nil, fmt.Errorf("give RDMA adapters to the container: %w", err)
	}
	s.given.notes = append(append(s.given.notes, host.Notes...), choice.Notes...)
	if len(choice.HCAs) == 0 {
		if len(r.Devices) > 0 && r.Devices[0] == "none" {
			return edits, nil
		}
		return nil, &fault.Error{
			What:  fmt.Errorf("give RDMA adapters to the container: this machine has none that can be used for --rdma=%s", asked),
			Cause: strings.Join(append(host.Notes, choice.Notes...), "; "),
			Hint:  "leave out --rdma, or load the adapter's driver (modprobe) and bring its ports up",
			Code:  fault.CodeFailed,
		}
	}
	return edits, s.tuneRDMA(host, choice, edits)
}

// tuneRDMA looks at what RDMA needs besides devices: memory that may be locked, and what
// NCCL has to be told.
func (s *step) tuneRDMA(host *rdma.Host, choice *rdma.Choice, edits *cdispecs.ContainerEdits) error {
	limit, err := host.Memlock()
	if err != nil {
		return err
	}
	if limit.Raise() {
		s.given.rlimits = append(s.given.rlimits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: limit.Hard, Hard: limit.Hard})
	}
	if cause, hint := limit.Warning(); cause != "" {
		s.Log.Warn("RDMA may fail: "+cause, "hint", hint)
	}
	facts := rdma.Facts{Choice: choice, Environ: s.Environ}
	if !s.Request.Net {
		if facts.Interfaces, err = rdma.Interfaces(); err != nil {
			return err
		}
	}
	set, notes := rdma.NCCL(facts)
	for _, v := range set {
		edits.Env = append(edits.Env, v.Name+"="+v.Value)
		s.given.notes = append(s.given.notes, v.String())
	}
	s.given.notes = append(s.given.notes, notes...)
	return nil
}

// private makes a directory that lives as long as the container.
func (d *runDir) private(name string) (string, error) {
	if err := os.MkdirAll(d.file(givenName), 0o700); err != nil {
		return "", err
	}
	dir := d.file(givenName) + "/" + name
	return dir, os.Mkdir(dir, 0o700)
}
