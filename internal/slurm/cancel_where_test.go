package slurm_test

import (
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestCancelWhere: clusters are said behind what is to be ended, too, as Snakemake does, and by
// a variable; --me does not depend on what $USER is.
func TestCancelWhere(t *testing.T) {
	getenv := func(name string) string { return map[string]string{"SLURM_CLUSTERS": "here"}[name] }
	for _, c := range []struct {
		args     []string
		clusters []string
		filtered bool
	}{
		{[]string{"7", "8", "--clusters=all"}, []string{"all"}, false},
		{[]string{"-Ma,b", "7"}, []string{"a", "b"}, false},
		{[]string{"--me"}, []string{"here"}, true},
	} {
		o, err := slurm.ParseCancel(c.args, getenv)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if !slices.Equal(o.Clusters, c.clusters) || o.Filtered() != c.filtered || o.Me != c.filtered || o.User != "" {
			t.Errorf("%q: %+v", c.args, o)
		}
	}
}
