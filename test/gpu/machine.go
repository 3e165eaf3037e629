package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// ordinary is the user whose containers they are where root runs the test.
const ordinary = 65534

// lacking lists what the machine must have, before anything is made.
func (t *test) lacking() []string {
	var lacks []string
	lack := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
	_, version := os.Stat("/proc/driver/nvidia/version")
	_, control := os.Stat("/dev/nvidiactl")
	if version != nil && control != nil {
		lack("NVIDIA's kernel module: there is neither /proc/driver/nvidia/version nor /dev/nvidiactl (modprobe nvidia)")
	}
	if nodes := gpuNodes(); len(nodes) == 0 {
		lack("a GPU: there is no device node /dev/nvidia0 or of another number")
	}
	if _, err := os.Stat("/dev/nvidia-uvm"); err != nil {
		lack("/dev/nvidia-uvm, without which CUDA does not start (nvidia-modprobe -u -c=0)")
	}
	if t.smi = t.findSMI(); t.smi == "" {
		lack("nvidia-smi, which comes with the driver: it is not on the PATH, in /usr/local/nvidia/bin or /run/nvidia/driver/usr/bin")
	}
	for _, name := range []string{"cc", "gcc"} {
		if path, err := exec.LookPath(name); err == nil && t.cc == "" {
			t.cc = path
		}
	}
	if t.cc == "" {
		lack("a C compiler, cc or gcc, for the program that adds vectors")
	}
	if _, err := exec.LookPath("ldd"); err != nil {
		lack("ldd, which comes with the C library")
	}
	if _, err := os.Stat(t.gangway); err != nil {
		lack("the program to test: %v (make build)", err)
	}
	return lacks
}

// findSMI looks where drivers have their programs.
func (t *test) findSMI() string {
	if path, err := exec.LookPath("nvidia-smi"); err == nil {
		return path
	}
	for _, dir := range []string{filepath.Join(t.nvidiaRoot, "bin"), filepath.Join(t.nvidiaRoot, "usr/bin"), "/usr/local/nvidia/bin", "/run/nvidia/driver/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, "nvidia-smi")); err == nil {
			return path
		}
	}
	return ""
}

// gpuNodes are the device nodes of GPUs.
func gpuNodes() []string {
	all, _ := filepath.Glob("/dev/nvidia[0-9]*")
	return all
}

// unfit lists what keeps a machine that has everything from being of use.
func (t *test) unfit() []string {
	list, err := t.outside(t.smi, "-L")
	if err != nil {
		return []string{"GPUs that work: nvidia-smi -L: " + err.Error()}
	}
	if strings.Contains(list, "MIG ") {
		return []string{"whole GPUs: they are split into MIG instances, and the test wants them whole"}
	}
	if t.gpus = uuids(list); len(t.gpus) == 0 {
		return []string{"GPUs that work: nvidia-smi -L lists none: " + strings.TrimSpace(list)}
	}
	for _, node := range append(gpuNodes(), "/dev/nvidiactl", "/dev/nvidia-uvm") {
		if st, err := os.Stat(node); err == nil && st.Mode()&0o006 != 0o006 && t.uid != os.Geteuid() {
			return []string{fmt.Sprintf("%s that ordinary users may open: its mode is %04o", node, st.Mode().Perm())}
		}
	}
	if _, err := t.vectors(t.outside, filepath.Join(t.dir, "vectoradd"), 1<<20, 10); err != nil {
		return []string{"CUDA that works outside of containers: " + err.Error()}
	}
	return t.canRun()
}

