package listing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Update is what "scontrol update" asks for: of jobs, of nodes, or of a partition.
type Update struct {
	Jobs      []string
	Nodes     []string
	Partition string
	Change    api.Change              // of nodes and partitions
	Specs     []func(*job.Spec) error // of jobs, in their order
}

// ParseUpdate reads KEY=VALUE words.
func ParseUpdate(args []string, now time.Time) (*Update, error) {
	u := &Update{}
	pairs, err := updatePairs(args)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		switch p.key {
		case "jobid", "job":
			u.Jobs = words(p.value)
		case "nodename", "node":
			if u.Nodes, err = slurm.Expand(p.value); err != nil {
				return nil, plainly("%s", err)
			}
		case "partitionname":
			u.Partition = p.value
		}
	}
	set := func(p pair) error {
		switch {
		case u.Jobs != nil:
			f, err := updateJob(p, now)
			if f != nil {
				u.Specs = append(u.Specs, f)
			}
			return err
		case u.Nodes != nil:
			return u.node(p)
		case u.Partition != "":
			return u.partition(p)
		}
		return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
			"No valid entity in update command",
			`Input line must include "NodeName", "PartitionName" or "JobId"`,
		}}
	}
	for _, p := range pairs {
		if err := set(p); err != nil {
			return nil, err
		}
	}
	if u.Nodes != nil && u.Change.Reason == "" && slices.Contains([]string{"down", "drain", "fail"}, u.Change.State) {
		return nil, plainly("You must specify a reason when DOWNING or DRAINING a node. Request denied")
	}
	return u, nil
}

type pair struct{ key, value, text string }

func updatePairs(args []string) ([]pair, error) {
	var pairs []pair
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, unknownKey(arg)
		}
		key = strings.TrimRight(key, "+-")
		pairs = append(pairs, pair{strings.ToLower(key), value, arg})
	}
	if len(pairs) == 0 {
		return nil, plainly("too few arguments for keyword:update")
	}
	return pairs, nil
}

func unknownKey(text string) error {
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{"Update of this parameter is not supported: " + text, "Request aborted"}}
}

func badValue(p pair, err error) error {
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{"Invalid input: " + p.text, err.Error(), "Request aborted"}}
}

func (u *Update) node(p pair) error {
	switch p.key {
	case "nodename", "node":
	case "reason":
		u.Change.Reason = p.value
	case "state":
		states := []string{"drain", "resume", "down", "undrain", "fail"}
		word := strings.ToLower(p.value)
		if !slices.Contains(states, word) {
			return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
				"Invalid input: " + p.text, "Request aborted", "Valid states are: DRAIN RESUME DOWN UNDRAIN FAIL",
			}}
		}
		u.Change.State = word
	default:
		return unknownKey(p.text)
	}
	return nil
}

func (u *Update) partition(p pair) error {
	switch p.key {
	case "partitionname":
	case "state":
		word := strings.ToLower(p.value)
		if !slices.Contains([]string{"up", "down", "drain", "inactive"}, word) {
			return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
				"Invalid input: " + p.text, "Acceptable State values are \"UP\", \"DOWN\", \"DRAIN\", and \"INACTIVE\"",
			}}
		}
		u.Change.State = word
	default:
		return unknownKey(p.text)
	}
	return nil
}

