package step

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gangway-hpc/gangway/internal/fault"
	"github.com/gangway-hpc/gangway/launcher/rank"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// outputs are the files that ranks of the node write to by themselves: each is opened
// once, for appending, so that what several write is in it as it came.
type outputs struct {
	mu    sync.Mutex
	files map[string]*os.File
}

// rankFiles are the input and output of a rank.
type rankFiles struct {
	s        *supervisor
	m        *member
	sink     func(kind stdio.Type, b []byte) // takes what goes to clients
	terminal bool
	master   *os.File    // of a terminal that was made for a rank on the host
	child    [3]*os.File // what the rank gets; nil: nothing
	ours     []*os.File  // our ends of pipes
	mine     []*os.File  // of child what is this rank's alone
	readers  sync.WaitGroup
	taps     []*tap
	errFile  *os.File // where its stderr goes by itself; nil: through us
}

// The names that are no files.
const (
	toNobody = "none"
	toAll    = "all"
)

// openOutputs opens the files of all ranks, and makes pipes for what goes to clients. It is
// done before any rank of any node runs, so that truncating takes nobody's output.
func (s *supervisor) openOutputs() (*outputs, error) {
	o := &outputs{files: map[string]*os.File{}}
	out, errName := s.spec.Program.Output, s.spec.Program.Error
	if s.isBatch() && out == "" {
		out = "slurm-%j.out"
		if s.spec.Job.Array != nil {
			out = "slurm-%A_%a.out"
		}
	}
	for _, m := range s.ranks {
		f := &rankFiles{s: s, m: m, sink: s.keep(m)}
		m.files = f
		f.terminal = s.spec.Program.Terminal && m.rank == 0
		if f.terminal {
			if err := f.openTerminal(); err != nil {
				return o, err
			}
			continue
		}
		stdout, err := f.open(o, out, stdio.Stdout)
		if err != nil {
			return o, err
		}
		stderr := stdout
		// Without a file of its own stderr goes where stdout goes; two streams to a
		// client stay two.
		if errName != "" || out == "" || out == toAll {
			if stderr, err = f.open(o, errName, stdio.Stderr); err != nil {
				return o, err
			}
		}
		f.child[1], f.child[2] = stdout, stderr
	}
	return o, nil
}

// names are what the signs in the names of a rank's files stand for.
func (s *supervisor) names(m *member) rank.Names {
	j := &s.spec.Job
	return rank.Names{
		Job: s.spec.Key.Job, Array: j.Array, Step: s.spec.Key.Step, Restarts: j.Restarts, JobName: j.Name, User: s.spec.User,
		Node: s.Node, NodeID: s.node, Rank: m.rank,
	}
}

// open makes what a rank writes a stream to.
func (f *rankFiles) open(o *outputs, name string, kind stdio.Type) (*os.File, error) {
	number, notNumber := strconv.Atoi(name)
	switch {
	case name == "", name == toAll, notNumber == nil && number == f.m.rank && !f.s.isBatch():
		return f.pipe(func(b []byte) { f.sink(kind, b) }, kind)
	case name == toNobody && !f.s.isBatch(), notNumber == nil && !f.s.isBatch():
		return nil, nil
	}
	path := f.s.names(f.m).Expand(name)
	if !filepath.IsAbs(path) {
		path = filepath.Join(f.s.cwd, path)
	}
	file, err := o.open(path, f.s.spec.Program.Append)
	if err != nil {
		return nil, fileFault(fmt.Errorf("open output of the step on node %s: %w", f.s.Node, err), "name another file: --output=FILE")
	}
	if !f.s.spec.Program.Label || f.s.isBatch() {
		if kind == stdio.Stderr || f.errFile == nil {
			f.errFile = file
		}
		return file, nil
	}
	l := &labeller{w: file, label: fmt.Sprintf("%*d: ", len(strconv.Itoa(f.s.spec.Tasks-1)), f.m.rank)}
	return f.pipe(l.write, kind)
}

// fileFault is about a file that a person named. Where it is the name it is no fault of the
// node's: others would say the same. Where something is missing, or not this person's, it may
// be: a file system that is not mounted.
func fileFault(err error, hint string) error {
	f := &fault.Error{What: err, Hint: hint}
	is := func(one error) bool { return errors.Is(err, one) }
	missing := slices.ContainsFunc([]error{syscall.EACCES, syscall.EPERM, syscall.ENOENT, syscall.ENOTDIR}, is)
	if missing {
		f.What = doubtful{err}
	}
	if missing || slices.ContainsFunc([]error{syscall.EISDIR, syscall.ELOOP, syscall.ENAMETOOLONG, syscall.EINVAL, syscall.ETXTBSY, syscall.ENXIO}, is) {
		f.Code = fault.CodeUsage
	}
	return f
}

