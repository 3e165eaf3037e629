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
}

// slurmConf reads slurm.conf.
func (r *reader) slurmConf(name string) error {
	// Cores and memory are what Slurm hands out unless it is told otherwise.
	r.conf = global{memory: true, nodeSets: map[string][]string{}, featureSets: map[string]string{}}
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
		}
		for _, p := range l.pairs {
			if err := r.setting(l, p); err != nil {
				return err
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
	for _, l := range r.conf.partitionLines {
		if err := r.partitionLine(l); err != nil {
			return err
		}
	}
	return nil
}

// setting reads one key of slurm.conf that has a line for itself.
func (r *reader) setting(l line, p pair) error {
	c, w := &r.cluster.Config, &r.conf.weights
	var err error
	switch strings.ToLower(p.key) {
	case "clustername":
		r.cluster.Name = strings.ToLower(p.value)
	case "gatewayports", "slurmctldhost":
		r.ignore(l, p)
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
	case "maxjobcount":
		c.MaxJobs, err = count(l, p, 1, math.MaxInt32)
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
				r.warn(l, "%s=%s is not supported yet: jobs are scheduled without it", p.key, kind)
			}
		}
	case "minjobage":
		var n int64
		n, err = number(l, p, 0, math.MaxInt32)
		if c.MinJobAge = job.Duration(n) * job.Second; n == 0 && err == nil {
			c.MinJobAge = job.Forever
		}
	case "defmempercpu":
		r.conf.memPerCPU, err = number(l, p, 0, math.MaxInt64)
	case "defmempernode":
		r.conf.memPerNode, err = number(l, p, 0, math.MaxInt64)
	default:
		r.neglect(l, p, neglectedSettings)
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
			if isOneOf(name, neglectedParameters) {
				r.warn(l, "%s is not supported yet: jobs are scheduled without it", o.key)
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
	n, err := strconv.ParseInt(p.value, 10, 64)
	if err != nil || n < low || n > high {
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
	case "yes", "y", "true", "1":
		return true, nil
	case "no", "n", "false", "0":
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
