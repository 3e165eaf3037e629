package nvidia_test

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// discover finds the driver of a fake machine.
func discover(t testing.TB, tree *fakedriver.Tree, change ...func(*nvidia.Options)) *nvidia.Driver {
	t.Helper()
	o := nvidia.Options{Root: tree.Root}
	for _, c := range change {
		c(&o)
	}
	d, err := nvidia.Discover(t.Context(), o)
	if err != nil {
		t.Fatal(fault.Text("test", err, false))
	}
	return d
}

// edits are what a container gets that has the named devices.
func edits(t testing.TB, d *nvidia.Driver, capabilities string, names ...string) *cdi.ContainerEdits {
	t.Helper()
	set, err := nvidia.ParseCapabilities(capabilities)
	if err != nil {
		t.Fatal(err)
	}
	e, err := pick(d.Spec(set, ""), names...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// pick merges the edits of devices plainly; package cdi also looks at the machine.
func pick(s *cdi.Spec, names ...string) (*cdi.ContainerEdits, error) {
	e := s.ContainerEdits
	for _, name := range names {
		i := slices.IndexFunc(s.Devices, func(d cdi.Device) bool { return d.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no device %s", name)
		}
		e.DeviceNodes = slices.Clone(e.DeviceNodes)
		for _, n := range s.Devices[i].ContainerEdits.DeviceNodes {
			if !slices.ContainsFunc(e.DeviceNodes, func(m *cdi.DeviceNode) bool { return m.Path == n.Path }) {
				e.DeviceNodes = append(e.DeviceNodes, n)
			}
		}
	}
	return &e, nil
}

// nodes are the device nodes of edits.
func nodes(e *cdi.ContainerEdits) string {
	var all []string
	for _, n := range e.DeviceNodes {
		all = append(all, strings.TrimPrefix(n.Path, "/dev/"))
	}
	return strings.Join(all, " ")
}

// mounted maps paths in the container to those of the host.
func mounted(e *cdi.ContainerEdits) map[string]string {
	all := map[string]string{}
	for _, m := range e.Mounts {
		all[m.ContainerPath] = m.HostPath
	}
	return all
}

// wantFault checks that err is of the given kind (if any) and that what a person
// sees of it contains the texts.
func wantFault(t *testing.T, err, kind error, texts ...string) {
	t.Helper()
	if err == nil || kind != nil && !errors.Is(err, kind) {
		t.Errorf("error %v, want one that is %v", err, kind)
		return
	}
	text := fault.Text("gangway", err, false)
	for _, want := range texts {
		if !strings.Contains(text, want) {
			t.Errorf("the error does not say %q:\n%s", want, text)
		}
	}
}

// onlyFS hides from a file system's files everything but fs.File.
type onlyFS struct{ fs.FS }

type onlyFile struct{ fs.File }

func (o onlyFS) Open(name string) (fs.File, error) {
	f, err := o.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return f, nil
	}
	return onlyFile{f}, nil
}
