package rank

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// CPU is a logical one of a node, and where it is.
type CPU struct {
	ID                   int
	Core, Socket, Domain int // numbers of the kernel's: of a core within its socket, of a NUMA domain
}

// BindRequest is how the tasks of a node are to be bound to its CPUs.
type BindRequest struct {
	Kind    string // as --cpu-bind has it; empty: nobody has asked
	Tasks   int
	PerTask int    // CPUs of a task that were asked for; 0: nothing was
	Sockets string // of a [Distribution]
	May     []CPU  // those that the node's processes may use, by number
	Own     []CPU  // those of them that are the job's; nil: not known
	// Near are the CPUs near the GPUs of each task, in the order of local numbers; none: not
	// known, or the task has no GPU.
	Near [][]int
}

// Binding is how the tasks of a node are bound to its CPUs.
type Binding struct {
	// CPUs are those of each task, in the order of their local numbers; nil: they are not
	// bound.
	CPUs [][]int
	// Note says why they are not, where that was asked for; empty: it was not.
	Note string
	// Verbose says that each task's binding is to be told.
	Verbose bool

	kind, list string // as SLURM_CPU_BIND_TYPE and _LIST have it, where that is not by masks
}

// Bind reads --cpu-bind. Which CPUs are meant by threads, cores, sockets and ldoms is known only
// where it is known which are the job's.
func Bind(r BindRequest) (Binding, error) {
	b := Binding{}
	kind := strings.ToLower(r.Kind)
	for {
		first, rest, more := strings.Cut(kind, ",")
		if !slices.Contains([]string{"quiet", "q", "verbose", "v"}, first) {
			break
		}
		b.Verbose = first[0] == 'v'
		if kind = rest; !more {
			break
		}
	}
	word, value, _ := strings.Cut(kind, ":")
	var err error
	switch word {
	case "", "none", "no", "n":
		return b, nil
	case "map_cpu", "mask_cpu":
		b.kind = word + ":"
		b.list = strings.ReplaceAll(value, "0x", "")
		b.CPUs, err = r.list(word == "mask_cpu", value, ids(r.May), func(n int) []int { return []int{n} })
	case "map_ldom", "mask_ldom":
		b.kind = word + ":"
		b.list = strings.ReplaceAll(value, "0x", "")
		b.CPUs, err = r.list(word == "mask_ldom", value, domains(r.May), r.domain)
	case "rank":
		b.kind = word
		b.CPUs = r.each(func(i int) []int { return []int{r.May[i%len(r.May)].ID} })
	case "rank_ldom":
		b.kind = word
		all := domains(r.May)
		b.CPUs = r.each(func(i int) []int { return r.domain(all[i%len(all)]) })
	case "threads", "thread", "cores", "core", "sockets", "socket", "ldoms", "ldom", "one_thread":
		if len(r.Own) == 0 {
			b.Note = fmt.Sprintf("--cpu-bind=%s: tasks are not bound: the job has part of the node, which has not as many CPUs as it says, or not as many that others have not bound their tasks to; map_cpu, mask_cpu and rank bind", kind)
			return b, nil
		}
		b.CPUs = r.parts(strings.TrimSuffix(word, "s"))
	case "closest":
		for i := range r.Tasks {
			if i >= len(r.Near) || len(intersect(r.Near[i], ids(r.May))) == 0 {
				b.Note = "--cpu-bind=closest: tasks are not bound: " + nearUnknown
				return b, nil
			}
		}
		b.CPUs = r.each(func(i int) []int { return intersect(r.Near[i], ids(r.May)) })
	default:
		err = fmt.Errorf("%s is not known", kind)
	}
	if err != nil {
		return Binding{}, fmt.Errorf("--cpu-bind=%s: %w", r.Kind, err)
	}
	return b, nil
}

// nearUnknown is why nothing can be near a task's GPUs.
const nearUnknown = "they have no GPUs, or which CPUs are near these the machine does not say"

// each makes the CPUs of every task.
func (r *BindRequest) each(of func(local int) []int) [][]int {
	all := make([][]int, r.Tasks)
	for i := range all {
		all[i] = of(i)
	}
	return all
}

