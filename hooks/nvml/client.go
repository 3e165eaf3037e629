// Package nvml asks NVIDIA's management library about GPUs without ever hanging with it.
// The questions go to gangway-nvml, a process of its own, as JSON lines over pipes; each has
// a deadline, after which that process is killed.
//
//	client := nvml.New(nvml.Options{Program: program})
//	defer client.Close()
//	sample, err := client.Sample(ctx, uuid)
//	if errors.Is(err, nvml.ErrNoDriver) ...
//
// Every error is a fault.Error that names what is wrong and the remedy; a caller that only
// wanted figures prints it as a warning and goes on. Nothing here is needed to start a
// container. A Client may be used by any number of goroutines; they take turns.
//
// The package judges no GPU (it says what NVML says), changes no setting, and starts no
// program but the one it was given.
package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/fault"
)

// Options says how NVML is asked. The zero value of every field but Program is fine.
type Options struct {
	// Program is gangway-nvml's file, see Find.
	Program string
	// Library is the file of libnvidia-ml.so.1; "" is what the loader finds.
	Library string
	// Proc is where the proc file system is, "/proc" if empty.
	Proc string
	// Timeout is how long an answer may take, 3 s if 0.
	Timeout time.Duration
	// StartTimeout is how long the first answer of a new process may take, 10 s if 0: a
	// driver that is not persistent initialises the GPUs then.
	StartTimeout time.Duration
	// Pause is how long a helper that hung or crashed is not started again, 1 s if 0. It
	// doubles each time, up to a minute.
	Pause time.Duration
	// Env is the helper's whole environment. It needs none.
	Env []string
}

// Client asks NVML. It is made by New.
type Client struct {
	opt     Options
	turn    chan struct{} // holds one token: whoever has it may touch what is below
	proc    *process
	id      uint64
	pause   time.Duration
	until   time.Time // no helper is started before
	last    error     // why not
	left    *process  // killed, and maybe still in the kernel
	dropped time.Time // when
	closed  bool
}

const (
	maxPause = time.Minute
	hungHint = "look for Xid messages in the kernel log: dmesg | grep NVRM"
)

// New returns a Client. Nothing is started before the first question.
func New(opt Options) *Client {
	opt.Timeout = orElse(opt.Timeout, 3*time.Second)
	opt.StartTimeout = max(opt.Timeout, orElse(opt.StartTimeout, 10*time.Second))
	opt.Pause = orElse(opt.Pause, time.Second)
	c := &Client{opt: opt, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Find returns gangway-nvml's file: beside self, the file of the running program, or else
// in the directories of path, which is PATH or "" to look nowhere else (root's). The error
// is ErrAbsent's.
func Find(self, path string) (string, error) {
	const name = "gangway-nvml"
	dirs := append([]string{filepath.Dir(self)}, filepath.SplitList(path)...)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) { // a program of the working directory is a stranger's
			continue
		}
		file := filepath.Join(dir, name)
		if st, err := os.Stat(file); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", absent(fmt.Errorf("find %s: %w", name, ErrAbsent), "it is not in "+strings.Join(dirs, ", "))
}

func absent(what error, cause string) error {
	return &fault.Error{
		What:  what,
		Cause: cause,
		Hint:  "put gangway-nvml beside gangway; where the source is, \"make gangway-nvml\" builds it",
	}
}

// Inventory returns which GPUs there are; with uuids only these.
func (c *Client) Inventory(ctx context.Context, uuids ...string) (*Inventory, error) {
	return ask[Inventory](ctx, c, "inventory", uuids)
}

// Topology returns how the GPUs reach each other.
func (c *Client) Topology(ctx context.Context, uuids ...string) (*Topology, error) {
	return ask[Topology](ctx, c, "topology", uuids)
}

// Health returns what may be wrong with the GPUs.
func (c *Client) Health(ctx context.Context, uuids ...string) (*Health, error) {
	return ask[Health](ctx, c, "health", uuids)
}

// Sample returns what the GPUs do now.
func (c *Client) Sample(ctx context.Context, uuids ...string) (*Sample, error) {
	return ask[Sample](ctx, c, "sample", uuids)
}

// Processes returns who uses the GPUs.
func (c *Client) Processes(ctx context.Context, uuids ...string) (*Processes, error) {
	return ask[Processes](ctx, c, "processes", uuids)
}

// Close ends the helper. Later questions return ErrClosed. It waits for a question that is
// being asked, and no longer than a second for the helper, which may be stuck in the kernel.
func (c *Client) Close() error {
	<-c.turn
	defer c.giveTurn()
	c.closed = true
	c.drop()
	if c.left != nil && !c.left.isGone(time.Second) {
		return fmt.Errorf("end gangway-nvml: %s", c.left.remains(c.opt.Proc))
	}
	return nil
}

func (c *Client) giveTurn() { c.turn <- struct{}{} }

// ask puts one question.
func ask[T any](ctx context.Context, c *Client, call string, uuids []string) (*T, error) {
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("ask NVML for %s: %w", call, context.Cause(ctx))
	case <-c.turn:
		defer c.giveTurn()
	}
	var result T
	failure, err := c.exchange(ctx, Request{Call: call, GPUs: uuids}, &result)
	if err != nil {
		return nil, c.blame(call, err)
	}
	if failure == nil {
		c.pause, c.last = 0, nil
		return &result, nil
	}
	err = told(call, failure)
	if failure.Kind == Hung { // the helper ends by itself
		c.postpone(err)
	}
	return nil, err
}

