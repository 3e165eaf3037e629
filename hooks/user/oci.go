package user

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Point is when hooks of an OCI specification run.
type Point string

// The points in the runtime's namespaces. The deprecated prestart is run with
// createRuntime, as the specification asks.
const (
	CreateRuntime Point = "createRuntime"
	Poststart     Point = "poststart"
	Poststop      Point = "poststop"
)

// OCI runs the hooks that a specification has for a point, each with the container's
// state as JSON on stdin and with exactly the environment that it names. The first
// error of createRuntime ends it; those of the other points are joined after all ran,
// because the specification makes them warnings.
//
// The same files are trusted as for the package's own hooks, because a specification
// may come from a CDI file in a user's directory. [NotRun] says which hooks no point
// here runs.
func (r Runner) OCI(ctx context.Context, at Point, hooks *specs.Hooks, state specs.State) error {
	if hooks == nil {
		return nil
	}
	var errs []error
	for _, hook := range of(at, hooks) {
		err := r.ociHook(ctx, hook, state)
		if err == nil {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: %w", at, err))
		if at == CreateRuntime {
			break
		}
	}
	return errors.Join(errs...)
}

func of(at Point, h *specs.Hooks) []specs.Hook {
	switch at {
	case CreateRuntime:
		//lint:ignore SA1019 deprecated, and what many files still have
		return slices.Concat(h.Prestart, h.CreateRuntime)
	case Poststart:
		return h.Poststart
	case Poststop:
		return h.Poststop
	}
	return nil
}

func (r Runner) ociHook(ctx context.Context, h specs.Hook, state specs.State) error {
	if !isPath(h.Path) {
		return fmt.Errorf("run hook %q: its path is not absolute and without dots", h.Path)
	}
	if err := r.trusted(h.Path); err != nil {
		return err
	}
	c := command{path: h.Path, args: h.Args, env: h.Env}
	if h.Timeout != nil {
		if *h.Timeout <= 0 {
			return fmt.Errorf("run hook %s: its timeout of %d s is not positive", h.Path, *h.Timeout)
		}
		c.timeout = time.Duration(*h.Timeout) * time.Second
	}
	var err error
	if c.stdin, err = encode(state); err != nil {
		return fmt.Errorf("run hook %s: %w", h.Path, err)
	}
	_, err = r.execute(ctx, c)
	return err
}

// NotRun describes the hooks of a specification that are never run, a line each.
// createContainer and startContainer hooks run in the container's namespaces: the
// host's code would work on the image's files, and with the image's libraries, which is
// what CVE-2025-23266 and its kin were. What they are used for, links and the cache of
// libraries of GPU drivers, is done without them.
func NotRun(h *specs.Hooks) []string {
	if h == nil {
		return nil
	}
	var all []string
	note := func(point string, hooks []specs.Hook) {
		for _, hook := range hooks {
			all = append(all, fmt.Sprintf("the %s hook %s is not run: it would act inside the container", point, hook.Path))
		}
	}
	note("createContainer", h.CreateContainer)
	note("startContainer", h.StartContainer)
	return all
}
