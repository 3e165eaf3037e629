package listing_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm/listing"
)

// BenchmarkQueue is what squeue does with 10,000 jobs, from the answer's bytes to the last line.
func BenchmarkQueue(b *testing.B) {
	jobs := make([]*api.Job, 10000)
	for i := range jobs {
		jobs[i] = &api.Job{
			ID: job.ID(i + 1), Name: fmt.Sprintf("job%d", i), User: "alice", Partition: "main", Reason: "Priority", GRES: "gpu:h100:8",
			Cwd: "/home/alice/project", Submit: 1795256773318, Limit: 3600000, Nodes: 4, Tasks: 4, CPUs: 4, Priority: uint32(i % 977),
		}
		if i%10 == 0 {
			jobs[i].State, jobs[i].Start, jobs[i].NodeList = job.Running, 1795256773318, []string{"n1", "n2", "n3", "n4"}
		}
	}
	text := string(api.AppendPacked(nil, jobs, "", 1795256779999))
	q, err := listing.ParseQueue(nil, func(string) string { return "" }, people{})
	if err != nil {
		b.Fatal(err)
	}
	v := &listing.View{Zone: time.UTC, BitstrLen: 64, Now: 1795256779999}
	page, err := api.ParsePacked(text)
	if err != nil {
		b.Fatal(err)
	}
	selected := q.Select(v, page.Items)
	b.Run("read", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := api.ParsePacked(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("choose and sort", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			q.Select(v, page.Items)
		}
	})
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := q.Print(io.Discard, v, selected); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// people are two users.
type people struct{}

func (people) Lookup(text string) string {
	switch text {
	case "alice", "1000":
		return "alice"
	case "bob", "1001":
		return "bob"
	}
	return ""
}

func (people) Group(text string) (uint32, bool) { return 7, text == "team" || text == "7" }

func (people) Me() string { return "alice" }
