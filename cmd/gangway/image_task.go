package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/cli"
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

func performInChild(ctx context.Context, t image.Task, files []*os.File) (layer.Info, error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return layer.Info{}, err
	}
	c := newChild(ctx, "look into layers", files, "image", "perform-task", string(arg), fmt.Sprint(len(files)))
	if err := c.start(); err != nil {
		return layer.Info{}, err
	}
	return c.outcome(ctx, c.wait())
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
		return printLine(env.Stdout, newOutcome(t.Perform(cmd.Context(), files)))
	}
	return cmd
}
