package server

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/host"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/store"
	"github.com/gangway-hpc/gangway/sched"
)

// maxProgram bounds script, arguments and environment of a job.
const maxProgram = 16 << 20

// proposal is a Submit that was checked as far as that goes without the state.
type proposal struct {
	submit *api.Submit
	facts  facts
	blobs  []store.Blob
}

// propose checks a Submit, and splits it into what the scheduler, the state and the store
// have to know.
func propose(who identity, q *api.Submit) (*proposal, *api.Error) {
	p := &proposal{submit: q}
	if err := who.mayAsk(&q.Spec, &job.Spec{}); err != nil {
		return nil, err
	}
	q.Spec.UID, q.Spec.User, q.Spec.Groups = who.uid, who.name(), who.groups()
	groups, err := who.member()
	if err != nil {
		return nil, err
	}
	p.facts = facts{
		GID: who.gid, Groups: groups, Comment: q.Comment, SubmitHost: q.SubmitHost, SubmitDir: q.SubmitDir, Dependency: q.Dependency,
		Exclude: q.Spec.Exclude, Once: q.Once, Unheld: q.Unheld, Command: q.Command, GPUs: q.GPUs, GPUsPerNode: q.GPUsPerNode, GPUsPerTask: q.GPUsPerTask,
	}
	if who.from.Role == host.Node {
		p.facts.Via = who.from.Name
	}
	if p.facts.Once != "" {
		p.facts.Once = fmt.Sprintf("%d/%.64s", who.uid, q.Once)
	}
	switch {
	case q.Program == nil && !q.Allocation:
		return nil, &api.Error{
			What: "submit job: there is nothing to run", Hint: "give it a Program, or Allocation: true for one without", Code: fault.CodeUsage, Kind: "NO_JOB_SCRIPT",
		}
	case q.Program == nil:
		return p, nil
	case q.Allocation:
		return nil, &api.Error{What: "submit job: an allocation has no program", Hint: "leave Allocation or Program out", Code: fault.CodeUsage, Kind: "BAD_REQUEST"}
	}
	program := *q.Program
	if err := checkProgram(&program); err != nil {
		return nil, err
	}
	if p.facts.Command == "" {
		p.facts.Command = commandOf(&program)
	}
	p.facts.Images = imagesNamed(&program)
	p.facts.Env, p.facts.Text, p.blobs = split(&program)
	p.facts.Program = &program
	return p, nil
}

func checkProgram(p *job.Program) *api.Error {
	size := len(p.Script) + len(p.Cwd) + len(p.MultiProg)
	for _, list := range [][][]byte{p.Args, p.Environ} {
		for _, b := range list {
			if size += len(b); bytes.IndexByte(b, 0) >= 0 {
				return &api.Error{What: "an argument or variable has a byte 0 in it", Code: fault.CodeUsage, Kind: "INVALID_JOB_ENV_SIZE"}
			}
		}
	}
	switch {
	case size > maxProgram:
		return &api.Error{
			What:  fmt.Sprintf("script, arguments and environment are %d bytes long; the most is %d", size, maxProgram),
			Hint:  "read large data from a file; --export=NONE leaves the environment out",
			Code:  fault.CodeUsage,
			Kind:  "PATHNAME_TOO_LONG",
			Cause: "",
		}
	case len(p.Script) == 0 && len(p.Args) == 0:
		return &api.Error{What: "there is nothing to run", Code: fault.CodeUsage, Kind: "NO_JOB_SCRIPT"}
	}
	return nil
}

// commandOf is what is shown as a job's command: its script's path, as the client sends
// it, or its arguments.
func commandOf(p *job.Program) string {
	return string(bytes.Join(p.Args, []byte(" ")))
}

