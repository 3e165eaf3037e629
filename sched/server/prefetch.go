package server

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// Images that are named literally in a job that waits are fetched on the nodes that it is
// planned on, before it starts: a job whose script says
//
//	srun --container-image=nvcr.io#nvidia/pytorch:25.02-py3 ...
//
// has it there when its time comes. Nodes of one store fetch it once. What cannot be fetched is
// no fault of anybody yet: the step will say it.

// Bounds of what is prefetched. A plan for later may change before it comes true.
const (
	prefetchSpan  = job.Hour        // jobs that are planned to start within it
	prefetchJobs  = 256             // of these
	prefetchPause = 2 * job.Second  // between looks at the plan
	prefetchAgain = 30 * job.Minute // a tag may have moved since
	prefetchMost  = 1 << 16         // nodes and images that are remembered
	maxNamed      = 16              // images of one job
)

// prefetched is what nodes were told to have ready, and when.
type prefetched struct {
	of   map[nodeImage]job.Time
	last job.Time // look at the plan
}

type nodeImage struct{ node, image string }

// prefetch has nodes fetch what jobs will need on them.
func (c *core) prefetch() {
	if c.now < c.asked.last.Add(prefetchPause) && c.now >= c.asked.last {
		return
	}
	c.asked.last = c.now
	maps.DeleteFunc(c.asked.of, func(_ nodeImage, at job.Time) bool { return c.now >= at.Add(prefetchAgain) || at > c.now })
	wanted, left := map[string][]string{}, prefetchJobs
	c.sched.Coming(c.now.Add(prefetchSpan), func(id job.ID, nodes []string) bool {
		if sub := c.submission(id); sub != nil {
			for _, image := range sub.Facts.Images {
				for _, node := range nodes {
					key := nodeImage{node, image}
					if _, told := c.asked.of[key]; told || c.away(node) || len(c.asked.of) >= prefetchMost {
						continue
					}
					c.asked.of[key] = c.now
					wanted[node] = append(wanted[node], image)
				}
			}
		}
		left--
		return left > 0
	})
	for _, node := range slices.Sorted(maps.Keys(wanted)) {
		c.log.Info("node is to have images ready", "node", node, "images", wanted[node])
		c.send(node, &wire.ControllerMessage{Message: &wire.ControllerMessage_Precache{Precache: &wire.Precache{Images: wanted[node]}}})
	}
}

// imageOption is the option in a script, with a value that no shell changes.
var imageOption = regexp.MustCompile(`(?:^|\s)--container-image(?:=|\s+)("[^"$` + "`" + `\\]*"|'[^']*'|[^\s"'$` + "`" + `\\;|&<>(){}*?~]+)(?:\s|$)`)

// imagesNamed are the images of registries that a program names literally: in the flags of its
// container, or in its script.
func imagesNamed(p *job.Program) []string {
	var all []string
	add := func(image string) {
		if isRegistry(image) && len(all) < maxNamed && !slices.Contains(all, image) {
			all = append(all, image)
		}
	}
	if image, named := imageOf(p.Container); !named {
		add(image)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(p.Script), "\\\n", " ")) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			continue // a directive is in the flags
		}
		for _, m := range imageOption.FindAllStringSubmatch(line, -1) {
			add(strings.Trim(m[1], `"'`))
		}
	}
	return all
}

// isRegistry says whether a reference is none of a file or a directory, which another node may
// have under that name or not.
func isRegistry(image string) bool {
	if image == "" || strings.ContainsAny(image[:1], "./-") {
		return false
	}
	for _, transport := range []string{"oci:", "oci-archive:", "docker-archive:", "dir:", "docker-daemon:", "dockerd:", "podman:"} {
		if strings.HasPrefix(image, transport) {
			return false
		}
	}
	return !strings.HasSuffix(image, ".sqsh")
}
