package cgroup

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Kinds of access to a device, as the kernel counts them for programs.
const (
	accessMknod = 1 << iota
	accessRead
	accessWrite
	accessAll = accessMknod | accessRead | accessWrite
)

// Kinds of devices.
const (
	typeBlock = 1
	typeChar  = 2
	typeAny   = 0
)

// wildcard stands for all numbers.
const wildcard = -1

// rule is one rule about devices, understood.
type rule struct {
	allow        bool
	kind         int
	major, minor int64 // or wildcard
	access       uint32
}

// parseRules understands the rules of an OCI specification.
func parseRules(devices []specs.LinuxDeviceCgroup) ([]rule, error) {
	rules := make([]rule, 0, len(devices))
	for i, d := range devices {
		r := rule{allow: d.Allow, major: wildcard, minor: wildcard}
		switch d.Type {
		case "", "a":
		case "b":
			r.kind = typeBlock
		case "c", "u":
			r.kind = typeChar
		default:
			return nil, fmt.Errorf("read device rule %d: type %q is none of a, b, c", i, d.Type)
		}
		for _, n := range []struct {
			to   *int64
			from *int64
		}{{&r.major, d.Major}, {&r.minor, d.Minor}} {
			if n.from == nil || *n.from == wildcard {
				continue
			}
			if *n.to = *n.from; *n.from < 0 || *n.from > 1<<32-1 {
				return nil, fmt.Errorf("read device rule %d: number %d is out of range", i, *n.from)
			}
		}
		for _, a := range d.Access {
			switch a {
			case 'r':
				r.access |= accessRead
			case 'w':
				r.access |= accessWrite
			case 'm':
				r.access |= accessMknod
			default:
				return nil, fmt.Errorf("read device rule %d: access %q is not made of r, w and m", i, d.Access)
			}
		}
		if d.Access == "" {
			r.access = accessAll
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// matches says whether r is about that device.
func (r rule) matches(kind int, major, minor int64) bool {
	return (r.kind == typeAny || r.kind == kind) && (r.major == wildcard || r.major == major) && (r.minor == wildcard || r.minor == minor)
}

// Instructions of the kernel's machine, the few that a filter needs.
const (
	opLoad    = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
	opMov     = 0xb7         // 64 bits, a constant
	opMovReg  = 0xbf         // 64 bits
	opAnd     = 0x57         // 64 bits, a constant
	opRsh     = 0x77         // 64 bits, a constant
	opJump    = unix.BPF_JMP // always
	opNotSame = 0x55         // 64 bits: jump if register and constant differ
	opSame    = 0x15         // the same: jump if equal
	opNotSet  = 0x45         // jump if register & constant is not 0
	op32Diff  = 0x56         // 32 bits: jump if register and constant differ
	opExit    = unix.BPF_JMP | 0x90
)

// instruction is one of the kernel's: operation, registers, jump, constant.
type instruction struct {
	op       uint8
	dst, src uint8
	off      int16
	imm      int32
}

// Registers: the argument and result, and where the program keeps what it was asked.
const (
	regResult   = 0
	regContext  = 1
	regKind     = 2
	regWanted   = 3 // what is still to be allowed
	regMajor    = 4
	regMinor    = 5
	regTemp     = 6
	maxRules    = 4000 // under a million instructions, and jumps of 16 bits
	contextKind = 0    // in bpf_cgroup_dev_ctx: access << 16 | kind
)

// filter makes the program that decides by rules: for each kind of access that is wanted
// the last rule that applies counts, and denies where there is none. It goes through the
// rules from the last, crosses out what they allow, and ends at the first that denies
// something that is still wanted.
func filter(rules []rule) ([]instruction, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("filter devices: %d rules, more than %d", len(rules), maxRules)
	}
	program := []instruction{
		{op: opLoad, dst: regKind, src: regContext, off: contextKind},
		{op: opMovReg, dst: regWanted, src: regKind},
		{op: opAnd, dst: regKind, imm: 0xffff},
		{op: opRsh, dst: regWanted, imm: 16},
		{op: opAnd, dst: regWanted, imm: accessAll},
		{op: opLoad, dst: regMajor, src: regContext, off: 4},
		{op: opLoad, dst: regMinor, src: regContext, off: 8},
	}
	for i := len(rules) - 1; i >= 0; i-- {
		program = append(program, rules[i].instructions()...)
	}
	return append(program, verdict(0)...), nil
}

// verdict ends the program.
func verdict(allow int32) []instruction {
	return []instruction{{op: opMov, dst: regResult, imm: allow}, {op: opExit}}
}

// instructions is the part of a filter for r, which is jumped over if r does not apply.
func (r rule) instructions() []instruction {
	var act []instruction
	if r.allow {
		act = append(act, instruction{op: opAnd, dst: regWanted, imm: int32(accessAll &^ r.access)},
			instruction{op: opNotSame, dst: regWanted, off: 2})
		act = append(act, verdict(1)...)
	} else {
		act = append(act, instruction{op: opNotSet, dst: regWanted, off: 1, imm: int32(r.access)},
			instruction{op: opJump, off: 2})
		act = append(act, verdict(0)...)
	}
	var tests []instruction
	if r.kind != typeAny {
		tests = append(tests, instruction{op: opNotSame, dst: regKind, imm: int32(r.kind)})
	}
	if r.major != wildcard {
		tests = append(tests, instruction{op: op32Diff, dst: regMajor, imm: int32(uint32(r.major))})
	}
	if r.minor != wildcard {
		tests = append(tests, instruction{op: op32Diff, dst: regMinor, imm: int32(uint32(r.minor))})
	}
	for i := range tests {
		tests[i].off = int16(len(tests) - i - 1 + len(act))
	}
	return append(tests, act...)
}

// lines1 are what devices.deny and devices.allow of version 1 are told, in order. exact
// is false where version 1 cannot say it: its list is of what is allowed, or else of what is
// denied, and entries with other numbers do not change one another.
func lines1(rules []rule) (lines []string, exact bool) {
	lines, exact = []string{"deny a"}, true
	listed, allAllowed := []rule(nil), false
	for _, r := range byKind(rules) {
		if r.kind == typeAny {
			listed, allAllowed = nil, r.allow
			lines = []string{map[bool]string{true: "allow a", false: "deny a"}[r.allow]}
			continue
		}
		if r.allow == allAllowed { // takes entries away, which have to be the same ones
			for _, l := range listed {
				overlap := l.kind == r.kind && l.access&r.access != 0 &&
					(l.major == wildcard || r.major == wildcard || l.major == r.major) && (l.minor == wildcard || r.minor == wildcard || l.minor == r.minor)
				exact = exact && (!overlap || l.major == r.major && l.minor == r.minor)
			}
		} else {
			listed = append(listed, r)
		}
		lines = append(lines, map[bool]string{true: "allow ", false: "deny "}[r.allow]+r.line1())
	}
	return lines, exact
}

// byKind writes a rule about all kinds of devices as two, unless it is about everything.
func byKind(rules []rule) []rule {
	var all []rule
	for _, r := range rules {
		if r.kind != typeAny || r.major == wildcard && r.minor == wildcard && r.access == accessAll {
			all = append(all, r)
			continue
		}
		block, char := r, r
		block.kind, char.kind = typeBlock, typeChar
		all = append(all, block, char)
	}
	return all
}

// line1 is r as version 1 has it.
func (r rule) line1() string {
	number := func(n int64) string {
		if n == wildcard {
			return "*"
		}
		return fmt.Sprint(n)
	}
	var access strings.Builder
	for _, a := range []struct {
		bit  uint32
		name string
	}{{accessRead, "r"}, {accessWrite, "w"}, {accessMknod, "m"}} {
		if r.access&a.bit != 0 {
			access.WriteString(a.name)
		}
	}
	kinds := map[int]string{typeBlock: "b", typeChar: "c"}
	return strings.Join([]string{kinds[r.kind], number(r.major) + ":" + number(r.minor), access.String()}, " ")
}

// limitDevices lets the ranks use only what devices allow; the caller holds mu.
func (g *Group) limitDevices(devices []specs.LinuxDeviceCgroup) error {
	if len(devices) == 0 {
		return nil
	}
	rules, err := parseRules(devices)
	if err != nil {
		return err
	}
	const hint = "the container's /dev shows only what it was given"
	if t := g.tree("devices", 1); t != nil {
		return g.limitDevices1(t, rules)
	}
	if len(g.trees) == 0 || g.trees[0].version != 2 {
		g.miss("devices", "this kernel has no controller devices", hint)
		return nil
	}
	program, err := filter(rules)
	if err != nil {
		return err
	}
	attached, err := attach(g.trees[0].leaf(ranksLeaf), program, g.devices)
	if refused(err) {
		g.miss("devices", err.Error(), hint)
		return nil
	}
	if err != nil {
		return fmt.Errorf("limit devices: %w", err)
	}
	g.devices = attached
	return nil
}

func (g *Group) limitDevices1(t *tree, rules []rule) error {
	lines, exact := lines1(rules)
	if !exact {
		return errors.New("limit devices: cgroup version 1 cannot make an exception from a rule about many devices")
	}
	for _, line := range lines {
		verb, what, _ := strings.Cut(line, " ")
		err := write(t.leaf(ranksLeaf), "devices."+verb, what)
		if verb == "allow" && errors.Is(err, unix.EPERM) {
			continue // a group above denies it, which stays so
		}
		if refused(err) {
			g.miss("devices", err.Error(), "the container's /dev shows only what it was given")
			return nil
		}
		if err != nil {
			return fmt.Errorf("limit devices: %w", err)
		}
	}
	return nil
}
