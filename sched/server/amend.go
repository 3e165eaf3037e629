package server

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
)

func (s *Server) changeJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	var q api.Change
	if err := body(r, &q); err != nil {
		return nil, err
	}
	if q.Spec == nil && q.Longer == 0 && q.Comment == nil {
		return nil, &api.Error{What: "change job: there is neither a Spec, nor Longer, nor a Comment", Code: fault.CodeUsage}
	}
	who, refused := s.who(r)
	if refused != nil {
		return nil, refused
	}
	return nil, s.change(r, func(c *core, id job.ID) error { return c.amend(who, id, &q) })
}

// amend changes what a job asks for, and what is written beside it.
func (c *core) amend(who identity, id job.ID, q *api.Change) error {
	v, ok := c.sched.Job(id)
	if !ok {
		return &api.Error{What: fmt.Sprintf("job %v: Invalid job id specified", id), Kind: "INVALID_JOB_ID"}
	}
	if q.Spec != nil || q.Longer != 0 {
		spec, err := c.amended(id, v.Spec, q)
		if err != nil {
			return err
		}
		if err := who.mayAsk(&spec, v.Spec); err != nil {
			return err
		}
		if r := c.runs[id]; r != nil && !who.admin() && spec.TimeLimit != v.Spec.TimeLimit && (spec.TimeLimit == 0 || spec.TimeLimit > r.Alloc.Limit) {
			return &api.Error{What: fmt.Sprintf("change job %v: only an administrator may give more time to a job that runs", id), Kind: "ACCESS_DENIED"}
		}
		if err := c.apply(job.Changed{At: c.now, ID: id, Spec: spec}); err != nil {
			return err
		}
	}
	if q.Comment != nil {
		c.emit(jobNoted{At: c.now, ID: id, Comment: *q.Comment})
	}
	return nil
}

// amended is what a job asks for after a Change.
func (c *core) amended(id job.ID, have *job.Spec, q *api.Change) (job.Spec, error) {
	spec := *have
	switch {
	case q.Spec == nil:
	case q.Fields == nil:
		spec = *q.Spec
		spec.UID, spec.User, spec.Groups = have.UID, have.User, have.Groups
	default:
		if err := copyFields(&spec, q.Spec, q.Fields, "UID", "User", "Groups"); err != nil {
			return spec, err
		}
		if slices.Contains(q.Fields, "Array") && have.Array == nil {
			return spec, &api.Error{What: fmt.Sprintf("change job %v: it is no array", id), Kind: "INVALID_ARRAY"}
		}
	}
	for _, name := range slices.Concat(spec.NodeList, spec.Exclude) {
		if c.nodes[name] == nil && !slices.Contains(have.NodeList, name) && !slices.Contains(have.Exclude, name) {
			return spec, noNode(name)
		}
	}
	if q.Longer == 0 {
		return spec, nil
	}
	limit := spec.TimeLimit
	if limit == 0 {
		limit = c.limitOf(&spec)
	}
	switch {
	case limit == 0 || limit == job.Forever:
		return spec, &api.Error{What: fmt.Sprintf("change job %v: it has no time limit that could be changed by so much", id), Kind: "INVALID_TIME_LIMIT"}
	case limit+q.Longer <= 0:
		return spec, &api.Error{
			What: fmt.Sprintf("TimeLimit decrement larger than current time limit (%d > %d)", -q.Longer/job.Minute, limit/job.Minute), Kind: "TIME_LIMIT_DECREMENT",
		}
	}
	spec.TimeLimit = limit + q.Longer
	return spec, nil
}

// copyFields copies fields of a struct by their names, but for those that nobody may change.
func copyFields[T any](to, from *T, names []string, fixed ...string) error {
	into, of := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for _, name := range names {
		field := into.FieldByName(name)
		if !field.IsValid() || slices.Contains(fixed, name) {
			return &api.Error{What: fmt.Sprintf("change %s: there is no field %q that could be", strings.ToLower(into.Type().Name()), name), Code: fault.CodeUsage}
		}
		field.Set(of.FieldByName(name))
	}
	return nil
}

func (s *Server) changePartition(_ http.ResponseWriter, r *http.Request) (any, error) {
	if _, err := s.admin(r); err != nil {
		return nil, err
	}
	var q api.Change
	if err := body(r, &q); err != nil {
		return nil, err
	}
	return nil, s.durably(r, func(c *core) error { return c.amendPartition(r.PathValue("name"), &q) })
}

func (c *core) amendPartition(name string, q *api.Change) error {
	have := c.partition(name)
	if have == nil {
		return &api.Error{What: fmt.Sprintf("partition %s: Invalid partition name specified", name), Kind: "INVALID_PARTITION_NAME"}
	}
	p := *have
	if q.Partition != nil {
		if err := copyFields(&p, q.Partition, q.Fields, "Name", "State"); err != nil {
			return err
		}
	}
	for _, n := range p.Nodes {
		if c.nodes[n] == nil && !slices.Contains(have.Nodes, n) {
			return noNode(n)
		}
	}
	states := map[string]job.PartitionState{
		"": have.State, "up": job.PartitionUp, "down": job.PartitionDown, "drain": job.PartitionDrain, "inactive": job.PartitionInactive,
	}
	state, ok := states[strings.ToLower(q.State)]
	if !ok || q.State == "" && q.Partition == nil {
		return &api.Error{What: fmt.Sprintf("%q is no state for a partition", q.State), Hint: "up, down, drain, inactive", Code: fault.CodeUsage}
	}
	p.State = state
	if err := c.apply(job.PartitionSet{At: c.now, Partition: p}); err != nil {
		return refusedJob(err)
	}
	if !p.Default || slices.Index(q.Fields, "Default") < 0 {
		return nil
	}
	for _, other := range slices.Clone(c.parts) { // there is one default
		if other.Default && other.Name != name {
			other.Default = false
			if err := c.apply(job.PartitionSet{At: c.now, Partition: other}); err != nil {
				return refusedJob(err)
			}
		}
	}
	return nil
}

// dependencyText is what a job waits for of what it depends on, as Slurm writes it.
func (c *core) dependencyText(id job.ID, d *job.Dependencies) string {
	if d == nil {
		return ""
	}
	names := [...]string{"after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer", "singleton"}
	var words []string
	for _, u := range c.sched.Unmet(id) {
		word := names[min(int(u.Type), len(names)-1)]
		if u.Type != job.Singleton {
			word += ":" + u.Job.String()
			if v, ok := c.sched.Job(u.Job); u.Task != nil {
				word += "_" + number(*u.Task)
			} else if ok && v.Array == u.Job {
				word += "_*"
			}
			if u.Delay > 0 {
				word += fmt.Sprintf("+%d", u.Delay/job.Minute)
			}
		}
		if u.Never {
			word += "(failed)"
		} else {
			word += "(unfulfilled)"
		}
		words = append(words, word)
	}
	if d.Any {
		return strings.Join(words, "?")
	}
	return strings.Join(words, ",")
}
