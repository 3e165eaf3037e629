package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// What an image holds is data of strangers, which root's own process takes apart only where
// it is to be written to another file, see ARCHITECTURE.md. Where root runs a container, another process reads the layers and serves them through
// FUSE: of a user who owns nothing, without rights, and with no files but the image's and
// a socket to the supervisor. The supervisor itself uses the image's index alone, which
// the store made. Of an image that is a directory such a process only looks for what loaders
// of libraries need, where that is needed.

// confined is the supervisor's side of that process.
type confined struct {
	conn   *net.UnixConn
	kill   func() error
	stderr proc.Excerpt
	done   chan struct{} // closed when the process has ended
	err    error         // then: why
	said   error         // what it gave as a reason
	log    *slog.Logger
	lines  int // that it has logged
	added  []confinedAddition
	used   bool // to serve a root
	wg     sync.WaitGroup
}

const (
	// confinedTime is how long an answer may take.
	confinedTime = time.Minute
	// confinedEnd is how long the process may take to end when it has closed its socket.
	confinedEnd = 5 * time.Second
	// confinedLines is how much it may log: it could be the image that makes it do so.
	confinedLines = 1000
)

// serveConfined makes the tree of the image, and has another process read and serve it.
func (s *step) serveConfined(ctx context.Context) (func(context.Context, *os.File) error, error) {
	if s.confined != nil && s.confined.used { // by a rung that failed
		if err := s.confined.close(); err != nil {
			return nil, err
		}
		s.confined = nil
	}
	c, err := s.confinedProcess(ctx)
	if err != nil {
		return nil, err
	}
	c.used = true
	t, err := s.image.tree()
	if err != nil {
		return nil, err
	}
	err = s.build(confinedRoot{t, func(path string, limit int64) ([]byte, error) { return c.readFile(ctx, path, limit) }},
		func(f spec.File) error {
			c.added = append(c.added, confinedAddition{Path: []byte(f.Path), File: true, Content: f.Content, Mode: f.Mode, Link: []byte(f.Link)})
			return addFile(t, f)
		},
		func(path string, dir bool) (string, error) {
			c.added = append(c.added, confinedAddition{Path: []byte(path), Dir: dir})
			return t.Mountpoint(path, dir)
		})
	if err != nil {
		return nil, err
	}
	uid, gid := s.inside()
	broken := s.root.broken
	return func(ctx context.Context, dev *os.File) error {
		defer dev.Close() // the mount is to end with the one who serves it
		if _, err := c.call(ctx, &confinedRequest{Serve: &confinedServe{UID: uid, GID: gid, Additions: c.added}}, dev); err != nil {
			return err
		}
		c.wg.Go(func() { c.watch(broken) })
		return nil
	}, nil
}

// confinedProcess returns the process, which is started where there is none.
func (s *step) confinedProcess(ctx context.Context) (*confined, error) {
	if s.confined == nil {
		files := s.image.Files.All()
		c, err := s.startConfined(ctx, files, confinedOpen{Files: len(files)})
		if err != nil {
			return nil, err
		}
		s.confined = c
		s.onClose(c.close)
	}
	return s.confined, nil
}

// confinedRoot is an image of which this process has the index only.
type confinedRoot struct {
	*rootfs.Tree
	read func(path string, limit int64) ([]byte, error)
}

// ReadFile implements spec.Root.
func (r confinedRoot) ReadFile(path string, limit int64) ([]byte, error) { return r.read(path, limit) }

// startConfined starts the process, and has it open the image: the files that it has, or
// a directory.
func (s *step) startConfined(ctx context.Context, files []*os.File, open confinedOpen) (*confined, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket for the process that serves the image: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
	defer ours.Close() // FileConn has a copy
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	c := &confined{conn: conn.(*net.UnixConn), done: make(chan struct{}), log: s.Log}
	cmd := exec.Command("/proc/self/exe", s.Serve...)
	proc.AsNobody(cmd)
	cmd.Stderr = &c.stderr
	cmd.ExtraFiles = append([]*os.File{theirs}, files...)
	cmd.WaitDelay = confinedEnd
	if err := c.start(cmd); err != nil {
		return nil, errors.Join(&fault.Error{
			What:  fmt.Errorf("start a process of user %d to serve the image: %s", proc.Nobody, err.Error()),
			Cause: "root serves no image by itself, which is data of strangers",
			Hint:  "run it as an ordinary user; or let everybody execute gangway, and give root CAP_SETUID and CAP_SETGID",
		}, c.conn.Close())
	}
	if _, err := c.call(ctx, &confinedRequest{Open: &open}); err != nil {
		f := &fault.Error{What: fmt.Errorf("open image %s: %w", s.image.Name, err)}
		if !open.Dir {
			f.Hint = "look for damage: gangway image verify; fetch it again: gangway image pull " + s.image.Name
		}
		return nil, errors.Join(f, c.close())
	}
	return c, nil
}

