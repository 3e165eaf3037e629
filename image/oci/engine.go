package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/fsx"
	"github.com/gangway-hpc/gangway/internal/proc"
)

const maxEngineMessage = 2000 // bytes of stderr that are kept

// SaveFromEngine takes an image out of an engine of this machine: engine is
// "docker" or "podman". The engine's archive is kept in a file without a name in
// dir until the image is closed.
func SaveFromEngine(ctx context.Context, engine, image, dir string) (*Local, error) {
	f, err := os.CreateTemp(dir, fsx.TempPrefix)
	if err != nil {
		return nil, fmt.Errorf("save %s from %s: %w", image, engine, err)
	}
	t, err := saveTo(ctx, f, engine, image)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("save %s from %s: %w", image, engine, err), f.Close())
	}
	t.close = f.Close
	return openSaved(ctx, t, "image "+image+" of "+engine, "")
}

func saveTo(ctx context.Context, f *os.File, engine, image string) (*tarFiles, error) {
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	args := []string{"save"}
	if engine == "podman" {
		args = append(args, "--format", "docker-archive")
	}
	if err := runEngine(ctx, f, engine, append(args, "--", image)); err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return scanTar(f, st.Size())
}

// runEngine runs an engine's program with stdout in f.
func runEngine(ctx context.Context, f *os.File, engine string, args []string) error {
	cmd := exec.CommandContext(ctx, engine, args...)
	stderr := &tail{}
	cmd.Stdout, cmd.Stderr = f, stderr
	proc.Confine(cmd)
	err := cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay): // a process that it left behind holds stderr
		return nil
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.Is(err, exec.ErrNotFound):
		return &fault.Error{
			What: fmt.Errorf("there is no program %q", engine),
			Hint: fmt.Sprintf("save it where %s is: %s save %s -o FILE.tar; then use docker-archive:FILE.tar", engine, engine, args[len(args)-1]),
		}
	}
	return &fault.Error{What: fmt.Errorf("%s %s: %w", engine, strings.Join(args, " "), err), Cause: strings.TrimSpace(stderr.kept.String())}
}

// tail keeps the end of what is written to it. It does not embed the buffer, whose
// ReadFrom would go round Write.
type tail struct{ kept bytes.Buffer }

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	t.kept.Write(p[max(0, n-maxEngineMessage):])
	if over := t.kept.Len() - maxEngineMessage; over > 0 {
		t.kept.Next(over)
	}
	return n, nil
}
