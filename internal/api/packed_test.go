package api_test

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// absent are the fields that lists of jobs do not have.
var absent = map[string]bool{"Shares": true, "Spec": true, "Fault": true, "Failed": true, "CancelledBy": true, "Requeued": true, "Scheduled": true}

// drawJob makes a job in which every field may be set.
func drawJob(t *rapid.T) *api.Job {
	j := &api.Job{}
	fill(t, reflect.ValueOf(j).Elem(), "job")
	return j
}

// fill draws all that v has.
func fill(t *rapid.T, v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i).Name; !absent[field] {
				fill(t, v.Field(i), name+"."+field)
			}
		}
	case reflect.Pointer:
		if rapid.Bool().Draw(t, name+" is there") {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), name)
		}
	case reflect.Slice:
		if n := rapid.IntRange(0, 3).Draw(t, name+" length"); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i), name)
			}
		}
	case reflect.String:
		v.SetString(rapid.String().Draw(t, name))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Range(0, 1<<v.Type().Bits()-1).Draw(t, name))
	default:
		bits := v.Type().Bits()
		v.SetInt(rapid.Int64Range(-1<<(bits-1), 1<<(bits-1)-1).Draw(t, name))
	}
}

// TestPacked: every field of a job comes through, but those that lists have not; so that a
// field that is added to Job and forgotten there fails here.
func TestPacked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		jobs := rapid.SliceOfN(rapid.Custom(drawJob), 0, 4).Draw(t, "jobs")
		next, now := rapid.String().Draw(t, "next"), job.Time(rapid.Int64().Draw(t, "now"))
		b := api.AppendPacked(nil, jobs, next, now)
		page, err := api.ParsePacked(string(b))
		if err != nil || page.Next != next || page.Now != now || len(page.Items) != len(jobs) {
			t.Fatalf("%d jobs, %q, %d: %+v, %v", len(jobs), next, now, page, err)
		}
		for i := range jobs {
			if !reflect.DeepEqual(*jobs[i], page.Items[i]) {
				t.Fatalf("\n%+v came back as\n%+v", *jobs[i], page.Items[i])
			}
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := api.ParsePacked(string(b[:cut])); err == nil {
			t.Fatalf("%d of %d bytes are read without an error", cut, len(b))
		}
	})
}

func FuzzParsePacked(f *testing.F) {
	f.Add(string(api.AppendPacked(nil, []*api.Job{{ID: 7, Name: "x", NodeList: []string{"n1"}, Waiting: []job.Range{{First: 1, Last: 2, Step: 1}}}}, "", 5)))
	f.Fuzz(func(t *testing.T, s string) {
		page, err := api.ParsePacked(s)
		if err == nil && len(page.Items) > len(s) {
			t.Fatalf("%d jobs in %d bytes", len(page.Items), len(s))
		}
	})
}

func BenchmarkParsePacked(b *testing.B) {
	jobs := make([]*api.Job, 10000)
	for i := range jobs {
		jobs[i] = &api.Job{ID: job.ID(i), Name: "train", User: "alice", Partition: "main", Reason: "Priority", GRES: "gpu:h100:8", Cwd: "/home/alice/project", Output: "/home/alice/project/slurm-12345.out", Submit: 1795256773318, Limit: 3600000, Nodes: 4, Tasks: 4, CPUs: 4}
	}
	text := string(api.AppendPacked(nil, jobs, "", 1))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := api.ParsePacked(text); err != nil {
			b.Fatal(err)
		}
	}
}
