package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// What a generator may ask for at most.
const (
	maxGenerated = 5_000_000
	maxNodes     = 1 << 20
)

// kueue is what is made of a generator file. Quotas are licences: that of a cohort, which
// its queues share by borrowing, and that of a queue where it may not borrow all.
type kueue struct {
	r       *reader
	unit    int64 // thousandths of a CPU that are one CPU of ours
	total   int64 // all quotas, in these units
	cluster *Cluster
	racks   bool
	id      int
}

// readKueue reads the generator of Kueue's performance tests and makes the jobs that it
// would make: of each set of workloads, one after each interval.
func (r *reader) readKueue() error {
	root, err := r.parseYAML()
	if err != nil {
		return err
	}
	k := &kueue{r: r, cluster: &Cluster{Name: "kueue"}}
	if k.unit, err = smallestRequest(root); err != nil {
		return err
	}
	if err := k.topology(root.get("topology")); err != nil {
		return err
	}
	cohorts, err := root.items("cohorts")
	if err != nil {
		return err
	}
	for i, cohort := range cohorts {
		count, err := cohort.number("count", 1, maxNodes)
		if err != nil {
			return err
		}
		for n := range count {
			if err := k.cohort(cohort, fmt.Sprintf("%s-%d-%d", cohort.text("className"), i, n)); err != nil {
				return err
			}
		}
	}
	if len(k.cluster.Nodes) == 0 {
		// Without a topology the tests have quotas only: one node that has them all.
		n := job.Node{Name: "pool", CPUs: int(k.total), Sockets: int(k.total), CoresPerSocket: 1, ThreadsPerCore: 1, Memory: k.total}
		k.cluster.Nodes = []job.Node{n}
	}
	k.cluster.partition()
	r.trace.Cluster = k.cluster
	return nil
}

// number is a field that is a whole number of at least 0 and at most high, or missing.
func (n *yamlNode) number(name string, missing, high int64) (int64, error) {
	f := n.get(name)
	if f == nil {
		return missing, nil
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(f.scalar, "_", ""), 10, 64)
	if err != nil || v < 0 || v > high {
		return 0, &LineError{f.line, fmt.Sprintf("%s %q: want a whole number up to %d", name, f.scalar, high)}
	}
	return v, nil
}

// milli is a quantity as Kubernetes writes them, in thousandths: 20, "500m", 1.5.
func (n *yamlNode) milli(name string) (int64, error) {
	f := n.get(name)
	if f == nil {
		return 0, nil
	}
	digits, isMilli := strings.CutSuffix(f.scalar, "m")
	v, err := strconv.ParseFloat(digits, 64)
	if !isMilli {
		v *= 1000
	}
	if err != nil || math.IsNaN(v) || v < 0 || v > 1e12 {
		return 0, &LineError{f.line, fmt.Sprintf("%s %q: want a quantity, as 4 or 500m", name, f.scalar)}
	}
	return int64(math.Ceil(v)), nil
}

// smallestRequest is the largest amount of which all requests are multiples.
func smallestRequest(root *yamlNode) (int64, error) {
	unit := int64(0)
	err := root.each([]string{"cohorts", "queuesSets", "workloadsSets", "workloads"}, func(w *yamlNode) error {
		m, err := w.milli("request")
		for m != 0 {
			unit, m = m, unit%m
		}
		return err
	})
	if unit == 0 {
		unit = 1000
	}
	return unit, err
}

// each calls f for all that is below lists in lists.
func (n *yamlNode) each(lists []string, f func(*yamlNode) error) error {
	if len(lists) == 0 {
		return f(n)
	}
	items, err := n.items(lists[0])
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := item.each(lists[1:], f); err != nil {
			return err
		}
	}
	return nil
}

