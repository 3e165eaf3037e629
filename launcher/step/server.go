package step

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/gangway-hpc/gangway/runtime"
)

// server lets others run processes in a container, through the socket in its run
// directory.
type server struct {
	container *runtime.Container
	env       []string // of the container's first process
	cwd       string
	log       *slog.Logger
	wg        sync.WaitGroup
}

// serve answers until the listener is closed.
func (s *server) serve(ctx context.Context, l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("container cannot be reached by others any more", "err", err)
			return
		}
		s.wg.Go(func() {
			defer c.Close()
			if err := s.answer(ctx, c); err != nil {
				// Whoever asked is told; if he is gone, nobody wants to know.
				_ = send(c, execReply{Error: toWire(err)})
			}
		})
	}
}

// answer runs the process that a connection asks for.
func (s *server) answer(ctx context.Context, c *net.UnixConn) error {
	if err := checkPeer(c); err != nil {
		return err
	}
	var req execRequest
	files, err := receive(c, &req, 3)
	if err != nil {
		return err
	}
	defer func() { closeAll(files) }()
	join := runtime.JoinProcess{Args: req.Args, Env: mergeEnv(s.env, req.Env), Cwd: req.Cwd, Terminal: req.Terminal}
	if join.Cwd == "" {
		join.Cwd = s.cwd
	}
	switch {
	case len(req.Args) == 0:
		return errors.New("run in container: no command came")
	case req.Terminal:
	case len(files) != 3:
		return errors.New("run in container: stdin, stdout and stderr did not come")
	default:
		join.Stdin, join.Stdout, join.Stderr = files[0], files[1], files[2]
	}
	p, err := s.container.Join(ctx, join)
	if err != nil {
		return explainCommand(err)
	}
	var pty []*os.File
	if t := p.Terminal(); t != nil {
		pty = append(pty, t)
	}
	err = send(c, execReply{PID: p.PID()}, pty...)
	closeAll(pty)
	closeAll(files)
	files = nil
	if err != nil {
		return errors.Join(err, p.Signal(syscall.SIGKILL), wait(p))
	}
	s.wg.Go(func() { follow(c, p) })
	status, err := p.Wait()
	if err != nil {
		return err
	}
	return send(c, execReply{Exit: &status.Code})
}

func wait(p *runtime.Process) error {
	_, err := p.Wait()
	return err
}

// follow passes signals on. When whoever asked goes away, the process is told as a
// terminal would that hung up.
func follow(c *net.UnixConn, p *runtime.Process) {
	for {
		var m execSignal
		if _, err := receive(c, &m, 0); err != nil {
			_ = p.Signal(syscall.SIGHUP) // it may have ended
			return
		}
		if m.Signal > 0 && m.Signal <= 64 {
			_ = p.Signal(syscall.Signal(m.Signal))
		}
	}
}

// mergeEnv returns base with the variables of over in the place of those of their
// names.
func mergeEnv(base, over []string) []string {
	if len(over) == 0 {
		return base
	}
	names := map[string]bool{}
	for _, v := range over {
		names[name(v)] = true
	}
	var all []string
	for _, v := range base {
		if !names[name(v)] {
			all = append(all, v)
		}
	}
	return append(all, over...)
}

// name is what stands before the "=".
func name(variable string) string {
	n, _, _ := strings.Cut(variable, "=")
	return n
}
