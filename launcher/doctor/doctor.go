// Package doctor tries out what a machine lets an ordinary user do, and says for each
// thing what came back, what follows from it and the one command that mends it.
//
//	report := doctor.Examine(ctx, doctor.Options{Store: dir, RuntimeDir: run})
//	if !report.Summary.CanRun { ... }
//
// Nothing is concluded from a version or a setting that can be tried instead: what needs
// namespaces is done in a process that is this program started anew, by a hidden verb
// that calls [RunProbe]. Settings are read only to say why something was refused.
//
// A [Report] is a value. Examine may be called at any number of times at once; its probes
// run side by side, each with a deadline. It changes nothing on the machine, apart from
// files of its own that it removes and what Options.Leftovers removes; [FixAppArmor] is
// the only other thing here that writes. The package knows no image and no configuration:
// callers say where things are.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Result is the outcome of a probe.
type Result string

// The outcomes.
const (
	OK       Result = "ok"       // as it should be
	Degraded Result = "degraded" // containers run, with less or slower
	Missing  Result = "missing"  // containers cannot run
	Unknown  Result = "unknown"  // it could not be tried
)

// Finding is what one probe found.
type Finding struct {
	Name        string `json:"name"`
	Result      Result `json:"result"`
	Tried       string `json:"tried"`                 // what was done
	Got         string `json:"got"`                   // what came back
	Cause       string `json:"cause,omitempty"`       // why, as far as it is known
	Consequence string `json:"consequence,omitempty"` // what does not work therefore
	Remedy      string `json:"remedy,omitempty"`      // a command to type
}

// Summary counts findings.
type Summary struct {
	CanRun   bool `json:"can_run"` // nothing that containers need is missing
	OK       int  `json:"ok"`
	Degraded int  `json:"degraded"`
	Missing  int  `json:"missing"`
	Unknown  int  `json:"unknown"`
}

// Report is all findings, in a fixed order.
type Report struct {
	Findings []Finding `json:"findings"`
	Summary  Summary   `json:"summary"`
}

// Find returns the finding of that name.
func (r *Report) Find(name string) (Finding, bool) {
	for _, f := range r.Findings {
		if f.Name == name {
			return f, true
		}
	}
	return Finding{}, false
}

// Registry is a server of images that should answer.
type Registry struct {
	Name       string // as people write it
	URL        string // scheme and host; empty is https and Name
	CAFile     string // PEM file of authorities trusted besides the system's
	SkipVerify bool
}

// Options say what to look at. The zero value examines the kernel and the limits.
type Options struct {
	// Program and Args start this program so that it calls RunProbe with the
	// arguments that follow. Empty means /proc/self/exe doctor-probe.
	Program string
	Args    []string

	Store      string // the image store; empty is not looked at
	RuntimeDir string // where running containers have their directories; empty is not looked at
	TempDir    string // empty is os.TempDir()
	Registries []Registry

	// Container runs a container of an image with nothing in it, as "gangway run" does. Nil
	// is not looked at.
	Container func(ctx context.Context) error
	// WritableRung makes a writable layer over a FUSE mount and says what with, and why
	// not with something better, if there is. Nil is
	// not looked at.
	WritableRung func(ctx context.Context) (rung, why string, err error)
	// Limits makes a control group that limits memory, processes and CPU time, and says on
	// which rung, and what is not enforced, a line each. Nil is not tried.
	Limits func(ctx context.Context) (rung string, missing []string, err error)
	// Leftovers lists what killed runs left behind, and removes it if asked. Nil is
	// not looked at.
	Leftovers func(ctx context.Context, remove bool) ([]string, error)
	Keep      bool // leftovers are listed only

	Root    string           // where /proc, /sys and /etc are read below to explain a refusal; empty is the machine's
	Now     func() time.Time // nil is time.Now
	Timeout time.Duration    // of each probe; 0 is 3 s
}

