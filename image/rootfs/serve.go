package rootfs

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// ServeOptions say how a tree is shown.
type ServeOptions struct {
	UID, GID uint32       // every file's owner, by the ids of the mount's user namespace
	Log      *slog.Logger // of files that cannot be read; nil for none
}

// Server answers the kernel's requests for one mount.
type Server struct {
	fuse  *fuse.Server
	files *fileSystem
	dev   *os.File // keeps the connection from being forgotten; see Close
	log   *fuseLog
	done  chan struct{}

	closing sync.Once
}

const (
	// maxRequest is how much the kernel asks for at a time. It hardly ever asks for more
	// than it reads ahead, which is 128 KiB.
	maxRequest = 128 << 10
	// maxBackground is how many requests of reading ahead are under way at a time, of
	// all readers together. Each has a buffer of that length.
	maxBackground = 16
)

// MountOptions returns the data of mount(2) for a mount of type "fuse" whose requests
// are to be read from the descriptor fd. uid and gid are those of the process that
// mounts, in its user namespace.
func MountOptions(fd int, uid, gid uint32) string {
	return fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d,default_permissions,allow_other,max_read=%d", fd, uid, gid, maxRequest)
}

// Serve answers the requests that come from dev, a descriptor of /dev/fuse that has
// been mounted. It takes dev over, and closes it also after an error. It returns when
// the kernel's first request is answered; from then on files can be used.
func Serve(dev *os.File, t *Tree, o ServeOptions) (*Server, error) {
	defer dev.Close() // go-fuse wants a number of its own
	s := &Server{log: &fuseLog{log: o.Log}, done: make(chan struct{})}
	if s.log.log == nil {
		s.log.log = slog.New(slog.DiscardHandler)
	}
	fd, err := unix.FcntlInt(dev.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of /dev/fuse: %w", err)
	}
	// Waiting for a request is a plain blocking read: nothing wakes up sooner.
	if err := unix.SetNonblock(fd, false); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("make the descriptor of /dev/fuse blocking: %w", err)
	}
	s.files = newFileSystem(t, &o, s.log.log)
	s.fuse, err = fuse.NewServer(s.files, fmt.Sprintf("/dev/fd/%d", fd), &fuse.MountOptions{
		MaxBackground: maxBackground,
		// Nothing is written, and who waits for a request holds a buffer for one that
		// writes. Without this capability requests that read are not bound to it, too: they
		// are of 32 pages at most, or of max_read, see MountOptions.
		MaxWrite:             4096,
		DisabledCapabilities: fuse.CAP_MAX_PAGES,
		// Names and contents never change, so the kernel may keep whatever it knows.
		EnableSymlinkCaching:     true,
		ExplicitDataCacheControl: true,
		ExtraCapabilities:        fuse.CAP_NO_OPENDIR_SUPPORT,
		DisableSplice:            true,
		Logger:                   log.New(s.log, "", 0),
	})
	if err != nil {
		return nil, fmt.Errorf("answer the first request of /dev/fuse: %w", err)
	}
	if s.dev, err = dupFile(fd); err != nil {
		return nil, err
	}
	go func() {
		s.fuse.Serve()
		close(s.done)
	}()
	return s, nil
}

func dupFile(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of /dev/fuse: %w", err)
	}
	return os.NewFile(uintptr(n), "/dev/fuse"), nil
}

// Wait waits until the mount is gone, or the Server is closed; then the error is nil.
// Any other is why it broke.
func (s *Server) Wait() error {
	<-s.done
	return errors.Join(s.log.broken(), s.drop())
}

// drop closes the last descriptor.
func (s *Server) drop() error {
	if err := s.dev.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Close ends the Server, whether the mount is still there or not. Files of the mount
// give ENOTCONN from then on.
//
// Those who wait for a request sit in read(2), which closing the descriptor does not
// end. So reading is made to fail where there is no request, and then the kernel is asked
// for something about a file that it knows, which it answers by a request, until all
// have seen that. Of a mount that nobody has used it knows no file: then its next use
// ends the Server.
func (s *Server) Close() error {
	var err error
	s.closing.Do(func() {
		s.log.close()
		if !s.serving() {
			return
		}
		if err = unix.SetNonblock(int(s.dev.Fd()), true); err != nil {
			err = fmt.Errorf("end reading requests: %w", err)
			return
		}
		for s.serving() {
			answered := make(chan fuse.Status, 1)
			go func() {
				_, status := s.fuse.InodeRetrieveCache(s.files.lastFile.Load(), 0, make([]byte, 1))
				answered <- status
			}()
			select {
			case <-s.done:
				<-answered // it uses the descriptor
			case status := <-answered:
				if !status.Ok() {
					return // it knows none, or is about to be gone
				}
			}
		}
	})
	return errors.Join(err, s.drop())
}

func (s *Server) serving() bool {
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// fuseLog takes what go-fuse has to say. It says nothing at a normal end.
type fuseLog struct {
	log *slog.Logger

	mu     sync.Mutex
	closed bool
	cause  error
}

// Write implements io.Writer: a line of the log.
func (l *fuseLog) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.HasPrefix(line, "Failed to read") && !l.closed {
		l.cause = errors.Join(l.cause, fmt.Errorf("read a request of the file system: %s", line))
	}
	l.log.Debug("fuse", "line", line)
	return len(p), nil
}

func (l *fuseLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

func (l *fuseLog) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}
