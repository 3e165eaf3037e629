package server

import (
	"fmt"
	"math/bits"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
)

// usage is what runs on a node.
type usage struct {
	jobs    []job.ID
	cpus    int
	memory  int64
	devices []job.Devices
}

// usages are those of all nodes.
func (c *core) usages() map[string]*usage {
	all := map[string]*usage{}
	for v := range c.sched.Running {
		for i := range v.Allocation.Nodes {
			share := &v.Allocation.Nodes[i]
			u := all[share.Node]
			if u == nil {
				u = &usage{}
				all[share.Node] = u
			}
			u.jobs, u.cpus, u.memory = append(u.jobs, v.ID), u.cpus+share.CPUs, u.memory+share.Memory
			for _, d := range share.Devices {
				u.add(d)
			}
		}
	}
	return all
}

func (u *usage) add(d job.Devices) {
	for i := range u.devices {
		if have := &u.devices[i]; have.Name == d.Name && have.Type == d.Type {
			have.Mask |= d.Mask
			have.Count += d.Count
			if d.Mask != 0 {
				have.Count = int64(bits.OnesCount64(have.Mask))
			}
			return
		}
	}
	u.devices = append(u.devices, d)
}

// nodeWord is Slurm's base state of a node, without what runs there.
func (c *core) nodeWord(n *node) string {
	switch {
	case n.state&job.NodeDown != 0:
		return "down"
	case n.state&job.NodeFuture != 0:
		return "future"
	case n.state&job.NodeUnknown != 0:
		return "unknown"
	case n.state&job.NodeMaint != 0:
		return "maint"
	case n.state&job.NodeFail != 0:
		return "fail"
	case n.state&job.NodeDrain != 0:
		return "drained"
	}
	return "idle"
}

// stateText is Slurm's compound state of a node.
func (c *core) stateText(n *node, u *usage) string {
	word, cpus := c.nodeWord(n), n.cpus()
	if u != nil && len(u.jobs) > 0 {
		switch {
		case word == "drained":
			word = "draining"
		case word == "fail":
			word = "failing"
		case word == "idle" && u.cpus >= cpus:
			word = "allocated"
		case word == "idle":
			word = "mixed"
		}
	}
	if n.state&job.NodeSuspect != 0 || n.state&job.NodeDown != 0 && n.session == nil {
		word += "*"
	}
	return word
}

func (n *node) cpus() int {
	if n.spec.CPUs > 0 {
		return n.spec.CPUs
	}
	return max(1, n.spec.Sockets) * max(1, n.spec.CoresPerSocket) * max(1, n.spec.ThreadsPerCore)
}

func (c *core) nodeView(n *node, u *usage) api.Node {
	v := api.Node{Node: n.spec, StateText: c.stateText(n, u), Declared: c.opts.Cluster.Declared, Seen: n.seen, Images: len(n.images)}
	v.State, v.Reason, v.ReasonUser, v.ReasonSince = n.state, n.reason, n.user, n.since
	v.CPUs = n.cpus()
	if n.reason == "" {
		v.ReasonSince = 0
	}
	for i := range c.parts {
		if slices.Contains(c.parts[i].Nodes, n.spec.Name) {
			v.Partitions = append(v.Partitions, c.parts[i].Name)
		}
	}
	if u != nil {
		v.Jobs, v.UsedCPUs, v.UsedMemory, v.Used = u.jobs, u.cpus, u.memory, u.devices
	}
	if n.hello != nil {
		v.Version = n.hello.Version
		v.SocketPath = n.hello.Socket
	}
	v.Addr = c.addressOf(n.spec.Name)
	if n.beat != nil {
		v.FreeMemory, v.Load = n.beat.FreeMemory>>20, n.beat.Load
	}
	return v
}

func (s *Server) getNodes(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Page[api.Node], error) {
		page := api.Page[api.Node]{Now: c.now}
		used := c.usages()
		for i := range c.known {
			if n := c.nodes[c.known[i].Name]; n != nil {
				page.Items = append(page.Items, c.nodeView(n, used[n.spec.Name]))
			}
		}
		return page, nil
	})
}

func (s *Server) getNode(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Node, error) {
		name := r.PathValue("name")
		n := c.nodes[name]
		if n == nil {
			return api.Node{}, noNode(name)
		}
		return c.nodeView(n, c.usages()[name]), nil
	})
}

func noNode(name string) error {
	return &api.Error{What: fmt.Sprintf("node %s: Invalid node name specified", name), Kind: "INVALID_NODE_NAME"}
}

// admin refuses everybody but administrators.
func (s *Server) admin(r *http.Request) (identity, error) {
	who, refused := s.who(r)
	if refused != nil {
		return who, refused
	}
	if !who.admin() {
		return who, &api.Error{What: "only an administrator may do that", Kind: "ACCESS_DENIED"}
	}
	return who, nil
}

func (s *Server) changeNode(_ http.ResponseWriter, r *http.Request) (any, error) {
	who, err := s.admin(r)
	if err != nil {
		return nil, err
	}
	var q api.Change
	if err := body(r, &q); err != nil {
		return nil, err
	}
	return nil, s.durably(r, func(c *core) error { return c.changeNode(r.PathValue("name"), who.name(), &q) })
}

