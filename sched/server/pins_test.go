package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// registry is what nodes find under the tags of images, each node for itself.
type registry map[string]string // by node

// serve has nodes resolve images by themselves, unless a step says which digest it is.
func (w *world) serve(tags registry) {
	for _, a := range w.agents {
		digest := tags[a.node.Name]
		a.mu.Lock()
		a.script = func(s *job.StepSpec) fakeStep {
			image, _ := imageOf(s.Program.Container)
			st := fakeStep{runs: time.Millisecond}
			if image != "" {
				if st.image = digest; s.Image != "" {
					st.image = s.Image
				}
			}
			return st
		}
		a.mu.Unlock()
	}
}

func all(w *world, digest string) registry {
	tags := registry{}
	for name := range w.agents {
		tags[name] = digest
	}
	return tags
}

// prepared are the digests with which steps were prepared, by job and step.
func (w *world) images(id job.ID) map[string][]string {
	got := map[string][]string{}
	for _, a := range w.agents {
		a.mu.Lock()
		for key, image := range a.images {
			if text := fmt.Sprintf("%v/%d", key.Step, key.Attempt); key.Job == id && !slices.Contains(got[text], image) {
				got[text] = append(got[text], image)
			}
		}
		a.mu.Unlock()
	}
	return got
}

// TestImageIsPinned: what a job's image was at first it is on all nodes, in all steps and
// runs, whatever its tag names meanwhile, and another job gets what the tag names now.
func TestImageIsPinned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	contained := []string{"--container-image=debian:12"}
	w.serve(all(w, "sha256:aa"))
	alloc := w.allocation(4)
	step := stepRequest(2, 2)
	step.Program.Container = contained
	w.stepEnd(w.step(alloc, step))
	w.serve(all(w, "sha256:bb"))
	w.restart()
	w.until("all nodes are back", func() bool { return len(w.sessions()) == 4 })
	step = stepRequest(4, 4)
	step.Program.Container = contained
	if end := w.stepEnd(w.step(alloc, step)); end.State != job.Completed {
		t.Errorf("the second step ended as %+v", end)
	}
	other := stepRequest(1, 1)
	other.Program.Container = []string{"--container-image=debian:13"}
	w.stepEnd(w.step(alloc, other))
	want := map[string][]string{"0/1": {"sha256:aa"}, "1/1": {"sha256:aa"}, "2/1": {"sha256:bb"}}
	if got := w.images(alloc); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("steps had %v, want %v", got, want)
	}
	w.do("POST", "/v1/jobs/"+alloc.String()+"/end", &api.Change{}, nil)
	w.waitState(alloc, job.Completed)
	batch := w.submit(1, func(q *api.Submit) { q.Program.Container, q.Spec.Requeue = contained, true })
	w.waitState(batch, job.Completed)
	w.serve(all(w, "sha256:cc"))
	w.do("POST", "/v1/jobs/"+batch.String()+"/requeue", nil, nil)
	w.until("it has run again", func() bool { j := w.job(batch); return j.State == job.Completed && j.Attempt == 2 })
	want = map[string][]string{"batch/1": {"sha256:bb"}, "batch/2": {"sha256:bb"}}
	if got := w.images(batch); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("runs had %v, want %v", got, want)
	}
	if j := w.job(batch); j.Image != "debian:12" || j.Digest != "sha256:bb" {
		t.Errorf("job is shown with image %s, %s", j.Image, j.Digest)
	}
}

// TestImageMoves: nodes that resolve a tag while it moves do not start in different images.
func TestImageMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	tags := all(w, "sha256:aa")
	tags["n3"] = "sha256:bb"
	w.serve(tags)
	id := w.allocation(4)
	step := stepRequest(4, 4)
	step.Program.Container = []string{"--container-image=debian:12"}
	end := w.stepEnd(w.step(id, step))
	if end.State != job.Completed || end.Key.Try != 2 || len(end.Nodes) != 4 {
		t.Errorf("step ended as %+v, %+v", end, end.Fault)
	}
	for key, n := range w.started() {
		if key.Try == 1 {
			t.Errorf("%d nodes have started the first try", n)
		}
	}
	digests := map[string]bool{}
	for _, a := range w.agents {
		a.mu.Lock()
		digests[a.images[end.Key]] = true
		a.mu.Unlock()
	}
	if len(digests) != 1 {
		t.Errorf("the ranks ran in %v", digests)
	}
}

// TestImageMovesAndRestart: a step that is ended to be begun anew with the image that is pinned
// is so although the controller starts again before all of its nodes have ended.
func TestImageMovesAndRestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	id := w.allocation(3)
	for name, restart := range w.again() {
		tags := all(w, "sha256:aa")
		tags["n2"] = "sha256:bb"
		w.serve(tags)
		last := w.agents["n3"]
		last.set(func() { last.deaf = true })
		step := stepRequest(3, 3)
		step.Program.Container = []string{"--container-image=debian:" + name}
		s := w.step(id, step)
		w.until("two nodes have ended", func() (yes bool) {
			if err := w.server.do(t.Context(), func(c *core) { st := c.step(s.Key); yes = st != nil && st.Gang.count(ended) == 2 }); err != nil {
				t.Fatal(err)
			}
			return yes
		})
		restart()
		last.set(func() { last.deaf = false })
		if end := w.stepEnd(s); end.State != job.Completed || end.Key.Try != 2 {
			t.Errorf("from the %s: step ended as %+v, %+v", name, end, end.Fault)
		}
	}
}

func TestPinKey(t *testing.T) {
	t.Parallel()
	c := &core{state: *newState()}
	c.subs = []submission{{First: 7, N: 3}}
	for _, tc := range []struct {
		flags []string
		want  string
	}{
		{nil, ""},
		{[]string{"--container-mounts=/a:/b"}, ""},
		{[]string{"--image=debian:12"}, "debian:12"},
		{[]string{"--container-image=a", "--container-image=b"}, "b"},
		{[]string{"--container-image=debian:12", "--container-name=mine"}, ""}, // it keeps what it was made of
		{[]string{"--container-image=oci:/srv/images:1"}, "oci:/srv/images:1"},
		{[]string{"--container-image=oci:images:1"}, ""}, // found from the working directory
		{[]string{"--container-image=./image.sqsh"}, ""},
	} {
		first, image, ok := c.pinKey(8, &job.Program{Container: tc.flags})
		if !ok {
			image = ""
		}
		if image != tc.want || ok && first != 7 {
			t.Errorf("%q is pinned as %q of job %v, want %q of job 7", tc.flags, image, first, tc.want)
		}
	}
}
