// Package slurm reads the Slurm dialect and makes values of package internal/job of it:
// slurm.conf, gres.conf, topology.conf and topology.yaml with all that they may hold, hostlists,
// times, sizes and lists of generic resources.
//
// First use: [Load] of a directory such as /etc/slurm, and [Cluster.Events] for package
// sched. The smaller parts ([Expand], [Fold], [ParseTime], [ParseSize], [ParseGRES]) are
// for whoever reads what people type.
//
// What Slurm would stop at and a migration need not, such as a partition with nodes that
// no line defines or a key that nobody knows, is a warning in [Cluster.Warnings]. What
// cannot be meant is an error that names file, line, value and what would be valid.
// Settings that mean nothing here are listed in [Cluster.Ignored]. [Lint] has all of that,
// and what else is to be known, as findings; the tables in setting_*.go say of every key
// of Slurm's files what becomes of it here.
//
// Nothing here keeps state or starts anything, and all of it may be used by any number of
// goroutines. The package reads the files it is pointed at, and those that they include;
// it asks no daemon and resolves no name.
package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
)

// Cluster is what a configuration directory says.
type Cluster struct {
	Name       string
	Config     job.Config
	Nodes      []job.Node // in the order of the file
	Partitions []job.Partition
	Network    job.Network
	Programs   *job.Programs // that agents run; nil: there are none
	// SwitchWait is how long --switches is waited for at most (max_switch_wait).
	SwitchWait job.Duration
	Warnings   []Warning
	// More is how many other errors and warnings [Lint] has: they are about what runs on nodes,
	// and about what lines mean together.
	More    int
	Ignored []Setting // settings that have no meaning here, in the order of the file
}

// Warning is something that is read in one way and may have been meant in another.
type Warning struct {
	File string // its base name
	Line int
	Text string
}

// String is as a compiler would say it.
func (w Warning) String() string { return fmt.Sprintf("%s:%d: %s", w.File, w.Line, w.Text) }

// Setting is a key and its value at a place.
type Setting struct {
	File       string
	Line       int
	Key, Value string
}

// SyntaxError is a value that is not valid, and what would be.
type SyntaxError struct {
	File       string // its base name; empty where no file is read
	Line       int
	Key, Value string
	Want       string // "a number of MiB from 1 to ..."
}

// Error implements error.
func (e *SyntaxError) Error() string {
	text := ""
	if e.File != "" {
		text = fmt.Sprintf("%s:%d: ", e.File, e.Line)
	}
	if e.Key != "" {
		text += e.Key + "="
	}
	return text + quoted(e.Value) + ": want " + e.Want
}

// quoted is a value for a message: short, and in quotes where it would be misread.
func quoted(value string) string {
	if len(value) > 80 {
		value = value[:77] + "..."
	}
	if value == "" || strings.ContainsAny(value, " \t\"'") || strings.ToValidUTF8(value, "?") != value {
		return fmt.Sprintf("%q", value)
	}
	return value
}

// Load reads slurm.conf, and where they are there gres.conf, topology.yaml or else
// topology.conf, cgroup.conf and plugstack.conf, from a directory. A file that ends in
// .conf may be named in the directory's place; the others lie beside it then. The error is
// about the first line that cannot be read, and says how many there are.
func Load(dir string) (*Cluster, error) {
	dir, name := split(dir)
	return LoadFS(dirFS(dir), name)
}

// split is the directory, and the name of slurm.conf in it.
func split(dir string) (parent, name string) {
	if strings.HasSuffix(dir, ".conf") {
		return filepath.Dir(dir), filepath.Base(dir)
	}
	return dir, "slurm.conf"
}

// dirFS is a directory. Files included by absolute names are read from where they are,
// and symlinks may lead out of it, as where configurations are kept in git.
type dirFS string

// Open implements fs.FS.
func (d dirFS) Open(name string) (fs.File, error) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(string(d), name)
	}
	return os.Open(name)
}

// LoadFS is Load from a file system, in which name is slurm.conf's.
func LoadFS(files fs.FS, name string) (*Cluster, error) {
	r := newReader(files)
	if err := r.read(name); err != nil {
		return nil, err
	}
	if r.failed == nil {
		r.cluster.More = r.found[SeverityError] + r.found[SeverityWarning] - len(r.cluster.Warnings)
		return r.cluster, nil
	}
	f := &fault.Error{What: fmt.Errorf("read Slurm's configuration: %w", r.failed)}
	if r.failures > 1 {
		f.Cause = fmt.Sprintf("it is the first of %d errors; gangway slurm lint has all of them", r.failures)
	}
	f.Hint = "mend the line, or leave it out; Slurm's manual pages are slurm.conf(5), gres.conf(5), topology.conf(5) and topology.yaml(5)"
	if errors.Is(r.failed, fs.ErrNotExist) {
		f.Hint = missingHint
	}
	return nil, f
}

const missingHint = "name the directory that slurm.conf is in, often /etc/slurm, with all that it includes"

// reader is what is gathered while files are read.
type reader struct {
	files    fs.FS
	cluster  *Cluster
	named    map[string]int // index of a node by its name
	conf     global
	gres     map[string]bool // which names GresTypes has
	rules    map[section]map[string]ruling
	findings []Finding
	found    map[Severity]int
	failed   error // the first error of a line that is needed
	failures int   // how many there were
	quiet    bool  // what is read was read before: nothing is said of it
	lenient  bool  // nothing depends on the file: its errors refuse nothing
	included int   // files
}

func newReader(files fs.FS) *reader {
	return &reader{files: files, cluster: &Cluster{SwitchWait: 300 * job.Second}, named: map[string]int{}, rules: map[section]map[string]ruling{}, found: map[Severity]int{}}
}

// read reads all files. The error is of a file that cannot be read.
func (r *reader) read(name string) error {
	for _, read := range []func(string) error{r.slurmConf, r.gresConf, r.topology, r.cgroupConf, r.plugStack} {
		if err := read(name); err != nil {
			f := &fault.Error{What: fmt.Errorf("read Slurm's configuration: %w", err)}
			if errors.Is(err, fs.ErrNotExist) {
				f.Hint = missingHint
			}
			return f
		}
	}
	r.check(name)
	return nil
}

// Events are what sets up a scheduler with the cluster, at a moment.
func (c *Cluster) Events(at job.Time) []job.Event {
	events := []job.Event{job.Configured{At: at, Config: c.Config}}
	for _, n := range c.Nodes {
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
