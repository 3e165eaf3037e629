package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// nodeList is what "gangway nodes" prints.
type nodeList struct {
	Nodes []api.Node `json:"nodes"`
	Now   job.Time   `json:"now"`
	each  bool
}

// Text implements cli.Result. Nodes that are alike share a line.
func (l nodeList) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODES\tCOUNT\tSTATE\tCPUS USED\tMEMORY USED\tGPUS USED\tPARTITIONS\tREASON")
	type group struct {
		names []string
		text  string
	}
	var groups []group
	for i := range l.Nodes {
		n := &l.Nodes[i]
		text := fmt.Sprintf("%s\t%d of %d\t%s of %s\t%s\t%s\t%s", n.StateText, n.UsedCPUs, n.CPUs, image.FormatBytes(n.UsedMemory<<20), image.FormatBytes(n.Memory<<20),
			devicesUsed(n), strings.Join(n.Partitions, ","), reasonOf(n, l.Now))
		at := slices.IndexFunc(groups, func(g group) bool { return g.text == text })
		if at < 0 || l.each {
			at = len(groups)
			groups = append(groups, group{text: text})
		}
		groups[at].names = append(groups[at].names, n.Name)
	}
	for _, g := range groups {
		fmt.Fprintf(t, "%s\t%d\t%s\n", slurm.Fold(g.names), len(g.names), g.text)
	}
	return t.Flush()
}

// devicesUsed is how many of a node's devices jobs have: 2 of 8 h100.
func devicesUsed(n *api.Node) string {
	var all []string
	for _, g := range n.GRES {
		used := int64(0)
		for _, d := range n.Used {
			if d.Name == g.Name && d.Type == g.Type {
				used += d.Count
			}
		}
		what := cmp.Or(g.Type, g.Name)
		if g.Name == "gpu" && g.Type == "" {
			what = ""
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%d of %d %s", used, g.Count, what)))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

func reasonOf(n *api.Node, now job.Time) string {
	if n.Reason == "" {
		return "-"
	}
	text := n.Reason
	if n.ReasonUser != "" {
		text += " (" + n.ReasonUser + ", " + clock(n.ReasonSince, now) + ")"
	}
	return text
}

func nodesVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes [NODES...]",
		Short: "list the nodes of the cluster",
		Long: `List nodes, their states, and what of them is in use; nodes that are alike share a
line. NODES are names or lists such as n[1-4].`,
		Example:    "gangway nodes\ngangway nodes --each n[1-4]\ngangway nodes --states drained,down",
		SuggestFor: []string{"node", "sinfo", "hosts"},
	}
	out := cli.NewReporter(env, cmd)
	var each bool
	var states, partitions []string
	cmd.Flags().BoolVarP(&each, "each", "N", false, "a line a node")
	cmd.Flags().StringSliceVarP(&states, "states", "t", nil, "only nodes in these `states`: idle, mixed, allocated, drained, down, ...")
	cmd.Flags().StringSliceVarP(&partitions, "partition", "p", nil, "only nodes of these `partitions`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		names, err := expandAll(args)
		if err != nil {
			return err
		}
		for _, word := range states {
			if !isNodeState(word) {
				return fault.Usage(fmt.Errorf("there is no state %q of nodes", word), strings.Join(nodeStates(), ", "))
			}
		}
		return withCluster(env, func(c *api.Client) error {
			page, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			if err := known(names, page.Items); err != nil {
				return err
			}
			for _, name := range partitions {
				if _, err := onePartition(cmd.Context(), c, name); err != nil {
					return err
				}
			}
			kept := slices.DeleteFunc(page.Items, func(n api.Node) bool {
				return names != nil && !slices.Contains(names, n.Name) ||
					states != nil && !slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(n.StateText, strings.ToLower(s)) }) ||
					partitions != nil && !slices.ContainsFunc(partitions, func(p string) bool { return slices.Contains(n.Partitions, p) })
			})
			listing.SortNodes(kept)
			return out.Print(nodeList{Nodes: notNil(kept), Now: page.Now, each: each})
		})
	}
	return cmd
}

// nodeStates are the words of the controller for how a node is.
func nodeStates() []string {
	return []string{"idle", "mixed", "allocated", "drained", "draining", "down", "fail", "failing", "maint", "future", "unknown"}
}

// isNodeState says whether a word is one of them, or the beginning of one.
func isNodeState(word string) bool {
	return word != "" && slices.ContainsFunc(nodeStates(), func(state string) bool {
		return strings.HasPrefix(state, strings.ToLower(strings.TrimSuffix(word, "*")))
	})
}

// expandAll expands hostlists; nil where there is none.
func expandAll(lists []string) ([]string, error) {
	var all []string
	for _, list := range lists {
		names, err := slurm.Expand(list)
		if err != nil {
			return nil, fault.Usage(err, "nodes are written n1, n[1-4] or n[1,3],m2")
		}
		all = append(all, names...)
	}
	return all, nil
}

// known says which names are of no node.
func known(names []string, nodes []api.Node) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(nodes, func(n api.Node) bool { return n.Name == name })
	})
	if len(missing) == 0 {
		return nil
	}
	return &fault.Error{What: fmt.Errorf("there is no node %s", slurm.Fold(missing)), Hint: "gangway nodes lists them all", Code: fault.CodeUsage}
}
