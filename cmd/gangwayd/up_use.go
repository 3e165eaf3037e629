package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// use makes the names of Slurm's commands in the state directory, and is what to type to have
// them, and this cluster, in another terminal.
func (s *state) use(ctx context.Context, gangway, name string) (string, error) {
	dir := filepath.Join(s.dir, "slurm")
	if out, err := exec.CommandContext(ctx, gangway, "slurm", "install", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("make the names of Slurm's commands: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return fmt.Sprintf("export PATH=%s:%s:$PATH GANGWAY_CLUSTER=%s", quoted(dir), quoted(filepath.Dir(gangway)), name), nil
}

// quoted is a path as a shell takes it for one word.
func quoted(path string) string {
	if strings.Trim(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-") == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// tellJobs prints what becomes of jobs, as the controller pushes it, until ctx ends: for people
// who look at the terminal in which the cluster runs.
func tellJobs(ctx context.Context, env *cli.Env, socket string) {
	c := api.Dial("unix:" + socket)
	defer c.Close()
	said := map[job.ID]string{}
	for ctx.Err() == nil {
		_ = c.Watch(ctx, &api.Query{}, func(e *api.Event) bool { // begun anew where the controller is
			if e.Job == nil {
				return true
			}
			text := becomes(e.Job)
			if text == said[e.Job.ID] {
				return true
			}
			said[e.Job.ID] = text
			if e.Job.State.Done() {
				delete(said, e.Job.ID)
			}
			fmt.Fprintf(env.Stderr, "%s %s\n", env.Now().Format("15:04:05"), text)
			return true
		})
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// printable is what others wrote, without what a terminal obeys.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// becomes is a job's state in a line.
func becomes(j *api.Job) string {
	text := fmt.Sprintf("job %s %s: %s", j.ID, printable(j.Name), strings.ToLower(j.State.String()))
	switch {
	case j.State == job.Pending && j.Reason != "" && j.Reason != "None":
		text += " (" + j.Reason + ")"
	case len(j.NodeList) > 0:
		text += " on " + slurm.Fold(j.NodeList)
	}
	if j.Restarts > 0 {
		text += fmt.Sprintf(", restarts: %d", j.Restarts)
	}
	return text
}
