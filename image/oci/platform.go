package oci

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// HostPlatform is the platform of this program. It has no variant: nodes of one
// cluster may differ, and all are to run the same image.
func HostPlatform() Platform { return Platform{OS: "linux", Architecture: runtime.GOARCH} }

// String returns "linux/arm64/v8".
func (p Platform) String() string {
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		s += "/" + p.Variant
	}
	return s
}

// ParsePlatform parses "linux/arm64/v8", "linux/arm64", "arm/v7" and "arm64".
// Architectures may also be named as uname -m names them.
func ParsePlatform(s string) (Platform, error) {
	parts := strings.Split(strings.ToLower(s), "/")
	for _, part := range parts {
		if part == "" || strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" {
			parts = nil
		}
	}
	p := Platform{OS: "linux"}
	switch {
	case len(parts) == 1 && isArchitecture(parts[0]):
		p.Architecture = parts[0]
	case len(parts) == 2 && isArchitecture(parts[0]):
		p.Architecture, p.Variant = parts[0], parts[1]
	case len(parts) == 2:
		p.OS, p.Architecture = parts[0], parts[1]
	case len(parts) == 3:
		p.OS, p.Architecture, p.Variant = parts[0], parts[1], parts[2]
	default:
		return Platform{}, fault.Usage(fmt.Errorf("parse platform %.100q: it is not OS/ARCHITECTURE/VARIANT", s),
			"write for example linux/amd64, linux/arm64 or arm/v7")
	}
	return p.normal(), nil
}

func isArchitecture(s string) bool {
	return slices.Contains([]string{
		"386", "amd64", "arm", "arm64", "loong64", "mips", "mips64", "mips64le", "mipsle", "ppc64", "ppc64le", "riscv64", "s390x",
	}, Platform{Architecture: s}.normal().Architecture)
}

// normal spells a platform in one way. Variants that are the architecture's
// baseline are left out.
func (p Platform) normal() Platform {
	p.OS, p.Architecture, p.Variant = strings.ToLower(p.OS), strings.ToLower(p.Architecture), strings.ToLower(p.Variant)
	switch p.Architecture {
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "i386", "i486", "i586", "i686":
		p.Architecture = "386"
	case "aarch64":
		p.Architecture = "arm64"
	case "armhf", "armv7l":
		p.Architecture, p.Variant = "arm", "v7"
	case "armel", "armv6l":
		p.Architecture, p.Variant = "arm", "v6"
	}
	if p.Variant != "" && p.Variant[0] >= '0' && p.Variant[0] <= '9' {
		p.Variant = "v" + p.Variant
	}
	if p.Variant == baseline(p.Architecture) {
		p.Variant = ""
	}
	return p
}

// baseline is the variant that an architecture means when none is said.
func baseline(architecture string) string {
	return map[string]string{"amd64": "v1", "arm": "v7", "arm64": "v8"}[architecture]
}

// runs says how well an image for have suits want: 0 not at all, else the more the
// better. Later variants of arm, arm64 and amd64 run what was made for earlier ones.
func (p Platform) runs(have Platform) int {
	want, have := p.normal(), have.normal()
	if want.OS != have.OS || want.Architecture != have.Architecture {
		return 0
	}
	if want.Variant == have.Variant {
		return 1 << 20
	}
	w, h := variantLevel(want), variantLevel(have)
	if w == 0 || h == 0 || h > w {
		return 0
	}
	return h
}

// Suits says whether an image for have is one for p.
func (p Platform) Suits(have Platform) bool { return p.runs(have) > 0 }

// variantLevel makes "v8.2" 802 and what it does not know 0.
func variantLevel(p Platform) int {
	base := baseline(p.Architecture)
	if base == "" {
		return 0
	}
	v := p.Variant
	if v == "" {
		v = base
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(v, "v"), ".")
	a, err := strconv.ParseUint(major, 10, 6)
	if err != nil {
		return 0
	}
	b, err := strconv.ParseUint("0"+minor, 10, 6)
	if err != nil {
		return 0
	}
	return int(a)*100 + int(b)
}

// Choose picks the manifest for a platform. What is no image is passed over:
// attestations and artefacts. An entry without a platform is taken if it is the
// only one. The entry may be an index again: who follows it counts how deep.
func (x Index) Choose(want Platform) (Descriptor, error) {
	var images []Descriptor
	best, score := Descriptor{}, 0
	for _, d := range x.Manifests {
		if !d.isImage() {
			continue
		}
		images = append(images, d)
		if d.Platform == nil {
			continue
		}
		if s := want.runs(*d.Platform); s > score {
			best, score = d, s
		}
	}
	if score == 0 && len(images) == 1 && images[0].Platform == nil {
		best, score = images[0], 1
	}
	if score == 0 {
		return Descriptor{}, noPlatform(want, images)
	}
	if best.Size > MaxDocument {
		return Descriptor{}, fmt.Errorf("choose manifest for %s: %s has %d bytes, more than %d", want, best.Digest, best.Size, MaxDocument)
	}
	return best, nil
}

// isImage says whether a descriptor of an index could be a container image.
func (d Descriptor) isImage() bool {
	switch {
	case d.Annotations["vnd.docker.reference.type"] != "":
		return false
	case d.ArtifactType != "" && d.ArtifactType != MediaTypeConfig: // image-spec puts the config's type there too
		return false
	case d.Platform != nil && d.Platform.OS == "unknown" && d.Platform.Architecture == "unknown":
		return false
	}
	return d.MediaType == "" || kindOfType(d.MediaType) != 0
}

func noPlatform(want Platform, images []Descriptor) error {
	if len(images) == 0 {
		return fmt.Errorf("choose manifest for %s: the index lists no image", want)
	}
	var names []string
	for _, d := range images {
		if d.Platform == nil {
			names = append(names, "one without a platform, "+string(d.Digest))
		} else {
			names = append(names, d.Platform.String())
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if more := len(names) - 20; more > 0 {
		names = append(names[:20], fmt.Sprintf("and %d more", more))
	}
	return &fault.Error{
		What:  fmt.Errorf("choose manifest for %s: the image is not made for it", want),
		Cause: "it is made for: " + strings.Join(names, ", "),
		Hint:  "ask for one of them with --platform, or for another tag",
	}
}
