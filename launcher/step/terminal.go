package step

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// relay carries bytes between the terminal that somebody sits at and that of a
// container.
type relay struct {
	master *os.File
	in     *os.File
	state  *term.State // of in, before it was made raw
	resize chan os.Signal
	out    chan struct{} // closed when all output is copied
	once   sync.Once
}

// startRelay makes in raw, if it is a terminal, and copies until stop.
func startRelay(master, in, out *os.File) (*relay, error) {
	// A descriptor that came over a socket blocks; only one that the poller knows
	// when it is opened ends its reads at Close.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fmt.Errorf("start terminal: %w", err)
	}
	r := &relay{master: os.NewFile(uintptr(fd), "terminal"), in: in, resize: make(chan os.Signal, 1), out: make(chan struct{})}
	if in != nil && term.IsTerminal(int(in.Fd())) {
		state, err := term.MakeRaw(int(in.Fd()))
		if err != nil {
			return nil, fmt.Errorf("start terminal: %w", err)
		}
		r.state = state
		signal.Notify(r.resize, syscall.SIGWINCH)
		r.copySize()
	}
	go func() {
		for range r.resize {
			r.copySize()
		}
	}()
	go r.copyIn()
	go func() {
		defer close(r.out)
		_ = copyUntil(out, master)
	}()
	return r, nil
}

// copySize gives the container's terminal the size of ours.
func (r *relay) copySize() {
	size, err := unix.IoctlGetWinsize(int(r.in.Fd()), unix.TIOCGWINSZ)
	if err == nil {
		_ = unix.IoctlSetWinsize(int(r.master.Fd()), unix.TIOCSWINSZ, size)
	}
}

// copyIn copies what is typed. At the end of a file the other side gets the character
// that ends input, as if somebody had typed it.
func (r *relay) copyIn() {
	if r.in == nil {
		return
	}
	if copyUntil(r.master, r.in) == nil {
		_, _ = r.master.Write([]byte{4, 4}) // the first may only end a line
	}
}

// copyUntil is io.Copy for terminals: EIO says that nobody has the other side open.
func copyUntil(dst io.Writer, src io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 16<<10))
	if errors.Is(err, syscall.EIO) {
		return nil
	}
	return err
}

// drain is how long output is waited for that a process left behind holds open.
const drain = 500 * time.Millisecond

// stop waits for the rest of the output, and gives the terminal back as it was.
func (r *relay) stop() {
	r.once.Do(func() {
		select {
		case <-r.out:
		case <-time.After(drain):
		}
		signal.Stop(r.resize)
		close(r.resize)
		if r.state != nil {
			_ = term.Restore(int(r.in.Fd()), r.state)
		}
		_ = r.master.Close()
	})
}
