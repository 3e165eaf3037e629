package test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary one more program: one that harms its surroundings and
// then becomes another program, in them.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(surroundingsVariable)
	if !ok {
		os.Exit(m.Run())
	}
	code, err := inSurroundings(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, "surroundings:", err)
	}
	os.Exit(code)
}

const surroundingsVariable = "GANGWAY_TEST_SURROUNDINGS"

// surroundings are what is unusual where a program runs.
type surroundings struct {
	Flags  uintptr // namespaces of its own, where the user is who he was
	Mounts []mounted
	Sysctl map[string]string
	Filter []rule
	Args   []string // the program
	Inside bool     // the namespaces are made
}

type mounted struct {
	Source, Target, Kind, Data string
	Flags                      uintptr
}

// rule makes a system call answer with an error.
type rule struct {
	Call  uintptr
	Errno syscall.Errno
	Arg   int    // of this argument
	Mask  uint32 // any of these bits is set; 0: always
}

// within makes a command run in surroundings.
func (s surroundings) within(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	s.Args = append([]string{cmd.Path}, cmd.Args[1:]...)
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	// "go test" puts the program where only its owner may look.
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = self.Close() })
	return &exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{"surroundings"}, Dir: cmd.Dir, Env: append(cmd.Env, surroundingsVariable+"="+string(text)),
		ExtraFiles: []*os.File{self}, SysProcAttr: cmd.SysProcAttr,
	}
}

func inSurroundings(text string) (int, error) {
	var s surroundings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return 1, err
	}
	runtime.LockOSThread()
	unix.CloseOnExec(3)
	if s.Flags != 0 && !s.Inside {
		return s.enter()
	}
	for _, m := range s.Mounts {
		if err := unix.Mount(m.Source, m.Target, m.Kind, m.Flags, m.Data); err != nil {
			return 1, fmt.Errorf("mount %s: %w", m.Target, err)
		}
	}
	for name, value := range s.Sysctl {
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(name, ".", "/"), []byte(value), 0); err != nil {
			return 1, err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return 1, err
	}
	if err := install(s.Filter); err != nil {
		return 1, err
	}
	if err := os.Unsetenv(surroundingsVariable); err != nil {
		return 1, err
	}
	return 1, unix.Exec(s.Args[0], s.Args, os.Environ())
}

// enter goes on in new namespaces.
func (s surroundings) enter() (int, error) {
	s.Inside = true
	text, err := json.Marshal(s)
	if err != nil {
		return 1, err
	}
	if err := os.Setenv(surroundingsVariable, string(text)); err != nil {
		return 1, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: s.Flags, Pdeathsig: syscall.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_RESOURCE, unix.CAP_DAC_OVERRIDE},
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// install answers system calls with errors, in this thread and all that comes of it.
func install(rules []rule) error {
	if len(rules) == 0 {
		return nil
	}
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret  = unix.BPF_RET | unix.BPF_K
	)
	var prog []unix.SockFilter
	for _, r := range rules {
		fail := unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(r.Errno)}
		prog = append(prog, unix.SockFilter{Code: load, K: 0})
		if r.Mask == 0 {
			prog = append(prog, unix.SockFilter{Code: jeq, K: uint32(r.Call), Jf: 1}, fail)
			continue
		}
		prog = append(prog, unix.SockFilter{Code: jeq, K: uint32(r.Call), Jf: 3},
			unix.SockFilter{Code: load, K: uint32(16 + 8*r.Arg)}, unix.SockFilter{Code: jset, K: r.Mask, Jf: 1}, fail)
	}
	prog = append(prog, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&fprog)), 0, 0)
}