// updateJob makes what an assignment does to a job's request; nil: nothing.
func updateJob(p pair, now time.Time) (func(*job.Spec) error, error) {
	switch p.key {
	case "jobid", "job":
		return nil, nil
	case "name", "jobname":
		return func(s *job.Spec) error { s.Name = p.value; return nil }, nil
	case "account":
		return func(s *job.Spec) error { s.Account = p.value; return nil }, nil
	case "qos":
		return func(s *job.Spec) error { s.QOS = p.value; return nil }, nil
	case "partition":
		return func(s *job.Spec) error { s.Partitions = words(p.value); return nil }, nil
	case "timelimit":
		return updateLimit(p)
	case "nice", "priority", "numtasks", "numcpus", "cpuspertask", "ntaskspernode", "requeue", "contiguous", "arraytaskthrottle":
		return updateNumber(p)
	case "numnodes", "minnodes":
		return updateNodes(p)
	case "starttime", "eligibletime", "begin", "deadline":
		at, err := slurm.ParseMoment(p.value, now)
		if err != nil {
			return nil, badValue(p, err)
		}
		if p.key == "deadline" {
			return func(s *job.Spec) error { s.Deadline = at; return nil }, nil
		}
		return func(s *job.Spec) error { s.Begin = at; return nil }, nil
	case "reqnodelist", "nodelist", "excnodelist":
		names, err := slurm.Expand(p.value)
		if err != nil {
			return nil, badValue(p, err)
		}
		if p.key == "excnodelist" {
			return func(s *job.Spec) error { s.Exclude = names; return nil }, nil
		}
		return func(s *job.Spec) error { s.NodeList = names; return nil }, nil
	case "minmemorynode", "minmemorycpu":
		mib, err := slurm.ParseSize(p.value)
		if err != nil {
			return nil, badValue(p, err)
		}
		per := job.PerNode
		if p.key == "minmemorycpu" {
			per = job.PerCPU
		}
		return func(s *job.Spec) error { s.Memory = job.Memory{MiB: mib, Per: per}; return nil }, nil
	case "gres", "trespernode":
		all, err := slurm.ParseGRESRequest(p.value, "", job.PerNode)
		if err != nil {
			return nil, badValue(p, err)
		}
		return func(s *job.Spec) error { s.GRES = all; return nil }, nil
	}
	return nil, unknownKey(p.text)
}

// updateLimit is a new time limit, or with + or - before it another by so much.
func updateLimit(p pair) (func(*job.Spec) error, error) {
	text := strings.TrimLeft(p.value, "+-")
	d, err := slurm.ParseTime(text)
	if err != nil {
		return nil, badValue(p, err)
	}
	return func(s *job.Spec) error {
		switch {
		case strings.HasPrefix(p.value, "+"):
			s.TimeLimit += d
		case strings.HasPrefix(p.value, "-") && p.value != "-1":
			if s.TimeLimit <= d {
				return fmt.Errorf("the time limit is %s, which is not more than %s", slurm.FormatTime(s.TimeLimit), text)
			}
			s.TimeLimit -= d
		default:
			s.TimeLimit = d
		}
		return nil
	}, nil
}

func updateNumber(p pair) (func(*job.Spec) error, error) {
	n, err := strconv.ParseInt(p.value, 10, 32)
	if p.key == "priority" {
		n, err = strconv.ParseInt(p.value, 10, 64)
	}
	if err != nil || n < 0 && p.key != "nice" || n > 1<<32-1 {
		return nil, badValue(p, &slurm.SyntaxError{Key: p.key, Value: p.value, Want: "a number"})
	}
	return func(s *job.Spec) error {
		switch p.key {
		case "nice":
			s.Nice = int32(n)
		case "priority":
			priority := uint32(n)
			s.Priority = &priority
		case "numtasks", "numcpus":
			s.Tasks = int(n)
		case "cpuspertask":
			s.CPUsPerTask = int(n)
		case "ntaskspernode":
			s.TasksPerNode = int(n)
		case "requeue":
			s.Requeue = n != 0
		case "contiguous":
			s.Contiguous = n != 0
		case "arraytaskthrottle":
			if s.Array == nil {
				return fmt.Errorf("the job is no array")
			}
			array := *s.Array
			array.Throttle = int(n)
			s.Array = &array
		}
		return nil
	}, nil
}

func updateNodes(p pair) (func(*job.Spec) error, error) {
	low, high, ranged := strings.Cut(p.value, "-")
	if !ranged {
		high = low
	}
	a, errA := strconv.ParseUint(low, 10, 31)
	b, errB := strconv.ParseUint(high, 10, 31)
	if errA != nil || errB != nil || a == 0 || b < a {
		return nil, badValue(p, &slurm.SyntaxError{Key: p.key, Value: p.value, Want: "MIN or MIN-MAX nodes"})
	}
	return func(s *job.Spec) error { s.MinNodes, s.MaxNodes = int(a), int(b); return nil }, nil
}
