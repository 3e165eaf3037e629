package fork

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/runtime/plan"
)

// Kinds of code that no plan has.
const kindFormat = 100

// sigIgn is SIG_IGN.
const sigIgn = 1

// linkName is how the name of a descriptor begins, seen from a /proc.
const linkName = "self/fd/"

// code is an operation as the new process sees it: numbers only.
type code struct {
	kind     uint8
	nargs    uint8
	regs     uint8  // which arguments are registers
	index    uint32 // of the operation in its plan
	out      int32  // register for the result; 0 is none
	nr       uintptr
	arg      [6]uintptr
	may      [4]uintptr
	skipMay  int32
	skipDone int32
}

// removal is a name to remove when the supervisor is gone.
type removal struct {
	dir  int32 // register
	name uintptr
}

// Machine is a plan made ready for the new process. All addresses in it are of objects
// that keep holds; the new process has copies of them at the same addresses.
type Machine struct {
	keep  []any
	flags uintptr
	join  bool
	pidns bool
	loop  bool // CloseRange is not to be had
	quiet bool // not PID 1: it says nothing when it is abandoned
	apart bool // the first process has a session of its own

	init, first, after []code

	regs      []uintptr
	gaps      [][2]uintptr // descriptors to close
	orphan    []removal
	message   uintptr
	messageN  uintptr
	argv, env uintptr
	proc      uintptr   // register of the host's /proc
	children  uintptr   // name of a list, from there
	self      uintptr   // name of a link, from there
	names     []uintptr // of the program
	links     []*[32]byte
	mounts    *mountList // where there is a RemountBelow
	last      uintptr    // highest descriptor there may be

	pidfd     int32
	pidfdAddr uintptr
	args      cloneArgs
	argsAddr  uintptr

	rec     [2]uint32
	recAddr uintptr
	msg     syscall.Msghdr
	msgAddr uintptr
	iov     syscall.Iovec
	cmsg    struct {
		n     uint64
		level int32
		kind  int32
		fd    int32
		_     int32
	}
	word     [2]uint32 // what the supervisor says
	wordAddr uintptr
	info     [32]uint32 // struct signalfd_siginfo
	infoAddr uintptr
	entry    [32]byte // name of a process's mount namespace, from a /proc
	entAddr  uintptr
	poll     [2]pollfd
	pollAddr uintptr
	none     [8]uint64 // no signals; a struct sigaction of the default
	noneAddr uintptr
	ignore   [8]uint64 // a struct sigaction of SIG_IGN
	ignAddr  uintptr
	timeout  [2]uint64 // struct timespec
	timeAddr uintptr
	status   uint32
	statAddr uintptr
	statfs   [32]uint64
	fsAddr   uintptr
	page     [4096]byte // what a call fills: a list, or a path
	pageAddr uintptr

	signals uintptr // register
	child   uintptr // first process
	swallow uint64  // signals of the terminal that the supervisor will send, too
}

// cloneArgs is struct clone_args (linux/sched.h) of Linux 5.7.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

type pollfd struct {
	fd      int32
	events  int16
	revents int16
}

// Options are what a Machine has besides a plan.
type Options struct {
	CloseRange bool // close_range(2) may be used
	Cgroup     int  // directory of version 2 that the process is made in, if the kernel lets it; 0: none
	Apart      bool // the first process has a session of its own
}

