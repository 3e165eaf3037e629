package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/sched"
)

// amendment is one thing in which the cluster is not as it is declared, and what is done
// about it now. Without a Kind there is nothing to be told of it.
type amendment struct {
	api.ConfigChange
	events []any
}

// Why a node drains whose place in the configuration has changed. Both end by themselves.
const (
	leavingReason  = "leaves the cluster when its jobs have ended (reconfigure)"
	changingReason = "changes when its jobs have ended (reconfigure)"
)

// differ finds what differs. Each event is tried on a copy of the scheduler, in which those
// before have happened.
type differ struct {
	*core
	want    *job.Cluster
	trial   *sched.Scheduler
	used    map[string]*usage
	all     []amendment
	refused []error
}

// difference is what takes the cluster from how it is to how it is wanted, as far as that
// can be done now, and what of it the scheduler does not take whatever runs.
func (c *core) difference(want *job.Cluster) ([]amendment, []error) {
	d := &differ{core: c, want: want, trial: c.sched.Fork(), used: c.usages()}
	d.settings()
	d.nodes()
	d.partitions()
	return d.all, d.refused
}

// try has an event in the copy, and says why it cannot be.
func (d *differ) try(a api.ConfigChange, events ...any) error {
	for _, e := range events {
		if e, ok := e.(job.Event); ok {
			if err := d.trial.Apply(e); err != nil {
				return err
			}
		}
	}
	d.all = append(d.all, amendment{a, events})
	return nil
}

// must is try for what does not depend on what runs.
func (d *differ) must(a api.ConfigChange, events ...any) {
	if err := d.try(a, events...); err != nil {
		d.refused = append(d.refused, err)
	}
}

// settings are all that is not a node or a partition.
func (d *differ) settings() {
	if was := d.sched.Config(); len(d.known) == 0 || !same(was, d.want.Config) {
		a := api.ConfigChange{Kind: api.KindSettings, What: api.WhatChanged, Fate: api.FateNow, Fields: fieldChanges(was, d.want.Config)}
		d.must(a, job.Configured{At: d.now, Config: d.want.Config})
	}
	if was := d.sched.Network(); len(d.known) == 0 || !same(was, d.want.Network) {
		a := api.ConfigChange{Kind: api.KindNetwork, What: api.WhatChanged, Fate: api.FateNow, Fields: fieldChanges(was, d.want.Network)}
		d.must(a, job.NetworkSet{At: d.now, Network: d.want.Network})
	}
	for _, f := range fieldChanges(*d.opts.Cluster, *d.want) {
		switch f.Name {
		case "ID", "Nodes", "Leaving", "Partitions", "Network", "Config", "SlurmConf":
			continue
		}
		a := api.ConfigChange{Kind: api.KindSettings, What: api.WhatChanged, Fate: api.FateRestart, Fields: []api.FieldChange{f}}
		if f.Name == "SuspectAfter" || f.Name == "LostAfter" || f.Name == "Programs" {
			a.Fate = api.FateNow
		}
		d.all = append(d.all, amendment{ConfigChange: a})
	}
}

func (d *differ) nodes() {
	wanted := map[string]bool{}
	for _, n := range d.want.Nodes {
		wanted[n.Name] = true
		a := api.ConfigChange{Kind: api.KindNode, Name: n.Name, Fate: api.FateNow}
		have := d.knownNode(n.Name)
		if have == nil {
			a.What, a.Fields = api.WhatAdded, fieldChanges(job.Node{Name: n.Name}, n)
			n.State |= job.NodeUnknown
			d.must(a, job.NodeSet{At: d.now, Node: n})
			continue
		}
		ours := have.Reason == leavingReason || have.Reason == changingReason
		if n.State, n.Reason = have.State, have.Reason; ours {
			n.State, n.Reason = n.State&^job.NodeDrain, ""
		}
		// What a node that is not declared has it says itself.
		if !d.want.Declared || sameNode(n, *have) {
			if ours {
				a.What = api.WhatStays
				d.must(a, job.NodeStateSet{At: d.now, Node: n.Name, State: n.State, Reason: n.Reason})
			}
			continue
		}
		a.What, a.Fields = api.WhatChanged, fieldChanges(*have, n)
		err := d.try(a, job.NodeSet{At: d.now, Node: n})
		if err == nil {
			continue
		}
		if a.Jobs = d.jobsOn(n.Name); a.Jobs == nil {
			d.refused = append(d.refused, err)
			continue
		}
		d.drain(a, have, changingReason)
	}
	for i := range d.known {
		have := &d.known[i]
		if wanted[have.Name] {
			continue
		}
		a := api.ConfigChange{Kind: api.KindNode, Name: have.Name, What: api.WhatRemoved, Fate: api.FateNow, Jobs: d.jobsOn(have.Name)}
		if a.Jobs == nil {
			d.must(a, job.NodeRemoved{At: d.now, Node: have.Name})
		} else {
			d.drain(a, have, leavingReason)
		}
	}
}

