package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/runtime"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// contained starts ranks in one container that all of them share. Its first process is
// made and never started: every rank joins, so that all are alike, and the container lives
// until it is closed. If this process is killed, the container's PID 1 ends all of it.
type contained struct {
	s     *supervisor
	step  *step
	freed func()
}

// The places in a container of what a job's programs need.
const (
	programsDir = "/run/gangway/bin"
	scriptPath  = "/run/gangway/" + scriptFile
)

func (c *contained) prepare(ctx context.Context) (string, error) {
	o, free, err := c.s.Container(c.s.spec, c.s.tellPulled)
	if err != nil {
		return "", err
	}
	c.freed = free
	o.Request.Command = c.s.args(scriptPath)
	o.Environ = texts(c.s.spec.Program.Environ)
	o.Request.Terminal = c.s.spec.Program.Terminal
	o.Hostname = c.s.Node
	o.Hosts = hostLines(c.s.spec.Job.Nodes, c.s.spec.Job.Addrs)
	o.Log = c.s.Log
	if err := c.mount(&o); err != nil {
		return "", err
	}
	if err := c.s.allot(ctx, &o); err != nil {
		return "", err
	}
	c.s.limitMemory(&o)
	phase := o.Phase
	o.Phase = func(name string, took time.Duration, rung string) {
		if phase != nil {
			phase(name, took, rung)
		}
		c.s.tellProgress(control.Progress{Phase: name})
	}
	c.step = &step{Options: o, last: time.Now(), ranks: newRanks()}
	return c.prepareStep(ctx)
}

// prepareStep does what Run does before it starts the command.
func (c *contained) prepareStep(ctx context.Context) (string, error) {
	s := c.step
	if err := s.checkSeal(ctx); err != nil {
		return "", err
	}
	if _, err := Leftovers(s.Dirs, s.Scratch, true); err != nil {
		s.Log.Warn("leftovers of killed runs stay", "err", err)
	}
	if err := s.checkTarget(); err != nil {
		return "", err
	}
	running, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	if running != nil {
		return "", inUse(s.Name)
	}
	if want := c.s.spec.Image; want != "" && s.image.Digest != "" && s.image.Digest != want {
		return "", &fault.Error{
			What: fmt.Errorf("open image of the step on node %s: it is %s, not %s as on the others", c.s.Node, s.image.Digest, want),
			Hint: "name the image by its digest: " + s.image.Name + "@" + want,
		}
	}
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	return s.image.Digest, nil
}

// mount adds what programs of a job need: the script, the commands of the cluster, and the
// directory of the sockets behind which it is.
func (c *contained) mount(o *Options) error {
	var mounts []spec.Mount
	if len(c.s.spec.Program.Script) > 0 {
		mounts = append(mounts, bind(filepath.Join(c.s.Dir, scriptFile), scriptPath, spec.RegularFile))
	}
	if dir, err := c.s.programs(true); err == nil {
		mounts = append(
			mounts,
			bind(dir, programsDir, spec.Directory),
			bind(c.s.Program, programsDir+"/"+programName, spec.RegularFile),
		)
	} else {
		c.s.Log.Warn("the commands of the cluster are not in the container", "err", err)
	}
	if socket, ok := strings.CutPrefix(c.s.spec.Controller, "unix:"); ok && filepath.IsAbs(socket) {
		dir := filepath.Dir(socket)
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			mounts = append(mounts, bind(dir, dir, spec.Directory))
		}
	}
	o.Request.Mounts = append(mounts, o.Request.Mounts...)
	return nil
}

// bind mounts what is not to be changed.
func bind(source, target string, kind spec.Kind) spec.Mount {
	return spec.Mount{
		Text: source + ":" + target, Type: spec.Bind, Source: source, Target: target, Kind: kind,
		Options: []string{"bind", "ro", "nosuid", "nodev"},
	}
}

