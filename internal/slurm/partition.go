package slurm

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// maxPartitions is how many there may be: what is said of all nodes of each takes a time.
const maxPartitions = 4096

// partitionLine reads a line that begins with PartitionName.
func (r *reader) partitionLine(l line) error {
	own := l
	l, isDefault := withDefaults(l, &r.conf.partDefaults)
	// The defaults of Slurm: every partition has a factor and a tier of 1.
	p := job.Partition{
		Priority: 1, Tier: 1, Exclusive: r.conf.linear,
		MemoryPerCPU: r.conf.memPerCPU, MemoryPerNode: r.conf.memPerNode,
	}
	noRoot := r.conf.noRoot
	r.eachPair(l, func(v pair) (err error) {
		if strings.EqualFold(v.key, "DisableRootJobs") {
			noRoot, err = yes(l, v)
			return err
		}
		return r.partitionKey(l, v, &p)
	})
	if isDefault {
		return nil
	}
	if noRoot {
		p.DenyUsers = append(slices.Clone(p.DenyUsers), "root")
	}
	if p.MaxNodes > 0 && p.MinNodes > p.MaxNodes {
		return l.bad(pair{"MinNodes", strconv.Itoa(p.MinNodes)}, "no more than MaxNodes="+strconv.Itoa(p.MaxNodes))
	}
	if p.MaxTime > 0 && p.DefaultTime > p.MaxTime {
		value, _ := l.get("DefaultTime")
		r.cannot(l, pair{"DefaultTime", value}, "make it MaxTime at most", "it is longer than MaxTime: taken for %s", FormatTime(p.MaxTime))
		p.DefaultTime = p.MaxTime
	}
	r.shareMemory(&p)
	names, err := Expand(l.pairs[0].value)
	if err != nil {
		return l.errorf("%s: %w", l.pairs[0].key, err)
	}
	for _, name := range names {
		one := p
		one.Name = name
		if _, twice := r.conf.partitionsAt[name]; twice {
			return l.bad(l.pairs[0], "each partition once: "+name+" has a line already")
		}
		if len(r.cluster.Partitions) >= maxPartitions {
			return l.bad(l.pairs[0], "at most "+strconv.Itoa(maxPartitions)+" partitions")
		}
		if before, ok := r.defaultPartition(); one.Default && ok {
			r.cannot(l, pair{"Default", "YES"}, "leave it out here or there", "there can be one: %s was it before, and is it no more", before.Name)
			before.Default = false
		}
		r.conf.partitionsAt[name] = own
		r.cluster.Partitions = append(r.cluster.Partitions, one)
	}
	return nil
}

// defaultPartition is the one that jobs go to without --partition, so far.
func (r *reader) defaultPartition() (p *job.Partition, ok bool) {
	for i := range r.cluster.Partitions {
		if p := &r.cluster.Partitions[i]; p.Default {
			return p, true
		}
	}
	return nil, false
}

// shareMemory gives jobs that ask for none their share where Slurm does not hand out
// memory: by default they would get all of the node's, and no two would share one.
func (r *reader) shareMemory(p *job.Partition) {
	if r.conf.memory || p.MemoryPerCPU > 0 || p.MemoryPerNode > 0 {
		return
	}
	share := int64(math.MaxInt64)
	for _, name := range p.Nodes {
		if i, ok := r.named[name]; ok {
			n := r.cluster.Nodes[i]
			share = min(share, n.Memory/int64(n.CPUs))
		}
	}
	if share < math.MaxInt64 {
		p.MemoryPerCPU = share
	}
}