// split takes script and environment out of a program: they are blobs.
func split(p *job.Program) (env, text string, blobs []store.Blob) {
	add := func(b []byte) string {
		digest := store.Digest(b)
		blobs = append(blobs, store.Blob{Digest: digest, Data: b})
		return digest
	}
	if len(p.Environ) > 0 {
		env = add(bytes.Join(p.Environ, []byte{0}))
	}
	if len(p.Script) > 0 {
		text = add(p.Script)
	}
	p.Environ, p.Script = nil, nil
	return env, text, blobs
}

// maxStored is how many digests are remembered of blobs that are in the store.
const maxStored = 4096

// keep has blobs stored with this turn's events, but for those that are known to be there,
// and returns the digests of the others.
func (c *core) keep(blobs []store.Blob) (added []string) {
	for _, b := range blobs {
		c.fresh[b.Digest] = true
		if c.stored[b.Digest] {
			continue
		}
		c.out.batch.Blobs = append(c.out.batch.Blobs, b)
		if len(c.stored) >= maxStored {
			clear(c.stored)
		}
		c.stored[b.Digest] = true // what comes later is stored later
		added = append(added, b.Digest)
	}
	return added
}

// fill is the contrary of split.
func (c *core) fill(p *job.Program, env, text string) error {
	if env != "" {
		b, err := c.store.Blob(env)
		if err != nil {
			return err
		}
		p.Environ = bytes.Split(b, []byte{0})
	}
	if text != "" {
		b, err := c.store.Blob(text)
		if err != nil {
			return err
		}
		p.Script = b
	}
	return nil
}

// submit takes a job. answer is called, once, when it is durable, or at once if it is
// refused.
func (c *core) submit(p *proposal, answer func(*api.Submitted)) {
	if sent, ok := c.once[p.facts.Once]; ok && p.facts.Once != "" {
		refuse := c.refuseTo(answer)
		// If the first cannot be stored, this one is refused with it.
		c.out.submits = append(c.out.submits, waiting{id: sent.ID, refuse: refuse})
		c.after(func() {
			if c.commit.refused(sent.ID) {
				refuse(nil)
				return
			}
			answer(&api.Submitted{ID: sent.ID, Tasks: tasksOf(sent.N, p.submit.Spec.Array)})
		})
		return
	}
	if c.commit.broken() {
		answer(&api.Submitted{Error: c.commit.refusal(unstoredJob, ", then submit again")})
		return
	}
	spec := p.submit.Spec
	if !slices.ContainsFunc(c.parts, func(p job.Partition) bool { return len(p.AllowGroups) > 0 }) {
		spec.Groups = nil // they make no difference
	}
	if err := c.checkFeatures(&spec); err != nil {
		answer(&api.Submitted{Error: err})
		return
	}
	e := submitted{job.Submitted{At: c.now, ID: c.last + 1, Spec: spec}, &p.facts}
	if err := c.sched.Apply(e.Submitted); err != nil {
		answer(&api.Submitted{Error: refusedJob(err)})
		return
	}
	c.emit(e)
	c.meter.submits.Inc()
	n := 1
	if spec.Array != nil {
		n = spec.Array.Len()
	}
	c.watch.job(e.ID)
	c.out.submits = append(c.out.submits, waiting{
		id: e.ID, n: n, blobs: c.keep(p.blobs), refuse: c.refuseTo(answer),
	})
	c.after(func() { answer(&api.Submitted{ID: e.ID, Tasks: tasksOf(n, spec.Array)}) })
}

// refuseTo is how a job is refused that cannot be stored.
func (c *core) refuseTo(answer func(*api.Submitted)) func(error) {
	return func(err error) {
		e := c.commit.refusal(unstoredJob, ", then submit again")
		if err != nil {
			e.Cause = err.Error()
		}
		answer(&api.Submitted{Error: e})
	}
}

func tasksOf(n int, a *job.Array) int {
	if a == nil {
		return 0
	}
	return n
}

// unstoredJob is that a job is refused because the store takes nothing.
const unstoredJob = "submit job: it cannot be stored"

