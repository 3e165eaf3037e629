package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/attach"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// jobPlace is JOB[_TASK][.STEP][:RANK].
type jobPlace struct {
	target slurm.Target
	rank   int
	bare   bool // a number alone
}

// jobPattern is what a jobPlace looks like.
var jobPattern = regexp.MustCompile(`^([0-9]+(?:_[0-9]+)?(?:\.[0-9a-z]+)?)(?::([0-9]+))?$`)

// parseJobPlace says in ok whether a text may be one.
func parseJobPlace(text string) (p jobPlace, ok bool) {
	m := jobPattern.FindStringSubmatch(text)
	if m == nil {
		return p, false
	}
	var err error
	if p.target, err = slurm.ParseTarget(m[1]); err != nil {
		return p, false
	}
	if m[2] != "" {
		if p.rank, err = strconv.Atoi(m[2]); err != nil {
			return p, false
		}
	}
	p.bare = m[2] == "" && !strings.ContainsAny(m[1], "_.")
	return p, true
}

// execIn runs a command where a rank of a job is.
func execIn(ctx context.Context, env *cli.Env, p jobPlace, e *stdio.Exec) error {
	c, err := contact(env)
	if err != nil {
		return err
	}
	s, err := runningStep(ctx, c, p)
	if err != nil {
		return err
	}
	if p.rank >= s.Tasks {
		return fault.Usage(fmt.Errorf("step %s.%s has no rank %d", s.Key.Job, s.Key.Step, p.rank), fmt.Sprintf("it has 0 to %d", s.Tasks-1))
	}
	e.Rank = p.rank
	return attachExec(env, s, e)
}

// runningStep is the step that is meant: that of the target, else the last one that runs,
// else the batch script.
func runningStep(ctx context.Context, c *api.Client, p jobPlace) (*api.Step, error) {
	id, err := jobID(ctx, c, p.target)
	if err != nil {
		return nil, err
	}
	page, err := c.Steps(ctx, id)
	if err != nil {
		return nil, err
	}
	var found *api.Step
	for i := range page.Items {
		s := &page.Items[i]
		switch {
		case p.target.Step != nil && s.Key.Step != *p.target.Step, s.Phase == "ended":
		case found == nil, s.Key.Step >= 0 && s.Key.Step > found.Key.Step:
			found = s
		}
	}
	if found == nil {
		return nil, &fault.Error{What: fmt.Errorf("job %s: nothing runs in it", p.target), See: "gangway show job " + id.String()}
	}
	return found, nil
}

// jobID is the id of a job or of a task of an array.
func jobID(ctx context.Context, c *api.Client, t slurm.Target) (job.ID, error) {
	if t.Task == nil {
		return t.Job, nil
	}
	j, err := c.JobNamed(ctx, t.Name())
	return j.ID, err
}

// attachExec runs a program and is its terminal, until it ends.
func attachExec(env *cli.Env, s *api.Step, e *stdio.Exec) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if e.Terminal {
		restore, err := cli.RawTerminal(os.Stdin)
		if err != nil {
			return err
		}
		defer restore()
	}
	code, over := 0, false
	session := attach.Open(ctx, attach.Config{
		Step: *s, Exec: e, Stdin: os.Stdin,
		Output: func(_ int, stream stdio.Type, data []byte) error {
			w := stdout()
			if stream == stdio.Stderr {
				w = stderr()
			}
			_, err := w.Write(data)
			return err
		},
		RankExit: func(end job.RankEnd) { code = exitCode(&end) },
		StepEnd:  func(*job.StepEnd) { over = true },
		Trouble:  func(node string, err error) { env.Logger().Warn("node does not answer", "node", node, "err", err) },
	})
	stop := relay(session, e.Terminal)
	defer stop()
	err := session.Wait()
	switch {
	case errors.Is(err, syscall.EPIPE):
		return fault.Exit(fault.CodeSignal(syscall.SIGPIPE))
	case errors.Is(err, context.Canceled), over && err == nil:
		return &fault.Error{What: fmt.Errorf("step %s.%s has ended", s.Key.Job, s.Key.Step)}
	case err != nil:
		return err
	}
	return ended(code, nil)
}

// relay passes this process's signals on, and the size of its terminal.
func relay(s *attach.Session, terminal bool) (stop func()) {
	c := make(chan os.Signal, 8)
	quit := make(chan struct{})
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGPIPE)
	if terminal {
		s.Resize(cli.WindowSize(os.Stdin))
	}
	go func() {
		for {
			select {
			case sig := <-c:
				switch sig {
				case syscall.SIGPIPE:
				case syscall.SIGWINCH:
					if terminal {
						s.Resize(cli.WindowSize(os.Stdin))
					}
				default:
					s.Signal(sig.(syscall.Signal))
				}
			case <-quit:
				return
			}
		}
	}()
	return func() {
		signal.Stop(c)
		close(quit)
	}
}
