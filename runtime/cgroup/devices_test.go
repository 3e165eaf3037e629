package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// execute runs a filter as the kernel would, but only the instructions that there are.
func execute(t interface{ Fatalf(string, ...any) }, program []instruction, kind, major, minor, access uint32) uint64 {
	var r [11]uint64
	context := map[int16]uint32{0: access<<16 | kind, 4: major, 8: minor}
	for pc, steps := 0, 0; pc < len(program); pc, steps = pc+1, steps+1 {
		i := program[pc]
		value := uint64(int64(i.imm))
		jump := false
		switch i.op {
		case opLoad:
			r[i.dst] = uint64(context[i.off])
		case 0x69: // 16 bits
			r[i.dst] = uint64(context[i.off] & 0xffff)
		case opMov:
			r[i.dst] = value
		case 0xb4: // 32 bits
			r[i.dst] = uint64(uint32(i.imm))
		case opMovReg:
			r[i.dst] = r[i.src]
		case 0xbc: // 32 bits
			r[i.dst] = uint64(uint32(r[i.src]))
		case opAnd:
			r[i.dst] &= value
		case 0x54: // 32 bits
			r[i.dst] = uint64(uint32(r[i.dst]) & uint32(i.imm))
		case opRsh:
			r[i.dst] >>= value
		case 0x74: // 32 bits
			r[i.dst] = uint64(uint32(r[i.dst]) >> value)
		case opJump:
			jump = true
		case opNotSame:
			jump = r[i.dst] != value
		case opSame:
			jump = r[i.dst] == value
		case 0x5d: // registers
			jump = r[i.dst] != r[i.src]
		case op32Diff:
			jump = uint32(r[i.dst]) != uint32(i.imm)
		case opNotSet:
			jump = r[i.dst]&value != 0
		case opExit:
			return r[0]
		default:
			t.Fatalf("instruction %d: unknown %#x", pc, i.op)
		}
		if jump {
			if i.off < 0 {
				t.Fatalf("instruction %d jumps back", pc)
			}
			pc += int(i.off)
		}
	}
	t.Fatalf("the program does not end")
	return 0
}

// allowed is what filter has to compute, in the plainest way: each kind of access by itself.
func allowed(rules []rule, kind int, major, minor int64, access uint32) bool {
	for bit := uint32(1); bit <= accessWrite; bit <<= 1 {
		if access&bit == 0 {
			continue
		}
		allow := false
		for _, r := range rules {
			if r.matches(kind, major, minor) && r.access&bit != 0 {
				allow = r.allow
			}
		}
		if !allow {
			return false
		}
	}
	return true
}

func drawRules(t *rapid.T) []specs.LinuxDeviceCgroup {
	number := rapid.SampledFrom([]*int64{nil, new(int64(-1)), new(int64(0)), new(int64(1)), new(int64(195)), new(int64(1<<31 + 5))})
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) specs.LinuxDeviceCgroup {
		return specs.LinuxDeviceCgroup{
			Allow: rapid.Bool().Draw(t, "allow"), Type: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "type"),
			Major: number.Draw(t, "major"), Minor: number.Draw(t, "minor"),
			Access: rapid.SampledFrom([]string{"r", "w", "m", "rw", "rwm"}).Draw(t, "access"),
		}
	}), 0, 6).Draw(t, "rules")
}

// TestFilter: the program decides as the rules say.
//
//go:fix inline
func TestFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, err := parseRules(drawRules(t))
		if err != nil {
			t.Fatal(err)
		}
		program, err := filter(rules)
		if err != nil {
			t.Fatal(err)
		}
		number := rapid.SampledFrom([]int64{0, 1, 2, 195, 1<<31 + 5, 1<<32 - 1})
		for range 20 {
			kind := rapid.SampledFrom([]int{typeBlock, typeChar}).Draw(t, "kind")
			major, minor := number.Draw(t, "of"), number.Draw(t, "at")
			access := uint32(rapid.IntRange(1, 7).Draw(t, "wanted"))
			got := execute(t, program, uint32(kind), uint32(major), uint32(minor), access)
			if want := allowed(rules, kind, major, minor, access); (got == 1) != want || got > 1 {
				t.Fatalf("device %d %d:%d access %d: %d, want %v", kind, major, minor, access, got, want)
			}
		}
	})
}

