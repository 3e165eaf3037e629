package nvidia

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Capabilities is a set of parts of the driver that a container can have, in the
// words of NVIDIA_DRIVER_CAPABILITIES.
type Capabilities uint8

// The capabilities.
const (
	Compute  Capabilities = 1 << iota // CUDA and OpenCL
	Utility                           // nvidia-smi and NVML
	Video                             // encoding and decoding
	Graphics                          // OpenGL, EGL, Vulkan
	Display                           // X servers; comes with Graphics
	Compat32                          // 32-bit libraries

	All     = Compute | Utility | Video | Graphics | Display | Compat32
	Default = Compute | Utility // for a GPU without CUDA is of no use to most
)

// capabilityNames has the words by number of the bit.
var capabilityNames = []string{"compute", "utility", "video", "graphics", "display", "compat32"}

// String returns the set as a list: "compute,utility".
func (c Capabilities) String() string {
	var names []string
	for i, name := range capabilityNames {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// ParseCapabilities reads a list such as "compute,utility". Nothing means Default,
// "all" means All.
func ParseCapabilities(list string) (Capabilities, error) {
	var set Capabilities
	for name := range strings.SplitSeq(list, ",") {
		i := slices.Index(capabilityNames, strings.TrimSpace(name))
		switch name = strings.TrimSpace(name); {
		case name == "":
		case name == "all":
			set |= All
		case name == "ngx": // part of graphics; images of before 2020 say so
			set |= Graphics
		case i < 0:
			return 0, fault.Usage(fmt.Errorf("unknown driver capability %q", name),
				"the driver capabilities are all, "+strings.Join(capabilityNames, ", "))
		default:
			set |= 1 << i
		}
	}
	if set&Display != 0 {
		set |= Graphics
	}
	if set == 0 {
		set = Default
	}
	return set, nil
}

// ChooseCapabilities returns the capabilities of a run: those that the user's
// NVIDIA_DRIVER_CAPABILITIES names, else the image's, else the default. What the
// image says is a hint only: a capability that there is not costs a warning.
func ChooseCapabilities(user, image string) (set Capabilities, warning string, err error) {
	if user != "" {
		set, err = ParseCapabilities(user)
		return set, "", err
	}
	set, err = ParseCapabilities(image)
	if err != nil {
		return Default, fmt.Sprintf("the image's NVIDIA_DRIVER_CAPABILITIES=%q is not used: %v", image, err), nil
	}
	return set, "", nil
}

// libraryUse says which capability a library is for, by its name before ".so". One
// that is not listed goes with all: a driver newer than this table may need it.
// Sources: libnvidia-container nvc_info.c and NVIDIA's driver README, chapter
// "Installed Components".
var libraryUse = map[string]Capabilities{
	"libcuda": Compute, "libcudadebugger": Compute, "libnvidia-ptxjitcompiler": Compute, "libnvidia-nvvm": Compute,
	"libnvidia-nvvm70": Compute, "libnvidia-fatbinaryloader": Compute, "libnvidia-compiler": Compute, "libnvidia-opencl": Compute,
	"libnvidia-tileiras": Compute, "libnvidia-pkcs11": Compute, "libnvidia-pkcs11-openssl3": Compute,
	"libnvidia-gpucomp": Compute | Graphics | Video, "libnvidia-allocator": Compute | Graphics | Video,

	"libnvidia-ml":  Utility | Compute, // NCCL and torch ask NVML for the topology
	"libnvidia-cfg": Utility, "libnvidia-nscq": Utility, "libnvidia-sandboxutils": Utility,

	"libvdpau_nvidia": Video, "libnvidia-encode": Video, "libnvidia-opticalflow": Video, "libnvcuvid": Video,

	"libnvidia-eglcore": Graphics, "libnvidia-glcore": Graphics, "libnvidia-tls": Graphics, "libnvidia-glsi": Graphics,
	"libnvidia-fbc": Graphics, "libnvidia-ifr": Graphics, "libnvidia-rtcore": Graphics, "libnvoptix": Graphics,
	"libGLX_nvidia": Graphics, "libEGL_nvidia": Graphics, "libGLESv2_nvidia": Graphics, "libGLESv1_CM_nvidia": Graphics,
	"libnvidia-glvkspirv": Graphics, "libnvidia-cbl": Graphics, "libnvidia-ngx": Graphics, "libnvidia-vulkan-producer": Graphics,
	"libnvidia-egl-gbm": Graphics, "libnvidia-egl-wayland": Graphics, "libnvidia-egl-wayland2": Graphics, "libnvidia-egl-xcb": Graphics,
	"libnvidia-egl-xlib": Graphics, "libnvidia-api": Graphics, "libglxserver_nvidia": Display, "libnvidia-wayland-client": Display,
	"libnvidia-gtk2": Display, "libnvidia-gtk3": Display,
}

// ownVersions are the libraries whose file name has a version of their own.
var ownVersions = []string{
	"libnvidia-egl-gbm", "libnvidia-egl-wayland", "libnvidia-egl-wayland2", "libnvidia-egl-xcb", "libnvidia-egl-xlib", "libnvidia-api",
	"libnvidia-nvvm70",
}
