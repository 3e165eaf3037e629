package server

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// imageOf is the image that the flags of a program's container name, and whether the
// container has a name of its own: then it keeps the image that it was made of.
func imageOf(flags []string) (image string, named bool) {
	for _, flag := range flags {
		name, value, _ := strings.Cut(flag, "=")
		switch name {
		case "--image", "--container-image":
			image = value
		case "--name", "--container-name":
			named = value != ""
		}
	}
	return image, named
}

// pinKey is the job whose pins count for one, and the reference that is pinned; none where
// the same text may mean another image elsewhere.
func (c *core) pinKey(id job.ID, p *job.Program) (first job.ID, image string, ok bool) {
	image, named := imageOf(p.Container)
	sub := c.submission(id)
	if sub == nil || image == "" || named {
		return 0, "", false
	}
	for _, transport := range []string{"oci:", "oci-archive:", "docker-archive:"} {
		if rest, is := strings.CutPrefix(image, transport); is && !strings.HasPrefix(rest, "/") {
			return 0, "", false // it is found from the working directory
		}
	}
	return sub.First, image, !strings.HasPrefix(image, ".")
}

// digestOf is the digest to which the image of a program is pinned; empty if it is not yet.
func (c *core) digestOf(id job.ID, p *job.Program) string {
	if len(c.pins) == 0 {
		return ""
	}
	first, image, ok := c.pinKey(id, p)
	if !ok {
		return ""
	}
	return c.pins[first][image]
}

// resolved takes the digest that a node has of a step's image. The first one that a job
// hears of is the one that all of its nodes, steps and runs use. Where a node has resolved
// the reference by itself, and to another one, the step is begun anew with the first.
func (c *core) resolved(st *step, node, digest string) {
	first, image, ok := c.pinKey(st.Spec.Key.Job, &st.Spec.Program)
	if !ok || digest == "" {
		return
	}
	switch have := c.pins[first][image]; have {
	case digest:
	case "":
		c.emit(imagePinned{At: c.now, ID: first, Reference: image, Digest: digest})
	default:
		st.Gang.moved = &job.Fault{
			What:  fmt.Sprintf("image %s is another one on node %s than on the first", image, node),
			Cause: fmt.Sprintf("it was %s, and is %s", have, digest), Hint: "name it by its digest: " + image + "@" + have,
		}
	}
}

// anew tries a step once more, on the same nodes, with the image that is pinned.
func (c *core) anew(r *run, st *step) bool {
	key := st.Spec.Key
	moved := st.Gang.moved != nil || st.Gang.Failing != nil && st.Gang.Failing.Moved
	if !moved || st.Gang.Starting || st.Gang.Asked || key.Try >= maxAttempts || st.Spec.Image != "" {
		return false
	}
	spec := *st.Spec
	spec.Key.Try, spec.Image = key.Try+1, c.digestOf(key.Job, &spec.Program)
	c.log.Info("step is begun anew with the image that is pinned", "step", key, "image", spec.Image)
	c.make(r, stepMade{At: c.now, Spec: &spec, Env: st.Env, Text: st.Text, Old: key, Want: st.Want, Avoid: st.Avoid})
	return true
}

// imageFor is the digest that a try of a step has to use: what is pinned, or else what an
// earlier try had.
func (c *core) imageFor(spec *job.StepSpec, earlier string) string {
	return cmp.Or(c.digestOf(spec.Key.Job, &spec.Program), earlier)
}
