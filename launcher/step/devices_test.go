package step

import (
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// TestHidden: a mount that would be masked is refused.
func TestHidden(t *testing.T) {
	l := &specs.Linux{MaskedPaths: []string{"/proc/acpi"}}
	for target, hidden := range map[string]bool{"/proc/acpi": true, "/proc/acpi/x": true, "/proc/acpid": false, "/proc/driver": false} {
		g := &given{made: specs.Spec{Mounts: []specs.Mount{{Source: "/x", Destination: target}}}}
		if err := g.hidden(l); (err != nil) != hidden {
			t.Errorf("%s: %v", target, err)
		}
		if err := g.hidden(&specs.Linux{}); err != nil {
			t.Errorf("%s of a user's: %v", target, err)
		}
	}
}

// TestDeniedDevices: a group is spoken of where one helps.
func TestDeniedDevices(t *testing.T) {
	with, without := cdi.Denied{Path: "/dev/a", Group: 44}, cdi.Denied{Path: "/dev/loop0", Group: -1}
	for _, c := range []struct {
		list []cdi.Denied
		want string
	}{
		{[]cdi.Denied{with}, "become a member of that group"},
		{[]cdi.Denied{without}, "ask an administrator for access to /dev/loop0"},
		{[]cdi.Denied{without, with}, "ask an administrator for access to /dev/loop0"},
	} {
		if text := fault.Text("gangway", deniedDevices(c.list), false); !strings.Contains(text, c.want) || len(c.list) == 1 && c.list[0].Group < 0 && strings.Contains(text, "group") {
			t.Errorf("%v: %s", c.list, text)
		}
	}
}
