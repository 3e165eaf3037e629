package server

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/gangway-hpc/gangway/internal/job"
)

// everyEvent is one of each kind.
func everyEvent() []any {
	return []any{
		submitted{job.Submitted{At: 1, ID: 2, Spec: job.Spec{Name: `a","V":b`, Priority: new(uint32)}}, &facts{Command: "x", Program: &job.Program{Args: [][]byte{{0xff, '"'}}}}},
		stepMade{At: 1, Spec: &job.StepSpec{Key: job.StepKey{Job: 1}}, Env: "e", Want: &want{}},
		stepStarting{At: 1, Key: job.StepKey{Job: 1, Step: job.BatchStep}},
		nodeEnded{At: 1, End: job.StepEnd{Node: "n", Ranks: []job.RankEnd{{Rank: 1, Tail: []byte("tail")}}}},
		stepDone{At: 1, Result: result{State: job.Failed, Fault: &job.Fault{What: "w", Node: true}}},
		stepStopped{At: 1, Key: job.StepKey{Job: 1}, Grace: 2, Why: "w"},
		signalKept{At: 1, Key: job.StepKey{Job: 1}, Node: "n", Signal: -10},
		signalsSent{At: 1, Key: job.StepKey{Job: 1}, Node: "n", UpTo: 7},
		stepFailing{At: 1, Key: job.StepKey{Job: 1}, failing: failing{Why: "w", Cause: &job.Fault{What: "c"}, First: []string{"n"}, Moved: true}},
		jobWarned{At: 1, ID: 3, Whole: true, Steps: []job.StepID{1}},
		jobEnding{At: 1, ID: 3, Fate: fate{State: job.Timeout, Exclude: []string{"n1"}}},
		jobFate{At: 1, ID: 3},
		jobHeld{At: 1, ID: 3},
		jobNoted{At: 1, ID: 3, Comment: "c"},
		partitionDeclared{At: 1, Partition: job.Partition{Name: "p"}},
		nodeCleaned{At: 1, Node: "n", Of: attempt{1, 2}},
		nodeSoiled{At: 1, Node: "n", Of: attempt{1, 2}},
		nodeMet{At: 1, Node: "n", meeting: meeting{Address: "127.0.0.1", Socket: "unix:/a"}},
		imagePinned{At: 1, ID: 2, Reference: "docker://h/r:t", Digest: "sha256:0"},
		councilGiven{At: 1, Node: "n", Number: 7, Members: []string{"m"}},
		councilHeard{At: 1, Node: "n", Number: 7},
		attemptDead{At: 1, Node: "n", Of: attempt{1, 2}},
		job.Configured{At: 1},
		job.NodeSet{At: 1, Node: job.Node{Name: "n"}},
		job.NodeStateSet{At: 1, Node: "n", State: job.NodeDrain},
		job.NodeRemoved{At: 1},
		job.NetworkSet{At: 1},
		job.PartitionSet{At: 1, Partition: job.Partition{Name: "p"}},
		job.PartitionRemoved{At: 1},
		job.Changed{At: 1, ID: 1},
		job.Held{At: 1, ID: 1, Admin: true},
		job.Released{At: 1},
		job.Cancelled{At: 1},
		job.Ended{At: 1, State: job.Failed},
		job.Requeue{At: 1, Hold: true},
		job.ImagesSet{At: 1, Images: []string{"i"}},
		job.Started{At: 1, Allocation: job.Allocation{Nodes: []job.NodeShare{{Node: "n", Devices: []job.Devices{{Mask: 1 << 63}}}}}},
		job.Promised{At: 1, Starts: []job.Promise{{ID: 1, Start: job.Never}}},
		job.Requeued{At: 1, Cause: "c"},
		job.Killed{At: 1, State: job.Failed},
	}
}

func TestEventsAreKept(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range everyEvent() {
		b, err := encode(e)
		if err != nil {
			t.Errorf("%T: %v", e, err)
			continue
		}
		got, err := decode(b)
		if err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%T: %+v comes back as %+v, %v", e, e, got, err)
		}
		if kind := kindOf(e); seen[kind] {
			t.Errorf("%T: %s is another one's", e, kind)
		} else {
			seen[kind] = true
		}
	}
	if _, err := encode(job.ID(3)); err == nil {
		t.Error("what is no event is stored")
	}
}

func FuzzDecode(f *testing.F) {
	for _, e := range everyEvent() {
		b, err := encode(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"K":"Nothing","V":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decode(b)
		if err != nil {
			return
		}
		once, err := encode(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(once)
		if err != nil {
			t.Fatal(err)
		}
		twice, err := encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%s and then %s, %v", once, twice, err)
		}
	})
}
