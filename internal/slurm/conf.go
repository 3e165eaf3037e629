package slurm

import (
	"math"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// global is what slurm.conf says outside the lines of nodes and partitions, as far as it
// bears on something else.
type global struct {
	topology       string // TopologyPlugin
	linear         bool   // SelectType=select/linear
	memory         bool   // memory is a consumable resource
	memPerCPU      int64
	memPerNode     int64
	priority       string // PriorityType
	weights        job.Weights
	nodeDefaults   []pair
	partDefaults   []pair
	nodeSets       map[string][]string // names by the set's, in lower case
	featureSets    map[string]string   // a feature by the set's name
	partitionLines []line
	noRoot         bool   // DisableRootJobs
	plugStack      string // PlugStackConfig
	controllers    int    // SlurmctldHost lines
	nodesAt        []nodesAt
	partitionsAt   map[string]line // by the partition
	cgroups        map[string]setAt
	said           map[string]setAt // where each key has a line for itself, by it in lower case
	programs       job.Programs
	// prologTimeout and epilogTimeout count more than what is for both, wherever they are.
	prologTimeout, epilogTimeout job.Duration
}

// nodesAt is where some nodes are defined.
type nodesAt struct {
	at           line
	first, count int  // of the cluster's
	memory       bool // RealMemory is given
}

// setAt is where a key is set, and to what.
type setAt struct {
	at line
	pair
}

// of is what a key is set to; nothing where it is not.
func (c *global) of(key string) string { return c.said[strings.ToLower(key)].value }

// slurmConf reads slurm.conf.
func (r *reader) slurmConf(name string) error {
	// Cores and memory are what Slurm hands out unless it is told otherwise.
	r.conf = global{memory: true, nodeSets: map[string][]string{}, featureSets: map[string]string{}, said: map[string]setAt{}, partitionsAt: map[string]line{}}
	r.gres = map[string]bool{}
	err := r.eachLine(name, false, func(l line) error {
		switch l.kind() {
		case "nodename":
			return r.nodeLine(l)
		case "partitionname":
			// Read last: "Nodes=ALL" and nodesets mean lines that may follow.
			r.conf.partitionLines = append(r.conf.partitionLines, l)
			return nil
		case "nodeset":
			return r.nodeSetLine(l)
		case "downnodes":
			return r.downNodesLine(l)
		case "frontendname":
			r.warn(l, l.pairs[0], "write a NodeName line for each machine that runs jobs", "there are no front ends: the line is passed over")
			return nil
		}
		for _, p := range l.pairs {
			r.once(l, p)
			if err := r.setting(l, p); err != nil {
				r.fail(l, err, true)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if r.conf.priority != "" && !strings.EqualFold(r.conf.priority, "priority/basic") {
		r.cluster.Config.Weights = r.conf.weights
	}
	r.cluster.Programs = r.theirPrograms()
	for _, l := range r.conf.partitionLines {
		if err := r.partitionLine(l); err != nil {
			r.fail(l, err, true)
		}
	}
	return nil
}

// once notes where a key is set. Slurm uses the latest value, too.
func (r *reader) once(l line, p pair) {
	key := strings.ToLower(p.key)
	if key == "slurmctldhost" {
		r.conf.controllers++
	} else if before, twice := r.conf.said[key]; twice && key != prologKey && key != epilogKey { // of these there may be several
		r.warn(l, p, "leave one of the two out", "%s:%d has it too: the latter counts", before.at.file, before.at.number)
	}
	r.conf.said[key] = setAt{l, p}
}

// setting reads one key of slurm.conf that has a line for itself.
func (r *reader) setting(l line, p pair) error {
	c, w := &r.cluster.Config, &r.conf.weights
	var err error
	switch strings.ToLower(p.key) {
	case "clustername":
		r.cluster.Name = strings.ToLower(p.value)
	case "grestypes":
		for _, name := range splitList(p.value) {
			r.gres[strings.ToLower(name)] = true
		}
	case "licenses":
		c.Licenses, err = parseLicenses(l, p)
	case "maxarraysize":
		var n int64
		n, err = number(l, p, 0, 4_000_001)
		if c.MaxArray = uint32(n); n == 0 && err == nil {
			c.MaxArray = 1 // no arrays: an index that no task reaches
		}
	case "maxbatchrequeue":
		c.MaxRequeue, err = count(l, p, 0, math.MaxInt32)
	case "maxjobcount":
		var n int64
		n, err = orNone(l, p, 1, math.MaxInt32)
		c.MaxJobs = int(n)
	case "topologyplugin":
		r.conf.topology, err = oneOf(l, p, "topology/", "tree", "block", "flat", "none", "default", "3d_torus", "torus3d", "ring")
	case "prioritytype":
		r.conf.priority, err = oneOf(l, p, "priority/", "basic", "multifactor")
	case "priorityweightage":
		w.Age, err = weight(l, p)
	case "priorityweightjobsize":
		w.Size, err = weight(l, p)
	case "priorityweightpartition":
		w.Partition, err = weight(l, p)
	case "prioritymaxage":
		w.MaxAge, err = span(l, p)
	case "priorityfavorsmall":
		w.FavorSmall, err = yes(l, p)
	case "schedulertype":
		var kind string
		if kind, err = oneOf(l, p, "sched/", "backfill", "builtin", "hold"); kind == "builtin" {
			c.Backfill = job.None
		} else if kind == "hold" {
			r.warn(l, p, "leave it out", "it is not supported yet: jobs are scheduled as they come")
		}
	case "schedulerparameters":
		err = r.schedulerParameters(l, p)
	case "selecttype":
		var kind string
		kind, err = oneOf(l, p, "select/", "cons_tres", "cons_res", "linear", "cray_aries")
		r.conf.linear = kind == "linear"
	case "selecttypeparameters":
		r.conf.memory = strings.Contains(strings.ToLower(p.value), "memory")
		for _, kind := range splitList(p.value) {
			if isOneOf(kind, neglectedSelect) {
				r.warn(l, pair{p.key, kind}, "leave it out; jobs get whole cores that ask for --cpus-per-task times ThreadsPerCore", notYet)
			}
		}
		r.words(l, p, slurmConf)
	case "minjobage":
		var n int64
		n, err = number(l, p, 0, math.MaxInt32)
		if c.MinJobAge = job.Duration(n) * job.Second; n == 0 && err == nil {
			c.MinJobAge = job.Forever
		}
	case "defmempercpu":
		r.conf.memPerCPU, err = orNone(l, p, 0, math.MaxInt64>>20)
	case "defmempernode":
		r.conf.memPerNode, err = orNone(l, p, 0, math.MaxInt64>>20)
	case "disablerootjobs":
		r.conf.noRoot, err = yes(l, p)
	case "plugstackconfig":
		r.conf.plugStack = p.value
	case prologKey, epilogKey, bothTimeoutKey, prologTimeoutKey, epilogTimeoutKey, prologFlagsKey, healthKey, healthEveryKey, healthStateKey:
		err = r.program(l, p)
	default:
		r.follow(l, p, slurmConf)
	}
	return err
}

func (r *reader) ignore(l line, p pair) {
	r.cluster.Ignored = append(r.cluster.Ignored, Setting{l.file, l.number, p.key, p.value})
}

// schedulerParameters reads those that decide what is planned, not how fast.
func (r *reader) schedulerParameters(l line, p pair) error {
	for option := range strings.SplitSeq(p.value, ",") {
		name, value, _ := strings.Cut(option, "=")
		o := pair{p.key + "=" + name, value}
		var err error
		switch strings.ToLower(name) {
		case "max_switch_wait":
			var n int
			n, err = count(l, o, 0, math.MaxInt32)
			r.cluster.SwitchWait = job.Duration(n) * job.Second
		case "max_batch_requeue":
			r.cluster.Config.MaxRequeue, err = count(l, o, 0, math.MaxInt32)
		case "bf_window", "bf_resolution", "bf_interval", "bf_max_job_test", "default_queue_depth", "sched_interval":
			_, err = count(l, o, 0, math.MaxInt32)
			r.ignore(l, o)
		default:
			r.ignore(l, o)
			switch {
			case isOneOf(name, neglectedParameters):
				r.warn(l, o, "leave it out", notYet)
			case !isOneOf(name, otherParameters):
				r.unknownWord(l, p, name, neglectedParameters+" "+otherParameters+" "+usedParameters)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseLicenses(l line, p pair) ([]job.License, error) {
	const want = "NAME[:COUNT] and commas, each name once"
	var all []job.License
	seen := map[string]bool{}
	for _, word := range splitList(p.value) {
		name, number, found := strings.Cut(strings.ReplaceAll(word, "*", ":"), ":")
		license := job.License{Name: name, Count: 1}
		if found {
			n, err := parseNumber(number)
			if err != nil || n > math.MaxInt32 {
				return nil, l.bad(p, want)
			}
			license.Count = int64(n)
		}
		if name == "" || seen[name] {
			return nil, l.bad(p, want)
		}
		seen[name] = true
		all = append(all, license)
	}
	return all, nil
}

// The values that lines have, each with the error that says what is valid.

// number is a whole number from low to high.
func number(l line, p pair, low, high int64) (int64, error) {
	bits := 32
	switch {
	case high <= math.MaxUint16:
		bits = 16
	case high > math.MaxUint32:
		bits = 64
	}
	u, ok := slurmNumber(p.value, bits)
	if n := int64(u); ok && n >= low && n <= high {
		return n, nil
	}
	return 0, l.bad(p, "a whole number from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10))
}

// slurmNumber reads a number as Slurm's parser does: also hexadecimal (0x10) and octal (010),
// and with K or M where it has more than 16 bits.
func slurmNumber(text string, bits int) (uint64, bool) {
	shift := 0
	if n := len(text) - 1; bits > 16 && n > 0 {
		switch text[n] | 0x20 {
		case 'k':
			shift, text = 10, text[:n]
		case 'm':
			shift, text = 20, text[:n]
		}
	}
	if strings.ContainsAny(text, "_oObB") && !strings.HasPrefix(strings.ToLower(text), "0x") {
		return 0, false // Go has more forms
	}
	n, err := strconv.ParseUint(text, 0, bits)
	if err != nil || n > ^uint64(0)>>(64-bits)>>shift {
		return 0, false
	}
	return n << shift, true
}

// orNone is a number of which there is none where it is unlimited: 0.
func orNone(l line, p pair, low, high int64) (int64, error) {
	if isOneOf(p.value, "UNLIMITED INFINITE") {
		return 0, nil
	}
	n, err := number(l, p, low, high)
	if err != nil {
		return 0, l.bad(p, "a whole number from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10))
	}
	return n, nil
}

func count(l line, p pair, low, high int64) (int, error) {
	n, err := number(l, p, low, high)
	return int(n), err
}

func weight(l line, p pair) (uint32, error) {
	n, err := number(l, p, 0, math.MaxUint32)
	return uint32(n), err
}

// span is a time, 0 for one without end.
func span(l line, p pair) (job.Duration, error) {
	d, err := ParseTime(p.value)
	if err != nil {
		return 0, l.bad(p, wantTime)
	}
	if d == job.Forever {
		return 0, nil
	}
	return Minutes(d), nil
}

func yes(l line, p pair) (bool, error) {
	switch strings.ToLower(p.value) {
	case "yes", "y", "up", "true", "1":
		return true, nil
	case "no", "n", "down", "false", "0":
		return false, nil
	}
	return false, l.bad(p, "YES or NO")
}

// oneOf is a value of a set, with or without its prefix, in lower case and without it.
func oneOf(l line, p pair, prefix string, valid ...string) (string, error) {
	value := strings.TrimPrefix(strings.ToLower(p.value), prefix)
	for _, v := range valid {
		if v == value {
			return v, nil
		}
	}
	return "", l.bad(p, "one of "+prefix+strings.Join(valid, ", "+prefix))
}

// hosts is a hostlist.
func hosts(l line, p pair) ([]string, error) {
	names, err := Expand(p.value)
	if err != nil {
		return nil, l.errorf("%s: %w", p.key, err)
	}
	if len(names) == 0 {
		return nil, l.bad(p, "a list of nodes, as n[001-128,130]")
	}
	return names, nil
}
