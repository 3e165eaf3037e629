package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/layer"
	"github.com/gangway-hpc/gangway/internal/cli"
	"github.com/gangway-hpc/gangway/internal/proc"
)

// converter returns how layers are converted: nil for in this process.
func converter() image.Converter {
	if !proc.IsRoot() {
		return nil
	}
	return convertInChild
}

func convertInChild(ctx context.Context, out *os.File, blob io.Reader, o layer.Options) (layer.Info, error) {
	arg, err := json.Marshal(o)
	if err != nil {
		return layer.Info{}, err
	}
	c := newChild(ctx, "convert a layer", []*os.File{out}, "image", "convert-layer", string(arg))
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return layer.Info{}, err
	}
	if err := c.start(); err != nil {
		return layer.Info{}, err
	}
	pipe := &pipeWriter{w: stdin}
	_, copyErr := io.Copy(pipe, blob)
	if pipe.broken {
		copyErr = nil // the child says why it ended
	}
	if copyErr != nil {
		// The child must not take the begin of a blob for the whole.
		_ = c.cmd.Process.Kill()
	}
	_ = stdin.Close()
	ended := c.wait()
	if copyErr != nil {
		return layer.Info{}, copyErr
	}
	return c.outcome(ctx, ended)
}

// pipeWriter notes that the reader of a pipe is gone, which is no error of the copy's
// source.
type pipeWriter struct {
	w      io.Writer
	broken bool
}

// Write implements io.Writer.
func (p *pipeWriter) Write(b []byte) (int, error) {
	n, err := p.w.Write(b)
	p.broken = p.broken || errors.Is(err, syscall.EPIPE)
	return n, err
}

// imageConvertLayer is the child of convertInChild. It is not for people.
func imageConvertLayer(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{Use: "convert-layer OPTIONS", Short: "convert a layer for another process", Hidden: true}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var o layer.Options
		if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		out := os.NewFile(3, "layer file")
		if _, err := out.Stat(); err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		if err := proc.Renounce(); err != nil {
			return fmt.Errorf("convert-layer: %w", err)
		}
		setMemoryLimits(env)
		return printLine(env.Stdout, newOutcome(layer.Convert(cmd.Context(), out, env.Stdin, o)))
	}
	return cmd
}
