package job

// Cluster is what a cluster is declared to be: the file cluster.json of a state directory,
// which "gangway up" writes, and controller and agents read when they start.
type Cluster struct {
	Name string
	// ID is random, made once with the state directory: clusters of one name are told apart
	// by it in markers of processes.
	ID         string
	Nodes      []Node
	Declared   bool // the nodes' hardware is as written here, whatever is there
	Partitions []Partition
	Network    Network
	Config     Config
	// Programs are run by agents; nil: there are none.
	Programs *Programs `json:",omitempty"`
	// SuspectAfter and LostAfter are how long a node may be silent until it takes nothing
	// new, and until what ran there is lost; 0: 5 s, 60 s.
	SuspectAfter, LostAfter Duration
	// SlurmConf is the directory of the slurm.conf that all this was read from; empty: none.
	SlurmConf string `json:",omitempty"`
	// Leaving are nodes that are not declared any more, and on which something ran when that
	// was said: their agents stay until the controller has removed them.
	Leaving []Node `json:",omitempty"`
}
