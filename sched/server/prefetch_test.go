package server

import (
	"slices"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// TestPrefetch: the nodes that a waiting job is planned on fetch the image that its script
// names, once; others do not, and nothing is fetched for what waits for longer.
func TestPrefetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.runFor(0)
	busy := func(node string, limit job.Duration) {
		w.waitState(w.submit(1, func(q *api.Submit) {
			q.Spec.NodeList, q.Spec.Exclusive, q.Spec.TimeLimit = []string{node}, true, limit
		}), job.Running)
	}
	busy("n1", job.Hour)
	busy("n2", job.Hour)
	busy("n3", 5*job.Hour)
	on := func(nodes []string, image string) {
		for range 3 { // one image, asked for once
			w.submit(len(nodes), func(q *api.Submit) {
				q.Spec.NodeList, q.Spec.Exclusive, q.Spec.TimeLimit = nodes, true, job.Minute
				q.Program.Script = []byte("#!/bin/sh\nsrun --container-image=" + image + " true\n")
			})
		}
	}
	on([]string{"n3"}, "later:1")
	on([]string{"n1", "n2"}, "nvcr.io#nvidia/pytorch:25.02-py3")
	fetched := func(node string) []string {
		a := w.agents[node]
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(a.fetched)
	}
	w.until("nodes were told", func() bool { return len(fetched("n1")) > 0 && len(fetched("n2")) > 0 })
	w.server.put(func(c *core) { c.asked.last = 0; c.prefetch() }) // another look
	time.Sleep(50 * time.Millisecond)
	for node, want := range map[string][]string{"n1": {"nvcr.io#nvidia/pytorch:25.02-py3"}, "n2": {"nvcr.io#nvidia/pytorch:25.02-py3"}, "n3": nil} {
		if got := fetched(node); !slices.Equal(got, want) {
			t.Errorf("%s was to fetch %q, want %q", node, got, want)
		}
	}
}

func TestImagesNamed(t *testing.T) {
	for script, want := range map[string][]string{
		"srun --container-image=debian:12 true":                                                                 {"debian:12"},
		"srun -n1 --container-image debian:12":                                                                  {"debian:12"},
		"a=1\n  srun \\\n --container-image='nvcr.io#a/b:1' \\\n x && srun --container-image=\"b:2\" y":         {"nvcr.io#a/b:1", "b:2"},
		"srun --container-image=a:1 x; srun --container-image=a:1 y":                                            {"a:1"},
		"srun --container-image=$IMAGE true":                                                                    nil,
		"srun --container-image=\"$IMAGE\" true":                                                                nil,
		"srun --container-image=a:$TAG true":                                                                    nil,
		"srun --container-image=`tag` true":                                                                     nil,
		"# srun --container-image=a:1":                                                                          nil,
		"srun --container-image=./a.sqsh --container-image=/b --container-image=oci:c --container-image=d.sqsh": nil,
		"srun --container-image":                                                                                nil,
		"srun --no-container-image=x --container-imagex=y":                                                      nil,
	} {
		if got := imagesNamed(&job.Program{Script: []byte("#!/bin/sh\n" + script + "\n")}); !slices.Equal(got, want) {
			t.Errorf("%q names %q, want %q", script, got, want)
		}
	}
	p := &job.Program{Container: []string{"--container-image=a:1", "--container-writable"}, Script: []byte("#!/bin/sh\n#SBATCH --container-image=a:1\n")}
	if got := imagesNamed(p); !slices.Equal(got, []string{"a:1"}) {
		t.Errorf("%q", got)
	}
	p.Container = append(p.Container, "--container-name=x")
	if got := imagesNamed(p); got != nil {
		t.Errorf("a container that is there: %q", got)
	}
}
