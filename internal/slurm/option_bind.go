package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// setDistribution reads how tasks are laid out over nodes, and behind colons over sockets
// and cores: {*|block|cyclic|plane=N|arbitrary}[:...[:...]][,NoPack|,Pack].
func setDistribution(o *Options, v value) error {
	text := strings.ToLower(v.text)
	list, pack, packed := strings.Cut(text, ",")
	if list == "pack" || list == "nopack" {
		list, pack, packed = "*", list, !packed
	}
	parts := strings.Split(list, ":")
	plane, size, sized := strings.Cut(parts[0], "=")
	switch {
	case packed && pack != "pack" && pack != "nopack", len(parts) > 3:
		return v.invalid()
	case plane == "plane":
		if !sized {
			size = o.getenv("SLURM_DIST_PLANESIZE")
		}
		if n, err := strconv.Atoi(size); err != nil || n < 1 || len(parts) > 1 || packed {
			return &Refusal{Code: badOption, Lines: []string{"error: Invalid plane size or size not specified", "error: Invalid --distribution specification"}}
		}
		parts[0] = "plane=" + size
	case !slices.Contains([]string{"*", "block", "cyclic", "arbitrary"}, parts[0]), parts[0] == "arbitrary" && len(parts) > 1:
		return v.invalid()
	}
	for _, part := range parts[1:] {
		if !slices.Contains([]string{"*", "block", "cyclic", "fcyclic"}, part) {
			return v.invalid()
		}
	}
	if o.Distribution = strings.Join(parts, ":"); pack == "pack" {
		o.Distribution += ",pack"
	}
	return nil
}

// arbitrary says whether tasks are laid out by a list of nodes, one for each: that is asked for, or
// SLURM_HOSTFILE gives a step such a list.
func (o *Options) arbitrary() bool {
	if o.Command == Srun && !o.Given("distribution") && o.given["nodefile"] == fromEnviron {
		o.Distribution = "arbitrary"
	}
	return o.Distribution == "arbitrary"
}

// checkArbitrary counts the tasks of a list of nodes. A job gets each node of it once, and its
// steps want the list anew.
func (o *Options) checkArbitrary() error {
	s := &o.Job
	n := len(s.NodeList)
	if s.Tasks > n && o.Given("ntasks") && (o.asked("ntasks") || n == 0) {
		return refuse(1, "You asked for %d tasks but hostlist specified %d nodes", s.Tasks, n)
	}
	if !o.asked("ntasks") || s.Tasks == 0 {
		s.Tasks = n
	}
	o.hosts = s.NodeList[:s.Tasks]
	s.NodeList, s.TasksPerNode = uniqueNames(o.hosts), 0
	s.MinNodes = len(s.NodeList)
	s.MaxNodes = s.MinNodes
	return nil
}

// Hosts are the nodes of a step's tasks, in order, where they are laid out by such a list; else
// those that it has to have.
func (o *Options) Hosts() []string {
	if o.hosts != nil {
		return o.hosts
	}
	return o.Job.NodeList
}

// uniqueNames leaves out what was there before.
func uniqueNames(names []string) []string {
	var all []string
	for _, name := range names {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// warn notes what a person should know of what was asked for, once.
func (o *Options) warn(format string, args ...any) {
	if text := "warning: " + fmt.Sprintf(format, args...); !slices.Contains(o.Warnings, text) {
		o.Warnings = append(o.Warnings, text)
	}
}

// setGPUBind reads which of a node's GPUs a task sees.
func setGPUBind(o *Options, v value) error {
	text := strings.TrimPrefix(v.text, "verbose,")
	text = strings.TrimPrefix(strings.TrimPrefix(text, "v,"), "gpu:")
	kind, rest, _ := strings.Cut(text, ":")
	ok := false
	switch kind {
	case "none", "closest":
		ok = rest == ""
	case "single", "per_task":
		n, err := strconv.Atoi(rest)
		ok = err == nil && n > 0
	case "map_gpu", "map":
		ok, text = listOf(rest, 10), "map_gpu:"+rest
	case "mask_gpu", "mask":
		ok, text = listOf(rest, 16), "mask_gpu:"+rest
	}
	if !ok {
		return refuse(badOption, "Invalid --gpu-bind argument: gpu:%s", v.text)
	}
	o.GPUBind = text
	return nil
}

// listOf says whether words are numbers with commas, each of which may begin with 0x, and be
// repeated as in 0*4.
func listOf(words string, base int) bool {
	for word := range strings.SplitSeq(words, ",") {
		word, times, repeated := strings.Cut(word, "*")
		in := base
		if digits, ok := strings.CutPrefix(strings.ToLower(word), "0x"); ok {
			word, in = digits, 16
		}
		if _, err := strconv.ParseUint(word, in, 64); err != nil {
			return false
		}
		if _, err := strconv.ParseUint(times, 10, 16); repeated && err != nil {
			return false
		}
	}
	return true
}

// setCPUBind reads to what tasks are bound, and whether that is told. "closest" is meant for
// --gpu-bind, and Slurm does not know it here: tasks are bound near their GPUs.
func setCPUBind(o *Options, v value) error {
	kind, talk := strings.ToLower(v.text), ""
	for {
		first, rest, more := strings.Cut(kind, ",")
		if !slices.Contains([]string{"quiet", "verbose", "q", "v"}, first) {
			break
		}
		if talk = ""; first[0] == 'v' {
			talk = "verbose"
		}
		if kind = rest; !more {
			o.CPUBind = talk
			return nil
		}
	}
	word, list, _ := strings.Cut(kind, ":")
	switch word {
	case "none", "no", "n":
	case "map_cpu", "mask_cpu", "map_ldom", "mask_ldom":
		if mask := strings.HasPrefix(word, "mask"); !mask && strings.Contains(list, "x") || !listOf(list, map[bool]int{false: 10, true: 16}[mask]) {
			return badCPUBind(kind)
		}
	case "rank", "rank_ldom", "sockets", "socket", "cores", "core", "threads", "thread", "ldoms", "ldom", "closest", "one_thread":
		if word != kind {
			return badCPUBind(kind)
		}
	default:
		return badCPUBind(kind)
	}
	if o.CPUBind = kind; talk != "" {
		o.CPUBind = talk + "," + kind
	}
	return nil
}

func badCPUBind(kind string) error {
	return &Refusal{Code: 1, Lines: []string{
		"error: unrecognized --cpu-bind argument " + strconv.Quote(kind), "fatal: Failed to parse --cpu-bind= values.",
	}}
}
