package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// performer returns how a store's tasks are done: nil for in this process. What they
// decompress was written by strangers, so that root leaves them to nobody, as it does
// conversions.
func performer() image.Performer {
	if !proc.IsRoot() {
		return nil
	}
	return performInChild
}

// outcome is what the child of a task says.
type outcome struct {
	Info  layer.Info
	Error string
	Wraps []int // of image.TaskErrors
}

// taskError is the error of the child, with what callers look for in it.
type taskError struct{ outcome }

// Error implements error.
func (e *taskError) Error() string { return e.outcome.Error }

// Unwrap returns what the error wraps, as far as the child said it.
func (e *taskError) Unwrap() []error {
	var all []error
	known := image.TaskErrors()
	for _, n := range e.Wraps {
		if n >= 0 && n < len(known) {
			all = append(all, known[n])
		}
	}
	return all
}

func performInChild(ctx context.Context, t image.Task, files []*os.File) (layer.Info, error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return layer.Info{}, err
	}
	var stdout, stderr proc.Excerpt
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "image", "perform-task", string(arg), fmt.Sprint(len(files)))
	proc.AsNobody(cmd)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.ExtraFiles = files
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return layer.Info{}, noChild("look into layers", err)
	}
	endGroup(cmd.Process.Pid)
	err = cmd.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return layer.Info{}, cause
	}
	var o outcome
	if json.Unmarshal(stdout.Bytes(), &o) != nil {
		return layer.Info{}, &fault.Error{
			What: fmt.Errorf("%s in another process: %w: %.300s", t.Kind, err, stderr.Bytes()),
			Hint: "try again; if it is killed again, look for want of memory in the kernel's log: dmesg",
		}
	}
	if o.Error != "" {
		return o.Info, &taskError{o}
	}
	return o.Info, nil
}

// imagePerformTask is the child of performInChild. It is not for people.
func imagePerformTask(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "perform-task TASK FILES", Short: "look into layers for another process", Hidden: true}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var t image.Task
		var n int
		if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
			return fmt.Errorf("perform-task: %w", err)
		}
		if _, err := fmt.Sscan(args[1], &n); err != nil {
			return fmt.Errorf("perform-task: %w", err)
		}
		var files []*os.File
		for fd := 3; fd < 3+n; fd++ {
			files = append(files, os.NewFile(uintptr(fd), "file of the store"))
		}
		if err := proc.Renounce(); err != nil {
			return fmt.Errorf("perform-task: %w", err)
		}
		setMemoryLimits(env)
		var o outcome
		var err error
		if o.Info, err = t.Perform(cmd.Context(), files); err != nil {
			o.Error = err.Error()
			for n, known := range image.TaskErrors() {
				if errors.Is(err, known) {
					o.Wraps = append(o.Wraps, n)
				}
			}
		}
		return printLine(env.Stdout, o)
	}
	return cmd
}