// parts deals the job's CPUs to tasks, and widens what each has to whole cores and the like.
func (r *BindRequest) parts(kind string) [][]int {
	dealt := deal(r.Own, r.Tasks, r.PerTask, r.Sockets)
	return r.each(func(i int) []int {
		var mine []int
		for _, c := range r.Own {
			beside := func(d CPU) bool {
				switch kind {
				case "core":
					return c.Socket == d.Socket && c.Core == d.Core
				case "socket":
					return c.Socket == d.Socket
				case "ldom":
					return c.Domain == d.Domain
				}
				return c.ID == d.ID
			}
			if slices.ContainsFunc(dealt[i], beside) {
				mine = append(mine, c.ID)
			}
		}
		if kind == "one_thread" {
			mine = r.oneThread(mine)
		}
		slices.Sort(mine)
		return mine
	})
}

// oneThread leaves the first of each core.
func (r *BindRequest) oneThread(cpus []int) []int {
	seen := map[[2]int]bool{}
	var all []int
	for _, c := range r.Own {
		core := [2]int{c.Socket, c.Core}
		if slices.Contains(cpus, c.ID) && !seen[core] {
			seen[core] = true
			all = append(all, c.ID)
		}
	}
	return all
}

// deal gives each task so many CPUs; as many as there are for each where per is 0. Cyclic takes
// those of a task from one socket and those of the next from the next one, fcyclic each CPU of a
// task from another socket. Where there are too few, all tasks have all.
func deal(own []CPU, tasks, per int, sockets string) [][]CPU {
	if per == 0 {
		per = max(1, len(own)/max(1, tasks))
	}
	all := make([][]CPU, tasks)
	if tasks*per > len(own) {
		for i := range all {
			all[i] = own
		}
		return all
	}
	left := bySocket(own)
	next := func(from int) (CPU, int) {
		for k := range left {
			at := (from + k) % len(left)
			if len(left[at]) > 0 {
				c := left[at][0]
				left[at] = left[at][1:]
				return c, at
			}
		}
		return CPU{}, from // there are enough
	}
	turn := 0
	for i := range all {
		at := 0
		if sockets != "block" {
			at = i % len(left)
		}
		for range per {
			c := CPU{}
			if sockets == "fcyclic" {
				c, at = next(turn)
				turn = at + 1
			} else {
				c, at = next(at)
			}
			all[i] = append(all[i], c)
		}
	}
	return all
}

// Choose takes so many CPUs of those that are not taken, of the socket that has most of them left
// first, and whole cores first; nil: there are not as many.
func Choose(may []CPU, taken []int, want int) []int {
	busy := map[[2]int]bool{}
	var left []CPU
	for _, c := range may {
		if slices.Contains(taken, c.ID) {
			busy[[2]int{c.Socket, c.Core}] = true
		} else {
			left = append(left, c)
		}
	}
	if len(left) < want || want < 1 {
		return nil
	}
	sockets := bySocket(left)
	slices.SortStableFunc(sockets, func(a, b []CPU) int { return len(b) - len(a) })
	var order []int
	for _, whole := range []bool{true, false} {
		for _, socket := range sockets {
			for _, c := range socket {
				if busy[[2]int{c.Socket, c.Core}] != whole {
					order = append(order, c.ID)
				}
			}
		}
	}
	order = order[:want]
	slices.Sort(order)
	return order
}

// bySocket are CPUs of each socket, those of a core beside each other.
func bySocket(cpus []CPU) [][]CPU {
	sorted := slices.SortedFunc(slices.Values(cpus), func(a, b CPU) int {
		return cmp.Or(cmp.Compare(a.Socket, b.Socket), cmp.Compare(a.Core, b.Core), cmp.Compare(a.ID, b.ID))
	})
	var all [][]CPU
	for i, c := range sorted {
		if i == 0 || c.Socket != sorted[i-1].Socket {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], c)
	}
	return all
}

// ids are the numbers of CPUs.
func ids(cpus []CPU) []int {
	all := make([]int, len(cpus))
	for i, c := range cpus {
		all[i] = c.ID
	}
	return all
}

