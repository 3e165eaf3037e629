// Package cdi makes devices known by the name VENDOR/CLASS=DEVICE (nvidia.com/gpu=0)
// edits of an OCI specification, as the Container Device Interface says
// (tags.cncf.io/container-device-interface, versions 0.3.0 to 1.1.0).
//
// What to call, in this order:
//
//	registry, err := cdi.Load(ctx, cdi.Options{UID: os.Getuid()}) // files of /etc/cdi and /var/run/cdi
//	err = registry.Add(generated, "found by gangway")             // what hooks found, below the files
//	edits, err := registry.Edits("amd.com/gpu=0", "acme.com/nic=all")
//	report, err := cdi.Apply(spec, cdi.Merge(edits, others...))
//
// A file counts only where nobody but root and the user could have written it or put
// it there; one that does not, or that is no valid specification, spoils only its own
// devices and is named when one of them is asked for ([Registry.Problems]). A
// specification that names what the machine has not, or has with other numbers, is
// refused as stale, with what to type.
//
// The package executes nothing. The hooks that vendors' tools write into their files
// are well known, and come back as [Action]; all others are entered into the OCI
// specification, and whether they run is for others to decide.
//
// A [Registry] may be read by any number of goroutines once it is filled; Load, Parse,
// Merge and Apply share no state.
//
// The package does not find devices (hooks/nvidia, hooks/drm, hooks/rdma do), does not
// write or watch files, and makes no device nodes: the runtime binds the host's.
package cdi

import (
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Name is a qualified device name, such as nvidia.com/gpu=0.
type Name struct {
	Vendor string // nvidia.com
	Class  string // gpu
	Device string // 0
}

// Kind is what the devices of one specification have in common: VENDOR/CLASS.
func (n Name) Kind() string { return n.Vendor + "/" + n.Class }

// String is the name as people type it.
func (n Name) String() string { return n.Kind() + "=" + n.Device }

// ParseName reads VENDOR/CLASS=DEVICE. Anything else is an error of the command line,
// which shows the form.
func ParseName(text string) (Name, error) {
	kind, device, found := strings.Cut(text, "=")
	if !found {
		return Name{}, badName(text, "it has no =")
	}
	vendor, class, err := splitKind(kind)
	if err != nil {
		return Name{}, badName(text, err.Error())
	}
	if err := checkWord("device", device, "_-.:", true); err != nil {
		return Name{}, badName(text, err.Error())
	}
	return Name{vendor, class, device}, nil
}

func badName(text, why string) error {
	hint := "give VENDOR/CLASS=DEVICE, for example amd.com/gpu=0"
	if strings.HasPrefix(text, "/dev/") {
		hint = "nodes of /dev are not given by path; give the name of a CDI device, for example amd.com/gpu=0"
	}
	return fault.Usage(fmt.Errorf("device %q is no CDI name: %s", shorten(text), why), hint)
}

// splitKind reads VENDOR/CLASS.
func splitKind(kind string) (vendor, class string, err error) {
	vendor, class, found := strings.Cut(kind, "/")
	if !found {
		return "", "", fmt.Errorf("%q has no /", shorten(kind))
	}
	if err := checkWord("vendor", vendor, "_-.", false); err != nil {
		return "", "", err
	}
	if err := checkWord("class", class, "_-.", false); err != nil {
		return "", "", err
	}
	return vendor, class, nil
}

// The longest names: of a vendor as of a DNS name; of a class as the format says; of
// a device it says nothing, and 253 is generous.
const maxWord, maxClass = 253, 63

// checkWord checks a part of a name: letters and digits, those of inner between them,
// a letter first unless digit. The whole is ASCII.
func checkWord(what, word, inner string, digit bool) error {
	if word == "" {
		return fmt.Errorf("the %s is empty", what)
	}
	if len(word) > maxWord || what == "class" && len(word) > maxClass {
		return fmt.Errorf("the %s is %d characters long", what, len(word))
	}
	for i := range len(word) {
		c := word[i]
		letter, number := c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9'
		edge := i == 0 || i == len(word)-1
		switch {
		case letter, number && (i > 0 || digit), !edge && strings.IndexByte(inner, c) >= 0:
		case i == 0 && !digit:
			return fmt.Errorf("the %s %q does not begin with a letter", what, shorten(word))
		case edge:
			return fmt.Errorf("the %s %q does not begin and end with a letter or digit", what, shorten(word))
		default:
			return fmt.Errorf("%q is not allowed in the %s %q", c, what, shorten(word))
		}
	}
	return nil
}

// shorten keeps what is quoted in an error readable.
func shorten(s string) string {
	if len(s) <= 100 {
		return s
	}
	return s[:100] + "..."
}