// start starts the process. It dies with the thread that does so, which is kept until
// the process has ended.
func (c *confined) start(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		c.kill = func() error { return cmd.Process.Kill() }
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	return <-started
}

// close ends the process, in whatever state it is.
func (c *confined) close() error {
	if err := c.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the process that serves the image: %w", err)
	}
	<-c.done
	c.wg.Wait()
	if err := c.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// readFile reads a file of the image.
func (c *confined) readFile(ctx context.Context, path string, limit int64) ([]byte, error) {
	r, err := c.call(ctx, &confinedRequest{Read: &confinedRead{Path: []byte(path), Limit: limit}})
	if err != nil {
		return nil, err
	}
	if int64(len(r.Content)) > limit {
		return nil, fmt.Errorf("read %s of the image: %w: %d bytes, more than %d", path, syscall.EFBIG, len(r.Content), limit)
	}
	return r.Content, nil
}

// load has the process look into the image for what loaders of libraries need.
func (c *confined) load(ctx context.Context, n nvidia.Needs) (nvidia.Loaded, error) {
	r, err := c.call(ctx, &confinedRequest{Load: &n})
	if err != nil {
		return nvidia.Loaded{}, err
	}
	if r.Loaded == nil {
		return nvidia.Loaded{}, errors.New("the process that serves the image gave no answer")
	}
	return *r.Loaded, nil
}

// call asks the process for something, and waits for the answer.
func (c *confined) call(ctx context.Context, q *confinedRequest, files ...*os.File) (*confinedReply, error) {
	if err := c.conn.SetDeadline(time.Now().Add(confinedTime)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	err := send(c.conn, q, files...)
	var r *confinedReply
	if err == nil {
		r, err = c.receive()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, c.end(err)
	case r.Error != nil:
		return nil, r.Error
	}
	return r, c.conn.SetDeadline(time.Time{})
}

// receive returns the next answer, and logs what comes before it.
func (c *confined) receive() (*confinedReply, error) {
	for {
		r := &confinedReply{}
		if _, err := receive(c.conn, r, 0); err != nil {
			return nil, err
		}
		if r.Log == nil {
			return r, nil
		}
		if c.lines++; c.lines <= confinedLines {
			c.logLine(r.Log)
		}
	}
}

func (c *confined) logLine(line []byte) {
	var fields map[string]any
	if json.Unmarshal(line, &fields) != nil {
		return // it can say what it likes
	}
	level := slog.LevelError
	if text, ok := fields[slog.LevelKey].(string); ok {
		_ = level.UnmarshalText([]byte(text)) // it stays an error
	}
	message, _ := fields[slog.MessageKey].(string)
	var attrs []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != slog.LevelKey && key != slog.MessageKey && key != slog.TimeKey {
			attrs = append(attrs, slog.Any(key, fields[key]))
		}
	}
	c.log.LogAttrs(context.Background(), level, message, attrs...)
}

// watch says why the process ended, unless it did so because the mount is gone.
func (c *confined) watch(broken chan<- error) {
	for {
		r, err := c.receive()
		if err != nil {
			if err := c.end(err); c.err != nil {
				broken <- err
			}
			return
		}
		if r.Error != nil {
			c.said = r.Error
		}
	}
}

// end waits for the end of the process after an error of its socket, and returns the
// error that says why.
func (c *confined) end(err error) error {
	ending := errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
	patience := time.NewTimer(confinedEnd)
	defer patience.Stop()
	if ending {
		select {
		case <-c.done:
		case <-patience.C:
			ending = false
		}
	}
	if !ending {
		_ = c.kill() // it may have ended just now
		<-c.done
		return fmt.Errorf("talk to the process of user %d that serves the image: %w", proc.Nobody, err)
	}
	why := c.said
	if why == nil {
		why = c.err
	}
	if why == nil {
		why = errors.New("without a word")
	}
	if text := c.stderr.Bytes(); len(text) > 0 && c.said == nil {
		why = fmt.Errorf("%w: %.300q", why, text)
	}
	return fmt.Errorf("the process of user %d that served the image ended: %w", proc.Nobody, why)
}
