package step

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// input is the ranks' stdin: what the client sends is written to the ranks that read it,
// by a goroutine that may wait for them. What is not written yet is bounded by
// [stdio.Window], which the client keeps.
type input struct {
	mu      sync.Mutex
	more    sync.Cond
	b       []byte // not written yet
	got     uint64 // of the whole input, b's end
	ended   bool
	begun   bool // the ranks have started
	closed  bool
	to      []*pipeEnd
	taken   uint64
	changed func() // taken grew
}

// pipeEnd is where a rank reads from.
type pipeEnd struct {
	m        *member
	w        *os.File
	terminal bool
}

// openInput gives a rank its stdin: a file, what the client sends, or nothing.
func (s *supervisor) openInput(in *input, m *member) error {
	name := s.spec.Program.Input
	number, notNumber := strconv.Atoi(name)
	switch {
	case m.files.terminal:
		if m.files.master != nil {
			in.to = append(in.to, &pipeEnd{m, m.files.master, true})
		}
		return nil
	case s.isBatch() && name == "", name == toNobody && !s.isBatch(), name == "" && m.rank != 0, notNumber == nil && number != m.rank && !s.isBatch():
		return nil
	case name == "", name == toAll && !s.isBatch(), notNumber == nil && !s.isBatch():
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
		r.Fd() // from here on it blocks
		m.files.child[0], m.files.mine = r, append(m.files.mine, r)
		in.to = append(in.to, &pipeEnd{m, w, false})
		return nil
	}
	path := s.names(m).Expand(name)
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.cwd, path)
	}
	f, err := openPatiently(path, os.O_RDONLY)
	if err != nil {
		return fileFault(fmt.Errorf("open input of the step on node %s: %w", s.Node, err), "name another file: --input=FILE")
	}
	m.files.child[0], m.files.mine = f, append(m.files.mine, f)
	return nil
}

func makeInput(changed func()) *input {
	in := &input{changed: changed}
	in.more.L = &in.mu
	return in
}

func newInput(s *supervisor) (*input, error) {
	in := makeInput(s.clients.poke)
	for _, m := range s.ranks {
		if err := s.openInput(in, m); err != nil {
			return nil, err
		}
	}
	go in.pump()
	return in, nil
}

// add takes a part of the input. What came before, as after a reconnection, is left out;
// what does not follow is an error.
func (in *input) add(offset uint64, b []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset > in.got {
		return fmt.Errorf("take input: %d bytes are missing", offset-in.got)
	}
	skip := in.got - offset
	if skip >= uint64(len(b)) || in.ended {
		return nil
	}
	b = b[skip:]
	if len(in.b)+len(b) > 2*stdio.Window {
		return fmt.Errorf("take input: more than %d bytes before they were taken", stdio.Window)
	}
	in.b = append(in.b, b...)
	in.got += uint64(len(b))
	in.more.Broadcast()
	return nil
}

// end says that the input ends.
func (in *input) end(offset uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if offset <= in.got {
		in.ended = true
		in.more.Broadcast()
	}
}

// pump writes to the ranks.
func (in *input) pump() {
	for {
		in.mu.Lock()
		for !in.closed && (!in.begun || len(in.b) == 0 && !in.ended) {
			in.more.Wait()
		}
		b, to := in.b, in.to
		over := len(b) == 0 || in.closed
		in.b = nil
		in.mu.Unlock()
		for _, p := range to {
			if over {
				p.finish()
			} else if _, err := p.w.Write(b); err != nil {
				continue // it has ended, or reads no more: its input is nobody's
			}
		}
		if over {
			return
		}
		in.mu.Lock()
		in.taken += uint64(len(b))
		in.mu.Unlock()
		in.changed()
	}
}

// finish is the end of the input: of a terminal the sign for it, as if somebody typed it.
func (p *pipeEnd) finish() {
	if p.terminal {
		_, _ = p.w.Write([]byte{4}) // it may have ended
		return
	}
	_ = p.w.Close() // an end of a pipe
}

// gone says that a rank has ended: its input is not waited for any more.
func (in *input) gone(m *member) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, p := range in.to {
		if p.m == m && !p.terminal {
			_ = p.w.Close() // also ends a write
		}
	}
}

// attach gives the input to one more.
func (in *input) attach(p *pipeEnd) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.to = append(in.to, p)
}

// begin lets the input go to the ranks.
func (in *input) begin() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.begun = true
	in.more.Broadcast()
}

// close ends the pump.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.more.Broadcast()
}

// offset is how much was taken.
func (in *input) offset() uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken
}

// openTerminal makes a terminal for a rank on the host; one in a container makes its own.
func (f *rankFiles) openTerminal() error {
	if len(f.s.spec.Program.Container) > 0 {
		return nil
	}
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	var slave *os.File
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("make terminal: %w", err)
	}
	f.master = os.NewFile(uintptr(fd), "/dev/ptmx")
	f.child = [3]*os.File{slave, slave, slave}
	f.mine = append(f.mine, slave)
	return nil
}

// relay carries what a terminal shows, and what is typed.
func (f *rankFiles) relay(master *os.File, in *input) {
	f.read(master, func(b []byte) { f.sink(stdio.Stdout, b) }, stdio.Stdout)
	if f.master == nil { // made by the container
		f.master = master
		in.attach(&pipeEnd{f.m, master, true})
	}
}