// doubtful is an error that is the node's fault, or that of who asked.
type doubtful struct{ error }

// Unwrap is the error.
func (d doubtful) Unwrap() error { return d.error }

// open opens a file, whose directory is made.
func (o *outputs) open(path string, appends bool) (*os.File, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.files[path]; f != nil {
		return f, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if !appends {
		flags |= os.O_TRUNC
	}
	f, err := openPatiently(path, flags)
	if err != nil {
		return nil, err
	}
	o.files[path] = f
	return f, nil
}

// fifoTime is how long the other end of a FIFO that a person named may take to be opened.
const fifoTime = 5 * time.Second

// openPatiently opens a file that a person named. Who opens a FIFO waits for its other end;
// if that does not come the error is ENXIO, and the open that waits ends with the process.
func openPatiently(path string, flags int) (*os.File, error) {
	if st, err := os.Stat(path); err != nil || st.Mode().Type() != fs.ModeNamedPipe {
		return os.OpenFile(path, flags, 0o666)
	}
	type opened struct {
		f   *os.File
		err error
	}
	done := make(chan opened, 1)
	go func() {
		f, err := os.OpenFile(path, flags, 0)
		done <- opened{f, err}
	}()
	t := time.NewTimer(fifoTime)
	defer t.Stop()
	select {
	case o := <-done:
		return o.f, o.err
	case <-t.C:
		return nil, fmt.Errorf("nobody has opened the other end of the FIFO %s within %s: %w", path, fifoTime, syscall.ENXIO)
	}
}

func (o *outputs) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range o.files {
		_ = f.Close() // what ranks wrote is not buffered here
	}
}

// pipe makes a pipe whose content goes to take, and into the tail.
func (f *rankFiles) pipe(take func([]byte), kind stdio.Type) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	f.ours, f.mine = append(f.ours, r), append(f.mine, w)
	w.Fd() // from here on it blocks, as programs expect of theirs
	f.read(r, take, kind)
	return w, nil
}

// tap is where a rank's output is read.
type tap struct {
	r *os.File

	mu    sync.Mutex
	given int64 // bytes that were handed on
	busy  bool  // some are being handed on, which may wait for who takes them
}

func (t *tap) now(busy bool, given int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy = busy
	t.given += int64(given)
}

// state is how much was handed on, and whether there is more.
func (t *tap) state() (given int64, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy {
		return t.given, true
	}
	if raw, err := t.r.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // an error is that it is closed: all was read
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			more = err == nil && n > 0
		})
	}
	return t.given, more
}

// read reads what a rank writes until nobody has it open, whoever takes it.
func (f *rankFiles) read(r *os.File, take func([]byte), kind stdio.Type) {
	t := &tap{r: r}
	f.taps = append(f.taps, t)
	f.readers.Go(func() {
		defer r.Close()
		b := make([]byte, 16<<10)
		for {
			n, err := r.Read(b)
			if n > 0 {
				t.now(true, 0)
				f.m.tail.add(kind, b[:n])
				take(b[:n])
				t.now(false, n)
			}
			if err != nil {
				take(nil)
				return
			}
		}
	})
}

// given are the files of the rank, nil for those that lead nowhere.
func (f *rankFiles) given() [3]*os.File { return f.child }

// handed closes what only the rank needs, once it has it.
func (f *rankFiles) handed() {
	for _, file := range f.mine {
		_ = file.Close() // an end of a pipe
	}
	f.mine = nil
}

// drain waits until all output was read, or for a time: then somebody else still has it
// open, who ends with the step. What the rank itself has written is waited for, as long as
// who takes it has the readers wait.
func (f *rankFiles) drain(most time.Duration) {
	done := make(chan struct{})
	go func() {
		f.readers.Wait()
		close(done)
	}()
	ended := func(wait time.Duration) bool {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-done:
			return true
		case <-t.C:
			return false
		}
	}
	begin := f.tapped()
	if ended(most) {
		return
	}
	for idle := 0; idle < 2; { // who has just read is not busy yet
		idle++
		for i, t := range f.taps {
			if given, more := t.state(); more && given-begin[i] < maxPipe {
				idle = 0
			}
		}
		if ended(drainPause) {
			return
		}
	}
}

