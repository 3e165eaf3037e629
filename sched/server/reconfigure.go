package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
)

// Configuration is where the cluster's declaration is kept.
type Configuration struct {
	// Read reads it again, with what is to be said about it.
	Read func(ctx context.Context, was *job.Cluster) (*job.Cluster, []string, error)
	// Keep stores it: with it the next controller starts.
	Keep func(*job.Cluster) error
	// Changed tells who starts agents that those of Keep are known.
	Changed func()
}

// declare takes in what the cluster is declared to be, as far as that is new.
func (c *core) declare(cluster *job.Cluster) error {
	c.clock()
	c.places = switchPaths(&cluster.Network)
	for _, n := range c.known {
		c.nodes[n.Name] = &node{spec: n, state: n.State, reason: n.Reason, seen: c.now, since: c.now}
	}
	first := len(c.known) == 0
	all, refused := c.difference(cluster)
	if first && refused != nil {
		return fmt.Errorf("take in the cluster: %w", errors.Join(refused...))
	}
	for _, err := range refused {
		c.log.Warn("the cluster stays as it was", "err", err)
	}
	c.carryOut(all)
	c.unsettled = c.unsettled || cluster.Leaving != nil
	for _, r := range c.runs {
		c.touched[r.Of.Job] = true
		for _, st := range r.Steps {
			if st.Gang.Starting { // its nodes have to come back first
				st.Gang.deadline = c.now.Add(c.lostAfter() + startSpan)
			}
		}
	}
	for id := range c.held {
		c.holders[id] = &holding{gone: c.now} // its holder comes back, or it ends
	}
	return nil
}

// carryOut makes changes, and notes whether some have to wait.
func (c *core) carryOut(all []amendment) {
	c.unsettled = false
	for _, a := range all {
		c.unsettled = c.unsettled || a.Fate == api.FateDrains
		for _, e := range a.events {
			event, ours := e.(job.Event)
			if !ours {
				c.emit(e)
				continue
			}
			if err := c.apply(event); err != nil { // it was tried
				c.log.Error("reconfigure", "kind", a.Kind, "name", a.Name, "err", err)
				break
			}
			c.noteNode(event)
		}
	}
}

// noteNode takes an event of a node into what is known of the present.
func (c *core) noteNode(e job.Event) {
	switch e := e.(type) {
	case job.NetworkSet:
		c.places = switchPaths(&e.Network)
	case job.NodeSet:
		n := c.nodes[e.Node.Name]
		if n == nil {
			n = &node{seen: c.now, since: c.now}
			c.nodes[e.Node.Name] = n
		}
		n.spec, n.state, n.reason = e.Node, e.Node.State, e.Node.Reason
	case job.NodeStateSet:
		n := c.nodes[e.Node]
		n.state, n.reason, n.user, n.since = e.State, e.Reason, "", c.now
	case job.NodeRemoved:
		if n := c.nodes[e.Node]; n.session != nil {
			session := n.session
			c.after(func() { session.close(fmt.Errorf("node %s is not of this cluster any more", e.Node)) })
		}
		delete(c.nodes, e.Node)
	}
}

// settleSpan is how often is looked whether what waits for jobs to end can be changed.
const settleSpan = job.Second

// tickSettle makes the changes that can be made now.
func (c *core) tickSettle() {
	if !c.unsettled || c.now < c.settle {
		return
	}
	c.settle = c.now.Add(settleSpan)
	all, refused := c.difference(c.opts.Cluster)
	c.carryOut(all)
	for _, err := range refused {
		c.log.Warn("the cluster stays as it was", "err", err)
	}
	cluster := *c.opts.Cluster
	cluster.Leaving = slices.DeleteFunc(slices.Clone(cluster.Leaving), func(n job.Node) bool { return c.nodes[n.Name] == nil })
	if len(cluster.Leaving) == len(c.opts.Cluster.Leaving) || c.opts.Configuration == nil {
		return
	}
	c.opts.Cluster = &cluster
	keep, changed, log := c.opts.Configuration.Keep, c.opts.Configuration.Changed, c.log
	c.after(func() {
		if err := keep(&cluster); err != nil {
			log.Error("store the cluster without nodes that have left", "err", err)
		}
		changed()
	})
}

