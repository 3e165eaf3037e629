package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// maxScript bounds a script, as Slurm's max_script_size does.
const maxScript = 4 << 20

// sbatch is Slurm's command of this name.
func sbatch(ctx context.Context, env *cli.Env, args []string) error {
	path := ""
	o, err := slurm.Parse(slurm.Sbatch, slurm.Source{
		Args: args, Getenv: env.Getenv, Now: env.Now(),
		Script: func(o *slurm.Options) (script []byte, err error) {
			script, path, err = readScript(env, o.Operands)
			return script, err
		},
	})
	if err != nil || o.Help || o.Version {
		return aboutSlurm(env, o, err)
	}
	if err := standsSomewhere(); err != nil {
		return err
	}
	nameBatch(o, path)
	sayWarnings(env, o)
	s := submission(env, o)
	s.Command = commandPath(env, path)
	if s.Program, err = batchProgram(env, o); err != nil {
		return err
	}
	c, err := contact(env)
	if err != nil {
		return err
	}
	answer, err := c.Submit(ctx, s)
	if o.TestOnly {
		return sayTest(env, o, "sbatch", &answer, err)
	}
	if err != nil {
		return err
	}
	for _, note := range answer.Notes {
		talk(env, "sbatch", "%s", note)
	}
	switch {
	case o.Quiet > 0:
	case o.Parsable:
		fmt.Fprintln(env.Stdout, answer.ID)
	default:
		fmt.Fprintf(env.Stdout, "Submitted batch job %s\n", answer.ID)
	}
	if !o.Wait {
		return nil
	}
	if err := flush(env); err != nil {
		return err
	}
	return awaitJobs(ctx, env, c, "sbatch", answer.ID)
}

// readScript reads the script that operands name, or standard input. A name without a
// slash is looked for here, and then in PATH.
func readScript(env *cli.Env, operands []string) (script []byte, path string, err error) {
	r := env.Stdin
	if len(operands) > 0 && operands[0] != "-" {
		path = operands[0]
		if _, err := os.Stat(path); err != nil && filepath.Base(path) == path {
			if found, err := exec.LookPath(path); err == nil {
				path = found
			}
		}
		f, err := os.Open(path)
		if err != nil {
			name := operands[0]
			if !errors.Is(err, os.ErrNotExist) {
				name = commandPath(env, path) // Slurm has found it
			}
			return nil, "", &slurm.Refusal{Lines: []string{"error: Unable to open file " + name}, Code: 1}
		}
		defer func() { _ = f.Close() }()
		r = f
	}
	script, err = io.ReadAll(io.LimitReader(r, maxScript+1))
	switch {
	case errors.Is(err, syscall.EISDIR):
		return []byte("a directory"), path, nil // which is no script, says Slurm too
	case err != nil:
		return nil, path, fmt.Errorf("read script: %w", err)
	case len(script) > maxScript:
		return nil, path, &slurm.Refusal{Code: 1, Lines: []string{
			"error: Batch job submission failed: Pathname of a file, directory or other parameter too long",
			fmt.Sprintf("error: the script is longer than %d bytes: have it read what is large from a file", maxScript),
		}}
	}
	return script, path, nil
}

// aboutSlurm answers --help and --version.
func aboutSlurm(env *cli.Env, o *slurm.Options, err error) error {
	switch {
	case err != nil:
		return err
	case o.Version:
		_, err = fmt.Fprintln(env.Stdout, slurm.VersionText)
	default:
		_, err = io.WriteString(env.Stdout, slurm.Usage(o.Command))
	}
	return err
}

// sayWarnings prints what is to be known of options, and with --verbose the options themselves.
func sayWarnings(env *cli.Env, o *slurm.Options) {
	if o.Verbose > 0 {
		for _, line := range o.Defined() {
			talk(env, o.Command.String(), "%s", line)
		}
	}
	for _, w := range o.Warnings {
		talk(env, o.Command.String(), "%s", w)
	}
}

