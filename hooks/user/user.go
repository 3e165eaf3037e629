// Package user runs the hooks that people write: executables in configured directories
// that see a container coming, starting and gone, and may edit it while it is coming.
// It is the only package of hooks that executes anything. Enroot's hooks are run by
// [Enroot], those that an OCI specification names by [Runner.OCI].
//
// First call: [Runner.Prepare] before the container is made, then [Runner.Start] with
// its process and [Runner.Stop] after its end. The contract:
//
//   - Hooks lie in DIR/prepare, DIR/start and DIR/stop, and run one after the other in
//     the order of their names, those of the first directory first; stop runs backwards.
//     Hidden files and what editors and package managers leave are no hooks.
//   - A hook gets a [State] as JSON on stdin, version 1. Fields are only ever added.
//   - A hook of prepare may answer with an [Answer] as JSON on stdout: edits in the form
//     of CDI, and notes that the person sees. Nothing is an answer too. A hook of start
//     or stop may answer with notes only.
//   - Any exit status but 0 fails the run with what the hook said on stderr. A hook of
//     start can still keep the command from running. One of stop fails nothing: all are
//     run while the context lasts, and the errors are reported.
//   - A hook runs as the user, in "/", in a session of its own, so that it has no terminal
//     under any name, in an environment of PATH, HOME, USER, LOGNAME, LANG,
//     GANGWAY_HOOK_PHASE and what the configuration adds. Nothing of the image or of the
//     job gets there: LD_PRELOAD in an image is data in the JSON.
//   - A hook that takes longer than the timeout is killed with all processes of its
//     group; so is one whose caller was killed, except for processes that closed file 3
//     (see [proc.StartSession]). What it left running on purpose must have a session of
//     its own (setsid).
//
// Only files are executed that nobody but root and the user could have written, in
// directories of which the same is true.
//
// Functions may be called by any number of goroutines. The package does not enter the
// container's namespaces: a hook sees the host, with the user's rights.
package user

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Phase is when a hook runs, and the directory it lies in.
type Phase string

// The phases.
const (
	Prepare Phase = "prepare" // nothing is made yet; edits are taken
	Start   Phase = "start"   // the container is there, its command waits
	Stop    Phase = "stop"    // the command has ended
)

// Version is that of State and Answer.
const Version = 1

// State is what a hook is told.
type State struct {
	Version  int                 `json:"version"`
	Phase    Phase               `json:"phase"`
	ID       string              `json:"id"`             // of the container
	Name     string              `json:"name,omitempty"` // of a named container
	Job      string              `json:"job,omitempty"`
	Step     string              `json:"step,omitempty"`
	Node     string              `json:"node,omitempty"`
	UID      int                 `json:"uid"`
	GID      int                 `json:"gid"`
	Image    Image               `json:"image"`
	Command  []string            `json:"command,omitempty"`
	Workdir  string              `json:"workdir,omitempty"`  // in the container
	Dir      string              `json:"dir,omitempty"`      // private, lives as long as the container
	GPUs     []string            `json:"gpus,omitempty"`     // UUIDs
	Edits    *cdi.ContainerEdits `json:"edits,omitempty"`    // prepare: of the hooks before
	Pid      int                 `json:"pid,omitempty"`      // start: of the container's init, on the host
	ExitCode *int                `json:"exitCode,omitempty"` // stop; 128+n: by signal n
}

// Image is what a hook is told about the image: claims of strangers.
type Image struct {
	Reference string   `json:"reference,omitempty"`
	Digest    string   `json:"digest,omitempty"`
	Env       []string `json:"env,omitempty"`
}

// Answer is what a hook may say.
type Answer struct {
	Version int                 `json:"version"`
	Edits   *cdi.ContainerEdits `json:"edits,omitempty"`
	Notes   []string            `json:"notes,omitempty"`
}

// Runner runs hooks. Its zero value has no directories and does nothing.
type Runner struct {
	Dirs       []string            // each with prepare, start and stop in it; one that is not there is empty
	Timeout    time.Duration       // for each hook; 0: 30 s
	Credential *syscall.Credential // root only: the user that hooks run as; nil: the caller's
	User, Home string              // the user's
	Env        []string            // NAME=VALUE, besides those of the contract
	// Waiting is told of a hook that has run for a second, from another goroutine; it may
	// be nil.
	Waiting func(path string)
}

// Result is what the hooks of a phase did.
type Result struct {
	Edits cdi.ContainerEdits // prepare
	Notes []string           // a line each, begun by the hook's name
	Ran   []Ran
}

