package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// TestNodeGarbage: what a node says that makes no sense, or is about steps which it has not,
// changes nothing of others, and ends nothing here.
func TestNodeGarbage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.runFor(time.Hour)
	id := w.submit(1, func(q *api.Submit) { q.Spec.NodeList = []string{"n2"} })
	w.waitState(id, job.Running)
	var page api.Page[api.Step]
	w.until("the script is there", func() bool {
		w.get("/v1/jobs/"+id.String()+"/steps", &page)
		return len(page.Items) == 1
	})
	other := wire.KeyOf(page.Items[0].Key)
	end := fmt.Sprintf(`{"Key":{"Job":%d,"Attempt":%d,"Step":%d,"Try":%d},"End":1,"Node":"n2"}`, other.Job, other.Attempt, other.Step, other.Try)
	huge := strings.Repeat("x", 1<<20)
	messages := []*wire.AgentMessage{
		{},
		{Message: &wire.AgentMessage_Hello{Hello: &wire.Hello{}}},
		{Message: &wire.AgentMessage_Heartbeat{Heartbeat: &wire.Heartbeat{}}},
		{Message: &wire.AgentMessage_Progress{Progress: &wire.Progress{}}},
		{Message: &wire.AgentMessage_Progress{Progress: &wire.Progress{Key: other, Phase: huge, Bytes: -1, Total: 1}}},
		{Message: &wire.AgentMessage_Prepared{Prepared: &wire.Prepared{}}},
		{Message: &wire.AgentMessage_Prepared{Prepared: &wire.Prepared{Key: other, Port: 1, Image: huge, Notes: []string{huge}}}},
		{Message: &wire.AgentMessage_Started{Started: &wire.Started{}}},
		{Message: &wire.AgentMessage_Started{Started: &wire.Started{Key: other}}},
		{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{}}},
		{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: []byte("{")}}},
		{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: []byte(end)}}},
		{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{}}},
		{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: other.Job, Attempt: other.Attempt, Left: huge}}},
		{Message: &wire.AgentMessage_Ended{Ended: &wire.Ended{End: []byte(end), Drain: huge}}},
		{Message: &wire.AgentMessage_Cleaned{Cleaned: &wire.Cleaned{Job: other.Job, Attempt: other.Attempt, Drain: huge}}},
		{Message: &wire.AgentMessage_Entered{Entered: &wire.Entered{Job: other.Job, Attempt: other.Attempt, Fault: []byte("{"), Drain: huge}}},
		{Message: &wire.AgentMessage_Precached{Precached: &wire.Precached{Id: "1", Image: "x", Done: true}}},
		{Message: &wire.AgentMessage_Inventory{Inventory: &wire.Inventory{Images: []string{"", "\x00", "sha256:x"}}}},
	}
	hardware := []string{
		"", "{", "null", `{"CPUs":-5}`, `{"Name":"n2","CPUs":1000000000000,"Memory":-1}`, `{"GRES":[{"Name":"","Count":-1}]}`,
		`{"CPUs":1,"Memory":1,"GRES":[{"Name":"gpu","Count":-1}]}`, `{"CPUs":9223372036854775807,"Memory":9223372036854775807,"Sockets":2,"CoresPerSocket":9223372036854775807,"ThreadsPerCore":4}`,
	}
	var before job.Node
	for i := range max(len(messages), len(hardware)) {
		err := w.server.do(t.Context(), func(c *core) {
			if i == 0 {
				before = c.nodes["n1"].spec
			}
			s := c.nodes["n1"].session
			if i < len(hardware) {
				c.hardware(c.nodes["n1"], &wire.Hello{Node: "n1", Hardware: []byte(hardware[i])})
				c.adopt(c.nodes["n1"], &wire.Hello{Node: "n1", Steps: []*wire.StepState{{}, {Key: other}}})
			}
			if i < len(messages) && s != nil {
				c.message(s, messages[i])
			}
			if n := c.nodes["n1"].spec; n.Name != "n1" || n.CPUs != before.CPUs || n.Memory != before.Memory || n.Weight != before.Weight || !slices.Equal(n.Features, before.Features) || len(n.GRES) != len(before.GRES) {
				t.Errorf("after %d the node is %+v, and was %+v", i, n, before)
			}
		})
		if err != nil {
			t.Fatalf("after message %d: %v", i, err)
		}
	}
	if j := w.job(id); j.State != job.Running {
		t.Errorf("the job of another node is %v", j.State)
	}
	w.get("/v1/jobs/"+id.String()+"/steps", &page)
	if len(page.Items) != 1 || page.Items[0].State != job.Running {
		t.Errorf("its steps are %+v", page.Items)
	}
	w.waitState(w.submit(2, nil), job.Running) // both nodes are of use
}

// TestPrecachedAgain: a node that says once more that it is done with an image keeps
// nobody waiting.
func TestPrecachedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := &precaching{left: map[string]bool{"n1\x00a": true, "n1\x00b": true}, events: make(chan api.Precached, 2)}
	done := make(chan error, 1)
	go func() {
		done <- w.server.do(t.Context(), func(c *core) {
			c.precaches["7"] = p
			for _, image := range []string{"a", "a", "other", "a", "a", "b", "b"} {
				c.precached("n1", &wire.Precached{Id: "7", Image: image, Done: true})
			}
		})
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the controller waits")
	}
	var heard []string
	for e := range p.events {
		heard = append(heard, e.Image)
	}
	if strings.Join(heard, " ") != "a b" {
		t.Errorf("heard of %q", heard)
	}
}