// drain has a node take nothing new, until what is to happen can happen.
func (d *differ) drain(a api.ConfigChange, have *job.Node, why string) {
	a.Fate = api.FateDrains
	ours := have.Reason == leavingReason || have.Reason == changingReason
	if have.State&job.NodeDrain == 0 || ours && have.Reason != why {
		d.must(a, job.NodeStateSet{At: d.now, Node: have.Name, State: have.State | job.NodeDrain, Reason: why})
		return
	}
	d.all = append(d.all, amendment{ConfigChange: a}) // it drains already
}

func (d *differ) jobsOn(node string) []job.ID {
	if u := d.used[node]; u != nil {
		return u.jobs
	}
	return nil
}

func (d *differ) partitions() {
	wanted := map[string]bool{}
	for _, p := range d.want.Partitions {
		wanted[p.Name] = true
		d.partitionWanted(p)
	}
	for _, have := range d.parts {
		if wanted[have.Name] {
			continue
		}
		a := api.ConfigChange{Kind: api.KindPartition, Name: have.Name, What: api.WhatRemoved, Fate: api.FateNow}
		gone := partitionDeclared{At: d.now, Partition: job.Partition{Name: have.Name}, Gone: true}
		if d.try(a, job.PartitionRemoved{At: d.now, Partition: have.Name}, gone) == nil {
			continue
		}
		a.Fate, a.Jobs = api.FateDrains, d.jobsIn(have.Name)
		var events []any
		if _, known := d.declared[have.Name]; known {
			events = append(events, gone)
		}
		if have.State == job.PartitionUp {
			have.State = job.PartitionDrain
			events = append(events, job.PartitionSet{At: d.now, Partition: have})
		}
		d.must(a, events...)
	}
}

// partitionWanted is a partition that is declared. Where the declaration is as it was, the
// partition is as it was changed since.
func (d *differ) partitionWanted(p job.Partition) {
	a := api.ConfigChange{Kind: api.KindPartition, Name: p.Name, What: api.WhatAdded, Fate: api.FateNow}
	have := d.partition(p.Name)
	was, known := d.declared[p.Name]
	var events []any
	if !known || !same(p, was) {
		events = append(events, partitionDeclared{At: d.now, Partition: p})
	}
	if have != nil {
		returns := !known && have.State == job.PartitionDrain // it was to be removed
		if !returns {
			p.State, was.State = have.State, have.State
		}
		if a.What = api.WhatChanged; same(p, *have) || known && same(p, was) {
			if events != nil {
				d.must(api.ConfigChange{}, events...)
			}
			return
		}
		a.Fields = fieldChanges(*have, p)
	} else {
		a.Fields = fieldChanges(job.Partition{Name: p.Name}, p)
	}
	d.must(a, append(events, job.PartitionSet{At: d.now, Partition: p})...)
}

// jobsIn are the jobs of a partition that have not ended: those that name none are of the default.
func (d *differ) jobsIn(name string) []job.ID {
	var all []job.ID
	isDefault := slices.ContainsFunc(d.parts, func(p job.Partition) bool { return p.Name == name && p.Default })
	look := func(v sched.JobView) bool {
		if slices.Contains(v.Spec.Partitions, name) || len(v.Spec.Partitions) == 0 && isDefault {
			all = append(all, v.ID)
		}
		return true
	}
	d.sched.Running(look)
	d.sched.Pending(look)
	slices.Sort(all)
	return all
}

// same says whether two values are stored alike. A list that is empty is as good as none.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	none := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("[]"), []byte("null")) }
	return errX == nil && errY == nil && bytes.Equal(none(x), none(y))
}

// sameNode says whether two nodes are alike in what they have.
func sameNode(a, b job.Node) bool {
	a.State, a.Reason, b.State, b.Reason = 0, "", 0, ""
	return same(a, b)
}

// fieldChanges are the fields in which two structures of one type differ.
func fieldChanges(was, now any) []api.FieldChange {
	var all []api.FieldChange
	a, b := reflect.ValueOf(was), reflect.ValueOf(now)
	for i := range a.NumField() {
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		name := a.Type().Field(i).Name
		if same(x, y) || a.Type() == reflect.TypeFor[job.Node]() && (name == "State" || name == "Reason") {
			continue
		}
		all = append(all, api.FieldChange{Name: name, Was: fieldText(name, x), Now: fieldText(name, y)})
	}
	return all
}

// fieldText is a value for people.
func fieldText(name string, v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case job.Duration:
		if v == 0 {
			return ""
		}
		return slurm.FormatTime(v)
	case []string:
		if name == "Nodes" {
			return slurm.Fold(v)
		}
		return strings.Join(v, ",")
	case []job.GRES:
		var all []string
		for _, g := range v {
			all = append(all, strings.Trim(g.Name+":"+g.Type, ":")+":"+strconv.FormatInt(g.Count, 10))
		}
		return strings.Join(all, ",")
	case []job.License:
		var all []string
		for _, l := range v {
			all = append(all, l.Name+":"+strconv.FormatInt(l.Count, 10))
		}
		return strings.Join(all, ",")
	}
	if k := reflect.TypeOf(v).Kind(); k == reflect.Slice || k == reflect.Struct || k == reflect.Map || k == reflect.Pointer {
		b, err := json.Marshal(v)
		if err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(v)
}