// Ran is a hook that ran, whatever came of it.
type Ran struct {
	Path string
	Took time.Duration
}

// Prepare runs the hooks of the phase until one fails.
func (r Runner) Prepare(ctx context.Context, s State) (*Result, error) {
	s.Phase = Prepare
	return r.run(ctx, s)
}

// Start runs the hooks of the phase until one fails.
func (r Runner) Start(ctx context.Context, s State) (*Result, error) {
	s.Phase = Start
	return r.run(ctx, s)
}

// Stop runs all hooks of the phase, the last one first, and joins their errors. What the
// end of ctx leaves no time for is named in an error.
func (r Runner) Stop(ctx context.Context, s State) (*Result, error) {
	s.Phase = Stop
	return r.run(ctx, s)
}

func (r Runner) run(ctx context.Context, s State) (*Result, error) {
	result := &Result{}
	hooks, err := r.find(s.Phase, result)
	if err != nil || len(hooks) == 0 {
		return result, err
	}
	s.Version = Version
	if s.Phase == Stop {
		slices.Reverse(hooks)
	}
	var errs []error
	for i, hook := range hooks {
		if s.Phase == Stop && ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("run hooks %s: %w", strings.Join(hooks[i:], ", "), context.Cause(ctx)))
			break
		}
		if err := r.one(ctx, hook, s, result); err != nil {
			errs = append(errs, err)
			if s.Phase != Stop {
				break
			}
		}
	}
	return result, errors.Join(errs...)
}

// one runs a hook and takes its answer.
func (r Runner) one(ctx context.Context, hook string, s State, result *Result) error {
	if s.Phase == Prepare && !isZero(&result.Edits) {
		s.Edits = &result.Edits
	}
	input, err := encode(s)
	if err != nil {
		return fmt.Errorf("run hook %s: %w", hook, err)
	}
	ran, err := r.execute(ctx, command{path: hook, env: r.environ(s), stdin: input})
	result.Ran = append(result.Ran, Ran{hook, ran.took})
	result.Notes = append(result.Notes, prefixed(hook, ran.notes)...)
	if err != nil {
		return err
	}
	answer, err := decode(ran.stdout, s.Phase)
	if err != nil {
		return &fault.Error{
			What:  fmt.Errorf("read answer of hook %s: %w", hook, err),
			Cause: "it wrote to stdout: " + shorten(string(ran.stdout)),
			Hint:  `a hook answers with nothing, or with {"version": 1, "edits": {...}, "notes": [...]}; what it has to say goes to stderr`,
		}
	}
	result.Notes = append(result.Notes, prefixed(hook, answer.Notes)...)
	if answer.Edits != nil {
		merge(&result.Edits, answer.Edits)
	}
	return nil
}

// environ is the environment of a hook.
func (r Runner) environ(s State) []string {
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + orRoot(r.Home), "USER=" + r.User, "LOGNAME=" + r.User, "LANG=C.UTF-8",
		"GANGWAY_HOOK_PHASE=" + string(s.Phase),
	}
	return append(env, r.Env...)
}

func orRoot(home string) string {
	if home == "" {
		return "/"
	}
	return home
}

// find lists the hooks of a phase, and notes what looks like one and is none.
func (r Runner) find(phase Phase, result *Result) ([]string, error) {
	var all []string
	for _, dir := range r.Dirs {
		entries, err := os.ReadDir(filepath.Join(dir, string(phase)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("look for hooks: %w", err)
		}
		for _, entry := range entries { // sorted
			path := filepath.Join(dir, string(phase), entry.Name())
			if !isName(entry.Name()) {
				continue
			}
			st, err := os.Stat(path)
			switch {
			case err != nil:
				return nil, fmt.Errorf("look for hooks: %w", err)
			case !st.Mode().IsRegular():
			case st.Mode()&0o111 == 0:
				result.Notes = append(result.Notes, path+" is no hook because it is not executable: chmod +x, or give it another name")
			default:
				if err := r.trusted(path); err != nil {
					return nil, err
				}
				all = append(all, path)
			}
		}
	}
	return all, nil
}

// isName says whether a file of that name may be a hook.
func isName(name string) bool {
	for _, end := range []string{"~", ".bak", ".orig", ".rej", ".swp", ".rpmnew", ".rpmsave", ".rpmorig", ".dpkg-old", ".dpkg-dist", ".dpkg-new", ".dpkg-tmp"} {
		if strings.HasSuffix(name, end) {
			return false
		}
	}
	return !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "README")
}