// nobodys says whether a job was refused after all, because it could not be stored: who
// submitted it does not know it, so it is shown to nobody, and not accounted.
func (c *core) nobodys(id job.ID) bool {
	f := c.fates[id]
	if r := c.runs[id]; r != nil {
		f = r.Fate
	}
	return f != nil && f.Unstored
}

// refusedJob is a refusal of the scheduler for people and for Slurm's commands.
func refusedJob(err error) *api.Error {
	var r *sched.Refused
	if !errors.As(err, &r) {
		return &api.Error{What: err.Error()}
	}
	what := "submit job"
	if !strings.HasPrefix(r.Event, what) {
		what = r.Event
	}
	e := &api.Error{What: what + ": " + r.Why, Kind: kindOfRefusal(r.Why)}
	if r.Nearest != "" {
		e.Hint = "nearest that could be: " + r.Nearest
	}
	return e
}

// kindOfRefusal is Slurm's name for the reason of a refusal.
func kindOfRefusal(why string) string {
	for _, k := range []struct{ part, kind string }{
		{"there is no partition", "INVALID_PARTITION_NAME"},
		{"there is no such", "INVALID_JOB_ID"},
		{"takes no jobs", "PARTITION_NOT_AVAIL"},
		{"none of the groups", "JOB_MISSING_REQUIRED_PARTITION_GROUP"},
		{": account ", "INVALID_ACCOUNT"},
		{"no job without account", "INVALID_ACCOUNT"},
		{": QOS ", "INVALID_QOS"},
		{"no job without QOS", "INVALID_QOS"},
		{"is not allowed", "ACCESS_DENIED"},
		{"time limit", "INVALID_TIME_LIMIT"},
		{"there is no node", "INVALID_NODE_NAME"},
		{"array", "INVALID_ARRAY"},
		{"depend", "DEPENDENCY"},
		{"licence", "INVALID_LICENSES"},
		{"more than", "MAX_JOB_COUNT"},
		{"generic resource", "INVALID_GRES"},
		{"not PENDING", "JOB_NOT_PENDING"},
		{"already", "ALREADY_DONE"},
		{"none of the", "REQUESTED_NODE_CONFIG_UNAVAILABLE"},
		{"nodes could take", "REQUESTED_NODE_CONFIG_UNAVAILABLE"},
	} {
		if strings.Contains(why, k.part) {
			return k.kind
		}
	}
	return "REQUESTED_NODE_CONFIG_UNAVAILABLE"
}

// testOnly says when a job would start, and changes nothing.
func (c *core) testOnly(p *proposal) *api.Submitted {
	if err := c.checkFeatures(&p.submit.Spec); err != nil {
		return &api.Submitted{Error: err}
	}
	fork := c.sched.Fork()
	id := c.last + 1
	if err := fork.Apply(job.Submitted{At: c.now, ID: id, Spec: p.submit.Spec}); err != nil {
		return &api.Submitted{Error: refusedJob(err)}
	}
	fork.Decide(c.now)
	v, ok := fork.Job(id)
	if !ok {
		return &api.Submitted{Error: &api.Error{What: "submit job: it is not there"}}
	}
	a := &api.Submitted{ID: id, Start: v.Expected, CPUs: max(1, v.Spec.Tasks) * max(1, v.Spec.CPUsPerTask)}
	if len(v.Spec.Partitions) > 0 {
		a.Part = v.Spec.Partitions[0]
	}
	for _, p := range c.parts {
		if p.Default && a.Part == "" {
			a.Part = p.Name
		}
	}
	if v.State == job.Running {
		a.Start, a.Part, a.CPUs = v.Start, v.Allocation.Partition, 0
		for i := range v.Allocation.Nodes {
			a.Nodes = append(a.Nodes, v.Allocation.Nodes[i].Node)
			a.CPUs += v.Allocation.Nodes[i].CPUs
		}
	}
	return a
}
