package step

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/drm"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/rdma"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// Devices say what of the machine's devices a container gets.
type Devices struct {
	CDI     []string // by name: vendor.com/class=name
	GPUs    string   // NVIDIA's: a number, "all", or names, as package nvidia reads it
	Visible string   // which of them may be given, as the user's NVIDIA_VISIBLE_DEVICES says
	// Allocation lists the GPUs of a job by UUID, of which it gets all unless it asks for
	// less; nil is a run without one, which leases its GPUs.
	Allocation []string
	GPUWait    time.Duration // how long GPUs that others have are waited for; negative is for ever
	RDMA       string        // adapters: auto, all, none, or names, as package rdma reads it; empty: none
	Dirs       []string      // of CDI specifications; none is the standard's
	Nvidia     nvidia.Options
	NVML       func() (string, error) // finds the program that asks the driver's library
}

// given is what hooks add to a container.
type given struct {
	edits  *cdispecs.ContainerEdits
	made   specs.Spec // the edits, entered into nothing
	report cdi.Report
	files  []spec.File
	gpus   []nvidia.Device
	needs  nvidia.Needs // what the image's loaders have to find
	notes  []string
	// rlimits that the devices need.
	rlimits []specs.POSIXRlimit
	// pathNeeded says that the loader's cache will not be the one that was made.
	pathNeeded bool
}

