package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/image/rootfs"
	"github.com/gangway-hpc/gangway/internal/proc"
	"github.com/gangway-hpc/gangway/runtime/spec"
)

// confinedRequest is what a supervisor asks of the process that serves its image: one
// of these. Open comes first. After Serve, with which /dev/fuse comes, there is nothing
// more to ask.
type confinedRequest struct {
	Open  *confinedOpen  `json:"open,omitempty"`
	Read  *confinedRead  `json:"read,omitempty"`
	Load  *nvidia.Needs  `json:"load,omitempty"` // looks for what loaders of libraries need
	Serve *confinedServe `json:"serve,omitempty"`
}

// confinedOpen says how many files the image has, of those that were handed on; or that it
// is a directory, of which nothing is asked but Load.
type confinedOpen struct {
	Files int  `json:"files,omitempty"`
	Dir   bool `json:"dir,omitempty"`
}

// confinedRead asks for a file. Paths need not be text, so they are no strings of JSON.
type confinedRead struct {
	Path  []byte `json:"path"`
	Limit int64  `json:"limit"`
}

type confinedServe struct {
	UID       uint32             `json:"uid"`
	GID       uint32             `json:"gid"`
	Additions []confinedAddition `json:"additions"`
}

// confinedAddition is what a container adds to the tree: a file or link, else a
// mountpoint. They are made in their order, so that all is as in the supervisor's tree.
type confinedAddition struct {
	Path    []byte `json:"path"`
	File    bool   `json:"file,omitempty"`
	Dir     bool   `json:"dir,omitempty"`
	Link    []byte `json:"link,omitempty"` // what a symbolic link says
	Content []byte `json:"content,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
}

// confinedReply answers one request, or is a line of the log. The last may be an Error
// that was not asked for: why the process ends.
type confinedReply struct {
	Content []byte          `json:"content,omitempty"`
	Loaded  *nvidia.Loaded  `json:"loaded,omitempty"`
	Error   *confinedError  `json:"error,omitempty"`
	Log     json.RawMessage `json:"log,omitempty"`
}

// confinedError is an error of the other process, with what callers look for in it.
type confinedError struct {
	Text  string        `json:"text"`
	Errno syscall.Errno `json:"errno,omitempty"`
}

// Error implements error.
func (e *confinedError) Error() string { return e.Text }

// Unwrap returns why, if that is known.
func (e *confinedError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// What the process was handed on beside stdin, stdout and stderr.
const (
	confinedSocket = 3
	confinedFiles  = 4 // the first of the image's
)

// ServeConfined reads and serves the image of a container that root runs, and returns
// when the container has ended. It is what the program does that Options.Serve names,
// and first gives up all rights. open looks into the image.
func ServeConfined(ctx context.Context, open func(*image.Files) (*image.Opened, error)) error {
	if err := proc.Renounce(); err != nil {
		return fmt.Errorf("serve an image: %w", err)
	}
	conn, err := net.FileConn(os.NewFile(confinedSocket, "socket"))
	if err != nil {
		return fmt.Errorf("serve an image: talk to the supervisor: %w", err)
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return errors.New("serve an image: talk to the supervisor: that is not its socket")
	}
	stop := context.AfterFunc(ctx, func() { _ = unix.Close() })
	defer stop()
	s := &confinedServer{conn: unix, open: open}
	s.log = slog.New(slog.NewJSONHandler(confinedLog{s}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	return s.answer(ctx)
}

type confinedServer struct {
	conn *net.UnixConn
	open func(*image.Files) (*image.Opened, error)
	tree *rootfs.Tree // nil of a directory
	root fs.FS
	log  *slog.Logger

	mu sync.Mutex // guards sending
}

func (s *confinedServer) send(r *confinedReply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return send(s.conn, r)
}

// confinedLog sends lines of the log to the supervisor.
type confinedLog struct{ s *confinedServer }

// Write implements io.Writer.
func (l confinedLog) Write(p []byte) (int, error) {
	return len(p), l.s.send(&confinedReply{Log: p})
}

// answer answers requests until the image is served, and then serves it.
func (s *confinedServer) answer(ctx context.Context) error {
	for {
		var q confinedRequest
		files, err := receive(s.conn, &q, 1)
		if err != nil {
			return s.supervisorGone(ctx, err)
		}
		r := &confinedReply{}
		var server *rootfs.Server
		switch {
		case q.Open != nil && s.root == nil && q.Open.Dir:
			s.root = (&dirRoot{os.NewFile(confinedFiles, "the directory")}).FS()
		case q.Open != nil && s.root == nil:
			err = s.openImage(q.Open.Files)
		case q.Read != nil && s.tree != nil:
			r.Content, err = s.tree.ReadFile(string(q.Read.Path), q.Read.Limit)
		case q.Load != nil && s.root != nil:
			loaded := nvidia.Load(s.root, *q.Load)
			r.Loaded = &loaded
		case q.Serve != nil && s.tree != nil && len(files) == 1:
			server, err = s.serve(q.Serve, files[0])
			files = nil
		default:
			err = errors.New("that cannot be asked for now")
		}
		closeAll(files)
		if err != nil {
			r.Error = toConfined(err)
		}
		if err := s.send(r); err != nil {
			return s.supervisorGone(ctx, err)
		}
		if server != nil {
			return s.wait(ctx, server)
		}
	}
}

func toConfined(err error) *confinedError {
	e := &confinedError{Text: err.Error()}
	e.Errno, _ = errors.AsType[syscall.Errno](err)
	return e
}

// supervisorGone is the error of a socket that nobody listens to any more; none if the
// supervisor has closed it.
func (s *confinedServer) supervisorGone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("serve an image: talk to the supervisor: %w", err)
}

func (s *confinedServer) openImage(n int) error {
	all := make([]*os.File, n)
	for k := range all {
		all[k] = os.NewFile(uintptr(confinedFiles+k), fmt.Sprintf("file %d of the image", k))
	}
	files, err := image.FilesOf(all)
	if err != nil {
		return err
	}
	o, err := s.open(files)
	if err != nil {
		return err
	}
	s.tree = rootfs.New(o.Index, o.Layers)
	s.root = s.tree.FS()
	return nil
}

func (s *confinedServer) serve(q *confinedServe, dev *os.File) (*rootfs.Server, error) {
	for _, a := range q.Additions {
		var err error
		if path := string(a.Path); a.File {
			err = addFile(s.tree, spec.File{Path: path, Content: a.Content, Mode: a.Mode, Link: string(a.Link)})
		} else {
			_, err = s.tree.Mountpoint(path, a.Dir)
		}
		if err != nil {
			return nil, errors.Join(err, dev.Close())
		}
	}
	return rootfs.Serve(dev, s.tree, rootfs.ServeOptions{UID: q.UID, GID: q.GID, Log: s.log})
}

// wait waits for the end of the mount or of the supervisor. This process ends after it,
// and with it, if that is still there, the mount.
func (s *confinedServer) wait(ctx context.Context, server *rootfs.Server) error {
	ended, gone := make(chan error, 1), make(chan error, 1)
	go func() { ended <- server.Wait() }()
	go func() {
		_, err := receive(s.conn, &confinedRequest{}, 0)
		gone <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			return errors.Join(err, s.send(&confinedReply{Error: toConfined(err)}))
		}
		return nil
	case err := <-gone:
		if err == nil {
			err = errors.New("it asks for more")
		}
		return s.supervisorGone(ctx, err)
	}
}
