package cdi

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Registry is the devices that specifications describe.
type Registry struct {
	dirs     []string
	uid      int
	host     Host
	devices  map[string]*device // by qualified name
	problems []error
}

// origin is where a specification is from.
type origin struct {
	path string // of the file; or what Add was told
	rank int    // that of a directory; 0 is not from a file
}

// device is one device, with the specification it is from.
type device struct {
	name  Name
	spec  *specs.Spec
	edits *specs.ContainerEdits
	from  origin
	clash []string // files of the same rank that also describe it
}

func newRegistry(o Options) *Registry {
	if len(o.Dirs) == 0 {
		o.Dirs = DefaultDirs()
	}
	return &Registry{dirs: o.Dirs, uid: o.UID, host: Host{Root: o.Root}, devices: map[string]*device{}}
}

// problem is why a file, or a directory of files, is not used.
type problem struct {
	name string
	err  error
}

// Error implements error.
func (p *problem) Error() string { return "CDI specification " + p.name + ": " + p.err.Error() }

// Unwrap returns why.
func (p *problem) Unwrap() error { return p.err }

func (r *Registry) problem(name string, err error) {
	r.problems = append(r.problems, &problem{name, err})
}

// Add puts a specification that was found or made, not read, below those of files: what
// an administrator wrote about a device counts. What says where it is from; errors name
// it. The specification is checked as [Validate] does, and is not to be changed
// afterwards.
func (r *Registry) Add(spec *specs.Spec, what string) error {
	if err := Validate(spec); err != nil {
		return fmt.Errorf("CDI specification %s: %w", what, err)
	}
	r.enter(spec, origin{path: what})
	return nil
}

func (r *Registry) load(data []byte, from origin) error {
	spec, err := Parse(data)
	if err != nil {
		return err
	}
	r.enter(spec, from)
	return nil
}

// enter notes the devices of a valid specification. Those of a higher rank win; of the
// same rank nobody does.
func (r *Registry) enter(spec *specs.Spec, from origin) {
	vendor, class, _ := splitKind(spec.Kind) // valid
	for i := range spec.Devices {
		d := &device{name: Name{vendor, class, spec.Devices[i].Name}, spec: spec, edits: &spec.Devices[i].ContainerEdits, from: from}
		key := d.name.String()
		switch old := r.devices[key]; {
		case old == nil || old.from.rank < from.rank:
			r.devices[key] = d
		case old.from.rank == from.rank:
			old.clash = append(old.clash, from.path)
		}
	}
}

