package slurm_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// threeTopologies has one of each kind, as Slurm's manual page does.
const threeTopologies = `# comments are allowed
- topology: net
  cluster_default: True
  tree:
    switches:
    - switch: root
      children: leaf[1-2]
    - switch: leaf1
      nodes: n[1-4]
    - {switch: leaf2, nodes: [n5, "n[6-8]"]}
- topology: nvl
  cluster_default: false
  block:
    block_sizes:
      - 4
      - 8
    blocks:
    - block: b1
      nodes: n[1-4]
    - block: b2
      nodes: n[5-8]
- topology: none
  flat: true
`

func TestTopologyYAML(t *testing.T) {
	conf := "TopologyPlugin=topology/flat\nNodeName=n[1-8] CPUs=1\nPartitionName=p Nodes=ALL Topology=nvl"
	c := load(t, map[string]string{"slurm.conf": conf, "topology.yaml": threeTopologies, "topology.conf": "nonsense"})
	if n := c.Network; len(n.Switches) != 3 || !slices.Equal(n.Switches[0].Switches, []string{"leaf1", "leaf2"}) || len(n.Switches[2].Nodes) != 4 || len(n.Blocks) != 0 {
		t.Errorf("%+v", n)
	}
	if c.Nodes[4].Switch != "leaf2" || len(c.Warnings) != 3 || !strings.Contains(c.Warnings[0].String(), "Topology=nvl: it is not supported") || !strings.Contains(c.Warnings[1].String(), "topology.yaml:11: topology=nvl: it is not used: there is one topology for the whole cluster, net") {
		t.Errorf("%+v, %v", c.Nodes[4], c.Warnings)
	}
	blocks := strings.NewReplacer("True", "no", "cluster_default: false", "cluster_default: true").Replace(threeTopologies)
	c = load(t, map[string]string{"slurm.conf": conf, "topology.yaml": blocks})
	if n := c.Network; len(n.Switches) != 0 || len(n.Blocks) != 2 || !slices.Equal(n.BlockSizes, []int{4, 8}) || c.Nodes[7].Block != "b2" {
		t.Errorf("%+v", n)
	}
	c = load(t, map[string]string{"slurm.conf": conf, "topology.yaml": "- topology: a\n  flat: true\n"})
	if n := c.Network; len(n.Switches)+len(n.Blocks) != 0 {
		t.Errorf("%+v", n)
	}
}

// TestRefusedTopologyYAML: each text is refused with its line, and what would be right.
func TestRefusedTopologyYAML(t *testing.T) {
	tree := func(switches string) string { return "- topology: a\n  tree:\n    switches:\n" + switches }
	for _, c := range []struct{ text, want string }{
		{"", "topology.yaml:1: want a list of topologies"},
		{"topology: a\n", "topology.yaml:1: want a list of topologies"},
		{"- a\n", "topology.yaml:1: want fields: topology"},
		{"- topology: a\n\tflat: true\n", "topology.yaml:2: found a tab"},
		{"- topology: a\n  - b\n", "topology.yaml:"},
		{"- flat: true\n  topology: a\n", "topology.yaml:1: want topology: NAME as the first field"},
		{"- topology: a\n", "topology.yaml:1: topology=a: want one of tree:, block: and flat: true"},
		{"- topology: a\n  flat: true\n- topology: a\n  flat: true\n", "topology.yaml:3: topology=a: want each topology once"},
		{"- topology: a\n  flat: maybe\n", "topology.yaml:2: flat=maybe: want true or false"},
		{"- topology: a\n  ring:\n    rings: []\n", "topology.yaml:2: ring: this kind of topology is not supported; valid are tree, block, flat"},
		{"- topology: a\n  torus3d: {}\n", "topology.yaml:2: torus3d: this kind of topology is not supported"},
		{"- topology: a\n  colour: red\n", "topology.yaml:2: colour: unknown; valid are topology, cluster_default, tree, block, flat"},
		{"- topology: a\n  flat: true\n  flat: true\n", "topology.yaml:3: flat: it is there twice"},
		{"- topology: a\n  tree: x\n", "topology.yaml:2: want fields: switches"},
		{"- topology: a\n  tree: {}\n", "topology.yaml:2: switches: want a list"},
		{tree("    - nodes: n1\n"), "topology.yaml:4: want switch: NAME"},
		{tree("    - switch: s\n      nodes: {}\n"), "topology.yaml:5: nodes: want a value"},
		{tree("    - switch: s\n      nodes: [[n1]]\n"), "topology.yaml:5: nodes: want plain values"},
		{tree("    - switch: s\n      nodes: n[1\n"), "topology.yaml:4: nodes: hostlist=n[1: want a ] after each ["},
		{tree("    - switch: s\n"), "topology.yaml:4: switch=s: want either children= or nodes="},
		{tree("    - switch: s\n      nodes: n1\n    - switch: s\n      nodes: n2\n"), "topology.yaml:6: switch=s: want each switch once"},
		{tree("    - switch: s\n      nodes: n1\n    - switch: t\n      nodes: n[1-2]\n"), "topology.yaml:6: nodes=n[1-2]: want each name below one parent: n1 is below s too (topology.yaml:4)"},
		{tree("    - switch: s\n      children: z\n"), "topology.yaml:4: children=z: want switches that are defined themselves"},
		{tree("    - switch: s\n      children: t\n    - switch: t\n      children: s\n"), "topology.yaml:4: switch=s: it is above itself: s < t < s"},
		{tree("    - switch: s\n      nodes: &a n1\n    - switch: t\n      nodes: *a\n"), "topology.yaml:7: nodes: want a value"},
		{"- topology: a\n  block:\n    block_sizes: [4, 6]\n    blocks: []\n", "topology.yaml:3: block_sizes=4,6: want rising sizes"},
		{"- topology: a\n  block:\n    block_sizes: []\n    blocks: []\n", "topology.yaml:3: block_sizes: want a value"},
		{"- topology: a\n  block:\n    blocks:\n    - block: b\n      nodes: n1\n    - block: b\n      nodes: n2\n", "topology.yaml:6: block=b: want each block once"},
		{"- topology: a\n  block:\n    blocks:\n    - block: b\n      nodes: n1\n    - block: c\n      nodes: n1\n", "topology.yaml:6: nodes=n1: want each name below one parent"},
		{"- topology: a\n  block:\n    blocks:\n    - block: b\n      children: c\n", "topology.yaml:5: children: unknown; valid are block, nodes"},
	} {
		_, err := slurm.LoadFS(dir(map[string]string{"slurm.conf": "NodeName=n[1-4] CPUs=4\n", "topology.yaml": c.text}), "slurm.conf")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v\nwant %q", c.text, err, c.want)
		}
	}
}

// FuzzTopologyYAML: whatever the file has, nothing breaks, and nobody has two parents.
func FuzzTopologyYAML(f *testing.F) {
	f.Add(threeTopologies)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Count(text, "[") > 6 || strings.Count(text, "-") > 60 {
			return // large lists
		}
		c, err := slurm.LoadFS(dir(map[string]string{"slurm.conf": "NodeName=n[1-8] CPUs=1\n", "topology.yaml": text}), "slurm.conf")
		if err != nil {
			return
		}
		below := map[string]bool{}
		for _, s := range c.Network.Switches {
			for _, n := range s.Nodes {
				if below[n] {
					t.Fatalf("%s has two parents: %+v", n, c.Network)
				}
				below[n] = true
			}
		}
	})
}