// Load makes p ready. fds are the values of the registers from plan.Control on; those
// that are -1 are not used.
func Load(p *plan.Plan, fds []int, o Options) (*Machine, error) {
	m := &Machine{
		flags: p.Flags, join: p.Join, pidns: p.PidNS, loop: !o.CloseRange, apart: o.Apart,
		regs: make([]uintptr, max(p.Regs, len(fds)+1)), signals: uintptr(p.Signals), proc: uintptr(p.Proc),
	}
	for i := range m.regs {
		m.regs[i] = math.MaxUint64
	}
	for i, fd := range fds {
		m.regs[i+1] = uintptr(fd)
	}
	m.addresses()
	m.args = cloneArgs{
		flags: uint64(m.flags | unix.CLONE_PIDFD | unix.CLONE_INTO_CGROUP), pidfd: uint64(m.pidfdAddr),
		exitSignal: uint64(syscall.SIGCHLD), cgroup: uint64(o.Cgroup),
	}
	m.findGaps(fds)
	index := 0
	for _, part := range []struct {
		ops []plan.Op
		to  *[]code
	}{{p.Init, &m.init}, {p.First, &m.first}, {p.After, &m.after}} {
		if err := m.load(part.ops, part.to, index); err != nil {
			return nil, err
		}
		index += len(part.ops)
	}
	for _, r := range p.Orphan {
		name, err := m.text(r.Name)
		if err != nil {
			return nil, err
		}
		m.orphan = append(m.orphan, removal{int32(r.Dir), name})
	}
	m.children, m.self = m.bytes([]byte("thread-self/children\x00")), m.bytes([]byte("self\x00"))
	m.message, m.messageN = m.bytes([]byte(p.Message)), uintptr(len(p.Message))
	return m, nil
}

// addresses notes where the parts of m are. m is on the heap, whose objects stay where
// they are.
func (m *Machine) addresses() {
	m.iov.Base = (*byte)(unsafe.Pointer(&m.rec))
	m.iov.Len = uint64(unsafe.Sizeof(m.rec))
	m.msg.Iov, m.msg.Iovlen = &m.iov, 1
	m.msg.Control, m.msg.Controllen = (*byte)(unsafe.Pointer(&m.cmsg)), uint64(unsafe.Sizeof(m.cmsg))
	m.cmsg.n, m.cmsg.level, m.cmsg.kind = 20, syscall.SOL_SOCKET, syscall.SCM_RIGHTS
	m.pidfdAddr = uintptr(unsafe.Pointer(&m.pidfd))
	m.argsAddr = uintptr(unsafe.Pointer(&m.args))
	m.recAddr = uintptr(unsafe.Pointer(&m.rec))
	m.msgAddr = uintptr(unsafe.Pointer(&m.msg))
	m.wordAddr = uintptr(unsafe.Pointer(&m.word))
	m.infoAddr = uintptr(unsafe.Pointer(&m.info))
	m.pollAddr = uintptr(unsafe.Pointer(&m.poll))
	m.entAddr = uintptr(unsafe.Pointer(&m.entry))
	m.noneAddr = uintptr(unsafe.Pointer(&m.none))
	m.ignore[0], m.ignAddr = sigIgn, uintptr(unsafe.Pointer(&m.ignore))
	m.timeAddr = uintptr(unsafe.Pointer(&m.timeout))
	m.statAddr = uintptr(unsafe.Pointer(&m.status))
	m.fsAddr = uintptr(unsafe.Pointer(&m.statfs))
	m.pageAddr = uintptr(unsafe.Pointer(&m.page))
}

// findGaps lists the ranges of descriptors between those that are kept.
func (m *Machine) findGaps(fds []int) {
	kept := slices.DeleteFunc(slices.Clone(fds), func(fd int) bool { return fd < 0 })
	slices.Sort(kept)
	from := 0
	for _, fd := range kept {
		if fd > from {
			m.gaps = append(m.gaps, [2]uintptr{uintptr(from), uintptr(fd - 1)})
		}
		from = max(from, fd+1)
	}
	m.last = math.MaxUint32
	if m.loop {
		m.last = uintptr(highest(from) + len(m.regs))
	}
	m.gaps = append(m.gaps, [2]uintptr{uintptr(from), m.last})
}

