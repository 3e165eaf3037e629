package sim

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// Job is one job of a trace: when it came, how long it ran, and what it had.
type Job struct {
	Line          int // where it stands in the file
	Submit        job.Time
	Run           job.Duration // how long it takes; positive
	Limit         job.Duration // what its user asked for; 0: not known
	Nodes         int          // 0: not known
	CPUs, GPUs    int          // in all; one of them is positive
	Memory        int64        // MiB in all; 0: not known
	Name          string
	User, Account string
	Partition     string        // used where the cluster has one of this name
	AnyFeature    []string      // nodes have one of these; nil: any node
	Priority      *uint32       // nil: computed
	Licenses      []job.License // that it needs besides
	Required      job.Level     // as in job.Topology
	TaskCPUs      int           // CPUs come in pieces of so many, each on one node; 0: one
}

// Trace is what a file of jobs holds.
type Trace struct {
	Name   string // of the file, without its directory
	Format Format
	Jobs   []Job // by rising time of submission
	Lines  int   // that were read
	Broken []LineError
	// BrokenCount counts all broken lines, of which Broken has the first.
	BrokenCount int
	LeftOut     []LeftOut
	// Cluster is what the file itself says about the machine; nil: nothing.
	Cluster *Cluster
	// Procs and Nodes are what a header says of the machine; 0: nothing.
	Procs, Nodes int
}

// LeftOut counts jobs of a trace that are not simulated.
type LeftOut struct {
	Why  string `json:"why"`
	Jobs int    `json:"jobs"`
}

// LineError is a line that cannot be read.
type LineError struct {
	Line int    `json:"line"`
	Text string `json:"error"` // what is wrong with it, and what would be right
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Text) }

// Format is a format of traces.
type Format string

// The formats.
const (
	Auto   Format = ""       // found out from the first bytes
	SWF    Format = "swf"    // Standard Workload Format of the Parallel Workloads Archive
	Philly Format = "philly" // CSV: timestamp,duration,num_gpus,gpu_time,cluster
	OpenB  Format = "openb"  // CSV of pods: name,cpu_milli,memory_mib,num_gpu,gpu_milli,...
	Kueue  Format = "kueue"  // the generator YAML of Kueue's performance tests
	Sacct  Format = "sacct"  // sacct --parsable2, with its header
)

// ErrFormat is in the error of a trace whose format cannot be found out.
var ErrFormat = errors.New("its format is not known")

// ErrDamaged is in the error of a compressed trace that does not end as it should.
var ErrDamaged = errors.New("the compressed file is cut off or damaged")

// damaged says of an error of decompression that it is one.
func damaged(err error) error {
	if _, corrupt := errors.AsType[flate.CorruptInputError](err); corrupt || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// Formats are all formats, for messages.
func Formats() []Format { return []Format{SWF, Philly, OpenB, Kueue, Sacct} }

// ReadOptions say how a trace is read.
type ReadOptions struct {
	Format Format
	Strict bool // a broken line is an error; else it is counted and left out
	Max    int  // at most so many jobs, the first of the file; 0: all
}

// How much is kept of what is broken, and how long a line may be.
const (
	keepBroken = 10
	maxLine    = 1 << 20
)

// Open reads a trace from a file; see [Read].
func Open(name string, o ReadOptions) (*Trace, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	t, err := Read(f, o)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", name, err)
	}
	t.Name = name[strings.LastIndexByte(name, '/')+1:]
	return t, nil
}

// Read reads a trace line by line; it may be compressed by gzip. Jobs of one moment keep
// their order.
func Read(from io.Reader, o ReadOptions) (*Trace, error) {
	in := bufio.NewReaderSize(from, 64<<10)
	if head, _ := in.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, damaged(err)
		}
		defer z.Close()
		in = bufio.NewReaderSize(z, 64<<10)
	}
	if o.Format == Auto {
		head, err := in.Peek(4096)
		if err != nil && !errors.Is(err, io.EOF) && len(head) == 0 { // else it comes again, with its line
			return nil, damaged(err)
		}
		if len(bytes.TrimSpace(head)) == 0 {
			return nil, errors.New("it is empty")
		}
		if o.Format = sniff(head); o.Format == Auto {
			return nil, fmt.Errorf("%w; known are %v", ErrFormat, Formats())
		}
	}
	r := &reader{o: o, trace: &Trace{Format: o.Format}, leftOut: map[string]int{}, lines: bufio.NewScanner(in)}
	r.lines.Buffer(nil, maxLine)
	if err := r.read(); err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	t := r.trace
	for why, n := range r.leftOut {
		t.LeftOut = append(t.LeftOut, LeftOut{why, n})
	}
	slices.SortFunc(t.LeftOut, func(a, b LeftOut) int { return cmp.Compare(a.Why, b.Why) })
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return cmp.Compare(a.Submit, b.Submit) })
	if len(t.Jobs) == 0 {
		var text strings.Builder
		text.WriteString(fmt.Sprintf("no job in it, as %s", t.Format))
		for _, x := range t.LeftOut {
			text.WriteString(fmt.Sprintf(", %d left out: %s", x.Jobs, x.Why))
		}
		if t.BrokenCount > 0 {
			return nil, fmt.Errorf("%s: %w", text.String(), &t.Broken[0])
		}
		return nil, errors.New(text.String())
	}
	return t, nil
}