// exchange sends a request and reads the answer, from a new helper if there is none. With
// an error the helper is gone, or was never there.
func (c *Client) exchange(ctx context.Context, r Request, into any) (*Failure, error) {
	limit := c.opt.Timeout
	if c.proc == nil {
		if err := c.start(); err != nil {
			return nil, err
		}
		limit = c.opt.StartTimeout
	}
	deadline := time.Now().Add(limit)
	if t, ok := ctx.Deadline(); ok && t.Before(deadline) {
		deadline = t
	}
	// The helper gives up a little earlier, because it knows what it waits for.
	left := time.Until(deadline)
	limit = left.Round(time.Millisecond)
	r.TimeoutMS = max(1, (left - min(left/4, 250*time.Millisecond)).Milliseconds())
	c.id++
	r.ID = c.id
	request, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	line, err := c.proc.talk(ctx, append(request, '\n'), deadline)
	var failure *Failure
	if err == nil {
		failure, err = decodeResponse(line, r.ID, into)
	}
	switch {
	case err == nil:
		return failure, nil
	case ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.drop() // the answer may still come, and would be taken for the next one
		return nil, context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, c.late(limit)
	case errors.Is(err, ErrWrong):
		c.drop()
		err = &fault.Error{What: err, Hint: "install gangway and gangway-nvml of one version; then try by hand: " + c.opt.Program + " " + r.Call}
	default:
		err = c.proc.crash(err)
	}
	c.postpone(err)
	return nil, err
}

// start starts the helper, unless the last one failed a short while ago.
func (c *Client) start() error {
	switch {
	case c.closed:
		return ErrClosed
	case c.left != nil && !c.left.isGone(c.opt.Timeout-time.Since(c.dropped)):
		return &fault.Error{What: ErrHung, Cause: c.left.remains(c.opt.Proc), Hint: hungHint}
	case c.last != nil && time.Now().Before(c.until):
		return c.last
	}
	c.left = nil
	p, err := startProcess(c.opt, "serve")
	if err != nil {
		err = absent(fmt.Errorf("%w: %w", ErrAbsent, err), "")
		c.postpone(err)
		return err
	}
	c.proc = p
	return nil
}

// late ends a helper that does not answer.
func (c *Client) late(limit time.Duration) error {
	err := &fault.Error{What: fmt.Errorf("%w in %v", ErrHung, limit), Hint: hungHint}
	c.drop()
	if !c.left.isGone(0) {
		err.Cause = c.left.remains(c.opt.Proc)
	}
	c.postpone(err)
	return err
}

// drop kills the helper, if there is one, and waits shortly for its end.
func (c *Client) drop() {
	if c.proc == nil {
		return
	}
	c.proc.kill()
	c.proc.isGone(200 * time.Millisecond)
	c.left, c.proc, c.dropped = c.proc, nil, time.Now()
}

// postpone keeps the next helper from being started at once.
func (c *Client) postpone(why error) {
	c.drop()
	c.pause = min(max(2*c.pause, c.opt.Pause), maxPause)
	c.until, c.last = time.Now().Add(c.pause), why
}

// blame says what was being done.
func (c *Client) blame(call string, err error) error {
	return fmt.Errorf("ask NVML for %s: %w", call, err)
}

// told makes an error of what the helper says.
func told(call string, f *Failure) error {
	return &fault.Error{
		What:  fmt.Errorf("ask NVML for %s: %w: %s", call, f.sentinel(), f.Text),
		Cause: f.Cause,
		Hint:  f.Hint,
	}
}
