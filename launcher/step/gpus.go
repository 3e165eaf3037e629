package step

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/lease"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvml"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// gpus leases NVIDIA GPUs and finds what they need. named are those that --device asked
// for.
func (s *step) gpus(ctx context.Context, named []namedGPU) (*cdispecs.ContainerEdits, error) {
	asked, visible := s.Devices.GPUs, s.Devices.Visible
	switch {
	case len(named) > 0 && asked != "":
		return nil, fault.Usage(fmt.Errorf("give GPUs: --gpus=%s and --device=%s=%s", asked, nvidia.Kind, named[0].name), "name them in one of the two")
	case len(named) == 0 && asked == "" && s.Devices.Allocation == nil:
		s.noGPUs()
		return nil, nil
	}
	names := []string{asked, visible}
	for _, n := range named {
		names = append(names, n.name)
	}
	driver, params, err := s.nvidia(ctx, strings.Join(names, ","))
	if err != nil && !errors.Is(err, nvidia.ErrNoDriver) {
		return nil, err
	}
	if len(named) > 0 {
		if driver == nil && !slices.ContainsFunc(named, func(n namedGPU) bool { return n.edits == nil }) {
			return s.foreignGPUs(ctx, named)
		}
		asked = listOf(driver, named)
	}
	choice, err := nvidia.Select(driver, nvidia.Request{GPUs: asked, User: visible, Allocation: s.Devices.Allocation})
	if err != nil || choice.Count == 0 {
		return nil, err
	}
	if s.given.gpus, err = s.lease(ctx, choice); err != nil {
		return nil, err
	}
	return s.driver(driver, params)
}

// noGPUs notes what has no effect in a run without GPUs.
func (s *step) noGPUs() {
	if v := s.Devices.Visible; v != "" && v != "void" && v != "none" {
		s.given.notes = append(s.given.notes, "NVIDIA_VISIBLE_DEVICES="+v+" chooses among the GPUs of a run, and this one has none: --gpus N gives it some")
	}
	if hint := nvidia.Hint(variables(s.image.Config.Env)["NVIDIA_VISIBLE_DEVICES"]); hint != "" {
		s.given.notes = append(s.given.notes, hint)
	}
}

// listOf names GPUs as --gpus does. Of those that a file describes, the nodes say which
// they are, whatever it calls them.
func listOf(d *nvidia.Driver, named []namedGPU) string {
	var names []string
	for _, n := range named {
		if n.name == "all" {
			return "all"
		}
		var devices []nvidia.Device
		if d != nil && n.edits != nil {
			var paths []string
			for _, node := range n.edits.DeviceNodes {
				paths = append(paths, node.Path)
			}
			devices = d.OfNodes(paths)
		}
		for _, device := range devices {
			names = append(names, device.Name)
		}
		if len(devices) == 0 {
			names = append(names, n.name)
		}
	}
	return "device=" + strings.Join(names, ",")
}

// foreignGPUs are GPUs that a file describes on a machine on which no driver is found.
func (s *step) foreignGPUs(ctx context.Context, named []namedGPU) (*cdispecs.ContainerEdits, error) {
	var edits *cdispecs.ContainerEdits
	want := lease.Want{}
	for _, n := range named {
		edits = cdi.Merge(edits, n.edits)
		for _, node := range n.edits.DeviceNodes {
			// Not what all GPUs have in common, as /dev/nvidiactl.
			number, ok := strings.CutPrefix(node.Path, "/dev/nvidia")
			if ok && number != "" && strings.Trim(number, "0123456789") == "" && !slices.Contains(want.IDs, node.Path) {
				want.IDs = append(want.IDs, node.Path)
			}
		}
	}
	want.N = len(want.IDs)
	if s.Devices.Allocation != nil || s.Devices.Visible != "" && s.Devices.Visible != "all" && s.Devices.Visible != "void" {
		// Which of them these are nobody can say without the driver.
		return nil, &fault.Error{
			What:  fmt.Errorf("give GPUs (--device=%s=%s): whether the run may have them is not known", nvidia.Kind, named[0].name),
			Cause: "a file describes them, but no NVIDIA driver is found that says which they are",
			Hint:  "say where the driver's files are: --nvidia-root DIR; or unset NVIDIA_VISIBLE_DEVICES",
			Code:  fault.CodeFailed,
		}
	}
	if want.N == 0 || s.dry {
		return edits, nil
	}
	l, err := s.take(ctx, want)
	if err != nil {
		return nil, err
	}
	s.onClose(l.Release)
	return edits, nil
}

