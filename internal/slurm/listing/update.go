package listing

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// Update is what "scontrol update" asks for: of jobs, of nodes, or of a partition.
type Update struct {
	Jobs      []string
	JobName   string // where no job is named: of all with this name
	Nodes     []string
	Partition string
	Change    api.Change
}

// pair is KEY=VALUE, or KEY+=VALUE, as it was written and with the key that it means.
type pair struct {
	key, value, text string
	sign             byte // before the =; 0: none
}

// The keys of each entity that act; the first ones of each list name the entity.
var (
	jobKeys = []string{
		"jobid", "job", "account", "arraytaskthrottle", "comment", "contiguous", "cpus/task", "cpuspertask", "deadline", "dependency",
		"eligibletime", "excnodelist", "features", "gres", "jobname", "licenses", "minmemorycpu", "minmemorynode", "minnodes", "name",
		"nice", "nodelist", "ntaskspernode", "numcpus", "numnodes", "numtasks", "oversubscribe", "partition", "priority", "qos",
		"reqnodelist", "reqnodes", "requeue", "shared", "starttime", "tasks/node", "taskspernode", "timelimit", "timemin", "trespernode",
	}
	nodeKeys      = []string{"nodename", "node", "reason", "state"}
	partitionKeys = []string{
		"partitionname", "partition", "allowaccounts", "allowgroups", "allowqos", "default", "defaulttime", "defmempercpu", "defmempernode",
		"denyaccounts", "denyqos", "maxnodes", "maxtime", "minnodes", "nodes", "oversubscribe", "priorityjobfactor", "prioritytier",
		"shared", "state",
	}
)

// keyOf is the key that a word means: its beginning is enough, from the third letter on, where
// it is that of one key only.
func keyOf(keys []string, word string) string {
	word = strings.ToLower(word)
	if slices.Contains(keys, word) {
		return word
	}
	found := ""
	for _, key := range keys {
		if len(word) < 3 || !strings.HasPrefix(key, word) {
			continue
		}
		if found != "" {
			return ""
		}
		found = key
	}
	return found
}

// ParseUpdate reads KEY=VALUE words.
func ParseUpdate(args []string, now time.Time) (*Update, error) {
	if len(args) == 0 {
		return nil, plainly("too few arguments for update keyword")
	}
	pairs := make([]pair, len(args))
	for i, arg := range args {
		p := &pairs[i]
		p.key, p.value, _ = strings.Cut(arg, "=")
		p.text = arg
		if n := len(p.key) - 1; n > 0 && strings.HasPrefix(arg[n+1:], "=") && (p.key[n] == '+' || p.key[n] == '-') {
			p.key, p.sign = p.key[:n], p.key[n]
		}
	}
	u := &Update{}
	keys, set, err := u.entity(pairs, now)
	if err != nil {
		return nil, err
	}
	for _, p := range pairs {
		key := keyOf(keys, p.key)
		bare := !strings.Contains(p.text, "=") && key != "nice" // which stands for 100
		if key == "" || bare || p.sign != 0 && key != "timelimit" {
			return nil, unknownKey(p.text)
		}
		p.key = key
		if err := set(p); err != nil {
			return nil, err
		}
	}
	return u, u.whole()
}

// entity finds what is to be changed, the keys that it has and what takes them.
func (u *Update) entity(pairs []pair, now time.Time) (keys []string, set func(pair) error, err error) {
	job := &jobUpdate{&u.Change, now}
	value := func(keys ...string) (text, key string) {
		for _, p := range pairs {
			if key := strings.ToLower(p.key); slices.Contains(keys, key) && p.value != "" {
				return p.value, key
			}
		}
		return "", ""
	}
	if text, _ := value("jobid", "job"); text != "" {
		u.Jobs = words(text)
		return jobKeys, job.set, nil
	}
	if text, _ := value("nodename", "node"); text != "" {
		if u.Nodes, err = slurm.Expand(text); err != nil {
			return nil, nil, plainly("%s", err)
		}
		return nodeKeys, u.node, nil
	}
	if _, key := value("reservation", "reservationname", "stepid", "step", "slurmctlddebug", "frontendname"); key != "" {
		return nil, nil, refuse("scontrol update %s is not supported by Gangway", key)
	}
	if u.Partition, _ = value("partitionname", "partition"); u.Partition != "" && !named(pairs, "jobname", "name") {
		part := &partitionUpdate{&u.Change}
		return partitionKeys, part.set, nil
	}
	for _, p := range pairs {
		if key := strings.ToLower(p.key); key == "jobname" || key == "name" {
			u.JobName = p.value
			return append([]string{"userid"}, jobKeys...), func(p pair) error {
				if p.key == "jobname" || p.key == "name" || p.key == "userid" {
					return nil
				}
				return job.set(p)
			}, nil
		}
	}
	return nil, nil, &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
		"No valid entity in update command",
		`Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"`,
	}}
}

func named(pairs []pair, keys ...string) bool {
	return slices.ContainsFunc(pairs, func(p pair) bool { return slices.Contains(keys, strings.ToLower(p.key)) })
}

// whole refuses what says nothing, or not all.
func (u *Update) whole() error {
	c := &u.Change
	if c.Spec == nil && c.Partition == nil && c.Longer == 0 && c.Comment == nil && c.State == "" && c.Reason == "" {
		if u.Partition != "" {
			return refuse("No changes specified")
		}
		return plainly("No changes specified")
	}
	if u.Nodes != nil && c.Reason == "" && slices.Contains([]string{"down", "drain", "fail"}, c.State) {
		return plainly("You must specify a reason when DOWNING or DRAINING a node. Request denied")
	}
	return nil
}

func unknownKey(text string) error {
	return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{"Update of this parameter is not supported: " + text, "Request aborted"}}
}

// invalid is Slurm's sentence for a value that it cannot read.
func invalid(key, value string) error { return refuse("Invalid %s value: %s", key, value) }

func (u *Update) node(p pair) error {
	switch p.key {
	case "reason":
		u.Change.Reason = p.value
	case "state":
		states := []string{"drain", "resume", "down", "undrain", "fail"}
		word := strings.ToLower(p.value)
		if !slices.Contains(states, word) {
			return &slurm.Refusal{Plain: true, Code: 1, Lines: []string{
				"Invalid input: " + p.text, "Request aborted", "Valid states are: DOWN DRAIN FAIL RESUME UNDRAIN",
				"Not all states are valid given a node's prior state",
			}}
		}
		u.Change.State = word
	}
	return nil
}

// boolean reads what is one of two words, or the contrary.
func boolean(value, yes, no string) (on, ok bool) {
	switch value = strings.ToLower(value); value {
	case yes, "1", "y":
		return true, true
	case no, "0", "n":
		return false, true
	}
	return false, false
}

// within is a number within bounds; key is how it is called where it is not.
func within(key, value string, low, high int64) (int64, error) {
	var n int64
	var rest string
	if count, _ := fmt.Sscanf(value+" .", "%d %s", &n, &rest); count != 2 || rest != "." || n < low || n > high {
		return 0, invalid(key, value)
	}
	return n, nil
}
