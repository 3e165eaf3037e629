package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
)

// libraryDirs are where libraries of this machine's word size are below a driver
// root: of its own layout, Debian, Fedora and SUSE.
func libraryDirs() []string {
	triplet := "x86_64-linux-gnu"
	if runtime.GOARCH == "arm64" {
		triplet = "aarch64-linux-gnu"
	}
	return []string{"lib64", "lib", "usr/lib/" + triplet, "usr/lib/" + triplet + "/nvidia/current", "usr/lib64", "usr/lib64/nvidia", "usr/lib", "usr/lib/nvidia"}
}

// libraryDirs32 are where 32-bit libraries are.
var libraryDirs32 = []string{"lib", "lib32", "usr/lib/i386-linux-gnu", "usr/lib/i386-linux-gnu/nvidia/current", "usr/lib32", "usr/lib"}

// A driver has these two, whatever else was left out of it.
var keyLibraries = []string{"libcuda.so", "libnvidia-ml.so"}

// findLibraries looks through the driver roots and takes the first one that has
// libraries of the kernel module's version.
func (d *Driver) findLibraries(o Options) error {
	roots := append(slices.Clone(o.Roots), o.Root, filepath.Join(o.Root, "usr/local/nvidia"), filepath.Join(o.Root, "run/nvidia/driver"))
	var other []string // "570.1 in DIR"
	for _, root := range roots {
		dirs := libraryDirs()
		if cached := cacheDirs(root); len(cached) > 0 {
			dirs = append(cached, dirs...)
		}
		var found []string
		for _, dir := range dirs {
			real, err := resolve(root, dir)
			if err != nil || slices.Contains(found, real) {
				continue
			}
			version := versionIn(root, dir, d.Version)
			if version == "" {
				continue
			}
			if d.Version == "" {
				d.Version = version // the kernel does not say, as under gVisor
			}
			if version == d.Version {
				found = append(found, real)
			} else if text := version + " in " + real; !slices.Contains(other, text) {
				other = append(other, text)
			}
		}
		if len(found) == 0 {
			continue
		}
		d.Root = root
		seen := map[string]bool{}
		for _, dir := range found {
			d.readLibraries(root, dir, ldcache.HostFlags(), LibDir, seen)
			d.readLibraries(root, filepath.Join(dir, "vdpau"), ldcache.HostFlags(), LibDir, seen)
		}
		for _, dir := range libraryDirs32 {
			if real, err := resolve(root, dir); err == nil && !slices.Contains(found, real) {
				d.readLibraries(root, real, ldcache.Flags386, LibDir32, seen)
			}
		}
		slices.SortFunc(d.Libraries, func(a, b Library) int { return strings.Compare(a.Dir+a.Names[0], b.Dir+b.Names[0]) })
		return nil
	}
	return d.noLibraries(roots, other)
}

func (d *Driver) noLibraries(roots, other []string) error {
	if len(other) > 0 {
		return &fault.Error{
			What: fmt.Errorf("find the NVIDIA driver's libraries: %w", ErrMismatch),
			Cause: fmt.Sprintf("the kernel module is %s, the libraries are %s; NVML calls this \"Failed to initialize NVML: Driver/library version mismatch\"",
				d.Version, strings.Join(other, ", ")),
			Hint: "reboot, or stop what uses the GPUs and reload the module: modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia",
		}
	}
	return &fault.Error{
		What:  fmt.Errorf("find the NVIDIA driver's libraries: %w", ErrNoLibraries),
		Cause: fmt.Sprintf("no libcuda.so.%s or libnvidia-ml.so.%s below %s", d.Version, d.Version, strings.Join(roots, ", ")),
		Hint:  "install the driver's libraries, or name the directory that has them: --nvidia-root DIR",
	}
}