// nvidia looks at the driver. Where MIG instances are asked for by UUID, NVML is asked
// which they are: the driver's files do not say it.
func (s *step) nvidia(ctx context.Context, asked string) (*nvidia.Driver, string, error) {
	o := s.Devices.Nvidia
	dir := filepath.Join(s.Dirs[0], "gpus")
	driver, params, err := nvidia.Cached(ctx, dir, o)
	if err != nil || !strings.Contains(asked, "MIG-") || strings.Contains(asked, "MIG-GPU-") ||
		!slices.ContainsFunc(driver.GPUs, func(g nvidia.GPU) bool { return len(g.MIGs) > 0 }) {
		return driver, params, err
	}
	found, err := s.inventory(ctx)
	if err != nil {
		s.Log.Warn("which MIG instance has which UUID is not known", "err", err)
		return nvidia.Cached(ctx, dir, o)
	}
	for _, gpu := range found.GPUs {
		for _, m := range gpu.Instances {
			o.MIGs = append(o.MIGs, nvidia.MIGName{UUID: m.UUID, GPU: gpu.UUID, GI: m.GPUInstance, CI: m.ComputeInstance})
		}
	}
	return nvidia.Cached(ctx, dir, o)
}

func (s *step) inventory(ctx context.Context) (*nvml.Inventory, error) {
	program, err := s.Devices.NVML()
	if err != nil {
		return nil, err
	}
	client := nvml.New(nvml.Options{Program: program})
	defer client.Close()
	return client.Inventory(ctx)
}

// lease takes GPUs that no other run has.
func (s *step) lease(ctx context.Context, choice nvidia.Choice) ([]nvidia.Device, error) {
	if s.dry || s.Devices.Allocation != nil {
		return choice.Candidates[:choice.Count], nil
	}
	var ids []string
	for _, d := range choice.Candidates {
		ids = append(ids, d.Name)
	}
	l, err := s.take(ctx, lease.Want{IDs: ids, N: choice.Count})
	if err != nil {
		return nil, err
	}
	s.onClose(l.Release)
	var taken []nvidia.Device
	for _, id := range l.IDs() {
		i := slices.IndexFunc(choice.Candidates, func(d nvidia.Device) bool { return d.Name == id })
		taken = append(taken, choice.Candidates[i])
	}
	return taken, nil
}

func (s *step) take(ctx context.Context, want lease.Want) (*lease.Lease, error) {
	return lease.Take(ctx, lease.Options{Wait: s.Devices.GPUWait, Waiting: func(busy *lease.BusyError) {
		s.Log.Warn("waiting for GPUs that others have", "err", busy)
	}}, want)
}