// submission makes the request of what options say, without a program.
func submission(env *cli.Env, o *slurm.Options) *api.Submit {
	host, _ := os.Hostname()
	s := &api.Submit{
		Spec: o.Job, Comment: o.Comment, SubmitHost: host, SubmitDir: []byte(workDir(env, "")), Dependency: o.Dependency,
		GPUs: o.GPUs, GPUsPerNode: o.GPUsPerNode, GPUsPerTask: o.GPUsPerTask, TestOnly: o.TestOnly, Once: once(),
	}
	s.Spec.UID = uint32(os.Getuid())
	s.Spec.User = env.Getenv("USER")
	return s
}

// commandPath is a script as it is shown; empty: it has no file.
func commandPath(env *cli.Env, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(workDir(env, ""), path)
}

// batchProgram is what a batch step runs.
func batchProgram(env *cli.Env, o *slurm.Options) (*job.Program, error) {
	p := o.Program
	for _, arg := range o.Operands[min(1, len(o.Operands)):] {
		p.Args = append(p.Args, []byte(arg))
	}
	return &p, completeProgram(env, o, &p)
}

// completeProgram adds what the process itself has: environment, directory, umask, limits,
// and the containers' options of the environment.
func completeProgram(env *cli.Env, o *slurm.Options, p *job.Program) (err error) {
	if p.Environ, err = o.Environ(os.Environ()); err != nil {
		return err
	}
	p.Cwd = []byte(workDir(env, o.Chdir))
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	p.Umask = uint32(mask)
	if n, err := strconv.ParseUint(env.Getenv("SLURM_UMASK"), 8, 9); err == nil {
		p.Umask = uint32(n)
	}
	p.Limits = limitsOf(o.Propagate)
	p.Container, err = containerFlags(env, p.Container)
	return err
}

// sayTest is the answer of --test-only, by the name of a command.
func sayTest(env *cli.Env, o *slurm.Options, name string, a *api.Submitted, err error) error {
	var refused *api.Error
	switch sentence := ""; {
	case errors.As(err, &refused) && name == o.Command.String():
		if sentence = slurm.ErrorText(refused.Kind); sentence == "" {
			sentence = refused.What
		}
		return &slurm.Refusal{Code: 1, Plain: true, Lines: []string{
			"allocation failure: " + sentence, strings.TrimSuffix(fault.Text(name, err, false), "\n"),
		}}
	case err != nil || o.Quiet > 0 && a.Start != job.Never:
		return err
	}
	talk(env, name, "%s", slurm.TestSentence(a.ID, a.Start, a.CPUs, a.Nodes, a.Part))
	if a.Start == job.Never {
		return fault.Exit(1)
	}
	return nil
}

// awaitJobs waits for the end of a job, or of all tasks of an array, and returns the
// highest exit code; one that a signal ended counts as 1.
func awaitJobs(ctx context.Context, env *cli.Env, c *api.Client, name string, id job.ID) error {
	worst := 0
	states := map[job.ID]job.State{}
	for {
		synced := false
		err := c.Watch(ctx, &api.Query{IDs: []job.ID{id}}, func(e *api.Event) bool {
			synced = synced || e.Synced
			if j := e.Job; j != nil {
				states[j.ID] = j.State
				if len(j.Waiting) > 0 {
					states[j.ID] = job.Pending
				}
				if j.State.Done() {
					worst = max(worst, exitOf(j))
				}
			}
			for _, s := range states {
				if !s.Done() {
					return true
				}
			}
			return !synced || len(states) == 0
		})
		if err == nil {
			break
		}
		if err := waitForController(ctx, err); err != nil {
			return err
		}
	}
	if worst == 0 {
		return nil
	}
	return fault.Exit(worst)
}

// exitOf is a job's exit code as sbatch --wait has it.
func exitOf(j *api.Job) int {
	switch {
	case j.Signal != 0, j.Exit == 0 && j.State != job.Completed:
		return 1
	}
	return j.Exit
}
