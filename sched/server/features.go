package server

import (
	"fmt"
	"slices"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// checkFeatures refuses a job that names a feature which no node has, as --constraint and
// --prefer may by a slip: it would wait for ever, or never get what it prefers.
func (c *core) checkFeatures(spec *job.Spec) *api.Error {
	for _, name := range append(featuresOf(spec.Constraint), featuresOf(spec.Prefer)...) {
		if !c.hasFeature(name) {
			return &api.Error{What: fmt.Sprintf("submit job: no node has the feature %q", name), Hint: "sinfo -o '%N %f' says which nodes have what", Kind: "INVALID_FEATURE"}
		}
	}
	return nil
}

func (c *core) hasFeature(name string) bool {
	for _, n := range c.nodes {
		if slices.Contains(n.spec.Features, name) {
			return true
		}
	}
	return false
}

// featuresOf are the features that a constraint names.
func featuresOf(k *job.Constraint) []string {
	if k == nil {
		return nil
	}
	var all []string
	if k.Feature != "" {
		all = append(all, k.Feature)
	}
	for _, list := range [][]*job.Constraint{k.And, k.Or, k.OneOf} {
		for _, part := range list {
			all = append(all, featuresOf(part)...)
		}
	}
	return all
}