// topology makes the nodes: levels from the top, the last of which is the nodes of each
// rack.
func (k *kueue) topology(n *yamlNode) error {
	levels, err := n.items("levels")
	if err != nil || len(levels) == 0 {
		return err
	}
	var counts []int64
	nodes := int64(1)
	for _, level := range levels {
		count, err := level.number("count", 1, maxNodes)
		if err != nil {
			return err
		}
		if nodes *= max(count, 1); nodes > maxNodes {
			return &LineError{level.line, fmt.Sprintf("more than %d nodes", maxNodes)}
		}
		counts = append(counts, max(count, 1))
	}
	last := levels[len(levels)-1]
	cpus, err := last.get("capacity").milli("cpu")
	if err != nil {
		return err
	}
	perNode := max(int(cpus/k.unit), 1)
	if perNode > math.MaxUint16 {
		return &LineError{last.line, "a node with too many CPUs"}
	}
	leaf := int(counts[len(counts)-1])
	k.cluster = Uniform(Shape{Nodes: int(nodes), CPUs: perNode, Leaf: leaf})
	k.cluster.Name = n.text("name")
	k.racks = len(k.cluster.Network.Switches) > 0
	return nil
}

func (k *kueue) cohort(n *yamlNode, name string) error {
	all := int64(0)
	type queue struct {
		set     *yamlNode
		name    string
		license string
	}
	var queues []queue
	config := &k.cluster.Config
	sets, err := n.items("queuesSets")
	if err != nil {
		return err
	}
	for i, set := range sets {
		count, err := set.number("count", 1, maxNodes)
		if err != nil {
			return err
		}
		nominal, err := set.milli("nominalQuota")
		if err != nil {
			return err
		}
		borrow, err := set.milli("borrowingLimit")
		if err != nil {
			return err
		}
		all += nominal / k.unit * count
		for j := range count {
			q := queue{set: set, name: fmt.Sprintf("%s/%s-%d-%d", name, set.text("className"), i, j)}
			if set.get("borrowingLimit") != nil && nominal+borrow < nominal*count {
				q.license = q.name
				config.Licenses = append(config.Licenses, job.License{Name: q.name, Count: (nominal + borrow) / k.unit})
			}
			queues = append(queues, q)
		}
	}
	k.total += all
	if k.total > 1<<30 {
		return &LineError{n.line, "quotas of more CPUs than any cluster has"}
	}
	config.Licenses = append(config.Licenses, job.License{Name: name, Count: all})
	for _, q := range queues {
		err := q.set.each([]string{"workloadsSets"}, func(set *yamlNode) error { return k.workloads(set, q.name, name, q.license) })
		if err != nil {
			return err
		}
	}
	return nil
}

// workloads makes the jobs of a set in one queue.
func (k *kueue) workloads(set *yamlNode, queue, cohort, license string) error {
	count, err := set.number("count", 1, maxGenerated)
	if err != nil {
		return err
	}
	interval, err := set.number("creationIntervalMs", 0, math.MaxInt32)
	if err != nil {
		return err
	}
	list, err := set.items("workloads")
	if err != nil {
		return err
	}
	for _, w := range list {
		j := Job{Account: queue, Name: w.text("className")}
		run, err := w.number("runtimeMs", 0, math.MaxInt32)
		if err != nil {
			return err
		}
		pods, err := w.number("podCount", 1, maxNodes)
		if err != nil {
			return err
		}
		request, err := w.milli("request")
		if err != nil {
			return err
		}
		priority, err := w.number("priority", 0, math.MaxInt32)
		if err != nil {
			return err
		}
		j.Run, j.TaskCPUs = job.Duration(run), int(request/k.unit)
		j.CPUs = j.TaskCPUs * int(pods)
		p := uint32(priority) + 1 // 0 is held
		j.Priority = &p
		j.Licenses = []job.License{{Name: cohort, Count: int64(j.CPUs)}}
		if license != "" {
			j.Licenses = append(j.Licenses, job.License{Name: license, Count: int64(j.CPUs)})
		}
		if w.text("tasConstraint") == "required" && k.racks {
			j.Required = 1
		}
		if err := j.check(); err != nil {
			return &LineError{w.line, err.Error()}
		}
		j.Line = w.line
		for i := range count {
			if k.id++; k.id > maxGenerated {
				return &LineError{w.line, fmt.Sprintf("more than %d jobs", maxGenerated)}
			}
			j.Submit = job.Time(interval * (i + 1))
			k.r.trace.Jobs = append(k.r.trace.Jobs, j)
			if k.r.o.Max > 0 && len(k.r.trace.Jobs) >= k.r.o.Max {
				return nil
			}
		}
	}
	return nil
}