func (o Options) withDefaults() Options {
	if o.Program == "" {
		o.Program = "/proc/self/exe"
	}
	if o.Args == nil {
		o.Args = []string{"doctor-probe"}
	}
	if o.TempDir == "" {
		o.TempDir = os.TempDir()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Timeout == 0 {
		o.Timeout = 3 * time.Second
	}
	return o
}

// Names of findings that others look for.
const (
	nameUserNS = "user-namespaces"
	nameMaps   = "id-maps"
	nameMounts = "namespace-mounts"
)

// examination is one call of Examine.
type examination struct {
	Options
	facts facts

	mu    sync.Mutex
	dates []serverDate // what registries take for the time
}

// probe is something to try. Several findings may come of one.
type probe struct {
	name string
	ns   bool // needs user namespaces
	run  func(ctx context.Context) Finding
}

// Examine tries everything out.
func Examine(ctx context.Context, o Options) Report {
	e := &examination{Options: o.withDefaults()}
	e.facts = readFacts(e.Root)
	found := e.decisive(ctx)
	able := true
	for _, f := range found {
		able = able && f.Result == OK
	}
	found = append(found, e.all(ctx, able)...)
	found = append(found, e.clock()) // needs what registries said
	r := Report{Findings: found}
	r.Summary = summarize(found)
	return r
}

// Blocking returns the finding because of which containers cannot run; it is empty where
// they can.
func (r *Report) Blocking() Finding { return blocking(r.Findings) }

func blocking(found []Finding) Finding {
	for _, f := range found {
		// What decides must have been seen to work.
		decides := f.Name == nameUserNS || f.Name == nameMaps || f.Name == nameMounts
		if f.Result == Missing || decides && f.Result != OK {
			return f
		}
	}
	return Finding{}
}

func summarize(found []Finding) Summary {
	var s Summary
	for _, f := range found {
		switch f.Result {
		case OK:
			s.OK++
		case Degraded:
			s.Degraded++
		case Missing:
			s.Missing++
		case Unknown:
			s.Unknown++
		}
	}
	s.CanRun = blocking(found).Name == ""
	return s
}

// all runs the probes that do not decide whether there are containers at all.
func (e *examination) all(ctx context.Context, able bool) []Finding {
	probes := e.probes()
	found := make([]Finding, len(probes))
	var wg sync.WaitGroup
	for i, p := range probes {
		wg.Go(func() {
			if p.ns && !able {
				found[i] = Finding{Result: Unknown, Tried: "nothing", Got: "not tried: it needs user namespaces"}
			} else {
				found[i] = e.timed(ctx, p)
			}
			found[i].Name = p.name
		})
	}
	wg.Wait()
	return found
}

// decisive is namespaces, which may hang as every probe may.
func (e *examination) decisive(ctx context.Context) []Finding {
	done := make(chan []Finding, 1)
	f := e.timed(ctx, probe{nameUserNS, false, func(ctx context.Context) Finding {
		found := e.namespaces(ctx)
		done <- found
		return found[0]
	}})
	select {
	case found := <-done:
		return found
	default:
	}
	f.Name = nameUserNS
	late := Finding{Result: Unknown, Tried: "nothing", Got: "not tried: it needs a user namespace"}
	found := []Finding{f, late, late}
	found[1].Name, found[2].Name = nameMaps, nameMounts
	return found
}

// timed runs a probe that may hang: what a dead file server is asked cannot be
// interrupted, so it is left behind.
func (e *examination) timed(ctx context.Context, p probe) Finding {
	ctx, cancel := context.WithTimeout(ctx, e.Timeout)
	defer cancel()
	done := make(chan Finding, 1)
	go func() { done <- p.run(ctx) }()
	// A probe that heeds its context tells more than that time is up.
	late := time.NewTimer(e.Timeout + e.Timeout/4)
	defer late.Stop()
	select {
	case f := <-done:
		return f
	case <-late.C:
		return Finding{Result: Unknown, Tried: p.name, Got: fmt.Sprintf("no answer in %v", e.Timeout), Consequence: "what uses it may hang as well"}
	}
}

func (e *examination) probes() []probe {
	all := []probe{
		{"apparmor", false, e.appArmor},
		{"subuid", true, e.subordinate},
		{"fuse-device", false, e.fuseDevice},
		{"fuse-mount", true, e.fuseMount},
		{"overlay", true, e.overlay},
		{"tmpfs-xattr", true, e.tmpfsXattr},
		{"proc", true, e.freshProc},
		{"sys", true, e.sys},
		{"cgroup", false, e.cgroup},
		{"clone3", false, e.clone3},
		{"openat2", false, e.openat2},
		{"open-tree", true, e.openTree},
		{"mount-setattr", true, e.mountSetattr},
		{"seccomp", false, e.seccomp},
		{"memlock", false, e.memlock},
		{"nofile", false, e.nofile},
		{"shm", false, e.shm},
		{"kernel", false, e.kernel},
		{"space-tmp", false, func(context.Context) Finding { return e.space("temporary files", e.TempDir, 64<<20) }},
	}
	if e.Container != nil {
		all = append(all, probe{"container", true, e.container})
	}
	if e.WritableRung != nil {
		all = append(all, probe{"writable-layer", true, e.writableLayer})
	}
	if e.Store != "" {
		all = append(all, probe{"store", false, e.store},
			probe{"space-store", false, func(context.Context) Finding { return e.space("the image store", e.Store, 1<<30) }})
	}
	if e.RuntimeDir != "" {
		all = append(all, probe{"runtime-dir", false, e.runtimeDir},
			probe{"space-run", false, func(context.Context) Finding { return e.space("running containers", e.RuntimeDir, 4<<20) }})
	}
	if e.Leftovers != nil {
		all = append(all, probe{"leftovers", false, e.leftovers})
	}
	for _, r := range e.Registries {
		all = append(all, probe{"registry " + r.Name, false, func(ctx context.Context) Finding { return e.registry(ctx, r) }})
	}
	return all
}

// container is the proof of all that others conclude: what they look at one by one is done
// together.
func (e *examination) container(ctx context.Context) Finding {
	f := Finding{Result: OK, Tried: "run a container of an image with nothing but a program that ends", Got: "works"}
	err := e.Container(ctx)
	if err == nil {
		return f
	}
	f.Result, f.Got, f.Consequence = Missing, err.Error(), "no container can be started"
	if told, ok := errors.AsType[*fault.Error](err); ok {
		f.Cause, f.Remedy = told.Cause, told.Hint
	}
	if ctx.Err() != nil {
		f.Result, f.Consequence = Unknown, "it is not known whether containers start"
	}
	if f.Remedy == "" {
		f.Remedy = "gangway doctor -v"
	}
	return f
}

func (e *examination) writableLayer(ctx context.Context) Finding {
	f := Finding{Tried: "a writable layer over a FUSE mount: create, append, rename, remove, make again"}
	rung, why, err := e.WritableRung(ctx)
	switch {
	case err != nil:
		f.Result, f.Got = Degraded, err.Error()
		f.Consequence = "writable containers may not start; read-only ones do"
		f.Remedy = "sudo " + e.facts.install("fuse-overlayfs")
	case why != "":
		f.Result, f.Got, f.Cause = Degraded, rung, why
		f.Consequence = "writable containers start slower, or write to them slower"
		f.Remedy = "sudo " + e.facts.install("fuse-overlayfs")
	default:
		f.Result, f.Got = OK, rung
	}
	return f
}

func (e *examination) leftovers(ctx context.Context) Finding {
	f := Finding{Result: OK, Tried: "what killed runs left behind"}
	left, err := e.Leftovers(ctx, !e.Keep)
	list := strings.Join(left, ", ")
	switch {
	case err != nil:
		f.Result, f.Got = Degraded, err.Error()
		f.Consequence = "disk or memory stays taken"
		f.Remedy = "gangway doctor -v"
		if list != "" {
			f.Got += " (" + list + ")"
		}
	case len(left) == 0:
		f.Got = "nothing"
	case e.Keep:
		f.Result, f.Got = Degraded, list
		f.Consequence = "disk or memory stays taken until the next run"
		f.Remedy = "gangway doctor"
	default:
		f.Got = "removed " + list
	}
	return f
}
