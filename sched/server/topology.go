package server

import "github.com/gangway-hpc/gangway/internal/job"

// switchPaths are the places of nodes in a tree of switches, as SLURM_TOPOLOGY_ADDR has them:
// spine1.leaf1.node1. A node without a switch has none.
func switchPaths(n *job.Network) map[string]string {
	above := map[string]string{}
	for i := range n.Switches {
		for _, child := range n.Switches[i].Switches {
			above[child] = n.Switches[i].Name
		}
	}
	paths := map[string]string{}
	for i := range n.Switches {
		path := n.Switches[i].Name
		for name, most := above[path], len(n.Switches); name != "" && most > 0; name, most = above[name], most-1 {
			path = name + "." + path
		}
		for _, node := range n.Switches[i].Nodes {
			paths[node] = path + "." + node
		}
	}
	return paths
}
