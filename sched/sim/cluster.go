package sim

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Cluster is the machine that a trace runs on.
type Cluster struct {
	Name       string
	Nodes      []job.Node
	Partitions []job.Partition // one is made of all nodes if there is none
	Network    job.Network
	Config     job.Config
}

// Shape is a cluster of equal nodes.
type Shape struct {
	Nodes int // how many
	CPUs  int // of each
	GPUs  int // of each
	Leaf  int // nodes below each leaf switch; 0: 16
}

// memoryPerCPU is what a CPU of made-up nodes has, in MiB: enough that memory decides
// nothing by itself.
const memoryPerCPU = 4096

// Uniform is a cluster of equal nodes, below leaf switches, below switches that have as
// many leaves as a leaf has nodes, and so on up to one root.
func Uniform(s Shape) *Cluster {
	if s.Leaf <= 0 {
		s.Leaf = 16
	}
	c := &Cluster{Name: fmt.Sprintf("%d nodes x %d CPUs, %d GPUs", s.Nodes, s.CPUs, s.GPUs)}
	var names []string
	for i := range s.Nodes {
		n := job.Node{
			Name: fmt.Sprintf("n%05d", i+1), Sockets: 1, CoresPerSocket: s.CPUs, ThreadsPerCore: 1, CPUs: s.CPUs,
			Memory: int64(s.CPUs) * memoryPerCPU,
		}
		if s.GPUs > 0 {
			n.GRES = []job.GRES{{Name: "gpu", Count: int64(s.GPUs)}}
		}
		if s.Nodes > s.Leaf {
			n.Switch = fmt.Sprintf("s0-%d", i/s.Leaf+1)
		}
		c.Nodes = append(c.Nodes, n)
		names = append(names, n.Name)
	}
	if s.Nodes > s.Leaf && s.Leaf > 1 {
		c.Network.Switches = treeOf(names, s.Leaf)
	}
	c.partition()
	return c
}

// treeOf makes switches of so many children, level by level, up to one root.
func treeOf(names []string, children int) []job.Switch {
	var all []job.Switch
	for level := 0; len(names) > 1; level++ {
		var above []string
		for begin := 0; begin < len(names); begin += children {
			s := job.Switch{Name: fmt.Sprintf("s%d-%d", level, len(above)+1)}
			below := names[begin:min(begin+children, len(names))]
			if level == 0 {
				s.Nodes = below
			} else {
				s.Switches = below
			}
			all = append(all, s)
			above = append(above, s.Name)
		}
		names = above
	}
	return all
}

// partition makes one of all nodes if there is none.
func (c *Cluster) partition() {
	if len(c.Partitions) > 0 {
		return
	}
	p := job.Partition{Name: "all", Default: true, MemoryPerCPU: memoryPerCPU}
	for _, n := range c.Nodes {
		p.Nodes = append(p.Nodes, n.Name)
		p.MemoryPerCPU = min(p.MemoryPerCPU, max(n.Memory/int64(max(n.CPUs, 1)), 1))
	}
	c.Partitions = []job.Partition{p}
}

// events set up a scheduler. Nodes that have not reported are taken for up: nobody
// reports in a simulation.
func (c *Cluster) events(at job.Time) []job.Event {
	events := []job.Event{job.Configured{At: at, Config: c.Config}}
	for _, n := range c.Nodes {
		n.State &^= job.NodeUnknown
		events = append(events, job.NodeSet{At: at, Node: n})
	}
	if len(c.Network.Switches)+len(c.Network.Blocks) > 0 {
		events = append(events, job.NetworkSet{At: at, Network: c.Network})
	}
	for _, p := range c.Partitions {
		events = append(events, job.PartitionSet{At: at, Partition: p})
	}
	return events
}

// totals are what all nodes that take jobs have, and the most that one has.
type totals struct {
	nodes, cpus, gpus     int
	cpusPerNode, nodeGPUs int
	cpusPerGPU            int // of the node with most GPUs
	memoryPerNode         int64
	partitions            map[string]bool // that there are
}

func (c *Cluster) totals() totals {
	t := totals{partitions: map[string]bool{}}
	for _, p := range c.Partitions {
		t.partitions[p.Name] = true
	}
	for _, n := range c.Nodes {
		if !inService(n) {
			continue
		}
		cpus, gpus := nodeCPUs(n), nodeGPUs(n)
		t.nodes++
		t.cpus += cpus
		t.gpus += gpus
		t.cpusPerNode = max(t.cpusPerNode, cpus)
		if gpus > t.nodeGPUs || gpus == t.nodeGPUs && gpus > 0 && cpus/gpus < t.cpusPerGPU {
			t.nodeGPUs, t.cpusPerGPU = gpus, cpus/gpus
		}
		t.memoryPerNode = max(t.memoryPerNode, n.Memory)
	}
	return t
}

// inService says whether jobs run on a node in a simulation, in which nobody reports.
func inService(n job.Node) bool { return (n.State &^ job.NodeUnknown).Takes() }

