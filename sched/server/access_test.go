package server

import (
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestAccess: who may not use a partition is told why, by Slurm's name for it.
func TestAccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	nodes := w.cluster.Partitions[0].Nodes
	for _, p := range []job.Partition{
		{Name: "groups", AllowGroups: []string{"no-such-group"}}, {Name: "users", AllowUsers: []string{"nobody-else"}}, {Name: "accounts", AllowAccount: []string{"a"}}, {Name: "qos", AllowQOS: []string{"high"}},
	} {
		p.Nodes, p.Priority, p.Tier = nodes, 1, 1
		w.cluster.Partitions = append(w.cluster.Partitions, p)
	}
	w.restart()
	for _, c := range []struct {
		partition, account, qos, kind, why string
	}{
		{"groups", "", "", "JOB_MISSING_REQUIRED_PARTITION_GROUP", "is in none of the groups no-such-group"},
		{"users", "", "", "ACCESS_DENIED", "is not allowed"},
		{"accounts", "", "", "INVALID_ACCOUNT", "it takes no job without account"},
		{"accounts", "b", "", "INVALID_ACCOUNT", "account b is not allowed"},
		{"accounts", "a", "", "", ""},
		{"qos", "", "low", "INVALID_QOS", "QOS low is not allowed"},
		{"qos", "", "", "INVALID_QOS", "it takes no job without QOS"},
		{"qos", "", "high", "", ""},
	} {
		q := &api.Submit{
			Spec:    job.Spec{Name: "x", Hold: true, Partitions: []string{c.partition}, Account: c.account, QOS: c.qos},
			Program: &job.Program{Args: [][]byte{[]byte("x")}, Script: []byte("#!/bin/sh\n")},
		}
		err := w.askAs(4000000001, "POST", "/v1/jobs", q)
		switch {
		case c.kind == "" && err != nil, c.kind != "" && (err == nil || err.Kind != c.kind || !strings.Contains(err.What, c.why)):
			t.Errorf("%+v: %v", c, err)
		}
	}
}