func (s *Server) postReconfigure(_ http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := s.admin(r); err != nil {
		return nil, err
	}
	var q api.Reconfigure
	if err := body(r, &q); err != nil {
		return nil, err
	}
	return s.reconfigure(r, q.DryRun)
}

// Reconfigure reads the cluster's configuration again and says what it changes. What cannot
// be read or taken changes nothing.
func (s *Server) Reconfigure(ctx context.Context) (api.Reconfigured, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/cluster/reconfigure", http.NoBody)
	if err != nil {
		return api.Reconfigured{}, err
	}
	return s.reconfigure(r, false)
}

func (s *Server) reconfigure(r *http.Request, dry bool) (api.Reconfigured, error) {
	var answer api.Reconfigured
	conf := s.opts.Configuration
	if conf == nil {
		return answer, &api.Error{What: "reconfigure: this controller has no configuration that could be read again", Kind: "NOT_SUPPORTED"}
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	was, err := ask(s, r, func(c *core) (*job.Cluster, error) { return c.opts.Cluster, nil })
	if err != nil {
		return answer, err
	}
	want, warnings, err := conf.Read(r.Context(), was)
	if err != nil {
		return answer, unreadable(err)
	}
	answer, err = ask(s, r, func(c *core) (api.Reconfigured, error) { return c.compared(want, dry) })
	if answer.Warnings = warnings; err != nil || dry {
		return answer, err
	}
	// What is stored first is what counts if this process is killed now: the next controller
	// makes the same changes when it starts.
	if err := conf.Keep(want); err != nil {
		return answer, &api.Error{What: "store the cluster: " + err.Error(), Hint: "nothing was changed; make room where the controller keeps its state", Kind: "CAN_NOT_SAVE"}
	}
	err = s.durably(r, func(c *core) error {
		all, _ := c.difference(want)
		programs := c.programsText()
		c.opts.Cluster = want
		c.tellPrograms(programs)
		c.carryOut(all)
		c.unsettled = c.unsettled || want.Leaving != nil
		c.settle = c.now
		answer.Changes = told(all)
		c.after(conf.Changed)
		return nil
	})
	return answer, err
}

// compared is what a configuration changes, and what it leaves for a while. In a dry run
// also whose start it changes.
func (c *core) compared(want *job.Cluster, dry bool) (api.Reconfigured, error) {
	all, refused := c.difference(want)
	if refused != nil {
		e := errorOf(refusedJob(refused[0]))
		e.Hint = "nothing was changed"
		return api.Reconfigured{}, e
	}
	for i := range c.known {
		if !slices.ContainsFunc(want.Nodes, func(n job.Node) bool { return n.Name == c.known[i].Name }) {
			want.Leaving = append(want.Leaving, c.known[i])
		}
	}
	answer := api.Reconfigured{Changes: told(all)}
	if !dry {
		return answer, nil
	}
	var events []job.Event
	for _, a := range all {
		for _, e := range a.events {
			if e, ok := e.(job.Event); ok {
				events = append(events, e)
			}
		}
	}
	starts, err := c.sched.WhatIf(c.now, events...)
	if err != nil {
		return answer, refusedJob(err)
	}
	for _, d := range starts {
		answer.Starts = append(answer.Starts, api.PlanChange{ID: d.ID, Was: d.Was, Now: d.Now})
	}
	return answer, nil
}

// told are the changes that people are told of.
func told(all []amendment) []api.ConfigChange {
	changes := []api.ConfigChange{}
	for _, a := range all {
		if a.Kind != "" {
			changes = append(changes, a.ConfigChange)
		}
	}
	return changes
}

// unreadable is the answer to who wants a configuration to be read that cannot be.
func unreadable(err error) *api.Error {
	e := &api.Error{What: err.Error(), Hint: "nothing was changed; mend it, and reconfigure again", Kind: "INVALID_CONFIG", Code: fault.CodeFailed}
	if f, ok := errors.AsType[*fault.Error](err); ok {
		e.Cause = f.Cause
		if f.Hint != "" {
			e.Hint = "nothing was changed; " + f.Hint
		}
	}
	return e
}
