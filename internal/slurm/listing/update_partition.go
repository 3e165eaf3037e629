package listing

import (
	"math"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// partitionUpdate makes a change to a partition of KEY=VALUE.
type partitionUpdate struct{ change *api.Change }

// partition is what is changed of it: this field.
func (u *partitionUpdate) partition(field string) *job.Partition {
	if u.change.Partition == nil {
		u.change.Partition = &job.Partition{}
	}
	if !slices.Contains(u.change.Fields, field) {
		u.change.Fields = append(u.change.Fields, field)
	}
	return u.change.Partition
}

// acceptable is Slurm's refusal of a word that is none of a few.
func acceptable(p pair, name, words string) error {
	return &slurm.Refusal{Code: 1, Lines: []string{"error: Invalid input: " + p.text, "error: Acceptable " + name + " values are " + words}}
}

func (u *partitionUpdate) set(p pair) error {
	everybody := func(value string) []string {
		if strings.EqualFold(value, "ALL") {
			return nil
		}
		return words(value)
	}
	switch p.key {
	case "partitionname", "partition":
	case "state":
		word := strings.ToLower(p.value)
		if !slices.Contains([]string{"up", "down", "drain", "inactive"}, word) {
			return acceptable(p, "State", "UP, DOWN, DRAIN and INACTIVE")
		}
		u.change.State = word
	case "default":
		on, ok := boolean(p.value, "yes", "no")
		if !ok {
			return acceptable(p, "Default", "YES and NO")
		}
		u.partition("Default").Default = on
	case "maxtime", "defaulttime":
		return u.limit(p)
	case "nodes":
		names, err := slurm.Expand(p.value)
		if err != nil || len(names) == 0 {
			return refuse("Invalid input %s", p.text)
		}
		u.partition("Nodes").Nodes = names
	case "allowgroups":
		u.partition("AllowGroups").AllowGroups = everybody(p.value)
	case "allowaccounts":
		u.partition("AllowAccount").AllowAccount = everybody(p.value)
	case "allowqos":
		u.partition("AllowQOS").AllowQOS = everybody(p.value)
	case "denyaccounts":
		u.partition("DenyAccount").DenyAccount = words(p.value)
	case "denyqos":
		u.partition("DenyQOS").DenyQOS = words(p.value)
	case "oversubscribe", "shared":
		word := strings.ToLower(p.value)
		if word != "no" && word != "exclusive" {
			return acceptable(p, "OverSubscribe", "NO and EXCLUSIVE (YES and FORCE are not supported by Gangway)")
		}
		u.partition("Exclusive").Exclusive = word == "exclusive"
	default:
		return u.number(p)
	}
	return nil
}

func (u *partitionUpdate) limit(p pair) error {
	d, err := slurm.ParseTime(p.value)
	if strings.EqualFold(p.value, "NONE") {
		d, err = 0, nil
	}
	if err != nil {
		return refuse("Invalid input %s", p.text)
	}
	if d = slurm.Minutes(d); d == job.Forever {
		d = 0
	}
	if p.key == "maxtime" {
		u.partition("MaxTime").MaxTime = d
	} else {
		u.partition("DefaultTime").DefaultTime = d
	}
	return nil
}

func (u *partitionUpdate) number(p pair) error {
	names := map[string]string{
		"maxnodes": "MaxNodes", "minnodes": "MinNodes", "prioritytier": "PriorityTier", "priorityjobfactor": "PriorityJobFactor",
		"defmempercpu": "DefMemPerCPU", "defmempernode": "DefMemPerNode",
	}
	name := names[p.key]
	if strings.EqualFold(p.value, "UNLIMITED") && name != "PriorityTier" && name != "PriorityJobFactor" {
		p.value = "0"
	}
	most := int64(math.MaxInt32)
	if strings.HasPrefix(name, "Priority") {
		most = math.MaxUint16
	}
	n, err := within(name, p.value, 0, most)
	if err != nil {
		return refuse("Invalid numeric value %q for %s.", p.value, name)
	}
	switch name {
	case "MaxNodes":
		u.partition("MaxNodes").MaxNodes = int(n)
	case "MinNodes":
		u.partition("MinNodes").MinNodes = int(n)
	case "PriorityTier":
		u.partition("Tier").Tier = uint32(n)
	case "PriorityJobFactor":
		u.partition("Priority").Priority = uint32(n)
	case "DefMemPerCPU":
		u.partition("MemoryPerCPU").MemoryPerCPU = n
		u.partition("MemoryPerNode").MemoryPerNode = 0
	case "DefMemPerNode":
		u.partition("MemoryPerNode").MemoryPerNode = n
		u.partition("MemoryPerCPU").MemoryPerCPU = 0
	}
	return nil
}
