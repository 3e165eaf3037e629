package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// readPCI fills in what the PCI device of a class's entry says. The kernel's link leads to
// it by all bridges above: one call instead of resolving each part.
func (h *Host) readPCI(a *HCA, entry, class string) {
	link, err := os.Readlink(entry)
	if err != nil {
		return
	}
	rel, ok := devicePath(link)
	if !ok {
		return
	}
	if rel, _, ok = strings.Cut(rel, class); !ok || !isPCI(filepath.Base(rel)) {
		return // rxe and siw have no device
	}
	dir := h.sys("devices", rel)
	a.Path, a.PCI, a.NUMA = rel, filepath.Base(rel), readNUMA(dir)
	if driver, err := os.Readlink(filepath.Join(dir, "driver")); err == nil {
		a.Driver = filepath.Base(driver)
	}
	if parent, err := os.Readlink(filepath.Join(dir, "physfn")); err == nil && isPCI(filepath.Base(parent)) {
		a.Parent = filepath.Base(parent)
	}
}

// devicePath takes "../../devices/" from the target of a link in sysfs.
func devicePath(link string) (string, bool) {
	for strings.HasPrefix(link, "../") {
		link = link[3:]
	}
	rel, ok := strings.CutPrefix(link, "devices/")
	return rel, ok && filepath.IsLocal(rel) && filepath.Clean(rel) == rel
}

// readNUMA returns the memory node of a device; -1: the firmware does not say.
func readNUMA(dir string) int {
	text, err := readLine(filepath.Join(dir, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(text)
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// gpuPath returns the path of a PCI device below SYS/devices, and its memory node.
func (h *Host) gpuPath(address string) (string, int, error) {
	address = Address(address)
	if !isPCI(address) {
		return "", -1, fmt.Errorf("look for GPU %q: this is no PCI address such as 0000:17:00.0", address)
	}
	link, err := os.Readlink(h.sys("bus", "pci", "devices", address))
	if err != nil {
		return "", -1, fmt.Errorf("look for GPU %s: %w", address, err)
	}
	rel, ok := devicePath(link)
	if !ok {
		return "", -1, fmt.Errorf("look for GPU %s: its link leads to %s", address, link)
	}
	return rel, readNUMA(h.sys("devices", rel)), nil
}

// Address gives a PCI address the form that sysfs has: lower case and a domain of four
// digits. NVML and /proc/driver/nvidia print domains of eight and of four, in capitals.
func Address(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	domain, rest, ok := strings.Cut(s, ":")
	if ok && strings.Count(rest, ":") == 1 && len(domain) > 4 {
		if trimmed := strings.TrimLeft(domain[:len(domain)-4], "0"); trimmed == "" {
			domain = domain[len(domain)-4:]
		}
		return domain + ":" + rest
	}
	if ok && !strings.Contains(rest, ":") { // without a domain
		return "0000:" + s
	}
	return s
}

// isPCI says whether s is domain:bus:device.function.
func isPCI(s string) bool {
	domain, rest, ok1 := strings.Cut(s, ":")
	bus, rest, ok2 := strings.Cut(rest, ":")
	device, function, ok3 := strings.Cut(rest, ".")
	return ok1 && ok2 && ok3 && isHex(domain, 4, 8) && isHex(bus, 2, 2) && isHex(device, 2, 2) && isHex(function, 1, 1)
}

func isHex(s string, least, most int) bool {
	return len(s) >= least && len(s) <= most && strings.Trim(s, "0123456789abcdef") == ""
}

// readPort reads PORTS/1.
func readPort(dir, name string) (Port, bool) {
	number, err := strconv.Atoi(name)
	if err != nil || number < 0 || number > 255 {
		return Port{}, false
	}
	p := Port{Number: number}
	p.State, _ = readLine(filepath.Join(dir, "state"))
	p.Link, _ = readLine(filepath.Join(dir, "link_layer"))
	p.Active = isActive(p.State)
	return p, true
}

// isActive reads "4: ACTIVE". ACTIVE_DEFER (5) carries traffic for the moment.
func isActive(state string) bool {
	number, _, _ := strings.Cut(state, ":")
	return number == "4" || number == "5"
}

// readNode reads the device numbers in dir.
func readNode(dir, name string) (Node, error) {
	text, err := readLine(filepath.Join(dir, "dev"))
	if err != nil {
		return Node{}, err
	}
	n := Node{Name: name}
	n.Major, n.Minor, err = parseDev(text)
	return n, err
}

// parseDev reads "231:192".
func parseDev(s string) (major, minor int64, err error) {
	a, b, ok := strings.Cut(s, ":")
	x, err1 := strconv.ParseUint(a, 10, 12)
	y, err2 := strconv.ParseUint(b, 10, 20)
	if !ok || err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("read device numbers: %q is not MAJOR:MINOR", s)
	}
	return int64(x), int64(y), nil
}

// checkNode compares the file in /dev with what the kernel says of the device.
func (h *Host) checkNode(n Node) error {
	name := filepath.Join(h.opts.Dev, n.Name)
	st, err := os.Lstat(name)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if st.Mode()&os.ModeCharDevice == 0 || !ok {
		return fmt.Errorf("%s is no character device", name)
	}
	if major, minor := unix.Major(uint64(sys.Rdev)), unix.Minor(uint64(sys.Rdev)); int64(major) != n.Major || int64(minor) != n.Minor {
		return fmt.Errorf("%s is device %d:%d, and the kernel's is %d:%d: it was left by an earlier boot or driver", name, major, minor, n.Major, n.Minor)
	}
	return nil
}

// maxFile is what sysfs gives at most: a page.
const maxFile = 1 << 12

// readFile reads a small file. There are ten for each adapter, at every start of a
// container, so it goes around os.File.
func readFile(name string) (string, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	b := make([]byte, maxFile)
	n := 0
	for n < len(b) {
		m, err := unix.Read(fd, b[n:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "read", Path: name, Err: err}
		}
		if m == 0 {
			break
		}
		n += m
	}
	return string(b[:n]), nil
}

// readLine returns the only line of a file.
func readLine(name string) (string, error) {
	s, err := readFile(name)
	return strings.TrimSpace(s), err
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// natural compares names so that mlx5_2 comes before mlx5_10.
func natural(a, b string) int {
	x, m := number(a)
	y, n := number(b)
	return cmp.Or(strings.Compare(x, y), cmp.Compare(m, n), strings.Compare(a, b))
}

// number splits a name before the number that it ends with; -1: none.
func number(s string) (string, int) {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	n, err := strconv.Atoi(s[i:])
	if err != nil {
		return s, -1
	}
	return s[:i], n
}