// devices finds out what hooks add to the container. GPUs are leased until it ends.
func (s *step) devices(ctx context.Context) error {
	s.given = given{edits: &cdispecs.ContainerEdits{}}
	named, gpus, err := s.namedDevices(ctx)
	if err != nil {
		return err
	}
	// Each sees what those before it have added.
	for _, add := range []func(context.Context) (*cdispecs.ContainerEdits, error){
		func(ctx context.Context) (*cdispecs.ContainerEdits, error) { return s.gpus(ctx, gpus) },
		func(context.Context) (*cdispecs.ContainerEdits, error) { return named, nil },
		s.rdma, s.prepareHooks,
	} {
		edits, err := add(ctx)
		if err != nil {
			return err
		}
		if edits != nil {
			s.given.edits = cdi.Merge(s.given.edits, edits)
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	if err := s.loaders(ctx); err != nil {
		return err
	}
	if nodes := s.nodes(); len(nodes) > 0 {
		s.phase("devices", strings.Join(nodes, " "))
	}
	return nil
}

// nodes are the names of the devices.
func (s *step) nodes() []string {
	var names []string
	for _, d := range s.given.edits.DeviceNodes {
		names = append(names, d.Path)
	}
	return names
}

// namedGPU is a GPU of NVIDIA's that --device names.
type namedGPU struct {
	name  string
	edits *cdispecs.ContainerEdits // of a file that describes it; nil: none does
}

// namedDevices are those of --device. GPUs of NVIDIA's are returned by name, to be given as
// those of --gpus are: others may not have them at the same time, whatever file describes
// them.
func (s *step) namedDevices(ctx context.Context) (edits *cdispecs.ContainerEdits, gpus []namedGPU, err error) {
	if len(s.Devices.CDI) == 0 {
		return nil, nil, nil
	}
	r, err := cdi.Load(ctx, cdi.Options{Dirs: s.Devices.Dirs, UID: os.Geteuid()})
	if err != nil {
		return nil, nil, err
	}
	for _, problem := range r.Problems() {
		s.Log.Warn("a CDI specification is not used", "err", problem)
	}
	ofFiles := r.Devices()
	if err := s.addOurs(ctx, r); err != nil {
		return nil, nil, err
	}
	var names []string
	for _, name := range s.Devices.CDI {
		gpu, ok := strings.CutPrefix(name, nvidia.Kind+"=")
		if !ok {
			names = append(names, name)
			continue
		}
		named := namedGPU{name: gpu}
		if slices.Contains(ofFiles, name) {
			if named.edits, err = r.Edits(name); err != nil {
				return nil, nil, err
			}
		}
		gpus = append(gpus, named)
	}
	if len(names) == 0 {
		return nil, gpus, nil
	}
	edits, err = r.Edits(names...)
	return edits, gpus, err
}

// addOurs adds the specifications that are made of what the machine shows, where no file
// says it.
func (s *step) addOurs(ctx context.Context, r *cdi.Registry) error {
	found, err := drm.Discover(ctx, drm.Options{})
	if err != nil {
		return err
	}
	made := found.Specs()
	if slices.ContainsFunc(s.Devices.CDI, func(name string) bool { return strings.HasPrefix(name, nvidia.KindIMEX+"=") }) {
		driver, _, err := s.nvidia(ctx, "")
		if err != nil && !errors.Is(err, nvidia.ErrNoDriver) {
			return err
		}
		if driver != nil {
			if channels := driver.IMEXSpec(); channels != nil {
				made = append(made, channels)
			}
		}
	}
	adapters, err := rdma.Discover(ctx, rdma.Options{})
	if err != nil {
		return err
	}
	for _, spec := range adapters.Specs() {
		made = append(made, &spec)
	}
	for _, spec := range made {
		if err := r.Add(spec, "this machine's devices"); err != nil {
			return err
		}
	}
	return nil
}

// enter enters the edits into a specification that has nothing else, and says what they
// cannot do.
func (s *step) enter() error {
	g := &s.given
	g.made = specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
	var err error
	if g.report, err = cdi.Apply(&g.made, g.edits); err != nil {
		return err
	}
	if denied := g.report.Denied; len(denied) > 0 {
		return deniedDevices(denied)
	}
	for _, what := range g.report.Cannot {
		s.Log.Warn(what)
	}
	for _, action := range g.report.Actions {
		for _, link := range action.Links {
			g.files = append(g.files, spec.File{Path: link.Path, Link: link.Target})
		}
	}
	s.libraries(g.report.Actions)
	return nil
}

// deniedDevices is the error of nodes that the user may not open.
func deniedDevices(list []cdi.Denied) error {
	var texts []string
	hint := "become a member of that group, and log in again"
	for _, d := range list {
		texts = append(texts, d.String())
		if d.Group < 0 {
			hint = "ask an administrator for access to " + d.Path
		}
	}
	return &fault.Error{What: fmt.Errorf("give devices to the container: %s", strings.Join(texts, "; ")), Hint: hint}
}

// apply enters what hooks add into what Build made.
func (s *step) apply() {
	g := &s.given
	if g.edits == nil {
		return // a trial, which is given nothing
	}
	for _, what := range g.replaced(s.built.Spec) {
		s.built.Notes = append(s.built.Notes, what+": what devices and hooks ask for has taken its place")
	}
	s.built.Files = append(s.built.Files, g.files...)
	s.built.Notes = append(s.built.Notes, g.notes...)
	s.built.Spec.Process.Rlimits = append(s.built.Spec.Process.Rlimits, g.rlimits...)
	s.built.Spec.Process.Env = g.environ(s.built.Spec.Process.Env)
	s.built.Spec.Linux.Devices = append(s.built.Spec.Linux.Devices, g.made.Linux.Devices...)
	for _, m := range g.made.Mounts {
		isFile := slices.ContainsFunc(g.report.Mountpoints, func(p cdi.Mountpoint) bool { return p.Path == m.Destination && !p.Dir })
		s.built.Mount(m, !isFile)
	}
}

// hidden is the error of mounts that nobody would see: of paths that are masked where root
// runs the container.
func (g *given) hidden(l *specs.Linux) error {
	for _, m := range g.made.Mounts {
		for _, masked := range l.MaskedPaths {
			if m.Destination == masked || strings.HasPrefix(m.Destination, masked+"/") {
				return &fault.Error{
					What:  fmt.Errorf("mount %s on %s: %s is hidden in containers of root's", m.Source, m.Destination, masked),
					Cause: "a CDI specification, or a hook, asks for it",
					Hint:  "run it as an ordinary user",
				}
			}
		}
	}
	return nil
}

// replaced names what a container would have without the edits, and has otherwise with them.
func (g *given) replaced(built *specs.Spec) []string {
	places := map[string]bool{}
	for _, m := range built.Mounts {
		places[path.Clean(m.Destination)] = true
	}
	for _, d := range built.Linux.Devices {
		places[path.Clean(d.Path)] = true
	}
	set := variables(built.Process.Env)
	same := &cdispecs.ContainerEdits{} // those that are about what is there: few, if any
	for _, v := range g.edits.Env {
		name, _, _ := strings.Cut(v, "=")
		if _, ok := set[name]; ok {
			same.Env = append(same.Env, v)
		}
	}
	for _, m := range g.edits.Mounts {
		if places[path.Clean(m.ContainerPath)] {
			same.Mounts = append(same.Mounts, m)
		}
	}
	for _, d := range g.edits.DeviceNodes {
		if places[path.Clean(d.Path)] {
			same.DeviceNodes = append(same.DeviceNodes, d)
		}
	}
	without := specs.Spec{Process: &specs.Process{Env: built.Process.Env}, Mounts: slices.Clone(built.Mounts), Linux: &specs.Linux{Devices: slices.Clone(built.Linux.Devices)}}
	report, err := cdi.Apply(&without, same)
	if err != nil {
		return nil // it was possible a moment ago
	}
	return report.Replaced
}

// environ enters the variables of the edits into an environment.
func (g *given) environ(env []string) []string {
	if g.made.Process == nil {
		return env
	}
	set := variables(g.made.Process.Env)
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, ok := set[name]
		return ok
	})
	for _, name := range slices.Sorted(maps.Keys(set)) {
		env = append(env, name+"="+set[name])
	}
	if g.pathNeeded {
		return libraryPath(env, g.needs.Dirs)
	}
	return env
}

func variables(env []string) map[string]string {
	all := map[string]string{}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		all[name] = value
	}
	return all
}
