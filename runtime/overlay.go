package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long a program may take to mount, and how often it is looked whether it has.
const (
	overlayPatience = 20 * time.Second
	overlayInterval = 500 * time.Microsecond
)

// overlayProgram is fuse-overlayfs, which runs in the container's user namespace, where it
// may mount, and a copy of its mounts. It is not in the pid namespace: who is in the
// container neither sees it nor can end it, and it dies with the supervisor.
type overlayProgram struct {
	*Process
	program string
	words   chan string // what it wrote to stderr, when it has ended
}

// startOverlay runs the program and waits until its file system is mounted.
func (c *Container) startOverlay(ctx context.Context) error {
	o := c.config.Root.Overlay
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", o.Program, err)
	}
	stage := path.Clean(c.config.Stage)
	root := stage + rootDir
	p, err := c.join(ctx, JoinProcess{
		Args: []string{o.Program, "-f", "-o", overlayData(stage, o), root}, Env: []string{"PATH=" + defaultPath},
		Stdout: w, Stderr: w, Ignored: c.config.Ignored, ambient: true,
	})
	_ = w.Close()
	if err != nil {
		return fmt.Errorf("run %s: %w", o.Program, errors.Join(err, r.Close()))
	}
	c.overlay = &overlayProgram{p, o.Program, make(chan string, 1)}
	go c.overlay.listen(r)
	ctx, cancel := context.WithTimeout(ctx, overlayPatience)
	defer cancel()
	if err := c.awaitMount(ctx, fmt.Sprintf("/proc/%d/root%s", c.init.pid, root)); err != nil {
		return err
	}
	go func() {
		<-p.gone
		_ = c.init.signal(syscall.SIGKILL)
	}()
	return nil
}

// awaitMount waits until a FUSE file system is at a name.
func (c *Container) awaitMount(ctx context.Context, name string) error {
	tick := time.NewTicker(overlayInterval)
	defer tick.Stop()
	for {
		var st unix.Statfs_t
		if err := unix.Statfs(name, &st); err == nil && st.Type == unix.FUSE_SUPER_MAGIC {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.overlay.gone:
			return c.overlay.cause()
		case <-ctx.Done():
			return fmt.Errorf("wait for its mount: %w", ctx.Err())
		}
	}
}

// listen keeps the beginning of what the program writes.
func (o *overlayProgram) listen(r *os.File) {
	const enough = 2048
	text, _ := io.ReadAll(io.LimitReader(r, enough))
	_, _ = io.Copy(io.Discard, r)
	_ = r.Close()
	o.words <- strings.TrimSpace(string(text))
}

// cause is how the program ended.
func (o *overlayProgram) cause() error {
	status, _ := o.Wait()
	words := <-o.words
	o.words <- words
	return fmt.Errorf("%s, which serves the container's root, ended with code %d: %s", o.program, status.Code, words)
}

// stopOverlay ends the program when PID 1 is gone. Nobody else does, so that the error is not
// nil if it had ended before.
func (c *Container) stopOverlay() error {
	if c.overlay == nil {
		return nil
	}
	ended := c.overlay.process.ended()
	_ = c.overlay.Signal(syscall.SIGKILL)
	<-c.overlay.gone
	if ended {
		return c.overlay.cause()
	}
	return nil
}
