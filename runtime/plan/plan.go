// Package plan is a container as a list of operations: what it is made of between the
// fork and the execve, so that it can be printed before it is done, compared in tests,
// and named where it fails.
//
//	fmt.Print(p.String()) // gangway run --dry-run
//
// A Plan is data: package runtime writes it and package fork carries it out. Plans may be
// read by any number of goroutines. The package makes no system call.
package plan

import (
	"fmt"
	"strings"
	"syscall"
)

// Kind says what an operation does.
type Kind uint8

// Most operations are one system call; the others need more than a call's result.
const (
	Call         Kind = iota // the system call NR with Args
	Send                     // tells the supervisor Note, with the descriptor Args[0] if there is one
	Sync                     // as Send, and waits for its answer
	Remount                  // remounts the mount of descriptor Args[0], flags Args[1] added to those that are locked
	RemountBelow             // as Remount, and then all mounts below it, as far as a name leads to them
	CloseOthers              // closes all descriptors but those that a container is given
	CloseRest                // closes all descriptors but Begin and those below Args[0]
	Reachable                // fails where the working directory is not below the root
	Signals                  // gives all signals their default action, but ignores those of Args[0], a bit each
	Bounding                 // drops all capabilities from the bounding set
	Exec                     // executes the first of Args (names) that there is, with Argv and Env
)

// Note is what a Send or Sync tells.
type Note uint8

// The notes that a container sends to its supervisor.
const (
	NoteMaps     Note = iota + 1 // the user namespace has its maps
	NoteFUSE                     // the image is mounted, its device comes along
	NoteCgroup                   // the cgroup namespace is there
	NoteInner                    // the inner user and mount namespaces are there
	NoteTerminal                 // the terminal's master comes along
	NoteRoot                     // the root's layers are ready for a program
	NoteServed                   // it goes on when the image is served
	NoteReady                    // all but the execve is done
	NoteEnter                    // a process is about to join
)

// Reg is a register: a descriptor's number, known when the container is made.
type Reg int

// The registers that have their value from the beginning. The first process's extra
// descriptors follow.
const (
	None    Reg = iota // nowhere
	Control            // to the supervisor
	Begin              // START, and what went wrong after it
	Stdin              // the first process's
	Stdout
	Stderr
	Complain // the supervisor's stderr
	Device   // the number that /dev/fuse will have
	Given    // and on: namespaces to join, or descriptors of the first process
)

// ArgKind says how an argument becomes a number.
type ArgKind uint8

// The kinds of arguments.
const (
	Number ArgKind = iota
	Register
	Text
	Memory
	Filter
	Link // self/fd/N for a register
	Data // text that F makes for a register's number
)

// Arg is an argument of a system call.
type Arg struct {
	Kind ArgKind
	N    uintptr
	S    string
	B    []byte
	F    func(fd int) string
}

// Num is a number.
func Num(n int) Arg { return Arg{N: uintptr(n)} }

// Fd is what a register holds.
func Fd(r Reg) Arg { return Arg{Kind: Register, N: uintptr(r)} }

// Str is a text, ended by a zero byte.
func Str(s string) Arg { return Arg{Kind: Text, S: s} }

// Mem is the address of a copy of b.
func Mem(b []byte) Arg { return Arg{Kind: Memory, B: b} }

// BPF is the address of a struct sock_fprog for a seccomp filter.
func BPF(b []byte) Arg { return Arg{Kind: Filter, B: b} }

// FdLink is the name self/fd/N, to be looked up from a /proc.
func FdLink(r Reg) Arg { return Arg{Kind: Link, N: uintptr(r)} }

// FdData is what f says of a register that has its value from the beginning.
func FdData(r Reg, f func(fd int) string) Arg { return Arg{Kind: Data, N: uintptr(r), F: f} }