// TestFilterAsContainerd: for lists of what is allowed, containerd's filter decides the same,
// as long as one kind of access is wanted at a time.
func TestFilterAsContainerd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		devices := append([]specs.LinuxDeviceCgroup{{Allow: false, Type: "a", Major: new(int64(wildcard)), Minor: new(int64(wildcard)), Access: "rwm"}}, drawRules(t)...)
		for i := range devices[1:] { // it takes no type of all with numbers
			d := &devices[i+1]
			if d.Type == "a" {
				d.Type = "c"
			}
			for _, n := range []**int64{&d.Major, &d.Minor} { // and crashes without numbers
				if *n == nil {
					*n = new(int64(wildcard))
				}
			}
		}
		theirs, _, err := cgroup2.DeviceFilter(devices)
		if err != nil {
			t.Skip(err)
		}
		var program []instruction
		labels := map[string]int{}
		for _, i := range theirs {
			if name := i.Symbol(); name != "" {
				labels[name] = len(program)
			}
			program = append(program, instruction{op: uint8(i.OpCode), dst: uint8(i.Dst), src: uint8(i.Src), off: i.Offset, imm: int32(i.Constant)})
		}
		for n, i := range theirs {
			if to := i.Reference(); to != "" {
				program[n].off = int16(labels[to] - n - 1)
			}
		}
		rules, err := parseRules(devices)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := filter(rules)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []uint32{typeBlock, typeChar} {
			for _, major := range []uint32{0, 1, 195, 7} {
				for _, minor := range []uint32{0, 1, 195, 7} {
					for _, access := range []uint32{accessMknod, accessRead, accessWrite} {
						if a, b := execute(t, ours, kind, major, minor, access), execute(t, program, kind, major, minor, access); a != b {
							t.Fatalf("device %d %d:%d access %d: %d, containerd %d", kind, major, minor, access, a, b)
						}
					}
				}
			}
		}
	})
}

// TestFilterAbove: a filter of a group above stays in force, also one that was attached so
// that it can be replaced.
func TestFilterAbove(t *testing.T) {
	found, err := hierarchies("/proc")
	if err != nil || len(found) == 0 || found[0].version != 2 || os.Getuid() != 0 {
		t.Skip("needs root and cgroup version 2: ", err)
	}
	program, err := filter([]rule{{allow: true, major: wildcard, minor: wildcard, access: accessAll}})
	if err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[uint32]error{unix.BPF_F_ALLOW_MULTI: nil, unix.BPF_F_ALLOW_OVERRIDE: os.ErrPermission, 0: os.ErrPermission} {
		above := filepath.Join(found[0].mount, "gangway-filter")
		below := filepath.Join(above, "below")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		dir, err := os.Open(above)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := load(bytesOf(program), len(program))
		if err != nil {
			t.Skip("needs a kernel with device filters: ", err)
		}
		attr := [4]uint32{uint32(dir.Fd()), uint32(loaded.Fd()), unix.BPF_CGROUP_DEVICE, flags}
		if _, err := bpf(unix.BPF_PROG_ATTACH, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			t.Fatal(err)
		}
		got, err := attach(below, program, nil)
		if !errors.Is(err, want) {
			t.Errorf("flags %d: %v, want %v", flags, err, want)
		}
		inner, err := os.Open(below)
		if err != nil {
			t.Fatal(err)
		}
		n, err := effective(inner)
		if wantN := map[bool]int{true: 2, false: 1}[want == nil]; n != wantN || err != nil {
			t.Errorf("flags %d: %d filters in force, want %d; %v", flags, n, wantN, err)
		}
		if got != nil { // another one in its place
			if got, err = attach(below, program, got); err != nil {
				t.Error(err)
			}
			if n, err := effective(inner); n != 2 || err != nil {
				t.Errorf("%d filters in force, %v", n, err)
			}
			_ = got.Close()
		}
		for _, f := range []*os.File{inner, dir, loaded} {
			_ = f.Close()
		}
		if err := errors.Join(os.Remove(below), os.Remove(above)); err != nil {
			t.Error(err)
		}
	}
}

