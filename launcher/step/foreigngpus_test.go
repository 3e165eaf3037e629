package step

import (
	"strings"
	"testing"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"
)

// TestForeignGPUs: GPUs of which only a file tells are given to who may have any, and to
// nobody who may have some only.
func TestForeignGPUs(t *testing.T) {
	nodes := []*cdispecs.DeviceNode{{Path: "/dev/nvidia3"}, {Path: "/dev/nvidiactl"}, {Path: "/dev/nvidia"}}
	named := []namedGPU{{name: "3", edits: &cdispecs.ContainerEdits{DeviceNodes: nodes}}}
	s := &step{dry: true}
	if edits, err := s.foreignGPUs(t.Context(), named); err != nil || len(edits.DeviceNodes) != 3 {
		t.Errorf("%+v, %v", edits, err)
	}
	for _, d := range []Devices{{Allocation: []string{}}, {Visible: "0"}, {Visible: "none"}} {
		s.Devices = d
		if _, err := s.foreignGPUs(t.Context(), named); err == nil || !strings.Contains(err.Error(), "whether the run may have them is not known") {
			t.Errorf("%+v: %v", d, err)
		}
	}
}