// Devices returns the names of all devices that can be asked for, sorted.
func (r *Registry) Devices() []string {
	var names []string
	for name, d := range r.devices {
		if len(d.clash) == 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Problems returns what was wrong with files and directories, an error each that names
// it, and devices that two files of one directory describe.
func (r *Registry) Problems() []error {
	list := slices.Clone(r.problems)
	var names []string
	for name, d := range r.devices {
		if len(d.clash) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		list = append(list, r.devices[name].twice())
	}
	return list
}

func (d *device) twice() error {
	files := append([]string{d.from.path}, d.clash...)
	return &fault.Error{
		What: fmt.Errorf("device %s is described twice: in %s", d.name, strings.Join(files, " and ")),
		Hint: "remove one of the two files, or the device from one of them",
	}
}

// Edits returns the edits of the named devices in their order, each once, together with
// those of their specifications, merged and completed from the host as
// [Host.Complete] says. Errors: a name that is none (usage); a device that is not there,
// with what is; one that is described twice; one whose nodes or files the host has not.
func (r *Registry) Edits(names ...string) (*specs.ContainerEdits, error) {
	var parts []*specs.ContainerEdits
	var asked []*device
	seen := map[any]bool{} // devices, and their specifications
	for _, text := range names {
		d, err := r.find(text)
		if err != nil {
			return nil, err
		}
		if seen[d] {
			continue
		}
		if !seen[d.spec] {
			parts = append(parts, &d.spec.ContainerEdits)
		}
		parts = append(parts, d.edits)
		asked = append(asked, d)
		seen[d], seen[d.spec] = true, true
	}
	sum := Merge(parts...)
	err := r.host.Complete(sum)
	if err == nil {
		return sum, nil
	}
	for _, d := range asked { // whose was it?
		if err := r.host.Complete(Merge(&d.spec.ContainerEdits, d.edits)); err != nil {
			return nil, d.stale(err)
		}
	}
	return nil, err
}

// find returns the device of a name, which has to be there once.
func (r *Registry) find(text string) (*device, error) {
	name, err := ParseName(text)
	if err != nil {
		return nil, err
	}
	d := r.devices[name.String()]
	if d == nil {
		return nil, r.unknown(name)
	}
	if len(d.clash) > 0 {
		return nil, d.twice()
	}
	return d, nil
}

// unknown explains that there is no such device: what is nearest, and which files could
// have had it but are spoiled.
func (r *Registry) unknown(name Name) error {
	var same, kinds []string
	for _, d := range r.devices {
		if len(d.clash) > 0 {
			continue
		}
		if d.name.Kind() == name.Kind() {
			same = append(same, d.name.Device)
		}
		kinds = append(kinds, d.name.Kind())
	}
	problems := r.Problems()
	e := &fault.Error{What: fmt.Errorf("device %s is not known", name)}
	switch {
	case len(same) > 0:
		e.Cause = fmt.Sprintf("of %s there are: %s", name.Kind(), list(same))
		e.Hint = "name one of them: --device " + name.Kind() + "=" + slices.MinFunc(same, byLength)
	case len(kinds) > 0:
		e.Cause = fmt.Sprintf("no specification is of the kind %s; there are: %s", name.Kind(), list(kinds))
		e.Hint = "name one of: " + list(r.Devices())
	case len(problems) > 0:
		e.Cause, e.Hint = "no CDI specification in "+strings.Join(r.dirs, " or ")+" can be used", mend(name.Vendor, problems[0])
	default:
		e.Cause = "no CDI specification was found in " + strings.Join(r.dirs, " or ")
		e.Hint = regenerate(name.Vendor, filepath.Join(r.dirs[0], name.Vendor+".json"))
	}
	if len(problems) > 0 {
		e.Cause += "; not used: " + problems[0].Error()
		if more := len(problems) - 1; more > 0 {
			e.Cause += fmt.Sprintf(" (and %d more)", more)
		}
		if f := (*fault.Error)(nil); len(same) == 0 && errors.As(problems[0], &f) {
			e.Hint = f.Hint
		}
	}
	return e
}

// mend is what to do about a specification that is there and cannot be used.
func mend(vendor string, err error) string {
	p, ok := errors.AsType[*problem](err)
	switch {
	case !ok:
		return "mend it"
	case filepath.Ext(p.name) == ".json" || filepath.Ext(p.name) == ".yaml":
		return "mend it, or " + regenerate(vendor, p.name)
	}
	return "mend " + p.name // a directory
}

// byLength orders short names first, of the same length by the alphabet.
func byLength(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

// list shows a few of many.
func list(names []string) string {
	slices.SortFunc(names, byLength)
	names = slices.Compact(names)
	const most = 16
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// stale explains why what a specification names cannot be had.
func (d *device) stale(err error) error {
	if !errors.Is(err, ErrStale) {
		return &fault.Error{
			What:  fmt.Errorf("device %s: %w", d.name, err),
			Cause: "its CDI specification names what this user may not look at: " + d.from.path,
			Hint:  "ask an administrator for access to it",
		}
	}
	hint := regenerate(d.name.Vendor, d.from.path)
	if d.from.rank == 0 {
		hint = "try again: the device was there a moment ago"
	}
	return &fault.Error{
		What:  fmt.Errorf("device %s: %w", d.name, err),
		Cause: "its CDI specification does not fit this machine: " + d.from.path,
		Hint:  hint,
	}
}

// regenerate is what makes a file of a vendor's anew.
func regenerate(vendor, file string) string {
	switch vendor {
	case "nvidia.com":
		return "write it anew as root: nvidia-ctk cdi generate --output=" + file
	case "amd.com":
		return "write it anew as root: amd-ctk cdi generate --output=" + file
	}
	return "write " + file + " anew with the tool of " + vendor
}
