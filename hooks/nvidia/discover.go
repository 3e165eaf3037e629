package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// maxText is how much of a file of /proc or sysfs is read.
const maxText = 64 << 10

// maxGPUs is how many GPUs and how many MIG instances of each are looked at.
const maxGPUs = 256

// Discover finds the driver. Its errors wrap ErrNoDriver, ErrMismatch or
// ErrNoLibraries and say what to do.
func Discover(ctx context.Context, o Options) (*Driver, error) {
	o = o.resolved()
	d := &Driver{Version: kernelVersion(o)}
	if exists(o.Dev, "dxg") {
		return discoverWSL(o, d)
	}
	d.GPUs = readGPUs(o)
	if d.Version == "" && len(d.GPUs) == 0 {
		return nil, &fault.Error{
			What:  fmt.Errorf("look for GPUs: %w", ErrNoDriver),
			Cause: "there is neither " + filepath.Join(o.Proc, "driver/nvidia/version") + " nor a node " + filepath.Join(o.Dev, "nvidia0"),
			Hint:  "load the kernel module (modprobe nvidia), or run without --gpus",
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if err := d.findLibraries(o); err != nil {
		return nil, err
	}
	d.readNodes(o)
	d.readManagement(o)
	d.readFiles(o)
	if params, err := readText(o.Proc, "driver/nvidia/params"); err == nil {
		// The driver's libraries would make nodes themselves, and as root of the
		// container replace ours.
		d.Params = strings.Replace(params, "ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0", 1)
	}
	d.nameInstances(o.MIGs)
	d.warn(o)
	return d, context.Cause(ctx)
}

// warn collects what is missing.
func (d *Driver) warn(o Options) {
	for _, g := range d.GPUs {
		if g.UUID == "" {
			d.Warnings = append(d.Warnings, filepath.Join(o.Proc, "driver/nvidia/gpus")+" cannot be read, so GPUs are known by number only")
			break
		}
	}
	if len(d.GPUs) > 0 && !exists(o.Dev, "nvidia-uvm") {
		d.Warnings = append(d.Warnings, filepath.Join(o.Dev, "nvidia-uvm")+" is missing, so CUDA cannot start: as root run nvidia-modprobe -u -c=0")
	}
	for _, n := range d.neededNodes() {
		if n.Major != 0 && unix.Access(n.Host, unix.R_OK|unix.W_OK) != nil {
			d.Warnings = append(d.Warnings, n.Host+" cannot be opened by this user: its owner, group or mode keep the user out (chmod 666, or membership of its group)")
		}
	}
	if _, err := os.Stat(filepath.Join(o.Proc, "driver/nvidia/gpus")); err == nil {
		for _, bus := range dirNames(o.Proc, "driver/nvidia/gpus") {
			if !slices.ContainsFunc(d.GPUs, func(g GPU) bool { return g.Bus == bus }) {
				d.Warnings = append(d.Warnings, "the GPU at "+bus+" has no device node in "+o.Dev+" or is excluded, and is left out")
			}
		}
	}
}

// neededNodes returns the nodes without which CUDA does not work.
func (d *Driver) neededNodes() []Node {
	var all []Node
	for _, g := range d.GPUs {
		all = append(all, g.Node)
	}
	for _, n := range d.Nodes {
		if n.Path == "/dev/nvidiactl" || n.Path == "/dev/nvidia-uvm" {
			all = append(all, n)
		}
	}
	return all
}

// kernelVersion is the version of the loaded kernel module, or "".
func kernelVersion(o Options) string {
	text, err := readText(o.Proc, "driver/nvidia/version")
	if err == nil {
		line, _, _ := strings.Cut(text, "\n")
		for word := range strings.FieldsSeq(line) {
			if isVersion(word) {
				return word
			}
		}
	}
	if text, err = readText(o.Sys, "module/nvidia/version"); err == nil && isVersion(strings.TrimSpace(text)) {
		return strings.TrimSpace(text)
	}
	return ""
}

// isVersion says whether s looks like "580.95" or "580.95.05".
func isVersion(s string) bool {
	parts := strings.Split(s, ".")
	return len(parts) >= 2 && len(parts) <= 3 && !slices.ContainsFunc(parts, func(p string) bool {
		_, err := strconv.ParseUint(p, 10, 16)
		return err != nil || len(p) > 4
	})
}

// readGPUs lists the GPUs that have a device node, by PCI address.
func readGPUs(o Options) []GPU {
	var all []GPU
	for _, bus := range dirNames(o.Proc, "driver/nvidia/gpus") {
		text, err := readText(o.Proc, "driver/nvidia/gpus", bus, "information")
		if err != nil {
			continue
		}
		info := fields(text)
		minor, err := strconv.Atoi(info["Device Minor"])
		if err != nil || info["GPU Excluded"] == "Yes" {
			continue
		}
		g := GPU{UUID: info["GPU UUID"], Model: info["Model"], Bus: bus, Minor: minor, NUMA: -1}
		if strings.Contains(g.UUID, "?") { // not initialised yet: GPU-????????-...
			g.UUID = ""
		}
		if node, ok := newNode(o, "nvidia"+strconv.Itoa(minor), 0); ok && len(all) < maxGPUs {
			g.Node = node
			g.readPCI(o)
			g.readMIG(o)
			all = append(all, g)
		}
	}
	if len(all) == 0 { // no /proc/driver/nvidia, as under gVisor
		for _, name := range dirNames(o.Dev) {
			minor, err := strconv.Atoi(strings.TrimPrefix(name, "nvidia"))
			if node, ok := newNode(o, name, 0); err == nil && strings.HasPrefix(name, "nvidia") && ok && len(all) < maxGPUs {
				all = append(all, GPU{Minor: minor, NUMA: -1, Node: node})
			}
		}
		slices.SortFunc(all, func(a, b GPU) int { return a.Minor - b.Minor })
	}
	for i := range all {
		all[i].Index = i
	}
	return all
}

// readPCI reads what sysfs knows of the GPU.
func (g *GPU) readPCI(o Options) {
	at := filepath.Join(o.Sys, "bus/pci/devices", g.Bus)
	if text, err := readText(at, "numa_node"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
			g.NUMA = n
		}
	}
	if text, err := readText(at, "local_cpulist"); err == nil {
		g.Cores = strings.TrimSpace(text)
	}
	for _, name := range dirNames(at, "drm") {
		if node, ok := newNode(o, "dri/"+name, Graphics); ok {
			g.Graphics = append(g.Graphics, node)
		}
	}
}

// instances lists the numbers N of the directories of dir called giN or ciN.
func instances(kind, dir string) []int {
	var all []int
	for _, name := range dirNames(dir) {
		number, ok := strings.CutPrefix(name, kind)
		if n, err := strconv.ParseUint(number, 10, 16); ok && err == nil && len(all) < maxGPUs {
			all = append(all, int(n))
		}
	}
	slices.Sort(all)
	return all
}

// readMIG reads the GPU's instances and the nodes by which the kernel lets a process
// use them: that of the GPU instance and that of the compute instance.
func (g *GPU) readMIG(o Options) {
	dir := filepath.Join(o.Proc, "driver/nvidia/capabilities", "gpu"+strconv.Itoa(g.Minor), "mig")
	for _, gi := range instances("gi", dir) {
		giDir := filepath.Join(dir, "gi"+strconv.Itoa(gi))
		giNode, ok := capability(o, giDir, "access")
		if !ok {
			continue
		}
		for _, ci := range instances("ci", giDir) {
			ciNode, ok := capability(o, giDir, "ci"+strconv.Itoa(ci), "access")
			if ok {
				g.MIGs = append(g.MIGs, Instance{GI: gi, CI: ci, Nodes: []Node{giNode, ciNode}})
			}
		}
	}
}

// capability returns the node that a file of /proc/driver/nvidia/capabilities names.
func capability(o Options, name ...string) (Node, bool) {
	text, err := readText(name...)
	if err != nil {
		return Node{}, false
	}
	minor, err := strconv.ParseUint(fields(text)["DeviceFileMinor"], 10, 20)
	if err != nil {
		return Node{}, false
	}
	return newNode(o, "nvidia-caps/nvidia-cap"+strconv.FormatUint(minor, 10), 0)
}

// nameInstances enters the names that NVML gave.
func (d *Driver) nameInstances(names []MIGName) {
	for i := range d.GPUs {
		g := &d.GPUs[i]
		for j := range g.MIGs {
			m := &g.MIGs[j]
			m.UUID = fmt.Sprintf("MIG-%s/%d/%d", g.UUID, m.GI, m.CI)
			for _, n := range names {
				if n.GPU == g.UUID && n.GI == m.GI && n.CI == m.CI {
					m.UUID = n.UUID
				}
			}
		}
	}
}

// readNodes lists the nodes that belong to no single GPU.
func (d *Driver) readNodes(o Options) {
	add := func(name string, use Capabilities) {
		if node, ok := newNode(o, name, use); ok {
			d.Nodes = append(d.Nodes, node)
		}
	}
	add("nvidiactl", All)
	add("nvidia-uvm", Compute|Video|Graphics)
	add("nvidia-uvm-tools", Compute)
	add("nvidia-modeset", Graphics)
	add("gdrdrv", Compute)
	for _, name := range dirNames(o.Dev) {
		if _, err := strconv.ParseUint(strings.TrimPrefix(name, "nvidia-fs"), 10, 16); err == nil {
			add(name, Compute)
		}
	}
	for _, name := range dirNames(o.Dev, imexDir) {
		if _, err := strconv.ParseUint(strings.TrimPrefix(name, "channel"), 10, 16); err == nil {
			add(imexDir+"/"+name, 0)
		}
	}
}

// readManagement lists the nodes for changing and watching the machine's MIG
// instances, which a run gets only by name.
func (d *Driver) readManagement(o Options) {
	for _, name := range []string{"config", "monitor"} {
		if node, ok := capability(o, o.Proc, "driver/nvidia/capabilities/mig", name); ok {
			d.Management = append(d.Management, Management{"mig-" + name, node})
		}
	}
}

// imexDir is where the nodes of IMEX channels are in /dev.
const imexDir = "nvidia-caps-imex-channels"

// newNode describes a device node of the host, if it is there. A name that is no
// character device is a node without numbers, which only tests have; a symbolic
// link or a directory is not taken.
func newNode(o Options, name string, use Capabilities) (Node, bool) {
	n := Node{Path: "/dev/" + name, Host: filepath.Join(o.Dev, name), Use: use}
	var st unix.Stat_t
	if err := unix.Lstat(n.Host, &st); err != nil {
		return n, false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR:
		n.Major, n.Minor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		return n, true
	case unix.S_IFREG:
		return n, o.Dev != "/dev"
	}
	return n, false
}

// fields reads lines of the form "Name: value".
func fields(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			all[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return all
}

// readText reads the beginning of a small file.
func readText(elem ...string) (string, error) {
	fd, err := unix.Open(filepath.Join(elem...), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	text := make([]byte, 0, 1024)
	for len(text) < maxText {
		text = slices.Grow(text, 1024)
		n, err := unix.Read(fd, text[len(text):cap(text)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return string(text), nil
}

// dirNames lists a directory by name; one that cannot be read is empty.
func dirNames(root string, elem ...string) []string {
	f, err := os.Open(filepath.Join(append([]string{root}, elem...)...))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	names, _ := f.Readdirnames(-1)
	slices.Sort(names)
	return names
}

func exists(elem ...string) bool {
	_, err := os.Lstat(filepath.Join(elem...))
	return err == nil
}

func (g *GPU) index() string { return strconv.Itoa(g.Index) }

// name is what CDI calls the GPU.
func (g *GPU) name() string {
	if g.UUID != "" {
		return g.UUID
	}
	return g.index()
}

// short is the name of an instance by numbers, "0:1:0".
func (m *Instance) short(g *GPU) string {
	return fmt.Sprintf("%d:%d:%d", g.Index, m.GI, m.CI)
}

// old is the name by which drivers before R470 and CUDA before 11.4 know it.
func (m *Instance) old(g *GPU) string {
	return fmt.Sprintf("MIG-%s/%d/%d", g.UUID, m.GI, m.CI)
}

// name is what CDI calls the instance; a slash is not allowed there.
func (m *Instance) name(g *GPU) string {
	if m.UUID != m.old(g) {
		return m.UUID
	}
	return m.short(g)
}
