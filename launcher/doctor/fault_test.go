package doctor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/usertest"
	"github.com/gangway-hpc/gangway/launcher/doctor"
)

// TestMain makes the test binary three more programs: the one that doctor starts in
// namespaces, one that harms its own surroundings, and one that examines them.
func TestMain(m *testing.M) {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "doctor-probe":
		err = doctor.RunProbe(os.Args[2:], os.Stdin, os.Stdout)
	case os.Getenv("DOCTOR_TEST_FAULT") != "":
		err = harm()
	case os.Getenv("DOCTOR_TEST_EXAMINE") != "":
		err = examine()
	default:
		// With the race detector each of hundreds of processes would rest a second.
		if err = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err == nil {
			os.Exit(usertest.Main(m))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// injury is what is wrong in the surroundings of a process.
type injury struct {
	Sysctl map[string]string // written to /proc/sys
	Filter []rule
	Mounts []mount
	Chroot string
	Limits map[int]uint64
	Fill   string // a file that takes all the room

	Doctor options // of the examination
}

// options are those of doctor.Options that cross processes.
type options struct{ Store, RuntimeDir, Root string }

type mount struct {
	Source, Target, Kind, Data string
	Flags                      uintptr
}

// rule makes a system call answer with an error.
type rule struct {
	Call  uintptr
	Errno syscall.Errno
	Arg   int    // this argument
	Mask  uint32 // has any of these bits; 0 is without a condition
	Equal uint32 // or, where Mask is 0 and this is not, is this
	Zero  bool   // or is 0
}

// harm does to this process what the test asks, and becomes the examining one, without
// any rights.
func harm() error {
	var i injury
	if err := json.Unmarshal([]byte(os.Getenv("DOCTOR_TEST_FAULT")), &i); err != nil {
		return err
	}
	runtime.LockOSThread()
	for _, m := range i.Mounts {
		if err := unix.Mount(m.Source, m.Target, m.Kind, m.Flags, m.Data); err != nil {
			return fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	if i.Fill != "" {
		if err := os.WriteFile(i.Fill, make([]byte, 1<<22), 0o600); !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("fill %s: %w", i.Fill, err)
		}
	}
	if i.Chroot != "" {
		if err := errors.Join(unix.Chroot(i.Chroot), os.Chdir("/")); err != nil {
			return err
		}
	}
	for name, value := range i.Sysctl {
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0); err != nil {
			return err
		}
	}
	for limit, value := range i.Limits {
		if err := unix.Setrlimit(limit, &unix.Rlimit{Cur: value, Max: value}); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	if err := filter(i.Filter); err != nil {
		return err
	}
	o, err := json.Marshal(i.Doctor)
	if err != nil {
		return err
	}
	if err := os.Unsetenv("DOCTOR_TEST_FAULT"); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", []string{"doctor.test"}, append(os.Environ(), "DOCTOR_TEST_EXAMINE="+string(o)))
}

// filter answers system calls with errors, in this thread and all that comes of it.
func filter(rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	const load, jeq, jset, ret = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	var prog []unix.SockFilter
	for _, r := range rules {
		fail := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(r.Errno)}
		nr := unix.SockFilter{Code: load, K: 0}
		if r.Mask == 0 && r.Equal == 0 && !r.Zero {
			prog = append(prog, nr, unix.SockFilter{Code: jeq, K: uint32(r.Call), Jf: 1}, fail)
			continue
		}
		test := unix.SockFilter{Code: jset, K: r.Mask, Jf: 1}
		if r.Mask == 0 {
			test = unix.SockFilter{Code: jeq, K: r.Equal, Jf: 1}
		}
		prog = append(prog, nr, unix.SockFilter{Code: jeq, K: uint32(r.Call), Jf: 3},
			unix.SockFilter{Code: load, K: uint32(16 + 8*r.Arg)}, test, fail)
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
}

// examine prints the report of a process that was harmed.
func examine() error {
	var o options
	if err := json.Unmarshal([]byte(os.Getenv("DOCTOR_TEST_EXAMINE")), &o); err != nil {
		return err
	}
	ctx, cancel := testContext()
	defer cancel()
	return json.NewEncoder(os.Stdout).Encode(doctor.Examine(ctx, doctor.Options{Store: o.Store, RuntimeDir: o.RuntimeDir, Root: o.Root}))
}

// injured returns what doctor says to an ordinary user in harmed surroundings. flags are
// the namespaces made before, in which the harm is done.
func injured(t *testing.T, flags uintptr, i injury) doctor.Report {
	t.Helper()
	text, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := testContext()
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), "DOCTOR_TEST_FAULT="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if flags != 0 {
		cmd.SysProcAttr.Cloneflags = flags &^ unmapped
		if flags&unmapped == 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE}
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("examine: %v: %s", err, stderr.String())
	}
	var r doctor.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return r
}

const (
	user   = uintptr(syscall.CLONE_NEWUSER)
	mounts = user | syscall.CLONE_NEWNS
	// unmapped leaves the user without an id in the namespace; no flag of clone's.
	unmapped = uintptr(1) << 62
)

// want checks a finding: its result, and words in what is said.
func want(t *testing.T, r doctor.Report, name string, result doctor.Result, words ...string) {
	t.Helper()
	f, ok := r.Find(name)
	if !ok {
		t.Fatalf("no finding %s in %+v", name, r)
	}
	if f.Result != result {
		t.Errorf("%s is %s, want %s: %+v", name, f.Result, result, f)
	}
	text := f.Tried + "\n" + f.Got + "\n" + f.Cause + "\n" + f.Consequence + "\n" + f.Remedy
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s does not say %q: %+v", name, word, f)
		}
	}
	if f.Result != doctor.OK && f.Result != doctor.Unknown && (f.Consequence == "" || f.Remedy == "" || f.Tried == "" || f.Got == "") {
		t.Errorf("%s says too little: %+v", name, f)
	}
}

// tree makes files below a directory, which stands for the machine.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
