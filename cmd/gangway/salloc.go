package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// salloc is Slurm's command of this name.
func salloc(_ context.Context, env *cli.Env, args []string) error {
	o, err := slurm.Parse(slurm.Salloc, slurm.Source{Args: args, Getenv: env.Getenv, Now: env.Now()})
	if err != nil || o.Help || o.Version {
		return aboutSlurm(env, o, err)
	}
	sayWarnings(env, o)
	return runAlloc(env, "salloc", o)
}

// runAlloc gets an allocation and runs a command, or a shell, beside it.
func runAlloc(env *cli.Env, name string, o *slurm.Options) (err error) {
	if o.Chdir != "" {
		dir := workDir(env, o.Chdir)
		if err := os.Chdir(dir); err != nil {
			return &slurm.Refusal{Lines: []string{"error: chdir(" + o.Chdir + "): " + slurm.SystemError(err)}, Code: 1}
		}
		if err := os.Setenv("PWD", dir); err != nil {
			return err
		}
	}
	command := o.Operands
	if len(command) == 0 {
		shell := env.Getenv("SHELL")
		if shell == "" {
			shell = "/bin/sh"
		}
		command = []string{shell}
	}
	if o.Job.Name == "" {
		o.Job.Name = "interactive"
	}
	r := &stepRun{env: env, name: name, quiet: o.Quiet > 0, options: o}
	if r.client, err = contact(env); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r.cancel = cancel
	signals := r.catch()
	s := submission(env, o)
	s.Allocation = true
	if o.NoShell {
		// Nobody holds it: it lasts until its end, or scancel.
		s.Unheld = true
	}
	begun := time.Now()
	a, err := allocate(ctx, r, s, o.Immediate)
	signals.stop()
	if err != nil {
		return err
	}
	r.say("Granted job allocation %s", a.id)
	r.ring(time.Since(begun))
	if o.NoShell {
		return nil
	}
	code, err := r.shell(ctx, a.id, command)
	r.say("Relinquishing job allocation %s", a.id)
	a.end(max(code, fault.Code(err)))
	return ended(code, err)
}

// bellDelay is after which wait salloc rings the bell by itself.
const bellDelay = 10 * time.Second

// ring rings the terminal's bell when the nodes are there, where that is wanted.
func (r *stepRun) ring(waited time.Duration) {
	if bell := r.options.Bell; bell == slurm.BellNever || bell == slurm.BellAfterDelay && waited < bellDelay {
		return
	}
	if r.env.Terminal(os.Stdout) {
		_, _ = io.WriteString(os.Stdout, "\a")
	}
}

// shell runs a command with the job's environment until its end, or the job's.
func (r *stepRun) shell(ctx context.Context, id job.ID, command []string) (int, error) {
	j, err := r.client.Job(ctx, id)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), r.jobEnviron(ctx, &j)...)
	// Of the terminal's signals the command makes what it wants.
	ignored := make(chan os.Signal, 4)
	signal.Notify(ignored, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(ignored)
	defer cli.KeepTerminal(os.Stdin)()
	if err := cmd.Start(); err != nil {
		code := startCode(err)
		if code == fault.CodeNotFound {
			r.tell("error: _fork_command: Unable to find command %q", command[0])
		} else {
			r.tell("error: Unable to exec command %q: %v", command[0], err)
		}
		if r.name == "salloc" {
			code = 1 // as Slurm's
		}
		return code, nil
	}
	go func() {
		if r.awaitEnd(ctx, id) {
			r.tell("Job allocation %s has been revoked.", id)
			_ = cmd.Process.Signal(syscall.SIGHUP) // it may have ended
			_ = cmd.Process.Signal(syscall.SIGCONT)
		}
	}()
	stopTerm := forward(cmd.Process)
	err = cmd.Wait()
	stopTerm()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return fault.CodeSignal(ws.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// forward passes signals on that are meant to end salloc.
func forward(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 4)
	quit := make(chan struct{})
	signal.Notify(c, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for {
			select {
			case s := <-c:
				_ = p.Signal(s) // it may have ended
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

// startCode is the exit code for a command that cannot be started.
func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fault.CodeNotFound
	}
	return fault.CodeNotExecutable
}

// awaitEnd waits until a job has ended; false: ctx ended first.
func (r *stepRun) awaitEnd(ctx context.Context, id job.ID) bool {
	for ctx.Err() == nil {
		over := false
		err := r.client.Watch(ctx, &api.Query{IDs: []job.ID{id}}, func(e *api.Event) bool {
			over = e.Job != nil && e.Job.ID == id && e.Job.State != job.Running && e.Job.State != job.Pending
			return !over
		})
		if over {
			return true
		}
		if waitForController(ctx, err) != nil {
			return ctx.Err() == nil
		}
	}
	return false
}