// driver is what GPUs need: nodes, libraries and programs.
func (s *step) driver(d *nvidia.Driver, params string) (*cdispecs.ContainerEdits, error) {
	env := variables(s.image.Config.Env)
	capabilities, warning, err := nvidia.ChooseCapabilities(s.Getenv("NVIDIA_DRIVER_CAPABILITIES"), env["NVIDIA_DRIVER_CAPABILITIES"])
	if err != nil {
		return nil, err
	}
	for _, w := range append(slices.Clone(d.Warnings), warning) {
		if w != "" {
			s.Log.Warn(w)
		}
	}
	s.given.needs = d.Needs(capabilities)
	// Nothing but what was found here: a file of the machine's may not put itself before it.
	r, err := cdi.Load(context.Background(), cdi.Options{Dirs: []string{os.DevNull}})
	if err != nil {
		return nil, err
	}
	if err := r.Add(d.Spec(capabilities, params), "the NVIDIA driver"); err != nil {
		return nil, err
	}
	var names []string
	for _, g := range s.given.gpus {
		names = append(names, nvidia.Kind+"="+g.Name)
	}
	edits, err := r.Edits(names...)
	if err != nil {
		return nil, err
	}
	edits.Env = append(edits.Env, "NVIDIA_VISIBLE_DEVICES=void") // for whoever looks at it once more
	return edits, nil
}

// loaders makes the files by which programs find the libraries, and looks whether the
// image can do with this driver.
func (s *step) loaders(ctx context.Context) error {
	n := s.given.needs
	if len(n.Entries) == 0 {
		return nil
	}
	loaded, err := s.load(ctx, n)
	if err != nil {
		return err
	}
	for _, w := range loaded.Warnings {
		s.Log.Warn(w)
	}
	if loaded.Compat.Reason != "" {
		s.given.notes = append(s.given.notes, loaded.Compat.Reason)
	}
	for _, f := range loaded.Files {
		s.given.files = append(s.given.files, spec.File{Path: f.Path, Content: f.Content, Mode: 0o644})
	}
	if s.named != nil {
		// A cache that ldconfig wrote in it before lies over ours.
		_, err := os.Lstat(filepath.Join(s.named.Upper(), "etc/ld.so.cache"))
		s.given.pathNeeded = err == nil
	}
	if len(s.given.gpus) == 0 {
		return nil
	}
	if loaded.Compat.Use {
		n.Facts.CUDA = loaded.Compat.CUDA
	}
	unverified, err := nvidia.Require(s.image.Config.Env, n.Facts)
	for _, w := range unverified {
		s.Log.Warn(w)
	}
	return err
}

// libraryPath adds the directories of the libraries to LD_LIBRARY_PATH, where the loader's
// cache does not lead there.
func libraryPath(env, dirs []string) []string {
	const name = "LD_LIBRARY_PATH="
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, name) })
	if i < 0 {
		return append(env, name+strings.Join(dirs, ":"))
	}
	env = slices.Clone(env)
	env[i] = name + strings.Join(append([]string{strings.TrimPrefix(env[i], name)}, dirs...), ":")
	return env
}

// recordEvery is how often it is asked what GPUs do, and recordEnd how long the last answer
// is waited for.
const (
	recordEvery = 5 * time.Second
	recordEnd   = time.Second
)

// recordGPUs begins to write down what the GPUs do, and returns what ends that.
func (s *step) recordGPUs(ctx context.Context) func() []nvml.Use {
	var ids []string
	for _, d := range s.given.gpus {
		if d.GPU.UUID != "" && d.MIG == nil {
			ids = append(ids, d.GPU.UUID)
		}
	}
	none := func() []nvml.Use { return nil }
	if len(ids) == 0 || s.Limits.Stats == nil {
		return none
	}
	program, err := s.Devices.NVML()
	if err != nil {
		s.Log.Warn("what the GPUs do is not known", "err", err)
		return none
	}
	client := nvml.New(nvml.Options{Program: program})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan []nvml.Use, 1)
	go func() {
		uses, err := client.Record(ctx, recordEvery, ids...)
		if err != nil {
			s.Log.Warn("what the GPUs did is not fully known", "err", err)
		}
		done <- uses
	}()
	return func() []nvml.Use {
		cancel()
		var uses []nvml.Use
		select {
		case uses = <-done:
		case <-time.After(recordEnd):
			s.Log.Warn("what the GPUs did is not known: gangway-nvml does not answer")
		}
		if err := client.Close(); err != nil {
			s.Log.Debug("end gangway-nvml", "err", err)
		}
		return uses
	}
}
