package cgroup

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Set is a sorted list of numbers without repetition, of CPUs or of NUMA nodes.
type Set []int

// maxSet is more CPUs than any kernel is built for.
const maxSet = 1 << 16

// ParseSet reads the kernel's lists, such as "0-3,8". An empty text is the empty set.
func ParseSet(text string) (Set, error) {
	var s Set
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		if part = strings.TrimSpace(part); part == "" && strings.TrimSpace(text) == "" {
			return nil, nil
		}
		first, last, ranged := strings.Cut(part, "-")
		a, errA := strconv.ParseUint(first, 10, 16)
		b := a
		var errB error
		if ranged {
			b, errB = strconv.ParseUint(last, 10, 16)
		}
		if errA != nil || errB != nil || b < a {
			return nil, fault.Usage(fmt.Errorf("read %q as a set", text), "numbers and ranges: 0-3,8")
		}
		for n := a; n <= b; n++ {
			s = append(s, int(n))
		}
		if len(s) > maxSet {
			return nil, fault.Usage(fmt.Errorf("read a set of more than %d numbers", maxSet), "numbers and ranges: 0-3,8")
		}
	}
	slices.Sort(s)
	return slices.Compact(s), nil
}

// String is the kernel's way to write s.
func (s Set) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] == s[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(s[j]))
		}
		i = j + 1
	}
	return b.String()
}

// without lists what is in s and not in t.
func (s Set) without(t Set) Set {
	var rest Set
	for _, n := range s {
		if _, found := slices.BinarySearch(t, n); !found {
			rest = append(rest, n)
		}
	}
	return rest
}

const memoryHint = "a number of MiB, or with K, M, G or T (powers of 1024): --mem=16G"

// ParseMemory reads an amount of memory and returns bytes: "16G", "512MiB", "1.5g". As in
// Slurm a plain number is MiB. Less than 1 MiB, in which nothing runs, is refused.
func ParseMemory(text string) (int64, error) {
	digits := strings.TrimRight(strings.TrimSpace(text), "KMGTPEkmgtpeiBb")
	unit := strings.ToLower(strings.TrimSpace(text)[len(digits):])
	shift := 2
	if unit != "" {
		shift = strings.Index("bkmgtpe", unit[:1])
	}
	n, err := strconv.ParseFloat(digits, 64)
	valid := err == nil && n >= 0 && strings.Trim(digits, "0123456789.") == "" &&
		slices.Contains([]string{"", "b", "k", "m", "g", "t", "p", "e", "kb", "mb", "gb", "tb", "pb", "eb", "kib", "mib", "gib", "tib", "pib", "eib"}, unit)
	if !valid {
		return 0, fault.Usage(fmt.Errorf("read %q as an amount of memory", text), memoryHint)
	}
	if n *= math.Pow(1024, float64(shift)); n >= 1<<62 {
		return 0, fault.Usage(fmt.Errorf("limit memory to %s: no machine has that much", text), memoryHint)
	}
	if n < 1<<20 {
		return 0, fault.Usage(fmt.Errorf("limit memory to %q: no process can run in less than 1M", text), memoryHint)
	}
	return int64(n), nil
}

// ParseCPUs reads an amount of CPU time in CPUs, such as "2" or "0.5"; at least 0.01.
func ParseCPUs(text string) (float64, error) {
	const hint = "a number of CPUs: --cpus=4 or --cpus=0.5"
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(n) || strings.ContainsAny(text, "xXeEpP_nN") {
		return 0, fault.Usage(fmt.Errorf("read %q as a number of CPUs", text), hint)
	}
	if n < 0.01 || n > maxSet {
		return 0, fault.Usage(fmt.Errorf("limit CPU time to %s CPUs: it is between 0.01 and %d", text, maxSet), hint)
	}
	return n, nil
}

// ParsePids reads the most processes and threads that there may be, at least 1; "max" and
// "unlimited" are 0, no limit.
func ParsePids(text string) (int64, error) {
	const hint = "a number, or max: --pids-limit=4096"
	if t := strings.TrimSpace(text); t == "max" || t == "unlimited" {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
	if err != nil {
		return 0, fault.Usage(fmt.Errorf("read %q as a number of processes", text), hint)
	}
	if n == 0 || n > 1<<22 {
		return 0, fault.Usage(fmt.Errorf("limit processes to %d: it is between 1 and %d", n, 1<<22), hint)
	}
	return int64(n), nil
}

// Machine is what there is to be given.
type Machine struct {
	CPUs   Set   // the CPUs that the calling process may use
	Mems   Set   // the NUMA nodes
	Memory int64 // bytes
}

// Check refuses what m has not: CPUs and nodes that do not exist, more CPU time than CPUs,
// more memory than there is.
func (l *Limits) Check(m Machine) error {
	over := func(what error, cause, hint string) error {
		return &fault.Error{What: what, Cause: cause, Hint: hint, Code: 2}
	}
	if l.Swap != 0 && l.Memory == 0 {
		return errors.New("limit swap: memory has no limit")
	}
	if rest := l.CPUSet.without(m.CPUs); len(m.CPUs) > 0 && len(rest) > 0 {
		return over(fmt.Errorf("use CPUs %s: not to be had", rest), "the CPUs of this machine that this process may use are "+m.CPUs.String(), "--cpuset="+m.CPUs.String())
	}
	if rest := l.Mems.without(m.Mems); len(m.Mems) > 0 && len(rest) > 0 {
		return over(fmt.Errorf("use memory nodes %s: not to be had", rest), "this machine has the nodes "+m.Mems.String(), "")
	}
	if n := len(m.CPUs); n > 0 && l.CPUs > float64(n) {
		return over(fmt.Errorf("limit CPU time to %v CPUs: more than there are", l.CPUs), fmt.Sprintf("this process may use %d CPUs", n), fmt.Sprintf("--cpus=%d", n))
	}
	if n := len(l.CPUSet); n > 0 && l.CPUs > float64(n) {
		return over(fmt.Errorf("limit CPU time to %v CPUs: the CPU set %s has %d", l.CPUs, l.CPUSet, n), "", fmt.Sprintf("--cpus=%d", n))
	}
	if m.Memory > 0 && l.Memory > m.Memory {
		return over(fmt.Errorf("limit memory to %s: more than there is", Bytes(l.Memory)), "this machine has "+Bytes(m.Memory), "--mem="+strconv.FormatInt(m.Memory>>20, 10)+"M")
	}
	return nil
}

// Bytes writes n for people, in powers of 1024: "1.5 GiB".
func Bytes(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, unit := float64(n), 0
	for f >= 1024 && unit < 6 {
		f /= 1024
		unit++
	}
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") + " " + "KMGTPE"[unit-1:unit] + "iB"
}
