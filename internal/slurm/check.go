package slurm

import (
	"path"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// check looks at what lines mean together, once all are read. Whoever only uses the files
// is told of none of it: it is as they say.
func (r *reader) check(name string) {
	r.checkNodes(name)
	r.checkGRES()
	r.checkPartitions(name)
	r.checkMemory()
	r.checkTopology(name)
	r.checkPriority()
	r.checkDaemons()
	r.checkPrograms()
	r.checkCgroups(name)
}

// impossible adds that something cannot do what was meant.
func (r *reader) impossible(l line, p pair, text, remedy string) {
	r.add(l, Finding{Severity: SeverityError, Key: p.key, Value: p.value, Text: text, Remedy: remedy})
}

// unlike adds that something is otherwise here.
func (r *reader) unlike(l line, p pair, text, remedy string) {
	r.add(l, Finding{Severity: SeverityWarning, Key: p.key, Value: p.value, Text: text, Remedy: remedy})
}

// namesOf are the names of a node line, folded.
func (r *reader) namesOf(n nodesAt) string {
	var names []string
	for _, node := range r.cluster.Nodes[n.first : n.first+n.count] {
		names = append(names, node.Name)
	}
	return Fold(names)
}

// partitionLines are the partitions, of each line the first: all of a line are alike.
func (r *reader) partitionLines() []job.Partition {
	var all []job.Partition
	var file string
	var number int
	for _, p := range r.cluster.Partitions {
		l := r.conf.partitionsAt[p.Name]
		if l.file != file || l.number != number {
			all = append(all, p)
		}
		file, number = l.file, l.number
	}
	return all
}

// checkNodes: there are some, each is in a partition, and is said to have memory.
func (r *reader) checkNodes(name string) {
	main := line{file: path.Base(name)}
	if len(r.cluster.Nodes) == 0 {
		r.impossible(main, pair{}, "no line defines a node", "add a line: NodeName=n[1-4] CPUs=8 RealMemory=16000")
		return
	}
	if r.conf.memory {
		for _, n := range r.conf.nodesAt {
			if !n.memory {
				r.impossible(n.at, pair{"NodeName", r.namesOf(n)}, "RealMemory is missing: the node has 1 MiB, and memory is what jobs ask for (SelectTypeParameters)",
					"write RealMemory as slurmd -C prints it on the node")
			}
		}
	}
	used := map[string]bool{}
	for _, p := range r.partitionLines() {
		for _, node := range p.Nodes {
			used[node] = true
		}
	}
	var idle []string
	for _, n := range r.cluster.Nodes {
		if !used[n.Name] {
			idle = append(idle, n.Name)
		}
	}
	if len(idle) > 0 && len(r.cluster.Partitions) > 0 {
		r.unlike(main, pair{"NodeName", Fold(idle)}, "it is in no partition: nothing runs there", "name it in Nodes= of a partition, or leave it out")
	}
}

// checkGRES: what nodes have is of a name that GresTypes has, and the other way round.
func (r *reader) checkGRES() {
	have := map[string]bool{}
	for _, n := range r.conf.nodesAt {
		said := map[string]bool{}
		for _, g := range r.cluster.Nodes[n.first].GRES {
			have[g.Name] = true
			if said[g.Name] {
				continue
			}
			said[g.Name] = true
			if !r.gres[g.Name] {
				r.impossible(n.at, pair{"Gres", g.Name}, "GresTypes has no "+g.Name+": Slurm passes it over, and refuses jobs that ask for it; here it counts", "write GresTypes="+g.Name)
			}
			if g.Name == "mps" || g.Name == "shard" {
				r.impossible(n.at, pair{"Gres", g.Name}, "GPUs are not shared: a job that asks for "+g.Name+" gets a number, and no GPU", "have jobs ask for whole GPUs, or MIG instances: --gres=gpu:1")
			}
		}
	}
	at := r.conf.said["grestypes"]
	for _, name := range splitList(at.value) {
		if !have[strings.ToLower(name)] {
			r.unlike(at.at, pair{"GresTypes", name}, "no node has Gres="+name, "write Gres="+name+":COUNT into NodeName lines, or leave it out")
		}
	}
}

// checkPartitions: there are some, with nodes enough for what they ask for, and one is the default.
func (r *reader) checkPartitions(name string) {
	main := line{file: path.Base(name)}
	if len(r.cluster.Partitions) == 0 {
		r.impossible(main, pair{}, "no line defines a partition: no job can be submitted, and Slurm does not start", "add a line: PartitionName=main Nodes=ALL Default=YES")
		return
	}
	if _, ok := r.defaultPartition(); !ok {
		r.unlike(main, pair{}, "no partition is the default: jobs without --partition go to "+r.cluster.Partitions[0].Name+", and Slurm refuses them", "write Default=YES into its line")
	}
	for _, p := range r.cluster.Partitions {
		l := r.conf.partitionsAt[p.Name]
		me := pair{"PartitionName", p.Name}
		switch {
		case len(p.Nodes) == 0:
			r.impossible(l, me, "it has no nodes: its jobs wait for ever", "write Nodes=")
		case p.MinNodes > len(p.Nodes):
			r.impossible(l, pair{"MinNodes", formatInt(int64(p.MinNodes))}, "it has "+formatInt(int64(len(p.Nodes)))+" nodes: it takes no job", "make it smaller")
		}
		for _, lists := range []struct {
			key   string
			names []string
		}{{"AllowAccounts", p.AllowAccount}, {"DenyAccounts", p.DenyAccount}, {"AllowQos", p.AllowQOS}, {"DenyQos", p.DenyQOS}} {
			if len(lists.names) > 0 {
				r.unlike(l, pair{lists.key, strings.Join(lists.names, ",")}, "accounts and QOS are what a job says, and are not checked: it keeps out mistakes, nobody else",
					"say who may use the partition: AllowGroups")
			}
		}
	}
}

// checkMemory: a job that does not say how much memory it needs starts somewhere.
func (r *reader) checkMemory() {
	for _, p := range r.partitionLines() {
		most := int64(0)
		for _, name := range p.Nodes {
			if i, ok := r.named[name]; ok {
				most = max(most, r.cluster.Nodes[i].Memory)
			}
		}
		for key, each := range map[string]int64{"DefMemPerNode": p.MemoryPerNode, "DefMemPerCPU": p.MemoryPerCPU} {
			if most > 1 && each > most {
				r.impossible(r.conf.partitionsAt[p.Name], pair{key, formatInt(each)}, "no node of partition "+p.Name+" has more than "+formatInt(most)+" MiB: a job without --mem never starts there",
					"make it smaller; it is in MiB")
			}
		}
	}
}

// checkTopology: there is the network that TopologyPlugin says, and all nodes are in it.
func (r *reader) checkTopology(name string) {
	n, at := r.cluster.Network, r.conf.said["topologyplugin"]
	file := line{file: "topology.conf"}
	switch kind := r.conf.topology; {
	case kind == "tree" && len(n.Switches) == 0, kind == "block" && len(n.Blocks) == 0:
		r.impossible(at.at, at.pair, "no file says which nodes are close to each other: topology.conf is missing or has none, and jobs are placed without", "write topology.conf, or leave it out")
		return
	case slices.Contains([]string{"3d_torus", "torus3d", "ring"}, kind):
		r.unlike(at.at, at.pair, "it is not supported yet: jobs are placed without it", "describe the network as a tree, or leave it out")
	case kind == "" && len(n.Switches)+len(n.Blocks) > 0:
		r.unlike(file, pair{}, "TopologyPlugin is not set: Slurm does not read the file, and here it counts", "write TopologyPlugin=topology/tree into slurm.conf, or remove the file")
	case kind != "" && kind != "tree" && kind != "block" && len(n.Switches)+len(n.Blocks) == 0:
		if f, err := r.files.Open(path.Join(path.Dir(name), "topology.conf")); err == nil {
			_ = f.Close() // nothing was read of it
			r.unlike(file, pair{}, "TopologyPlugin says not to read the file: jobs are placed without it", "write TopologyPlugin=topology/tree into slurm.conf, or remove the file")
		}
	}
	for _, of := range []struct {
		what string
		has  bool
		is   func(n job.Node) bool
	}{
		{"no switch of topology.conf has it: jobs are placed there as if it were far from all others", len(n.Switches) > 0, func(n job.Node) bool { return n.Switch != "" }},
		{"no block of topology.conf has it: no segment is placed there", len(n.Blocks) > 0, func(n job.Node) bool { return n.Block != "" }},
	} {
		var out []string
		for _, node := range r.cluster.Nodes {
			if of.has && !of.is(node) {
				out = append(out, node.Name)
			}
		}
		if len(out) > 0 {
			r.unlike(file, pair{"NodeName", Fold(out)}, of.what, "add it to the file")
		}
	}
}

// checkPriority: weights count, and preemption has something to preempt.
func (r *reader) checkPriority() {
	if !strings.EqualFold(strings.TrimPrefix(strings.ToLower(r.conf.of("PriorityType")), "priority/"), "multifactor") {
		for _, key := range []string{"PriorityWeightAge", "PriorityWeightJobSize", "PriorityWeightPartition", "PriorityWeightFairshare"} {
			if at, ok := r.conf.said[strings.ToLower(key)]; ok && at.value != "0" {
				r.impossible(at.at, at.pair, "weights count with PriorityType=priority/multifactor only: jobs are taken in their order", "write PriorityType=priority/multifactor")
			}
		}
	}
	at, ok := r.conf.said["preempttype"]
	if !ok || !strings.HasSuffix(strings.ToLower(at.value), "partition_prio") {
		return
	}
	if mode := r.conf.of("PreemptMode"); mode == "" || strings.EqualFold(mode, "off") {
		r.impossible(at.at, at.pair, "PreemptMode does not say how: Slurm does not start", "write PreemptMode=REQUEUE, or leave both out")
	}
	tiers := map[uint32]bool{}
	for _, p := range r.cluster.Partitions {
		tiers[p.Tier] = true
	}
	if len(tiers) == 1 {
		r.impossible(at.at, at.pair, "all partitions have one PriorityTier: no job can preempt another, in Slurm either (PriorityJobFactor does not matter for that)",
			"write PriorityTier= into the lines of partitions")
	}
}

// checkDaemons: what the site expects of daemons and steps is there.
func (r *reader) checkDaemons() {
	at := r.conf.said["slurmctldhost"]
	if backup, ok := r.conf.said["backupcontroller"]; ok && r.conf.controllers == 0 {
		at, r.conf.controllers = backup, 2
	}
	if r.conf.controllers > 1 {
		r.unlike(at.at, at.pair, "there is one controller: no other takes over where its machine is away; running jobs go on meanwhile",
			"have systemd start it again, and its state directory on a disk that another machine can have")
	}
	if flags, ok := r.conf.said["prologflags"]; ok && isOneOf("x11", strings.ReplaceAll(strings.ToLower(flags.value), ",", " ")) {
		r.impossible(flags.at, pair{"PrologFlags", "X11"}, "X11 is not forwarded: --x11 is refused", "leave X11 out, and forward ports instead: ssh -L")
	}
}

// checkCgroups: jobs that share a node are kept apart as the site means.
func (r *reader) checkCgroups(name string) {
	file := line{file: "cgroup.conf"}
	if tasks := r.conf.said["taskplugin"]; r.conf.cgroups != nil && !strings.Contains(strings.ToLower(tasks.value), "cgroup") {
		for _, what := range []string{"Cores", "Devices", "RAMSpace", "SwapSpace"} {
			if at := r.conf.cgroups[strings.ToLower("Constrain"+what)]; r.conf.constrains(what) {
				r.impossible(at.at, at.pair, "TaskPlugin has no task/cgroup: Slurm constrains nothing", "write TaskPlugin=task/affinity,task/cgroup into slurm.conf")
			}
		}
	}
	shared := r.sharedGPUs()
	if len(shared) == 0 || r.conf.constrains("Devices") {
		return
	}
	const what = "several jobs may have GPUs of one node, and in Slurm each can open all of them; here containers cannot, and what runs without one can"
	of, remedy := pair{"NodeName", Fold(shared)}, "write ConstrainDevices=yes; run jobs in containers"
	if r.conf.cgroups == nil {
		r.unlike(file, of, "the file is not there: "+what, remedy)
		return
	}
	at := r.conf.cgroups["constraindevices"]
	if at.key != "" {
		file, of = at.at, at.pair
	}
	r.impossible(file, of, "ConstrainDevices is off: "+what, remedy)
}

// sharedGPUs are nodes with several GPUs that jobs of a partition may share.
func (r *reader) sharedGPUs() []string {
	mine := map[string]bool{}
	for _, p := range r.partitionLines() {
		for _, name := range p.Nodes {
			mine[name] = mine[name] || !p.Exclusive
		}
	}
	var all []string
	for _, n := range r.cluster.Nodes {
		gpus := int64(0)
		for _, g := range n.GRES {
			if g.Name == "gpu" {
				gpus += min(g.Count, 1<<20)
			}
		}
		if gpus > 1 && mine[n.Name] {
			all = append(all, n.Name)
		}
	}
	return all
}