// sniff finds the format out from the first bytes.
func sniff(head []byte) Format {
	for line := range strings.Lines(string(head)) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case strings.HasPrefix(line, ";"):
			return SWF
		case strings.HasPrefix(line, "timestamp,duration,num_gpus"):
			return Philly
		case strings.HasPrefix(line, "name,cpu_milli"):
			return OpenB
		case strings.Contains("|"+line+"|", "|JobID|") || strings.Contains("|"+line+"|", "|JobIDRaw|"):
			return Sacct
		case strings.HasPrefix(line, "cohorts:") || strings.HasPrefix(line, "topology:") || strings.HasPrefix(line, "resourceFlavor:"):
			return Kueue
		case strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" || line == "---":
			continue
		case len(strings.Fields(line)) >= swfFields:
			return SWF
		}
		break
	}
	return Auto
}

// errEnough ends reading where o.Max jobs are there.
var errEnough = errors.New("enough jobs")

// reader is what is gathered while a trace is read.
type reader struct {
	o       ReadOptions
	trace   *Trace
	lines   *bufio.Scanner
	leftOut map[string]int
	fields  []string // of the latest line, used again
}

func (r *reader) read() error {
	switch r.o.Format {
	case SWF:
		return r.readSWF()
	case Philly:
		return r.readPhilly()
	case OpenB:
		return r.readOpenB()
	case Kueue:
		return r.readKueue()
	case Sacct:
		return r.readSacct()
	}
	return fmt.Errorf("format %q is not known; known are %v", r.o.Format, Formats())
}

// next is the next line, without its end. After the last one ok is false and err says
// whether the file was read to its end.
func (r *reader) next() (line string, ok bool, err error) {
	if r.lines.Scan() {
		r.trace.Lines++
		return strings.TrimRight(r.lines.Text(), "\r"), true, nil
	}
	switch err := r.lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return "", false, &LineError{r.trace.Lines + 1, fmt.Sprintf("longer than %d bytes: no trace has such lines", maxLine)}
	case err != nil:
		return "", false, fmt.Errorf("line %d: %w", r.trace.Lines+1, damaged(err))
	}
	return "", false, nil
}

// add takes a job of the current line, or says that the line is broken.
func (r *reader) add(j Job, err error) error {
	t := r.trace
	if err == nil {
		err = j.check()
	}
	if err != nil {
		e := LineError{t.Lines, err.Error()}
		if r.o.Strict {
			return &e
		}
		if t.BrokenCount++; len(t.Broken) < keepBroken {
			t.Broken = append(t.Broken, e)
		}
		return nil
	}
	j.Line = t.Lines
	t.Jobs = append(t.Jobs, j)
	if r.o.Max > 0 && len(t.Jobs) >= r.o.Max {
		return errEnough
	}
	return nil
}

// The largest things that a trace may hold. More is a broken line.
const (
	maxCount = 1 << 24
	maxTime  = job.Time(1) << 53
	maxRun   = 100 * 365 * job.Day
)

// check refuses what no machine has had.
func (j *Job) check() error {
	switch {
	case j.Submit < 0 || j.Submit > maxTime:
		return fmt.Errorf("submitted at %d ms: want a time since 1970", j.Submit)
	case j.Run <= 0 || j.Run > maxRun:
		return fmt.Errorf("runs for %d ms: want a positive time", j.Run)
	case j.Limit < 0 || j.Limit > maxRun:
		return fmt.Errorf("limit of %d ms: want a positive time", j.Limit)
	case j.CPUs < 0 || j.GPUs < 0 || j.Nodes < 0 || j.CPUs > maxCount || j.GPUs > maxCount || j.Nodes > maxCount || j.Memory < 0:
		return fmt.Errorf("%d nodes, %d CPUs, %d GPUs, %d MiB: want none of them negative or above %d", j.Nodes, j.CPUs, j.GPUs, j.Memory, maxCount)
	case j.CPUs == 0 && j.GPUs == 0:
		return errors.New("neither CPUs nor GPUs")
	}
	return nil
}

// csv splits a line at a separator; none of the formats has quotes.
func (r *reader) csv(line, separator string) []string {
	r.fields = r.fields[:0]
	for field := range strings.SplitSeq(line, separator) {
		r.fields = append(r.fields, field)
	}
	return r.fields
}

// columns finds the columns of a header; those that are missing are named.
type columns map[string]int

func newColumns(header []string) columns {
	c := columns{}
	for i, name := range header {
		c[strings.ToLower(name)] = i
	}
	return c
}

// columns reads the header of a trace, in which all names have to be.
func (r *reader) columns(separator string, names ...string) (columns, error) {
	header, _, err := r.next()
	if err != nil {
		return nil, err
	}
	c := newColumns(strings.Split(header, separator))
	return c, c.need(names...)
}

// need says whether all names are there, of which any may be several joined by "|", one
// of which is enough.
func (c columns) need(names ...string) error {
	for _, name := range names {
		if !slices.ContainsFunc(strings.Split(name, "|"), func(n string) bool { _, ok := c[strings.ToLower(n)]; return ok }) {
			return &LineError{1, "the header has no column " + strings.ReplaceAll(name, "|", " or ")}
		}
	}
	return nil
}

// get is a column of a line, the first of the names that the header has and that is not
// empty.
func (c columns) get(fields []string, names ...string) string {
	for _, name := range names {
		if i, ok := c[name]; ok && i < len(fields) && fields[i] != "" {
			return fields[i]
		}
	}
	return ""
}
