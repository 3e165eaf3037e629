package step

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// taskPID is the variable that has a rank's own number.
const taskPID = "SLURM_TASK_PID"

// rankOptions are what a process has from its start.
type rankOptions struct {
	limits map[string]uint64   // soft ones, by their names in package rank
	cpus   []int               // that it may run on; nil: all
	number bool                // its own is in its environment
	place  func(pid int) error // puts it where it is to be
}

// startRank starts a process with limits. The caller's thread is the only one that does so,
// and stays locked. With number the process finds its own in its environment, and its limits
// of memory are in force from the first instruction on: for that it is stopped there, as by
// a debugger. Where that is refused, or would cost a program its set-user-id, it does without
// the one, and has the others a moment later.
func startRank(path string, args []string, attr *os.ProcAttr, o rankOptions) (*os.Process, error) {
	defer setLimits(0, o.limits, wouldBeOurs)()
	unbind, err := setCPUs(o.cpus)
	if err != nil {
		return nil, err
	}
	defer unbind()
	if o.number && traceable(path) {
		if p, err := startStopped(path, args, *attr, o); err == nil {
			return p, nil
		}
	}
	p, err := os.StartProcess(path, args, attr)
	if err != nil {
		return nil, err
	}
	if err := o.settle(p.Pid); err != nil {
		return nil, discard(p, err)
	}
	return p, nil
}

// settle gives a process what only another one can, or should.
func (o *rankOptions) settle(pid int) error {
	setLimits(pid, o.limits, func(resource int) bool { return !wouldBeOurs(resource) })
	return o.place(pid)
}

// discard ends a process that is not to be, because of an error.
func discard(p *os.Process, err error) error {
	_ = p.Kill()
	_, werr := p.Wait()
	return errors.Join(err, werr)
}

// setCPUs lets this thread run on some CPUs only, and so what it starts, until unbind.
func setCPUs(cpus []int) (unbind func(), err error) {
	if len(cpus) == 0 {
		return func() {}, nil
	}
	var was, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return nil, fmt.Errorf("bind to CPUs %d: %w", cpus, err)
	}
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("bind to CPUs %d: %w", cpus, err)
	}
	return func() { _ = unix.SchedSetaffinity(0, &was) }, nil
}

// traceable says whether a program is the same one when it is traced: not one that gets
// rights from its file, and none that this process may not read.
func traceable(path string) bool {
	st, err := os.Stat(path)
	if err != nil || st.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 || unix.Access(path, unix.R_OK) != nil {
		return false
	}
	n, err := unix.Getxattr(path, "security.capability", nil)
	return n <= 0 || err != nil
}

// placeFor is the variable as it is given to the kernel: longer than any number.
const placeFor = taskPID + "=0000000000"

// startStopped starts a process, stops it before its first instruction, writes its number
// into its environment, and lets it go.
func startStopped(path string, args []string, attr os.ProcAttr, o rankOptions) (*os.Process, error) {
	sys := *attr.Sys
	sys.Ptrace = true
	attr.Sys = &sys
	attr.Env = append(withoutVariable(attr.Env, taskPID), placeFor) // the last: its place is known
	p, err := os.StartProcess(path, args, &attr)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		err = writeNumber(p.Pid)
	}
	if err == nil {
		err = o.settle(p.Pid)
	}
	if err == nil {
		err = syscall.PtraceDetach(p.Pid)
	}
	if err != nil { // it has done nothing yet
		return nil, discard(p, err)
	}
	return p, nil
}

func withoutVariable(environ []string, name string) []string {
	all := make([]string, 0, len(environ)+1)
	for _, v := range environ {
		if !strings.HasPrefix(v, name+"=") {
			all = append(all, v)
		}
	}
	return all
}

// writeNumber writes the number of a stopped process over its place in its environment.
func writeNumber(pid int) error {
	end, err := environEnd(pid)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/"+strconv.Itoa(pid)+"/mem", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("write number of process: %w", err)
	}
	defer memory.Close()
	place := append([]byte(placeFor), 0)
	at := end - int64(len(place))
	got := make([]byte, len(place))
	if _, err := memory.ReadAt(got, at); err != nil {
		return fmt.Errorf("write number of process: %w", err)
	}
	if !bytes.Equal(got, place) {
		return errors.New("write number of process: its environment is elsewhere")
	}
	clear(place[copy(place, taskPID+"="+strconv.Itoa(pid)):])
	if _, err := memory.WriteAt(place, at); err != nil {
		return fmt.Errorf("write number of process: %w", err)
	}
	return nil
}

// environEnd is the end of a process's environment: field 51 of /proc/PID/stat.
func environEnd(pid int) (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("find environment of process: %w", err)
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 49 {
		return 0, fmt.Errorf("find environment of process: /proc/%d/stat is too short", pid)
	}
	end, err := strconv.ParseInt(fields[48], 10, 64)
	if err != nil || end == 0 {
		return 0, fmt.Errorf("find environment of process: it ends at %q", fields[48])
	}
	return end, nil
}