// Op is one operation.
type Op struct {
	Kind Kind
	Name string // the call, as people know it
	What string // what it does here
	NR   uintptr
	Args []Arg
	Out  Reg  // where the result goes
	Note Note // of Send and Sync

	// Where a call may fail, the errors that it may fail with, and how many
	// operations are left out then. SkipDone is how many are left out when it works.
	May      []syscall.Errno
	SkipMay  int
	SkipDone int

	Argv, Env []string // of Exec
	// PID names a variable of Exec, of at most 20 bytes, that has the number in the register
	// PIDFrom; empty: there is none.
	PID     string
	PIDFrom Reg
}

// String says what o does.
func (o *Op) String() string {
	if o.What == "" {
		return o.Name
	}
	return o.Name + " " + o.What
}

// Remove is a name that is removed when the supervisor is gone.
type Remove struct {
	Dir  Reg // the directory, opened before the root changed
	Name string
}

// Plan is a container.
type Plan struct {
	Flags uintptr // of clone(2)
	Init  []Op    // PID 1, up to its loop
	First []Op    // the first process, forked by PID 1
	After []Op    // PID 1, when it has forked

	Regs    int // how many registers there are
	Orphan  []Remove
	Message string // what PID 1 says when the supervisor is gone
	PidNS   bool
	Signals Reg  // where PID 1 reads its signals
	Proc    Reg  // the host's /proc, in which PID 1 finds the processes that are left; None with a pid namespace
	Join    bool // Init goes into namespaces and leaves First there
}

// spaces names the namespaces that are made for PID 1.
func (p *Plan) spaces() string {
	var names []string
	for _, ns := range []struct {
		flag uintptr
		name string
	}{
		{syscall.CLONE_NEWUSER, "user"},
		{syscall.CLONE_NEWNS, "mount"},
		{syscall.CLONE_NEWPID, "pid"},
		{syscall.CLONE_NEWIPC, "ipc"},
		{syscall.CLONE_NEWUTS, "uts"},
		{syscall.CLONE_NEWNET, "network"},
	} {
		if p.Flags&ns.flag != 0 {
			names = append(names, ns.name)
		}
	}
	return ", in new namespaces: " + strings.Join(names, ", ")
}

// unless says, for the step n, what o waits for, and what is left out when it fails or works.
func (o *Op) unless(n int) string {
	var s string
	if o.Kind == Sync {
		s = ", and read the answer"
	}
	switch {
	case o.SkipDone > 0:
		s += " (else " + steps(n, o.SkipDone) + ")"
	case o.SkipMay > 0 && len(o.May) > 0:
		s += " (if it fails, not " + steps(n, o.SkipMay) + ")"
	case len(o.May) > 0:
		s += " (may fail)"
	}
	return s
}

// steps are the next k after n.
func steps(n, k int) string {
	if k == 1 {
		return fmt.Sprint("step ", n+1)
	}
	return fmt.Sprintf("steps %d-%d", n+1, n+k)
}

// Step is the operation that a step's number means, nil if there is none.
func (p *Plan) Step(i int) *Op {
	if i < 0 {
		return nil
	}
	for _, list := range [][]Op{p.Init, p.First, p.After} {
		if i < len(list) {
			return &list[i]
		}
		i -= len(list)
	}
	return nil
}

// String prints the plan: a line an operation, who does it, its number, the system call, and
// what it does. Those that may be left out have a question mark.
func (p *Plan) String() string {
	var b strings.Builder
	n := 0
	line := func(who, number, name, what string) {
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("%-5s %4s %-15s %s", who, number, name, what), " "))
	}
	list := func(who string, ops []Op) {
		surely := 0 // from here on none is left out that was named so far
		for i := range ops {
			o := &ops[i]
			mark := " "
			if i < surely {
				mark = "?"
			}
			line(who, fmt.Sprintf("%3d%s", n, mark), o.Name, o.What+o.unless(n))
			surely = max(surely, i+1+o.SkipDone)
			if len(o.May) > 0 {
				surely = max(surely, i+1+o.SkipMay)
			}
			n++
		}
	}
	if !p.Join {
		line("", "", "clone", "init"+p.spaces())
	}
	list("init", p.Init)
	if !p.Join {
		line("init", "", "clone", "first")
	}
	list("first", p.First)
	list("init", p.After)
	return b.String()
}
