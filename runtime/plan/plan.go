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
	Call        Kind = iota // the system call NR with Args
	Send                    // tells the supervisor Note, with the descriptor Args[0] if there is one
	Sync                    // as Send, and waits for its answer
	Remount                 // remounts the mount of descriptor Args[0], flags Args[1] added to those that are locked
	CloseOthers             // closes all descriptors but those that a container is given
	Signals                 // gives all signals their default action, but ignores those of Args[0], a bit each
	Bounding                // drops all capabilities from the bounding set
	Exec                    // executes the first of Args (names) that there is, with Argv and Env
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
	// operations are left out then. After is how many are left out when it works.
	May      []syscall.Errno
	SkipMay  int
	SkipDone int

	Argv, Env []string // of Exec
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
	Join    bool // Init goes into namespaces and leaves First there
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

// String prints the plan: a line an operation, who does it, its number, what it does.
func (p *Plan) String() string {
	var b strings.Builder
	n := 0
	list := func(who string, ops []Op) {
		for i := range ops {
			o := &ops[i]
			line := fmt.Sprintf("%-5s %3d  %-15s %s", who, n, o.Name, o.What)
			if o.SkipDone > 0 {
				line += fmt.Sprintf(" (else steps %d-%d)", n+1, n+o.SkipDone)
			}
			fmt.Fprintln(&b, strings.TrimRight(line, " "))
			n++
		}
	}
	list("init", p.Init)
	list("first", p.First)
	list("init", p.After)
	return b.String()
}
