package step

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/hooks/cdi"
	"github.com/gangway-hpc/gangway/hooks/user"
	"github.com/gangway-hpc/gangway/internal/fault"
)

// Hooks say which programs of the site's and the user's are run for a container.
type Hooks struct {
	Dirs    []string      // as package user reads them
	Timeout time.Duration // for each hook, and for all together that see the end; 0 is that package's
	// Enroot says that what is there for Enroot is run too: of /etc/enroot, and of
	// Personal, if that is not empty.
	Enroot   bool
	Personal string
}

func (s *step) runner() user.Runner {
	return user.Runner{Dirs: s.Hooks.Dirs, Timeout: s.Hooks.Timeout, User: s.host.User, Home: s.host.Home}
}

// hookState is what hooks are told.
func (s *step) hookState() user.State {
	r := user.State{
		ID: s.dir.id(), Name: s.Name, UID: s.host.UID, GID: s.host.GID, Workdir: s.Request.Workdir, Command: s.Request.Command,
		Image: user.Image{Reference: s.image.Name, Digest: s.image.Digest, Env: s.image.Config.Env},
	}
	for _, g := range s.given.gpus {
		r.GPUs = append(r.GPUs, g.Name)
	}
	if s.built != nil {
		r.Command, r.Workdir = s.built.Spec.Process.Args, s.built.Spec.Process.Cwd
	}
	if s.container != nil {
		r.Pid = s.container.Init()
	}
	return r
}

// prepareHooks runs the hooks that may add to the container. Those that see its end run
// whatever becomes of it from here on.
func (s *step) prepareHooks(ctx context.Context) (*cdispecs.ContainerEdits, error) {
	if len(s.Hooks.Dirs) == 0 && !s.Hooks.Enroot {
		return nil, nil
	}
	if s.dry {
		s.given.notes = append(s.given.notes, "hooks are not run for a plan, which is without what they would add")
		return nil, nil
	}
	state := s.hookState()
	if len(s.given.edits.DeviceNodes)+len(s.given.edits.Mounts)+len(s.given.edits.Env) > 0 {
		state.Edits = s.given.edits
	}
	s.onEnd(ctx, s.stopHooks)
	result, err := s.runner().Prepare(ctx, state)
	s.hookNotes(result)
	if err != nil {
		return nil, err
	}
	edits := &result.Edits
	if s.Hooks.Enroot {
		dir, err := s.dir.private("enroot")
		if err != nil {
			return nil, err
		}
		e := user.Enroot{
			Runner: s.runner(), Personal: s.Hooks.Personal, Dir: dir, Environ: s.Environ, Image: s.image.Config.Env,
			RemapRoot: s.Request.RemapRoot, Containers: s.Containers,
		}
		result, err := e.Edits(ctx)
		s.hookNotes(result)
		if err != nil {
			return nil, err
		}
		edits = cdi.Merge(edits, &result.Edits)
	}
	return edits, nil
}

// hookNotes tells the person what hooks have to say.
func (s *step) hookNotes(r *user.Result) {
	if r == nil {
		return
	}
	for _, note := range r.Notes {
		s.Log.Warn(note)
	}
}

// startHooks runs the hooks that see a container which is there, and whose command waits.
// Each can still keep it from running.
func (s *step) startHooks(ctx context.Context) error {
	if s.given.made.Hooks != nil {
		// What those of OCI look for in the container's directory.
		b, err := json.Marshal(s.built.Spec)
		if err != nil {
			return err
		}
		dir, err := s.dir.private("bundle")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
			return fmt.Errorf("write what hooks read: %w", err)
		}
		for _, text := range user.NotRun(s.given.made.Hooks) {
			s.Log.Warn(text)
		}
		if err := s.runner().OCI(ctx, user.CreateRuntime, s.given.made.Hooks, s.ociState(specs.StateCreating)); err != nil {
			return err
		}
		s.onEnd(ctx, func(ctx context.Context, r user.Runner) error {
			return r.OCI(ctx, user.Poststop, s.given.made.Hooks, s.ociState(specs.StateStopped))
		})
	}
	if len(s.Hooks.Dirs) == 0 {
		return nil
	}
	result, err := s.runner().Start(ctx, s.hookState())
	s.hookNotes(result)
	return err
}

// started runs the hooks that see a container whose command runs.
func (s *step) started(ctx context.Context) {
	if s.given.made.Hooks == nil {
		return
	}
	if err := s.runner().OCI(ctx, user.Poststart, s.given.made.Hooks, s.ociState(specs.StateRunning)); err != nil {
		s.Log.Warn("a hook failed", "err", err)
	}
}

func (s *step) ociState(status specs.ContainerState) specs.State {
	state := specs.State{Version: specs.Version, ID: s.dir.id(), Status: status, Bundle: filepath.Join(s.dir.file(givenName), "bundle")}
	if status != specs.StateStopped {
		state.Pid = s.container.Init()
	}
	return state
}

// stopHooks runs the hooks of stop.
func (s *step) stopHooks(ctx context.Context, r user.Runner) error {
	state := s.hookState()
	state.Pid = 0 // it may be another's by now
	if s.ran {
		code := s.code
		state.ExitCode = &code
	}
	result, err := r.Stop(ctx, state)
	s.hookNotes(result)
	return err
}

// endedWith keeps how the command ended, for hooks.
func (s *step) endedWith(err error) {
	s.ran, s.code = true, 0
	if err != nil {
		s.code = fault.Code(err)
	}
}
