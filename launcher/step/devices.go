package step

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/drm"
	"github.com/gangway-hpc/gangway/hooks/lease"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// Devices say what of the machine's devices a container gets.
type Devices struct {
	CDI     []string      // by name: vendor.com/class=name
	GPUs    string        // NVIDIA's: a number, "all", or names, as package nvidia reads it
	GPUWait time.Duration // how long GPUs that others have are waited for; negative is for ever
	Dirs    []string      // of CDI specifications; none is the standard's
	Nvidia  nvidia.Options
}

// given is what hooks add to a container.
type given struct {
	edits  *cdispecs.ContainerEdits
	files  []spec.File
	report cdi.Report
}

// devices finds out what hooks add to the container. GPUs are leased until it ends.
func (s *step) devices(ctx context.Context) error {
	s.given = &given{}
	gpus, err := s.gpus(ctx)
	if err != nil {
		return err
	}
	named, err := s.namedDevices(ctx)
	if err != nil {
		return err
	}
	if gpus == nil && named == nil {
		s.given = nil
		return nil
	}
	s.given.edits = cdi.Merge(gpus, named)
	s.phase("devices", strings.Join(nodes(s.given.edits), " "))
	return nil
}

func nodes(e *cdispecs.ContainerEdits) []string {
	var names []string
	for _, d := range e.DeviceNodes {
		names = append(names, d.Path)
	}
	return names
}

// namedDevices are those of --device.
func (s *step) namedDevices(ctx context.Context) (*cdispecs.ContainerEdits, error) {
	if len(s.Devices.CDI) == 0 {
		return nil, nil
	}
	r, err := cdi.Load(ctx, cdi.Options{Dirs: s.Devices.Dirs, UID: os.Geteuid()})
	if err != nil {
		return nil, err
	}
	found, err := drm.Discover(ctx, drm.Options{})
	if err != nil {
		return nil, err
	}
	for _, made := range found.Specs() {
		if err := r.Add(made, "this machine's devices"); err != nil {
			return nil, err
		}
	}
	edits, err := r.Edits(s.Devices.CDI...)
	for _, problem := range r.Problems() {
		s.Log.Warn("a CDI specification is not used", "err", problem)
	}
	return edits, err
}

// gpus leases NVIDIA GPUs and finds what they need.
func (s *step) gpus(ctx context.Context) (*cdispecs.ContainerEdits, error) {
	visible := s.Getenv("NVIDIA_VISIBLE_DEVICES")
	if s.Devices.GPUs == "" && (visible == "" || visible == "void") {
		return nil, nil
	}
	driver, params, err := nvidia.Cached(ctx, filepath.Join(s.Dirs[0], "gpus"), s.Devices.Nvidia)
	if err != nil && !errors.Is(err, nvidia.ErrNoDriver) {
		return nil, err
	}
	choice, err := nvidia.Select(driver, nvidia.Request{GPUs: s.Devices.GPUs, User: visible})
	if err != nil || choice.Count == 0 {
		return nil, err
	}
	names, err := s.lease(ctx, choice)
	if err != nil {
		return nil, err
	}
	return s.driver(ctx, driver, params, names)
}

// lease takes GPUs that no other run has.
func (s *step) lease(ctx context.Context, choice nvidia.Choice) ([]string, error) {
	var ids []string
	for _, d := range choice.Candidates {
		ids = append(ids, d.Name)
	}
	l, err := lease.Take(ctx, lease.Options{Wait: s.Devices.GPUWait, Waiting: func(busy *lease.BusyError) {
		s.Log.Warn("waiting for GPUs that others have", "err", busy)
	}}, lease.Want{IDs: ids, N: choice.Count})
	if err != nil {
		return nil, err
	}
	s.onClose(l.Release)
	return l.IDs(), nil
}

// driver is what GPUs need: nodes, libraries, and the files by which they are found.
func (s *step) driver(ctx context.Context, d *nvidia.Driver, params string, names []string) (*cdispecs.ContainerEdits, error) {
	env := variables(s.image.Config.Env)
	capabilities, warning, err := nvidia.ChooseCapabilities(s.Getenv("NVIDIA_DRIVER_CAPABILITIES"), env["NVIDIA_DRIVER_CAPABILITIES"])
	if err != nil {
		return nil, err
	}
	image, err := s.imageFS()
	if err != nil {
		return nil, err
	}
	loaded := d.Loader(image, capabilities)
	facts := d.Facts()
	if loaded.Compat.Use {
		facts.CUDA = loaded.Compat.CUDA
	}
	unverified, err := nvidia.Require(s.image.Config.Env, facts)
	if err != nil {
		return nil, err
	}
	for _, w := range slices.Concat(d.Warnings, []string{warning}, loaded.Warnings, unverified) {
		if w != "" {
			s.Log.Warn(w)
		}
	}
	for _, f := range loaded.Files {
		s.given.files = append(s.given.files, spec.File{Path: f.Path, Content: f.Content, Mode: 0o644})
	}
	// Nothing but what was found here: a file of the machine's may not put itself before it.
	r, err := cdi.Load(ctx, cdi.Options{Dirs: []string{os.DevNull}})
	if err != nil {
		return nil, err
	}
	if err := r.Add(d.Spec(capabilities, params), "the NVIDIA driver"); err != nil {
		return nil, err
	}
	for i, name := range names {
		names[i] = nvidia.Kind + "=" + name
	}
	edits, err := r.Edits(names...)
	if err != nil {
		return nil, err
	}
	edits.Env = append(edits.Env, "NVIDIA_VISIBLE_DEVICES=void") // for whoever looks at it once more
	return edits, nil
}

func variables(env []string) map[string]string {
	all := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		all[name] = value
	}
	return all
}

// imageFS is what of the image may be looked at.
func (s *step) imageFS() (fs.FS, error) {
	switch {
	case s.image.Dir != "":
		root, err := os.OpenRoot(s.image.Dir)
		if err != nil {
			return nil, err
		}
		s.onClose(root.Close)
		return root.FS(), nil
	case s.image.Files != nil:
		return nil, &fault.Error{
			What:  errors.New("give GPUs to a container of root's"),
			Cause: "what root runs in its own process does not look into images of strangers",
			Hint:  "run it as an ordinary user",
		}
	}
	t, err := s.image.tree()
	if err != nil {
		return nil, err
	}
	return t.FS(), nil
}

// apply enters what hooks add into what Build made.
func (s *step) apply() error {
	if s.given == nil {
		return nil
	}
	s.built.Files = append(s.built.Files, s.given.files...)
	made := specs.Spec{Process: &specs.Process{Env: s.built.Spec.Process.Env}, Linux: &specs.Linux{}}
	report, err := cdi.Apply(&made, s.given.edits)
	if err != nil {
		return err
	}
	s.given.report = report
	s.built.Spec.Process.Env = made.Process.Env
	s.built.Spec.Linux.Devices = append(s.built.Spec.Linux.Devices, made.Linux.Devices...)
	for _, m := range made.Mounts {
		isFile := slices.ContainsFunc(report.Mountpoints, func(p cdi.Mountpoint) bool { return p.Path == m.Destination && !p.Dir })
		s.built.Mount(m, !isFile)
	}
	if len(report.Denied) > 0 {
		return &fault.Error{What: fmt.Errorf("give devices to the container: %s", strings.Join(report.Denied, "; ")), Hint: "become a member of that group, and log in again"}
	}
	for _, what := range report.Cannot {
		s.Log.Warn(what)
	}
	return nil
}
