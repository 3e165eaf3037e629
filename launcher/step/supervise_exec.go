package step

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/launcher/control"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// further is a program that somebody runs beside a rank, over a connection that lives as
// long as it does.
type further struct {
	s     *supervisor
	c     *control.Conn
	m     *member
	files *rankFiles
	in    *input
	p     process
	send  sync.Mutex
	sent  map[stdio.Type]uint64
}

// lastTime is how long the last output of a program may take to be read by who asked for it.
const lastTime = 10 * time.Second

// serveExec runs a program where a rank is.
func (s *supervisor) serveExec(ctx context.Context, c *control.Conn, text json.RawMessage) error {
	var e stdio.Exec
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	x := &further{s: s, c: c, m: &member{rank: e.Rank}, sent: map[stdio.Type]uint64{}}
	if err := x.start(ctx, &e); err != nil {
		x.frame(stdio.Stderr, []byte(fault.Text("gangway", err, false)))
		x.exit(exited{code: fault.Code(err)})
		return nil
	}
	done := make(chan struct{})
	s.alive.Go(func() {
		defer close(done)
		end, err := x.p.Wait()
		if err != nil {
			end = exited{code: fault.CodeFailed}
		}
		_ = x.c.SetWriteDeadline(time.Now().Add(lastTime)) // else who does not read keeps the step
		x.files.drain(outputTime)
		x.exit(end)
	})
	err := x.read()
	select {
	case <-done:
	default: // who asked is gone
		_ = x.p.Signal(syscall.SIGHUP) // it may have ended
		_ = x.p.Signal(syscall.SIGCONT)
	}
	<-done
	x.in.close()
	return err
}

// start starts the program, where the rank was started.
func (x *further) start(ctx context.Context, e *stdio.Exec) error {
	var m *member
	for _, one := range x.s.ranks {
		if one.rank == e.Rank {
			m = one
		}
	}
	switch {
	case m == nil:
		return fmt.Errorf("run beside rank %d: node %s does not have it", e.Rank, x.s.Node)
	case len(e.Args) == 0 || len(e.Args[0]) == 0:
		return fault.Usage(errors.New("run beside a rank: no command"), "say what to run: -- CMD")
	case !x.s.isRunning():
		return fmt.Errorf("run beside rank %d: the step does not run", e.Rank)
	}
	x.m = m
	x.files = &rankFiles{s: x.s, m: &member{rank: m.rank, local: m.local}, terminal: e.Terminal, sink: x.frame}
	x.in = makeInput(x.taken)
	x.in.begin()
	if err := x.open(); err != nil {
		return err
	}
	env, err := x.s.runner.environment()
	if err == nil {
		x.p, err = x.s.runner.start(ctx, launch{m: m, files: x.files, args: texts(e.Args), environ: texts(e.Environ), cwd: string(e.Cwd)}, env)
	}
	x.files.handed()
	if err != nil {
		x.in.close()
		go x.in.pump()
		return err
	}
	if t := x.p.Terminal(); t != nil {
		x.files.relay(t, x.in)
	}
	go x.in.pump()
	return nil
}

// open makes its files: a terminal, or pipes.
func (x *further) open() error {
	f := x.files
	if f.terminal {
		if err := f.openTerminal(); err != nil {
			return err
		}
		if f.master != nil {
			x.in.attach(&pipeEnd{f.m, f.master, true})
		}
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	r.Fd() // from here on it blocks
	f.child[0], f.mine = r, append(f.mine, r)
	x.in.attach(&pipeEnd{f.m, w, false})
	for i, kind := range []stdio.Type{stdio.Stdout, stdio.Stderr} {
		if f.child[1+i], err = f.pipe(func(b []byte) { x.frame(kind, b) }, kind); err != nil {
			return err
		}
	}
	return nil
}

// frame sends output. Who does not read it has the program wait.
func (x *further) frame(kind stdio.Type, b []byte) {
	if len(b) == 0 {
		return
	}
	x.send.Lock()
	defer x.send.Unlock()
	_ = stdio.Write(x.c, stdio.Frame{Type: kind, Rank: uint32(x.m.rank), Offset: x.sent[kind], Data: b}) // see write
	x.sent[kind] += uint64(len(b))
}

// taken says how much of the input was.
func (x *further) taken() {
	x.write(stdio.Frame{Type: stdio.Taken, Rank: uint32(x.m.rank), Offset: x.in.offset()})
}

func (x *further) write(f stdio.Frame) {
	x.send.Lock()
	defer x.send.Unlock()
	_ = stdio.Write(x.c, f) // whether somebody is there the reader finds out
}

// exit says how it ended, and that nothing more comes.
func (x *further) exit(e exited) {
	end := job.RankEnd{Rank: x.m.rank, Node: x.s.Node, Exit: e.code, Signal: e.signal, Core: e.core, OOM: e.oom, At: now()}
	if e.signal != 0 {
		end.Exit = 0
	}
	b, err := json.Marshal(&end)
	if err == nil {
		x.write(stdio.Frame{Type: stdio.RankExit, Rank: uint32(x.m.rank), Data: b})
	}
	_ = x.c.Close() // also ends read
}

// read does what the client sends.
func (x *further) read() error {
	r := stdio.NewReader(x.c.Reader())
	for {
		f, err := r.Next()
		if err != nil {
			return err
		}
		switch f.Type {
		case stdio.Stdin:
			err = x.in.add(f.Offset, f.Data)
		case stdio.StdinEOF:
			x.in.end(f.Offset)
		case stdio.Signal:
			if f.Offset > 0 && f.Offset <= 64 {
				_ = x.p.Signal(syscall.Signal(f.Offset)) // it may have ended
			}
		case stdio.WinSize:
			var rows, columns uint16
			if rows, columns, err = f.Size(); err == nil && x.files.master != nil {
				setSize(x.files.master, &unix.Winsize{Row: rows, Col: columns})
			}
		}
		if err != nil {
			return err
		}
	}
}