// changeNode changes a node's state for somebody.
func (c *core) changeNode(name, by string, q *api.Change) error {
	n := c.nodes[name]
	if n == nil {
		return noNode(name)
	}
	state, reason := n.state, q.Reason
	switch strings.ToLower(q.State) {
	case "drain":
		if state |= job.NodeDrain; reason == "" && (n.reason == "" || n.reason == lostReason) {
			return &api.Error{What: "drain node " + n.spec.Name + ": a reason is needed", Hint: "Reason=\"...\"", Code: fault.CodeUsage, Kind: "MISSING_REASON"}
		}
	case "undrain":
		state &^= job.NodeDrain
	case "resume", "idle", "up":
		state &^= job.NodeDrain | job.NodeDown | job.NodeFail | job.NodeMaint
		if n.session == nil {
			state |= job.NodeUnknown
		}
	case "down":
		state |= job.NodeDown
	case "fail":
		state |= job.NodeFail
	case "maint":
		state |= job.NodeMaint
	case "":
	default:
		return &api.Error{What: fmt.Sprintf("%q is no state for a node", q.State), Hint: "drain, undrain, resume, down, fail, maint", Code: fault.CodeUsage, Kind: "INVALID_NODE_STATE"}
	}
	before, lost := lostWithout(n.reason)
	if reason == "" && state&^automatic != 0 {
		reason = before
	}
	if lost && state&job.NodeDown != 0 && strings.ToLower(q.State) != "down" { // it comes back by itself
		reason = lostWith(reason)
	}
	n.user = by
	if err := c.setNodeState(n.spec.Name, state, reason); err != nil {
		return refusedJob(err)
	}
	return nil
}

func (s *Server) getPartitions(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Page[api.Partition], error) {
		page := api.Page[api.Partition]{Now: c.now}
		for _, p := range c.parts {
			v := api.Partition{Partition: p}
			for _, name := range p.Nodes {
				if n := c.nodes[name]; n != nil {
					v.TotalNodes++
					v.TotalCPUs += n.cpus()
				}
			}
			page.Items = append(page.Items, v)
		}
		return page, nil
	})
}

func (s *Server) getImages(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Page[api.NodeImages], error) {
		page := api.Page[api.NodeImages]{Now: c.now}
		for i := range c.known {
			if n := c.nodes[c.known[i].Name]; n != nil {
				page.Items = append(page.Items, api.NodeImages{Node: n.spec.Name, Images: n.images})
			}
		}
		return page, nil
	})
}

// getWatch sends what happens to jobs and steps, until who watches goes away.
func (s *Server) getWatch(w http.ResponseWriter, r *http.Request) (any, error) {
	q, err := api.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, &api.Error{What: err.Error(), Code: fault.CodeUsage}
	}
	person, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	var who *watcher
	defer func() {
		if who != nil {
			s.put(func(c *core) { c.unsubscribe(who) })
		}
	}()
	_, err = ask(s, r, func(c *core) (_ struct{}, err error) {
		for _, id := range q.IDs {
			if _, ok := c.sched.Job(id); !ok {
				return struct{}{}, &api.Error{What: fmt.Sprintf("job %v: Invalid job id specified", id), Kind: "INVALID_JOB_ID"}
			}
		}
		who, err = c.subscribe(person, q.IDs)
		return struct{}{}, err
	})
	if err != nil {
		return nil, err
	}
	out := newWriter(w)
	for {
		events, over := who.take()
		for i := range events {
			if out.put(&events[i]) != nil {
				return nil, errDone
			}
		}
		if out.flush() != nil || over {
			return nil, errDone
		}
		select {
		case <-who.ready:
		case <-r.Context().Done():
			return nil, errDone
		case <-s.stopped:
			return nil, errDone
		}
	}
}

func pageAfter(text string) (job.ID, int, error) {
	if text == "" {
		return 0, 0, nil
	}
	id, try, _ := strings.Cut(text, ".")
	n, err := strconv.ParseUint(id, 10, 32)
	k, err2 := strconv.Atoi(try)
	if err != nil || err2 != nil {
		return 0, 0, &api.Error{What: fmt.Sprintf("after=%s is no page's", text), Code: fault.CodeUsage}
	}
	return job.ID(n), k, nil
}

func (s *Server) getCluster(_ http.ResponseWriter, r *http.Request) (any, error) {
	return ask(s, r, func(c *core) (api.Cluster, error) {
		declared := c.opts.Cluster
		v := api.Cluster{
			Name: declared.Name, Version: c.opts.Version, Now: c.now, Began: job.Time(c.began.UnixMilli()), Config: declared.Config, Network: declared.Network,
			Programs: declared.Programs,
		}
		for l := range c.sched.Licenses {
			v.Licenses = append(v.Licenses, api.LicenseUse{Name: l.Name, Total: l.Total, Used: l.Used})
		}
		return v, nil
	})
}
