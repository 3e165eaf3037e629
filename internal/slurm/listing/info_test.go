package listing_test

import (
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// TestInfoEnvironment: variables stand for options that are not given. A format of -O takes
// the place of SINFO_FORMAT, and of no other variable.
func TestInfoEnvironment(t *testing.T) {
	nodes := []api.Node{{Node: job.Node{Name: "n1", CPUs: 8}, StateText: "idle"}, {Node: job.Node{Name: "n2", CPUs: 8}, StateText: "down"}}
	partitions := []api.Partition{
		{Partition: job.Partition{Name: "main", Default: true, Nodes: []string{"n1", "n2"}}}, {Partition: job.Partition{Name: "debug", Nodes: []string{"n1"}}},
	}
	for _, c := range []struct{ name, value, args, want string }{
		{"SINFO_FORMAT", "%P|%D", "-h", "main*|2 debug|1"},
		{"SINFO_FORMAT", "%P|%D", "-h -o %R", "main debug"},
		{"SINFO_FORMAT", "%P|%D", "-h -O partitionname:.8", "main debug"},
		{"SINFO_PARTITION", "debug", "-h -o %R", "debug"},
		{"SINFO_PARTITION", "debug", "-h -O partitionname:.8", "debug"},
		{"SINFO_PARTITION", "debug", "-h -p main -O partitionname:.8", "main"},
		{"SINFO_SORT", "R", "-h -O partitionname:.8", "main debug"},
		{"SINFO_SORT", "-R", "-h -o %R", "debug main"},
	} {
		q, err := listing.ParseInfo(strings.Fields(c.args), environ(c.name, c.value))
		if err != nil {
			t.Fatal(err)
		}
		var w strings.Builder
		if err := q.Print(&w, view(), q.Rows(view(), nodes, partitions)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(w.String()), " "); got != c.want {
			t.Errorf("%s=%s sinfo %s: %q, want %q", c.name, c.value, c.args, got, c.want)
		}
	}
}