// partitionKey reads one key of a partition line.
func (r *reader) partitionKey(l line, v pair, p *job.Partition) error {
	var err error
	var n int64
	switch strings.ToLower(v.key) {
	case "nodes":
		p.Nodes, err = r.partitionNodes(l, v)
	case "default":
		p.Default, err = yes(l, v)
	case "maxtime":
		p.MaxTime, err = span(l, v)
	case "defaulttime":
		if !strings.EqualFold(v.value, "NONE") {
			p.DefaultTime, err = span(l, v)
		}
	case "minnodes":
		p.MinNodes, err = count(l, v, 0, math.MaxInt32)
	case "maxnodes":
		if !strings.EqualFold(v.value, "UNLIMITED") && !strings.EqualFold(v.value, "INFINITE") {
			p.MaxNodes, err = count(l, v, 1, math.MaxInt32)
		}
	case "priority":
		n, err = number(l, v, 0, 65533)
		p.Priority, p.Tier = uint32(n), uint32(n)
	case "priorityjobfactor":
		n, err = number(l, v, 0, 65533)
		p.Priority = uint32(n)
	case "prioritytier":
		n, err = number(l, v, 0, 65533)
		p.Tier = uint32(n)
	case "allowgroups":
		p.AllowGroups = allowList(v)
	case "allowaccounts":
		p.AllowAccount = allowList(v)
	case "allowqos":
		p.AllowQOS = allowList(v)
	case "allowusers":
		p.AllowUsers = allowList(v)
	case "rootonly":
		var only bool
		if only, err = yes(l, v); only {
			p.AllowUsers = []string{"root"}
		}
	case "denyusers":
		p.DenyUsers = splitList(v.value)
	case "denyaccounts":
		p.DenyAccount = splitList(v.value)
	case "denyqos":
		p.DenyQOS = splitList(v.value)
	case "oversubscribe", "shared":
		err = r.overSubscribe(l, v, p)
	case "state":
		p.State, err = partitionState(l, v)
	case "defmempercpu":
		p.MemoryPerCPU, err = orNone(l, v, 0, math.MaxInt64>>20)
		p.MemoryPerNode = 0
	case "defmempernode":
		p.MemoryPerNode, err = orNone(l, v, 0, math.MaxInt64>>20)
		p.MemoryPerCPU = 0
	default:
		r.follow(l, v, partitionLine)
	}
	return err
}

// partitionNodes is the list of nodes: ALL, names, and names of node sets. Nodes that no
// line defines are expected to come.
func (r *reader) partitionNodes(l line, v pair) ([]string, error) {
	words, err := hosts(l, v)
	if err != nil {
		return nil, err
	}
	var all, unknown []string
	seen := map[string]bool{}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}
	for _, word := range words {
		feature, isFeature := r.conf.featureSets[word]
		names, isSet := r.conf.nodeSets[word]
		switch {
		case strings.EqualFold(word, "ALL") || isFeature:
			for _, n := range r.cluster.Nodes {
				if !isFeature || slices.Contains(n.Features, feature) {
					add(n.Name)
				}
			}
		case isSet:
			for _, name := range names {
				add(name)
			}
		default:
			if add(word); !r.known(word) {
				unknown = append(unknown, word)
			}
		}
	}
	if len(unknown) > 0 {
		r.cannot(l, v, "add a NodeName line for them, or leave them out; Slurm does not start before", "no line defines %s: expected to come", Fold(unknown))
	}
	return all, nil
}

func (r *reader) known(node string) bool {
	_, ok := r.named[node]
	return ok
}

// allowList is a list of names, nil for all.
func allowList(v pair) []string {
	if strings.EqualFold(v.value, "ALL") {
		return nil
	}
	return splitList(v.value)
}

// overSubscribe reads whose the CPUs are. That several jobs share them is not there yet.
func (r *reader) overSubscribe(l line, v pair, p *job.Partition) error {
	kind, jobs, found := strings.Cut(strings.ToUpper(v.value), ":")
	p.Exclusive = false
	switch {
	case kind == "EXCLUSIVE" && !found:
		p.Exclusive = true
		return nil
	case kind == "NO" && !found:
		return nil
	case kind == "YES" || kind == "FORCE":
		if n, err := parseNumber(jobs); found && (err != nil || n < 1 || n > math.MaxUint16) {
			break
		} else if !found || n > 1 {
			r.warn(l, v, "leave it out, or have jobs ask for fewer CPUs", "jobs that share CPUs are not supported yet: taken for NO")
		}
		return nil
	}
	return l.bad(v, "EXCLUSIVE, NO, YES[:JOBS] or FORCE[:JOBS]")
}

func partitionState(l line, v pair) (job.PartitionState, error) {
	switch strings.ToUpper(v.value) {
	case "UP":
		return job.PartitionUp, nil
	case "DOWN":
		return job.PartitionDown, nil
	case "DRAIN":
		return job.PartitionDrain, nil
	case "INACTIVE":
		return job.PartitionInactive, nil
	}
	return 0, l.bad(v, "one of UP, DOWN, DRAIN, INACTIVE")
}

func formatInt(n int64) string { return strconv.FormatInt(n, 10) }
