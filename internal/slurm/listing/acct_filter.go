package listing

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// filter lets only jobs through that have one of some values.
func (r *acctReader) filter(name, value string) error {
	let := func(f func(*api.Job) bool) { r.q.filters = append(r.q.filters, f) }
	switch name {
	case "qos":
		names := words(value)
		let(func(j *api.Job) bool { return slices.Contains(names, j.QOS) })
	case "reason":
		names := words(value)
		let(func(j *api.Job) bool { return slices.Contains(names, or(j.Reason, "None")) })
	case "constraints":
		names := words(value)
		let(func(j *api.Job) bool {
			features := strings.FieldsFunc(j.Constraint, func(c rune) bool { return strings.ContainsRune("&|[]()*,", c) })
			return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(features, n) })
		})
	case "gid", "group":
		var ids []uint32
		for _, word := range words(value) {
			gid, ok := r.people.Group(word)
			if !ok {
				return refuse("Invalid group id: %s", word)
			}
			ids = append(ids, gid)
		}
		let(func(j *api.Job) bool { return slices.Contains(ids, j.GID) })
	case "timelimit-min", "timelimit-max":
		d, err := slurm.ParseTime(value)
		if err != nil {
			return &slurm.Refusal{Lines: []string{"fatal: Invalid time limit specification"}, Code: 1}
		}
		if name == "timelimit-min" {
			r.least = d
		} else {
			r.most = d
		}
	case "nnodes", "ncpus":
		what := map[string]string{"nnodes": "node", "ncpus": "cpu"}[name]
		low, high, ok := countRange(value)
		if !ok {
			return refuse("Invalid numeric value %q for requested %s range.", value, what)
		}
		let(func(j *api.Job) bool {
			n := j.CPUs
			if what == "node" {
				n = j.Nodes
			}
			return low <= n && n <= high
		})
	}
	return nil
}

// limits lets only jobs through whose time limit is between two, or just the one that was named.
func (r *acctReader) limits() {
	least, most := r.least, r.most
	switch {
	case least == 0 && most == 0:
		return
	case most == 0:
		most = least
	}
	r.q.filters = append(r.q.filters, func(j *api.Job) bool {
		limit := j.Limit
		if limit == 0 {
			limit = job.Forever
		}
		return least <= limit && limit <= most
	})
}

// countRange reads MIN[-MAX].
func countRange(text string) (low, high int, ok bool) {
	a, b, ranged := strings.Cut(text, "-")
	if !ranged {
		b = a
	}
	low, err := strconv.Atoi(a)
	high, err2 := strconv.Atoi(b)
	return low, high, err == nil && err2 == nil && low >= 0 && high >= low
}