// TestLines1: where lines1 says that version 1 can say it, doing what version 1 does with
// the lines allows the same.
func TestLines1(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules, err := parseRules(drawRules(t))
		if err != nil {
			t.Fatal(err)
		}
		lines, exact := lines1(rules)
		if !exact {
			t.Skip("not to be said")
		}
		var v1 kernel1
		for _, line := range lines {
			v1.write(t, line)
		}
		for _, kind := range []int{typeBlock, typeChar} {
			for _, major := range []int64{0, 1, 195, 7} {
				for _, minor := range []int64{0, 1, 195, 7} {
					for _, bit := range []uint32{accessMknod, accessRead, accessWrite} {
						if got, want := v1.allows(kind, major, minor, bit), allowed(rules, kind, major, minor, bit); got != want {
							t.Fatalf("device %d %d:%d access %d: %v, want %v by %q", kind, major, minor, bit, got, want, lines)
						}
					}
				}
			}
		}
	})
}

// kernel1 is the list of version 1, as security/device_cgroup.c keeps it.
type kernel1 struct {
	allowAll   bool
	exceptions []rule
}

func (k *kernel1) write(t interface{ Fatalf(string, ...any) }, line string) {
	verb, what, _ := strings.Cut(line, " ")
	if what == "a" {
		*k = kernel1{allowAll: verb == "allow"}
		return
	}
	f := strings.Fields(what)
	if len(f) != 3 {
		t.Fatalf("line %q", line)
	}
	major, minor, _ := strings.Cut(f[1], ":")
	number := func(s string) *int64 {
		if s == "*" {
			return nil
		}
		var n int64
		for _, c := range s {
			n = 10*n + int64(c-'0')
		}
		return &n
	}
	rules, err := parseRules([]specs.LinuxDeviceCgroup{{Type: f[0], Major: number(major), Minor: number(minor), Access: f[2]}})
	if err != nil {
		t.Fatalf("line %q: %v", line, err)
	}
	r := rules[0]
	same := func(e rule) bool { return e.kind == r.kind && e.major == r.major && e.minor == r.minor }
	if (verb == "allow") == k.allowAll { // takes exceptions away
		for i := range k.exceptions {
			if same(k.exceptions[i]) {
				k.exceptions[i].access &^= r.access
			}
		}
		return
	}
	if i := slices.IndexFunc(k.exceptions, same); i >= 0 {
		k.exceptions[i].access |= r.access
		return
	}
	k.exceptions = append(k.exceptions, r)
}

func (k *kernel1) allows(kind int, major, minor int64, bit uint32) bool {
	hit := slices.ContainsFunc(k.exceptions, func(e rule) bool { return e.matches(kind, major, minor) && e.access&bit != 0 })
	return hit != k.allowAll
}

func TestParseRules(t *testing.T) {
	for _, d := range []specs.LinuxDeviceCgroup{{Type: "x"}, {Type: "c", Access: "rx"}, {Type: "c", Major: new(int64(-2))}, {Type: "c", Minor: new(int64(1 << 32))}} {
		if _, err := parseRules([]specs.LinuxDeviceCgroup{d}); err == nil {
			t.Errorf("%+v is taken", d)
		}
	}
	if _, err := filter(make([]rule, maxRules+1)); err == nil {
		t.Error("any number of rules is taken")
	}
}