// load translates operations.
func (m *Machine) load(ops []plan.Op, to *[]code, first int) error {
	var codes []code
	start := make([]int, len(ops)+1)
	for i := range ops {
		o := &ops[i]
		start[i] = len(codes)
		c := code{kind: uint8(o.Kind), nr: o.NR, out: int32(o.Out), index: uint32(first + i)}
		if o.Kind == plan.Send || o.Kind == plan.Sync {
			c.nr = uintptr(o.Note)
		}
		for k, e := range o.May {
			c.may[k] = uintptr(e)
		}
		if o.Kind == plan.RemountBelow && m.mounts == nil {
			m.listMounts()
		}
		if o.Kind == plan.Exec {
			if err := m.exec(o); err != nil {
				return err
			}
			if o.PID != "" {
				codes = append(codes, code{kind: kindFormat, index: c.index, arg: [6]uintptr{uintptr(len(m.links) - 1), uintptr(o.PIDFrom), uintptr(len(o.PID) + 1)}})
			}
			codes = append(codes, c)
			continue
		}
		c.nargs = uint8(len(o.Args))
		for k, a := range o.Args {
			v, err := m.argument(a)
			if err != nil {
				return fmt.Errorf("%s: %w", o, err)
			}
			if a.Kind == plan.Register {
				c.regs |= 1 << k
			}
			if a.Kind == plan.Link {
				codes = append(codes, code{kind: kindFormat, index: c.index, arg: [6]uintptr{uintptr(len(m.links) - 1), a.N, uintptr(len(linkName))}})
			}
			c.arg[k] = v
		}
		codes = append(codes, c)
	}
	start[len(ops)] = len(codes)
	for i := range ops {
		c := &codes[start[i+1]-1]
		for _, skip := range []struct {
			n  int
			to *int32
		}{{ops[i].SkipMay, &c.skipMay}, {ops[i].SkipDone, &c.skipDone}} {
			if i+1+skip.n > len(ops) {
				return fmt.Errorf("%s: leaves out more than there is", &ops[i])
			}
			*skip.to = int32(start[i+1+skip.n] - start[i+1])
		}
	}
	*to = codes
	m.keep = append(m.keep, codes)
	return nil
}

// argument is the number of a.
func (m *Machine) argument(a plan.Arg) (uintptr, error) {
	switch a.Kind {
	case plan.Text:
		return m.text(a.S)
	case plan.Memory:
		return m.bytes(a.B), nil
	case plan.Filter:
		filter := slices.Clone(a.B)
		prog := &struct {
			n    uint16
			addr *byte
		}{uint16(len(filter) / 8), unsafe.SliceData(filter)}
		m.keep = append(m.keep, prog)
		return uintptr(unsafe.Pointer(prog)), nil
	case plan.Link:
		return uintptr(unsafe.Pointer(m.link(linkName))), nil
	case plan.Data:
		return m.text(a.F(int(m.regs[a.N])))
	default:
		return a.N, nil
	}
}

// link is a text that ends with a number which is known later.
func (m *Machine) link(name string) *[32]byte {
	link := new([32]byte)
	copy(link[:], name)
	m.links = append(m.links, link)
	return link
}

func (m *Machine) bytes(b []byte) uintptr {
	b = append(make([]byte, 0, len(b)+1), b...) // never of no size
	m.keep = append(m.keep, b)
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

func (m *Machine) text(s string) (uintptr, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return 0, fmt.Errorf("%q has a zero byte: %w", s, syscall.EINVAL)
	}
	return m.bytes(append([]byte(s), 0)), nil
}

// list is the address of a list of texts, and more, that ends with 0.
func (m *Machine) list(texts []string, more ...*[32]byte) (uintptr, error) {
	list, err := syscall.SlicePtrFromStrings(texts)
	if err != nil {
		return 0, fmt.Errorf("a text with a zero byte: %w", err)
	}
	for _, one := range more {
		list = append(list[:len(list)-1], &one[0], nil)
	}
	m.keep = append(m.keep, list)
	return uintptr(unsafe.Pointer(unsafe.SliceData(list))), nil
}

// exec makes the lists of names, arguments and variables.
func (m *Machine) exec(o *plan.Op) (err error) {
	for _, a := range o.Args {
		name, err := m.text(a.S)
		if err != nil {
			return fmt.Errorf("name of a program: %w", err)
		}
		m.names = append(m.names, name)
	}
	if m.argv, err = m.list(o.Argv); err != nil {
		return fmt.Errorf("argument: %w", err)
	}
	var number []*[32]byte
	if o.PID != "" {
		if len(o.PID) > 20 {
			return fmt.Errorf("name of a variable, %s: %w", o.PID, syscall.ENAMETOOLONG)
		}
		number = append(number, m.link(o.PID+"="))
	}
	if m.env, err = m.list(o.Env, number...); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	return nil
}