// domains are the NUMA domains of CPUs, ascending.
func domains(cpus []CPU) []int {
	var all []int
	for _, c := range cpus {
		all = append(all, c.Domain)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// domain are the CPUs of a NUMA domain that may be used.
func (r *BindRequest) domain(n int) []int {
	var all []int
	for _, c := range r.May {
		if c.Domain == n {
			all = append(all, c.ID)
		}
	}
	return all
}

func intersect(a, b []int) []int {
	return slices.DeleteFunc(slices.Clone(a), func(n int) bool { return !slices.Contains(b, n) })
}

// list binds each task to its entry of a list, which begins again at its end: numbers of what
// there is, each of which stands for CPUs.
func (r *BindRequest) list(masks bool, value string, there []int, cpus func(int) []int) ([][]int, error) {
	var list [][]int
	for part := range strings.SplitSeq(value, ",") {
		one, times, err := entry(part, masks)
		if err != nil {
			return nil, err
		}
		var usable []int
		for _, n := range intersect(one, there) {
			usable = append(usable, cpus(n)...)
		}
		if len(usable) == 0 {
			return nil, fmt.Errorf("%s: none of these may be used on the node", part)
		}
		slices.Sort(usable)
		for range times {
			list = append(list, usable)
		}
	}
	return r.each(func(i int) []int { return list[i%len(list)] }), nil
}

// mostCPU bounds the numbers of CPUs (CONFIG_NR_CPUS is at most 8192).
const mostCPU = 1 << 13

// entry is a number, or a mask in hexadecimal, that may be repeated as in 0x3*4.
func entry(text string, mask bool) (numbered []int, times int, err error) {
	value, repeat, repeated := strings.Cut(text, "*")
	times = 1
	if repeated {
		if _, err := fmt.Sscanf(repeat, "%d", &times); err != nil || times < 1 || times > mostCPU {
			return nil, 0, fmt.Errorf("%q is no entry", text)
		}
	}
	if !mask {
		list, err := numbers(value)
		if err != nil || len(list) != 1 || list[0] >= mostCPU {
			return nil, 0, fmt.Errorf("%q is no number", text)
		}
		return list, times, nil
	}
	bits, ok := new(big.Int).SetString(strings.TrimPrefix(strings.ToLower(value), "0x"), 16)
	if !ok || bits.Sign() <= 0 || bits.BitLen() > mostCPU {
		return nil, 0, fmt.Errorf("%q is no mask", text)
	}
	for i := range bits.BitLen() {
		if bits.Bit(i) == 1 {
			numbered = append(numbered, i)
		}
	}
	return numbered, times, nil
}

// maskOf is a mask in hexadecimal.
func maskOf(cpus []int) string {
	mask := new(big.Int)
	for _, cpu := range cpus {
		mask.SetBit(mask, cpu, 1)
	}
	return fmt.Sprintf("0x%X", mask)
}

// how is the binding as SLURM_CPU_BIND_TYPE and _LIST have it.
func (b *Binding) how() (kind, list string) {
	switch {
	case b.CPUs == nil:
		return "none", ""
	case b.kind != "":
		return b.kind, b.list
	}
	masks := make([]string, len(b.CPUs))
	for i, cpus := range b.CPUs {
		masks[i] = maskOf(cpus)
	}
	return "mask_cpu:", strings.Join(masks, ",")
}

// variables are those that say how tasks are bound, as Slurm has them.
func (b *Binding) variables(s *set) {
	kind, list := b.how()
	talk := "quiet"
	if b.Verbose {
		talk = "verbose"
	}
	s.add("SLURM_CPU_BIND", talk+","+kind+list)
	s.add("SLURM_CPU_BIND_VERBOSE", talk)
	s.add("SLURM_CPU_BIND_TYPE", kind)
	s.add("SLURM_CPU_BIND_LIST", list)
}

// Line is what is told of a task's binding, in Slurm's words; empty: nothing.
func (b *Binding) Line(node string, rank, local, pid int) string {
	if !b.Verbose {
		return ""
	}
	kind, _ := b.how()
	word := map[string]string{
		"none": "NONE", "rank": "RANK", "map_cpu:": "MAP ", "mask_cpu:": "MASK", "rank_ldom": "LDRANK", "map_ldom:": "LDMAP ", "mask_ldom:": "LDMASK",
	}[kind]
	mask := "0x0"
	if b.CPUs != nil {
		mask = maskOf(b.CPUs[local]) + " set"
	}
	return fmt.Sprintf("cpu-bind=%s - %s, task %2d %2d [%d]: mask %s\n", word, node, rank, local, pid, mask)
}