// hostLines are the job's nodes, as /etc/hosts has them. Those that are one machine have
// different addresses of it, so that each has a name: torchrun takes two processes whose
// names and numbers are the same for one, and containers all begin with the same numbers.
func hostLines(names, addrs []string) []byte {
	var b strings.Builder
	for i, name := range names {
		if i >= len(addrs) || addrs[i] == name {
			continue
		}
		addr := net.ParseIP(addrs[i])
		if addr == nil {
			continue // a name, which resolves by itself
		}
		if addr.IsLoopback() {
			addr = net.IPv4(127, 1, byte((i+1)>>8), byte(i+1))
		}
		fmt.Fprintf(&b, "%s\t%s\n", addr, name)
	}
	return []byte(b.String())
}

func (c *contained) ready(ctx context.Context) error {
	if err := c.step.startHooks(ctx); err != nil {
		return err
	}
	c.step.started(ctx)
	return nil
}

func (c *contained) environment() (*rank.Env, error) {
	gpus := c.s.gpus()
	for i := range gpus {
		gpus[i] = strconv.Itoa(i) // only these are there
	}
	return c.s.environment(c.s.spec.Controller, gpus, "")
}

func (c *contained) start(ctx context.Context, l launch, e *rank.Env) (process, error) {
	s := c.step
	over, err := e.Rank(l.m.local)
	if err != nil {
		return nil, err
	}
	r := s.Request
	env, err := s.joinedEnviron(spec.Request{
		Command: r.Command, Terminal: l.files.terminal, Export: r.Export, ContainerEnv: r.ContainerEnv, Env: append(over, r.Env...),
	}, e.Caller())
	if err != nil {
		return nil, err
	}
	first := s.built.Spec.Process
	join := runtime.JoinProcess{
		Args: first.Args, Env: l.change(appendPath(env, programsDir)), Cwd: cmp.Or(l.cwd, first.Cwd), Group: true, Terminal: l.files.terminal,
		Rlimits: handedOn(c.s.spec.Program.Limits), CPUs: c.s.cpusOf(l.m),
	}
	if l.args != nil {
		join.Args = l.args
	}
	if l.isRank() {
		join.Env, join.PID = withoutVariable(join.Env, taskPID), taskPID
	}
	files := l.files.given()
	if !join.Terminal {
		join.Stdin, join.Stdout, join.Stderr = files[0], files[1], files[2]
	}
	p, err := s.container.Join(ctx, join)
	if err != nil {
		return nil, explainCommand(err)
	}
	return &containedRank{c: c, p: p}, nil
}

// containedRank is a rank in the container.
type containedRank struct {
	c *contained
	p *runtime.Process
}

// Signal implements process.
func (r *containedRank) Signal(sig syscall.Signal) error { return r.p.SignalGroup(sig) }

// SignalAlone implements process.
func (r *containedRank) SignalAlone(sig syscall.Signal) error { return r.p.Signal(sig) }

// Wait implements process.
func (r *containedRank) Wait() (exited, error) {
	st, err := r.p.Wait()
	if err != nil {
		return exited{}, err
	}
	e := exited{code: st.Code, signal: int(st.Signal), core: st.Core}
	if st.Signal == syscall.SIGKILL && r.c.step.memory != nil {
		e.oom = r.c.step.memory.OOM() != nil
	}
	return e, nil
}

// Pid implements process.
func (r *containedRank) Pid() int { return r.p.PID() }

// Terminal implements process.
func (r *containedRank) Terminal() *os.File { return r.p.Terminal() }

// PID implements process.
func (r *containedRank) PID() int { return r.p.PID() }

func (c *contained) close(ctx context.Context) error {
	if c.step == nil {
		if c.freed != nil {
			c.freed()
		}
		return nil
	}
	var errs []error
	if s := c.step; s.container != nil {
		errs = append(errs, s.container.Close())
		s.complete = c.s.life.fault == nil
		errs = append(errs, s.save(ctx))
	}
	c.step.close()
	if c.freed != nil {
		c.freed()
	}
	return errors.Join(errs...)
}
