package slurm_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// TestCancelFilters: what jobs have to be is told as scancel tells it; clusters are no filter.
func TestCancelFilters(t *testing.T) {
	none := func(string) string { return "" }
	for want, args := range map[string][]string{
		"":                                    {"5"},
		"user_name=ann ":                      {"-u", "ann"},
		"state=PENDING user_name=ann ":        {"-u", "ann", "-t", "pd"},
		"account=a job_name=x,y partition=p ": {"-p", "p", "-A", "a", "-n", "x,y"},
		"qos=q nodelist=n1,n2 ":               {"-q", "q", "-w", "n[1-2]"},
	} {
		c, err := slurm.ParseCancel(args, none)
		if err != nil || c.Filters() != want || c.Filtered() != (want != "") {
			t.Errorf("scancel %q: %q, %v", args, c.Filters(), err)
		}
	}
	c, err := slurm.ParseCancel([]string{"-M", "a,b", "--ctld", "-H", "5"}, none)
	if err != nil || !slices.Equal(c.Clusters, []string{"a", "b"}) || c.Filtered() {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := slurm.ParseCancel([]string{"-M", "a"}, none); err == nil {
		t.Error("a cluster is no job")
	}
	_, err = slurm.ParseCancel([]string{"5"}, func(name string) string {
		return map[string]string{"SCANCEL_STATE": "foo"}[name]
	})
	refusal, ok := errors.AsType[*slurm.Refusal](err)
	if !ok || refusal.Lines[0] != "Unrecognized SCANCEL_STATE value: foo" || refusal.Code != 1 {
		t.Errorf("%v", err)
	}
	for _, option := range []string{"reservation", "wckey", "sibling"} {
		if _, err := slurm.ParseCancel([]string{"--" + option + "=x", "5"}, none); err == nil || err.Error() != "error: --"+option+": not supported by Gangway yet" {
			t.Errorf("--%s: %v", option, err)
		}
	}
}
