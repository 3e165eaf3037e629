package listing_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

func update(words ...string) (*listing.Update, error) {
	return listing.ParseUpdate(words, time.UnixMilli(int64(noon)).UTC())
}

// TestUpdate: each key sets its field, and says which; nothing else is meant.
func TestUpdate(t *testing.T) {
	for text, want := range map[string]struct {
		fields string
		spec   job.Spec
	}{
		"TimeLimit=10":           {"TimeLimit", job.Spec{TimeLimit: 10 * job.Minute}},
		"timel=1-0":              {"TimeLimit", job.Spec{TimeLimit: job.Day}},
		"TimeLimit=UNLIMITED":    {"TimeLimit", job.Spec{TimeLimit: job.Forever}},
		"TimeLimit=-1":           {"TimeLimit", job.Spec{TimeLimit: job.Forever}},
		"TimeMin=5":              {"TimeMin", job.Spec{TimeMin: 5 * job.Minute}},
		"Nice=-3":                {"Nice", job.Spec{Nice: -3}},
		"nice":                   {"Nice", job.Spec{Nice: 100}},
		"Priority=77":            {"Priority", job.Spec{Priority: new(uint32(77))}},
		"Partition=a,b":          {"Partitions", job.Spec{Partitions: []string{"a", "b"}}},
		"NumNodes=2-4":           {"MinNodes MaxNodes", job.Spec{MinNodes: 2, MaxNodes: 4}},
		"NumNodes=3":             {"MinNodes MaxNodes", job.Spec{MinNodes: 3, MaxNodes: 3}},
		"NumTasks=7":             {"Tasks", job.Spec{Tasks: 7}},
		"NumCPUs=7":              {"Tasks", job.Spec{Tasks: 7}},
		"CPUs/Task=2":            {"CPUsPerTask", job.Spec{CPUsPerTask: 2}},
		"TasksPerNode=2":         {"TasksPerNode", job.Spec{TasksPerNode: 2}},
		"MinMemoryNode=2G":       {"Memory", job.Spec{Memory: job.Memory{MiB: 2048, Per: job.PerNode}}},
		"MinMemoryCPU=100":       {"Memory", job.Spec{Memory: job.Memory{MiB: 100, Per: job.PerCPU}}},
		"Gres=gpu:h100:2":        {"GRES", job.Spec{GRES: []job.GRESRequest{{Name: "gpu", Type: "h100", Count: 2, Per: job.PerNode}}}},
		"Gres=":                  {"GRES", job.Spec{}},
		"Features=a":             {"Constraint", job.Spec{Constraint: &job.Constraint{Feature: "a"}}},
		"Features=":              {"Constraint", job.Spec{}},
		"Dependency=afterok:5":   {"Dependencies", job.Spec{Dependencies: &job.Dependencies{List: []job.Dependency{{Type: job.AfterOK, Job: 5}}}}},
		"Dependency=":            {"Dependencies", job.Spec{}},
		"StartTime=now+1hour":    {"Begin", job.Spec{Begin: noon.Add(job.Hour)}},
		"EligibleTime=now+1hour": {"Begin", job.Spec{Begin: noon.Add(job.Hour)}},
		"Deadline=now+1hour":     {"Deadline", job.Spec{Deadline: noon.Add(job.Hour)}},
		"ReqNodeList=n[1-2]":     {"NodeList", job.Spec{NodeList: []string{"n1", "n2"}}},
		"ExcNodeList=n3":         {"Exclude", job.Spec{Exclude: []string{"n3"}}},
		"ArrayTaskThrottle=9":    {"Array", job.Spec{Array: &job.Array{Throttle: 9}}},
		"Requeue=1":              {"Requeue", job.Spec{Requeue: true}},
		"Contiguous=yes":         {"Contiguous", job.Spec{Contiguous: true}},
		"OverSubscribe=no":       {"Oversubscribe Exclusive", job.Spec{Exclusive: true}},
		"Licenses=a,b:2":         {"Licenses AnyLicense", job.Spec{Licenses: []job.License{{Name: "a", Count: 1}, {Name: "b", Count: 2}}}},
		"JobName=x":              {"Name", job.Spec{Name: "x"}},
		"Account=x":              {"Account", job.Spec{Account: "x"}},
		"QOS=x":                  {"QOS", job.Spec{QOS: "x"}},
	} {
		u, err := update("JobId=5,6_[1-2]", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if !slices.Equal(u.Jobs, []string{"5", "6_[1-2]"}) && strings.Join(u.Jobs, ",") != "5,6_[1-2]" {
			t.Errorf("%s: jobs %q", text, u.Jobs)
		}
		if got := strings.Join(u.Change.Fields, " "); got != want.fields || !reflect.DeepEqual(*u.Change.Spec, want.spec) {
			t.Errorf("%s: fields %s of %+v", text, got, *u.Change.Spec)
		}
	}
	for text, want := range map[string]job.Duration{"TimeLimit=+10": 10, "TimeLimit=-5": -5, "TimeLimit+=1:00:00": 60, "TimeLimit-=1": -1} {
		if u, err := update("job=5", text); err != nil || u.Change.Longer != want*job.Minute || u.Change.Spec != nil {
			t.Errorf("%s: %+v, %v", text, u, err)
		}
	}
	if u, err := update("job=5", "comment=a b", "nice=1"); err != nil || *u.Change.Comment != "a b" || u.Change.Spec.Nice != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := update("name=train", "nice=1"); err != nil || u.JobName != "train" || u.Jobs != nil || slices.Contains(u.Change.Fields, "Name") {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestUpdatePartition: so does each key of a partition, and of a node.
func TestUpdatePartition(t *testing.T) {
	for text, want := range map[string]struct {
		fields string
		part   job.Partition
	}{
		"MaxTime=60":               {"MaxTime", job.Partition{MaxTime: job.Hour}},
		"MaxTime=UNLIMITED":        {"MaxTime", job.Partition{}},
		"DefaultTime=NONE":         {"DefaultTime", job.Partition{}},
		"MaxNodes=2":               {"MaxNodes", job.Partition{MaxNodes: 2}},
		"MaxNodes=UNLIMITED":       {"MaxNodes", job.Partition{}},
		"MinNodes=1":               {"MinNodes", job.Partition{MinNodes: 1}},
		"Default=YES":              {"Default", job.Partition{Default: true}},
		"Nodes=n[1-2]":             {"Nodes", job.Partition{Nodes: []string{"n1", "n2"}}},
		"PriorityTier=5":           {"Tier", job.Partition{Tier: 5}},
		"PriorityJobFactor=6":      {"Priority", job.Partition{Priority: 6}},
		"AllowGroups=a,b":          {"AllowGroups", job.Partition{AllowGroups: []string{"a", "b"}}},
		"AllowGroups=ALL":          {"AllowGroups", job.Partition{}},
		"AllowAccounts=a":          {"AllowAccount", job.Partition{AllowAccount: []string{"a"}}},
		"DenyAccounts=a":           {"DenyAccount", job.Partition{DenyAccount: []string{"a"}}},
		"AllowQos=a":               {"AllowQOS", job.Partition{AllowQOS: []string{"a"}}},
		"DenyQos=a":                {"DenyQOS", job.Partition{DenyQOS: []string{"a"}}},
		"OverSubscribe=EXCLUSIVE":  {"Exclusive", job.Partition{Exclusive: true}},
		"DefMemPerCPU=100":         {"MemoryPerCPU MemoryPerNode", job.Partition{MemoryPerCPU: 100}},
		"DefMemPerNode=100":        {"MemoryPerNode MemoryPerCPU", job.Partition{MemoryPerNode: 100}},
		"DefMemPerNode=UNLIMITED ": {"", job.Partition{}},
	} {
		u, err := update("PartitionName=p", text)
		if want.fields == "" {
			if err == nil {
				t.Errorf("%q was taken", text)
			}
			continue
		}
		if err != nil || u.Partition != "p" {
			t.Errorf("%s: %+v, %v", text, u, err)
			continue
		}
		if got := strings.Join(u.Change.Fields, " "); got != want.fields || !reflect.DeepEqual(*u.Change.Partition, want.part) {
			t.Errorf("%s: fields %s of %+v", text, got, *u.Change.Partition)
		}
	}
	if u, err := update("partition=p", "state=DRAIN"); err != nil || u.Change.State != "drain" || u.Partition != "p" {
		t.Errorf("%+v, %v", u, err)
	}
	want := &listing.Update{Nodes: []string{"n1", "n2"}, Change: api.Change{State: "drain", Reason: "bad gpu"}}
	if u, err := update("NodeName=n[1-2]", "State=DRAIN", "Reason=bad gpu"); err != nil || !reflect.DeepEqual(u, want) {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestBadUpdate: what cannot be read is refused in Slurm's words, where it has some, and by its
// name.
func TestBadUpdate(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "too few arguments for update keyword",
		"foo":                             "No valid entity in update command",
		"foo=bar":                         "No valid entity in update command",
		"jobid=5":                         "No changes specified",
		"nodename=n1":                     "No changes specified",
		"partitionname=p":                 "error: No changes specified",
		"jobid=5 foo=bar":                 "Update of this parameter is not supported: foo=bar",
		"jobid=5 stdout=x":                "Update of this parameter is not supported: stdout=x",
		"jobid=5 nu=5":                    "Update of this parameter is not supported: nu=5",
		"jobid=5 nice+=5":                 "Update of this parameter is not supported: nice+=5",
		"jobid=5 timelimit":               "Update of this parameter is not supported: timelimit",
		"jobid=5 timelimit=abc":           "error: Invalid TimeLimit value",
		"jobid=5 timelimit+=UNLIMITED":    "error: Invalid TimeLimit value",
		"jobid=5 timemin=x":               "error: Invalid TimeMin value",
		"jobid=5 priority=abc":            "error: Invalid Priority value: abc",
		"jobid=5 priority=-1":             "error: Invalid Priority value: -1",
		"jobid=5 priority=4294967296":     "error: Invalid Priority value: 4294967296",
		"jobid=5 nice=1.5":                "error: Invalid Nice value: 1.5",
		"jobid=5 numnodes=abc":            `error: Invalid numeric value "abc" for requested node count.`,
		"jobid=5 numnodes=3-1":            `error: Invalid numeric value "3-1" for requested node count.`,
		"jobid=5 numtasks=0":              "error: Invalid NumTasks value: 0",
		"jobid=5 numcpus=abc":             "error: Invalid NumCPUs value: abc",
		"jobid=5 requeue=2":               "error: Invalid Requeue value: 2",
		"jobid=5 contiguous=abc":          "error: Invalid Contiguous value: abc",
		"jobid=5 shared=abc":              "error: Invalid OverSubscribe value: abc",
		"jobid=5 minmemorynode=abc":       "error: Invalid MinMemoryNode value: abc",
		"jobid=5 arraytaskthrottle=abc":   "error: Invalid ArrayTaskThrottle value: abc",
		"jobid=5 starttime=abc":           "Invalid time specification (pos=0): abc",
		"jobid=5 licenses=a:x":            "error: Invalid Licenses value: a:x",
		"jobid=5 features=[a":             "error: Invalid Features value: [a",
		"reservation=x flags=y":           "error: scontrol update reservation is not supported by Gangway",
		"stepid=5.0 timelimit=5":          "error: scontrol update stepid is not supported by Gangway",
		"nodename=n1 state=foo":           "Invalid input: state=foo",
		"nodename=n1 state=drain":         "You must specify a reason when DOWNING or DRAINING a node. Request denied",
		"nodename=n1 state=down":          "You must specify a reason when DOWNING or DRAINING a node. Request denied",
		"nodename=n1 weight=5":            "Update of this parameter is not supported: weight=5",
		"partitionname=p state=foo":       "error: Invalid input: state=foo",
		"partitionname=p default=foo":     "error: Invalid input: default=foo",
		"partitionname=p oversubscribe=y": "error: Invalid input: oversubscribe=y",
		"partitionname=p maxnodes=abc":    `error: Invalid numeric value "abc" for MaxNodes.`,
		"partitionname=p maxtime=abc":     "error: Invalid input maxtime=abc",
		"partitionname=p hidden=yes":      "Update of this parameter is not supported: hidden=yes",
	} {
		_, err := update(strings.Fields(text)...)
		var refusal *slurm.Refusal
		if !errors.As(err, &refusal) || refusal.Lines[0] != want || refusal.Code != 1 {
			t.Errorf("scontrol update %s: %v, want %s", text, err, want)
		}
	}
}
