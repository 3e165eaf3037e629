package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

func logsVerb(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "logs [flags] JOB[.STEP][:RANK]",
		Short: "show what a job, or a step of it, prints",
		Long: `Show the output of a job's script, from its files, or that of a step that runs, whose
srun has it too. With -f it goes on until the job or step ends.`,
		Example:    "gangway logs 4711\ngangway logs -f 4711.0\ngangway logs -f --rank 3 4711.0\ngangway logs --since 10m 4711",
		SuggestFor: []string{"log", "tail", "output"},
	}
	l := &logs{env: env}
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on until the end")
	cmd.Flags().IntVar(&l.rank, "rank", -1, "only that of this rank")
	cmd.Flags().BoolVarP(&l.label, "label", "l", false, "begin each line with its rank")
	cmd.Flags().StringVar(&l.since, "since", "", "leave out files to which nothing was written since then: 10m (ago), 16:30, 2026-03-01T08:00")
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		place, ok := parseJobPlace(args[0])
		if !ok {
			return fault.Usage(fmt.Errorf("%q is not a job", args[0]), "jobs are numbers, as 4711, 4711_3 (task of an array), 4711.0 (step) or 4711.0:3 (rank)")
		}
		if l.rank < 0 && place.target.Step != nil && !place.bare && place.rank > 0 {
			l.rank = place.rank
		}
		if err := l.parseSince(); err != nil {
			return err
		}
		var err error
		if l.client, err = contact(env); err != nil {
			return err
		}
		return l.show(cmd.Context(), place)
	}
	return cmd
}

// logs shows output.
type logs struct {
	env           *cli.Env
	client        *api.Client
	follow, label bool
	rank          int
	since         string
	after         time.Time
}

// parseSince reads --since.
func (l *logs) parseSince() error {
	if l.since == "" {
		return nil
	}
	if d, err := time.ParseDuration(l.since); err == nil {
		l.after = l.env.Now().Add(-d)
		return nil
	}
	at, err := slurm.ParseMoment(l.since, l.env.Now())
	if err != nil {
		return fault.Usage(fmt.Errorf("--since %q: neither a span nor a moment", l.since), "as 10m, 16:30 or 2026-03-01T08:00")
	}
	l.after = time.UnixMilli(int64(at))
	if l.after.After(l.env.Now()) { // 16:30 is the next one for --begin
		l.after = l.after.AddDate(0, 0, -1)
	}
	return nil
}

// show shows the output of a step, or of the job's script where no step is named.
func (l *logs) show(ctx context.Context, p jobPlace) error {
	if p.target.Step == nil || *p.target.Step == job.BatchStep {
		past, err := oneJob(ctx, l.client, p.target.Name()) // files outlive what the controller knows of their job
		if err != nil {
			return err
		}
		if past.Job.Output != "" {
			return l.files(ctx, &past.Job)
		}
	}
	s, err := runningStep(ctx, l.client, p)
	if err != nil {
		return fmt.Errorf("%w; the output of steps without files is srun's", err)
	}
	return l.step(ctx, s)
}

// step shows the output of a step that runs.
func (l *logs) step(ctx context.Context, s *api.Step) error {
	if !l.after.IsZero() {
		return fault.Usage(errors.New("--since: only for the output of scripts, which is in files"), "leave it out")
	}
	o := &slurm.Options{OnlyOutput: -1, OnlyError: -1}
	o.Program.Label = l.label
	out := newOutputs(s.Tasks, o)
	hello := stdio.Hello{Follow: l.follow}
	if l.rank >= 0 {
		if l.rank >= s.Tasks {
			return fault.Usage(fmt.Errorf("step %s.%s has no rank %d", s.Key.Job, s.Key.Step, l.rank), fmt.Sprintf("it has 0 to %d", s.Tasks-1))
		}
		hello.Ranks = []int{l.rank}
	}
	err := attach.Open(ctx, attach.Config{
		Step: *s, Hello: hello, Output: out.write,
		Lost: func(rank int, _ stdio.Type, count uint64, _ stdio.Reason) {
			l.env.Logger().Warn("output is not kept any more", "rank", rank, "bytes", count)
		},
		RankExit: func(end job.RankEnd) { _ = out.finish(end.Rank) },
		StepEnd:  func(*job.StepEnd) {},
		Trouble:  func(node string, err error) { l.env.Logger().Warn("node does not answer", "node", node, "err", err) },
	}).Wait()
	if ferr := out.flush(); err == nil {
		err = ferr
	}
	return err
}

// files shows what a job's script wrote, and goes on until the job has ended, if that is
// wanted.
func (l *logs) files(ctx context.Context, j *api.Job) error {
	all := tails{{name: j.Output, to: l.env.Stdout}}
	if j.Error != "" && j.Error != j.Output {
		all = append(all, &tail{name: j.Error, to: l.env.Stderr})
	}
	if !l.after.IsZero() {
		for _, t := range all {
			if err := t.skip(l.after); err != nil {
				return err
			}
		}
	}
	for {
		n, err := all.copy()
		switch {
		case err != nil && !(errors.Is(err, fs.ErrNotExist) && !j.State.Done()):
			return err
		case n > 0:
			if err := flush(l.env); err != nil {
				return err
			}
			continue
		case !l.follow || j.State.Done():
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
		now, err := l.client.Job(ctx, j.ID)
		if err != nil {
			var refused *api.Error
			if errors.As(err, &refused) {
				now.State = job.Completed // it is forgotten
			} else if err := waitForController(ctx, err); err != nil {
				return err
			} else {
				continue
			}
		}
		*j = now
	}
}

// tails are the files of a script: its output, and its errors where they are apart.
type tails []*tail

// copy copies what is new in any. One that is not there counts if none is.
func (all tails) copy() (n int64, err error) {
	missing := 0
	for _, t := range all {
		more, terr := t.copy()
		n += more
		if errors.Is(terr, fs.ErrNotExist) {
			missing++
		}
		if terr != nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			err = terr
		}
	}
	if errors.Is(err, fs.ErrNotExist) && missing < len(all) {
		err = nil
	}
	return n, err
}

// tail copies what is added to a file.
type tail struct {
	name string
	at   int64
	to   io.Writer
}

// copy copies what is new. A file that became shorter is read from its beginning.
func (t *tail) copy() (int64, error) {
	f, err := os.Open(t.name)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() < t.at {
		t.at = 0
	}
	if _, err := f.Seek(t.at, io.SeekStart); err != nil {
		return 0, err
	}
	n, err := io.Copy(t.to, bufio.NewReader(f))
	t.at += n
	return n, err
}

// skip leaves out what a file holds if nothing was written to it after a moment. When its
// parts were written is known to nobody.
func (t *tail) skip(after time.Time) error {
	st, err := os.Stat(t.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && st.ModTime().Before(after) {
		t.at = st.Size()
	}
	return err
}