// cacheDirs returns the directories that a root's ld.so.cache has the driver's
// libraries in, relative to the root.
func cacheDirs(root string) []string {
	f, err := os.Open(filepath.Join(root, "etc/ld.so.cache"))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	b, err := readAll(f, ldcache.MaxSize)
	if err != nil {
		return nil
	}
	c, err := ldcache.Parse(b)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range c.Entries {
		if e.Flags != ldcache.HostFlags() || e.Name != "libcuda.so.1" && e.Name != "libnvidia-ml.so.1" {
			continue
		}
		if dir := filepath.Dir(e.Path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
		// Debian's alternatives: the name leads to where the libraries are.
		if real, err := resolve(root, e.Path); err == nil {
			if rel, err := filepath.Rel(root, filepath.Dir(real)); err == nil && !slices.Contains(dirs, rel) {
				dirs = append(dirs, rel)
			}
		}
	}
	return dirs
}

// versionIn returns the version of the driver's libraries in a directory: want if
// it is there, else the one that the soname leads to, else any, else "".
func versionIn(root, dir, want string) string {
	other := ""
	for _, name := range keyLibraries {
		if want != "" && exists(root, dir, name+"."+want) {
			return want
		}
		if real, err := resolve(root, filepath.Join(dir, name+".1")); err == nil && other == "" {
			if version, ok := strings.CutPrefix(filepath.Base(real), name+"."); ok && isVersion(version) {
				other = version
			}
		}
	}
	if other != "" {
		return other
	}
	for _, name := range dirNames(root, dir) { // no links, as in a directory that was copied
		for _, key := range keyLibraries {
			if version, ok := strings.CutPrefix(name, key+"."); ok && isVersion(version) {
				return version
			}
		}
	}
	return ""
}

// resolve follows path below root as if root were /, and returns the host's path of
// what it leads to.
func resolve(root, path string) (string, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", root, err)
	}
	defer func() { _ = unix.Close(at) }()
	fd, err := fsx.OpenInRoot(at, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) { // gVisor, Linux before 5.6
		real, err := filepath.EvalSymlinks(filepath.Join(root, path))
		if err == nil && !filepath.IsLocal(within(root, real)) {
			err = fmt.Errorf("%s leads out of %s", path, root)
		}
		return real, err
	}
	if err != nil {
		return "", fmt.Errorf("open %s in %s: %w", path, root, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// readLibraries adds the driver's libraries of one directory, with the names that
// links in it give them. seen holds the files that were taken.
func (d *Driver) readLibraries(root, dir string, flags int32, target string, seen map[string]bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	links := map[string][]string{} // base to names of links
	first := len(d.Libraries)
	for _, e := range entries {
		base, version, ok := strings.Cut(e.Name(), ".so")
		if !ok || !strings.HasPrefix(base, "lib") {
			continue
		}
		version = strings.TrimPrefix(version, ".")
		if e.Type()&os.ModeSymlink != 0 {
			links[base] = append(links[base], e.Name())
			continue
		}
		own := slices.Contains(ownVersions, base)
		if version != d.Version && !own || !e.Type().IsRegular() || seen[target+e.Name()] {
			continue
		}
		host := filepath.Join(dir, e.Name())
		facts, err := readELF(host)
		if err != nil || facts.Flags != flags {
			continue
		}
		l := Library{Host: host, Dir: target, Names: []string{e.Name()}, Flags: flags, Use: libraryUse[base]}
		if flags == ldcache.Flags386 {
			l.Use = Compat32
		}
		if facts.Soname != "" && facts.Soname != e.Name() && !strings.Contains(facts.Soname, "/") {
			l.Names = append(l.Names, facts.Soname)
		}
		seen[target+e.Name()] = true
		d.Libraries = append(d.Libraries, l)
	}
	for i := first; i < len(d.Libraries); i++ {
		l := &d.Libraries[i]
		base, _, _ := strings.Cut(l.Names[0], ".so")
		for _, name := range links[base] {
			if slices.Contains(l.Names, name) {
				continue
			}
			if real, err := resolve(root, filepath.Join(within(root, dir), name)); err == nil && filepath.Base(real) == l.Names[0] {
				l.Names = append(l.Names, name)
			}
		}
	}
}

// within is path, a host's path below root, as seen from root.
func within(root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil {
		return rel
	}
	return path
}

func readELF(name string) (ldcache.ELF, error) {
	f, err := os.Open(name)
	if err != nil {
		return ldcache.ELF{}, err
	}
	defer func() { _ = f.Close() }()
	return ldcache.ReadELF(f)
}
