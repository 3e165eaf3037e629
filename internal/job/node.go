package job

// Node is what a node has, and how it is.
type Node struct {
	Name                    string
	Sockets, CoresPerSocket int
	ThreadsPerCore          int
	CPUs                    int   // that may be allocated; 0: the product of the three
	Memory                  int64 // MiB
	GRES                    []GRES
	Features                []string
	Weight                  int // nodes with less are taken first
	State                   NodeState
	Reason                  string
	Switch                  string // the leaf switch; empty: none is known
	Block                   string // the NVLink domain; empty: none
	Addr                    string
}

// GRES are the resources of one name and type on a node.
type GRES struct {
	Name, Type string
	Count      int64
	// Links say how well each device is linked to each other, as gres.conf has it: more is
	// better, -1 is the device itself. Nil: not known.
	Links [][]int
	// Sockets are where each device is, -1 for unknown; nil: not known.
	Sockets []int
}

// NodeState is a set of Slurm's base states and flags.
type NodeState uint16

// The states. Without any of these a node takes jobs.
const (
	NodeDown    NodeState = 1 << iota // nothing runs, what ran is lost
	NodeDrain                         // takes nothing new
	NodeMaint                         // set apart for maintenance
	NodeFuture                        // does not exist yet
	NodeUnknown                       // has not reported yet
	NodeSuspect                       // does not answer: takes nothing new, loses nothing
	NodeFail                          // will fail: as NodeDrain, with another name
)

// Takes says whether jobs may be started on a node.
func (s NodeState) Takes() bool { return s == 0 }

// Partition is a set of nodes with rules.
type Partition struct {
	Name          string
	Nodes         []string // that need not exist yet
	Default       bool
	MaxTime       Duration // 0: no limit
	DefaultTime   Duration // of jobs without a limit; 0: MaxTime
	MinNodes      int
	MaxNodes      int      // 0: no limit
	Priority      uint32   // factor of the priority
	Tier          uint32   // jobs of a higher one are looked at first
	AllowGroups   []string // empty: all; root is in every group
	AllowUsers    []string // empty: all
	DenyUsers     []string
	AllowAccount  []string
	DenyAccount   []string
	AllowQOS      []string
	DenyQOS       []string
	Exclusive     bool // whole nodes only
	Oversubscribe int  // jobs that may share a CPU; 0: 1; more is refused, it is not there yet
	State         PartitionState
	MemoryPerCPU  int64 // MiB, of jobs that do not say; 0: all of the node's
	MemoryPerNode int64
}

// PartitionState says whether jobs are queued and started.
type PartitionState uint8

// The states.
const (
	PartitionUp       PartitionState = iota // both
	PartitionDown                           // queued, not started
	PartitionDrain                          // started, not queued
	PartitionInactive                       // neither
)

// Switch is a switch of a topology tree: its children are switches, or else nodes.
type Switch struct {
	Name     string
	Switches []string
	Nodes    []string
}

// Block is nodes that are linked to each other better than to all others.
type Block struct {
	Name  string
	Nodes []string
}

// Network is how nodes are linked.
type Network struct {
	Switches []Switch
	Blocks   []Block
	// BlockSizes are the nodes of a block, and then of what so many blocks that follow each
	// other make together: a segment larger than a block is within one of those. Nil: there
	// are blocks only.
	BlockSizes []int
}

// Weights are those of multifactor priority.
type Weights struct {
	Age, Size, Partition, Nice uint32
	MaxAge                     Duration // 0: 7 days
	FavorSmall                 bool
}

// Config is what else the scheduler is told.
type Config struct {
	Weights      Weights
	Licenses     []License
	MaxArray     uint32 // index that no task reaches; 0: 1001
	MaxJobs      int    // 0: no limit
	MaxRequeue   int    // 0: 5
	Backfill     Backfill
	MinJobAge    Duration // how long an ended job is known; 0: 5 minutes; Forever: always
	DefaultLimit Duration // of jobs in partitions without one; 0: a year
}

// Backfill is how jobs are planned behind those with more priority.
type Backfill uint8

// The kinds.
const (
	Conservative Backfill = iota // every job has a promise that no later one delays
	EASY                         // only the first has
	None                         // nothing passes a job that waits (strict FIFO)
)
