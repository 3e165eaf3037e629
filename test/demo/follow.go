package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// submit types an sbatch, shows its answer, and returns the job's number.
func (d *demo) submit(ctx context.Context, dir string, args ...string) (job.ID, error) {
	args = append([]string{"sbatch"}, args...)
	d.say.typed(append([]string{}, args...))
	cmd := d.user(ctx, dir, args...)
	out, err := cmd.CombinedOutput()
	d.say.lines(strings.NewReader(string(out)), nil)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	words := strings.Fields(string(out))
	n, err := strconv.ParseUint(words[len(words)-1], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("sbatch says %q: %w", out, err)
	}
	return job.ID(n), nil
}

// follower says what happens to a job, as the controller tells it.
type follower struct {
	d        *demo
	said     string
	progress time.Time // when the last line of that was said
	tell     bool
	of       map[job.ID]job.State // of an array's tasks
}

// follow watches a job, or an array, until it has ended; on is called with each change, and may
// be nil. It fails unless the job completes.
func (d *demo) follow(ctx context.Context, id job.ID, tell bool, on func(*api.Job)) error {
	c := api.Dial(valueOf(d.env, api.Variable))
	defer c.Close()
	f := &follower{d: d, tell: tell, of: map[job.ID]job.State{}}
	synced := false
	err := c.Watch(ctx, &api.Query{IDs: []job.ID{id}}, func(e *api.Event) bool {
		switch {
		case e.Synced:
			synced = true
		case e.Step != nil:
			f.step(e.Step)
		case e.Job != nil:
			f.job(e.Job)
			if on != nil {
				on(e.Job)
			}
		}
		return !synced || !f.over()
	})
	if err != nil {
		return fmt.Errorf("watch job %s: %w", id, err)
	}
	for one, state := range f.of {
		if state != job.Completed {
			return errors.New("job " + one.String() + " is " + strings.ToLower(state.String()) + ": gangway show job " + one.String())
		}
	}
	return nil
}

func (f *follower) over() bool {
	for _, s := range f.of {
		if !s.Done() {
			return false
		}
	}
	return len(f.of) > 0
}

func (f *follower) job(j *api.Job) {
	f.of[j.ID] = j.State
	text := fmt.Sprintf("job %s is %s", j.ID, strings.ToLower(j.State.String()))
	if len(j.NodeList) > 0 {
		text += " on " + strings.Join(j.NodeList, ",")
	}
	if j.Why != "" {
		text += ": " + j.Why
	}
	if f.tell && text != f.said {
		f.said = text
		f.d.say.line("   > ", text)
	}
}

// step says how far the prepare of a step is, once a second.
func (f *follower) step(s *api.Step) {
	if f.tell && s.Key.Step != job.BatchStep && s.Progress != "" && s.Phase == "preparing" && time.Since(f.progress) > time.Second {
		f.progress = time.Now()
		f.d.say.line("   > ", fmt.Sprintf("step %s.%s: %s", s.Key.Job, s.Key.Step, s.Progress))
	}
}

// valueOf is a variable of an environment; the last one counts.
func valueOf(env []string, name string) (value string) {
	for _, v := range env {
		if one, ok := strings.CutPrefix(v, name+"="); ok {
			value = one
		}
	}
	return value
}

// work is the directory of an example, as the user has it.
func (d *demo) work(example string) string { return filepath.Join(d.dir, example) }