// leaves are the switches that have nodes below them.
func (c *Cluster) leaves() int {
	all := map[string]bool{}
	for _, s := range c.Network.Switches {
		if len(s.Nodes) > 0 {
			all[s.Name] = true
		}
	}
	for _, n := range c.Nodes {
		if n.Switch != "" {
			all[n.Switch] = true
		}
	}
	return len(all)
}

func nodeCPUs(n job.Node) int {
	if n.CPUs > 0 {
		return n.CPUs
	}
	return max(n.Sockets*n.CoresPerSocket*n.ThreadsPerCore, 1)
}

func nodeGPUs(n job.Node) int {
	gpus := int64(0)
	for _, g := range n.GRES {
		if g.Name == "gpu" {
			gpus += g.Count
		}
	}
	return int(gpus)
}

// spec is what a job of a trace asks for on the cluster: GPU jobs whole nodes as far as
// they fill them and their share of CPUs, others their CPUs wherever they are.
func (t *totals) spec(j *Job, limit job.Duration) job.Spec {
	s := job.Spec{
		Name: j.Name, User: j.User, Account: j.Account, TimeLimit: limit, Priority: j.Priority, Licenses: j.Licenses,
		Topology: job.Topology{Required: j.Required},
	}
	if t.partitions[j.Partition] {
		s.Partitions = []string{j.Partition}
	}
	if len(j.AnyFeature) == 1 {
		s.Constraint = &job.Constraint{Feature: j.AnyFeature[0]}
	} else if len(j.AnyFeature) > 1 {
		s.Constraint = &job.Constraint{}
		for _, f := range j.AnyFeature {
			s.Constraint.Or = append(s.Constraint.Or, &job.Constraint{Feature: f})
		}
	}
	if j.GPUs == 0 {
		piece := max(j.TaskCPUs, 1)
		s.Tasks, s.CPUsPerTask = (j.CPUs+piece-1)/piece, piece
		s.MinNodes = j.Nodes
		if j.Memory > 0 {
			s.Memory = job.Memory{MiB: max((j.Memory+int64(j.CPUs)-1)/int64(j.CPUs), 1), Per: job.PerCPU}
		}
		return s
	}
	nodes := j.Nodes
	if nodes == 0 {
		nodes = (j.GPUs + max(t.nodeGPUs, 1) - 1) / max(t.nodeGPUs, 1)
	}
	perNode := (j.GPUs + nodes - 1) / nodes
	s.MinNodes, s.MaxNodes = nodes, nodes
	s.GRES = []job.GRESRequest{{Name: "gpu", Count: int64(perNode), Per: job.PerNode}}
	s.CPUsPerTask = max(perNode*t.cpusPerGPU, 1)
	if j.CPUs > 0 {
		s.CPUsPerTask = (j.CPUs + nodes - 1) / nodes
	}
	if j.Memory > 0 {
		s.Memory = job.Memory{MiB: (j.Memory + int64(nodes) - 1) / int64(nodes), Per: job.PerNode}
	}
	return s
}

// ReadNodes reads the node list of Alibaba's GPU-sharing trace:
// "sn,cpu_milli,memory_mib,gpu,model". The model of its GPUs is a feature of a node.
func ReadNodes(from io.Reader) (*Cluster, error) {
	c := &Cluster{Name: "node list"}
	lines := bufio.NewScanner(from)
	var header columns
	for number := 1; lines.Scan(); number++ {
		fields := strings.Split(strings.TrimRight(lines.Text(), "\r"), ",")
		if header == nil {
			header = newColumns(fields)
			if err := header.need("sn", "cpu_milli", "memory_mib", "gpu", "model"); err != nil {
				return nil, err
			}
			continue
		}
		if len(fields) == 1 && fields[0] == "" {
			continue
		}
		n, err := parseNode(header, fields)
		if err != nil {
			return nil, &LineError{number, err.Error()}
		}
		if c.Nodes = append(c.Nodes, n); len(c.Nodes) > maxNodes {
			return nil, &LineError{number, "more nodes than a cluster has"}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(c.Nodes) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	c.partition()
	return c, nil
}

func parseNode(c columns, fields []string) (job.Node, error) {
	n := job.Node{Name: c.get(fields, "sn"), Sockets: 1, ThreadsPerCore: 1}
	if n.Name == "" {
		return n, fmt.Errorf("sn %q: want the name of a node", n.Name)
	}
	milli, err := whole(c, fields, "cpu_milli")
	if err != nil {
		return n, err
	}
	memory, err := whole(c, fields, "memory_mib")
	if err != nil {
		return n, err
	}
	gpus, err := whole(c, fields, "gpu")
	if err != nil || gpus > 64 {
		return n, fmt.Errorf("gpu %q: want a whole number up to 64", c.get(fields, "gpu"))
	}
	n.CPUs, n.Memory = max(milli/1000, 1), max(int64(memory), 1)
	n.CoresPerSocket = n.CPUs
	if gpus > 0 {
		n.GRES = []job.GRES{{Name: "gpu", Count: int64(gpus)}}
	}
	if model := c.get(fields, "model"); model != "" && model != "nan" {
		n.Features = []string{model}
	}
	return n, nil
}