// canRun finds the user whom the machine lets have containers.
func (t *test) canRun() []string {
	_, err := t.run(nil, "/gputest", insideVerb, "true")
	if err == nil {
		fmt.Printf("test-gpu: %d GPUs; containers are those of user %d\n", len(t.gpus), t.uid)
		return nil
	}
	lack := "containers of an ordinary user (gangway doctor says what to do): " + err.Error()
	if os.Geteuid() != 0 || t.uid == 0 {
		return []string{lack}
	}
	t.uid = 0
	for _, name := range []string{"home", "run", "tmp"} {
		if err := errors.Join(os.RemoveAll(filepath.Join(t.dir, name)), os.Mkdir(filepath.Join(t.dir, name), 0o700)); err != nil {
			return []string{err.Error()}
		}
	}
	if _, err := t.run(nil, "/gputest", insideVerb, "true"); err != nil {
		return []string{lack, "containers of root: " + err.Error()}
	}
	fmt.Printf("test-gpu: %d GPUs; containers are root's, for this machine lacks %s\n", len(t.gpus), lack)
	return nil
}

var uuidPattern = regexp.MustCompile(`\(UUID: (GPU-[0-9a-f-]+)\)`)

// uuids are those that nvidia-smi -L lists.
func uuids(list string) []string {
	var all []string
	for _, m := range uuidPattern.FindAllStringSubmatch(list, -1) {
		all = append(all, m[1])
	}
	return all
}

// command is a program to be run by the user.
func (t *test) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.ctx, name, args...)
	cmd.Dir = "/"
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(t.dir, "home"), "TMPDIR=" + filepath.Join(t.dir, "tmp"),
		"GANGWAY_RUNTIME_DIR=" + filepath.Join(t.dir, "run"), "GANGWAY_STORE=" + filepath.Join(t.dir, "home", "store"),
	}
	if path := libraryPath(t.nvidiaRoot); path != "" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+path)
	}
	if t.uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(t.uid), Gid: uint32(t.uid), Groups: []uint32{}}}
	}
	return cmd
}

// libraryPath is where programs outside find the driver, if the loader's cache does not say.
func libraryPath(root string) string {
	if path := os.Getenv("LD_LIBRARY_PATH"); path != "" {
		return path
	}
	for _, dir := range []string{filepath.Join(root, "lib64"), "/usr/local/nvidia/lib64"} {
		if _, err := os.Stat(filepath.Join(dir, "libcuda.so.1")); err == nil {
			return dir
		}
	}
	return ""
}

// outside runs a program of the machine's.
func (t *test) outside(args ...string) (string, error) {
	return output(t.command(args[0], args[1:]...))
}

// runArgs are those of a run in a container.
func (t *test) runArgs(options []string, command ...string) []string {
	args := []string{"run", "-q", "--container-image=" + t.image}
	if t.nvidiaRoot != "" {
		args = append(args, "--nvidia-root="+t.nvidiaRoot)
	}
	return append(append(append(args, options...), "--"), command...)
}

// run runs a program in a container.
func (t *test) run(options []string, command ...string) (string, error) {
	return output(t.command(t.gangway, t.runArgs(options, command...)...))
}

// output is what a program prints; if it fails, its errors are in the error.
func output(cmd *exec.Cmd) (string, error) {
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), &runError{err, strings.TrimSpace(string(out) + errs.String()), cmd.ProcessState.ExitCode()}
	}
	return string(out), nil
}

// runError is a program that failed.
type runError struct {
	err  error
	text string
	code int
}

func (e *runError) Error() string { return e.err.Error() + ": " + e.text }

// addition is what the program that adds vectors says.
type addition struct {
	devices int
	uuid    string
	name    string
	micros  float64 // of an addition
}

// vectors adds vectors somewhere.
func (t *test) vectors(where func(...string) (string, error), program string, elements, times int) (addition, error) {
	text, err := where(program, strconv.Itoa(elements), strconv.Itoa(times))
	if err != nil {
		return addition{}, err
	}
	var a addition
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "devices":
			a.devices, err = strconv.Atoi(value)
		case "uuid":
			a.uuid = value
		case "name":
			a.name = value
		case "addition_us":
			a.micros, err = strconv.ParseFloat(value, 64)
		}
		if err != nil {
			return a, fmt.Errorf("read %q: %w", line, err)
		}
	}
	return a, nil
}