const (
	// maxPipe is how much of a rank's may be in its pipe when it ends: the most that the kernel
	// lets users have, and what is being handed on. What comes behind is a child's.
	maxPipe    = 1<<20 + 16<<10
	drainPause = 10 * time.Millisecond
)

// tapped is how much was handed on of each stream.
func (f *rankFiles) tapped() []int64 {
	all := make([]int64, len(f.taps))
	for i, t := range f.taps {
		all[i], _ = t.state()
	}
	return all
}

// say adds a text of ours to the rank's stderr.
func (f *rankFiles) say(text string) {
	f.m.tail.add(stdio.Stderr, []byte(text))
	f.put(text)
}

// putOut adds a text of ours to the rank's stdout, while the rank does not have it yet.
func (f *rankFiles) putOut(text string) {
	if out := f.child[1]; out != nil {
		_, _ = io.WriteString(out, text) // who reads it is asked for by the rank, too
	}
}

// put adds a text to the rank's stderr that is not the rank's.
func (f *rankFiles) put(text string) {
	if f.errFile != nil {
		_, _ = io.WriteString(f.errFile, text) // the rank's end says the same
		return
	}
	f.sink(stdio.Stderr, []byte(text))
}

// keep keeps a rank's output for clients.
func (s *supervisor) keep(m *member) func(kind stdio.Type, b []byte) {
	return func(kind stdio.Type, b []byte) {
		if err := s.spool.Append(uint32(m.rank), kind, b); err != nil {
			s.Log.Error("output is lost", "err", err)
		}
	}
}

// lastLines are the last lines of a rank that failed: of what went through us, or else of
// its file.
func (f *rankFiles) lastLines(m *member) []byte {
	b := m.tail.last()
	if len(b) == 0 && f.errFile != nil {
		b = endOf(f.errFile.Name())
	}
	return wholeLines(b)
}

// endOf is the end of a file.
func endOf(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	b := make([]byte, min(tailSize, st.Size()))
	n, err := f.ReadAt(b, st.Size()-int64(len(b)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b[:n]
}

// maxLines bounds the last lines.
const maxLines = 20

// wholeLines are the last lines of b.
func wholeLines(b []byte) []byte {
	b = bytes.TrimRight(b, "\n")
	at := len(b)
	for range maxLines {
		if at = bytes.LastIndexByte(b[:at], '\n'); at < 0 {
			break
		}
	}
	if at < 0 && len(b) >= tailSize { // the first is cut off
		at = bytes.IndexByte(b, '\n')
	}
	return b[at+1:]
}

// labeller puts a rank's number before each of its lines.
type labeller struct {
	w     io.Writer
	label string
	line  []byte
}

// maxLabelled bounds a line that is kept until it is complete.
const maxLabelled = 64 << 10

// write takes output; nothing is the end.
func (l *labeller) write(b []byte) {
	l.line = append(l.line, b...)
	var out []byte
	for {
		n := bytes.IndexByte(l.line, '\n') + 1
		if n == 0 && (len(l.line) >= maxLabelled || len(b) == 0 && len(l.line) > 0) {
			n = len(l.line)
		}
		if n == 0 {
			break
		}
		out = append(append(out, l.label...), l.line[:n]...)
		if l.line[n-1] != '\n' {
			out = append(out, '\n')
		}
		l.line = append(l.line[:0], l.line[n:]...)
	}
	if len(out) > 0 {
		_, _ = l.w.Write(out) // as for a rank that writes by itself, but it is not told
	}
}

// spoolOf is the file of a spool, which is there once there is something in it: most jobs
// write into files of their own. Who uses it has a lock.
type spoolOf struct {
	name string
	file *os.File
}

// WriteAt implements stdio.File.
func (f *spoolOf) WriteAt(b []byte, at int64) (int, error) {
	if f.file == nil {
		file, err := os.OpenFile(f.name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return 0, fmt.Errorf("make spool: %w", err)
		}
		f.file = file
	}
	return f.file.WriteAt(b, at)
}

// ReadAt implements stdio.File.
func (f *spoolOf) ReadAt(b []byte, at int64) (int, error) {
	if f.file == nil {
		return 0, io.EOF
	}
	return f.file.ReadAt(b, at)
}
