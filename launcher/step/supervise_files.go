package step

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

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
		return nil, &fault.Error{What: fmt.Errorf("open output of the step on node %s: %w", f.s.Node, err), Hint: "name another file: --output=FILE"}
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
	f, err := os.OpenFile(path, flags, 0o666)
	if err != nil {
		return nil, err
	}
	o.files[path] = f
	return f, nil
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

// read reads what a rank writes until nobody has it open, whoever takes it.
func (f *rankFiles) read(r *os.File, take func([]byte), kind stdio.Type) {
	f.readers.Go(func() {
		defer r.Close()
		b := make([]byte, 16<<10)
		for {
			n, err := r.Read(b)
			if n > 0 {
				f.m.tail.add(kind, b[:n])
				take(b[:n])
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
// open, who ends with the step.
func (f *rankFiles) drain(most time.Duration) {
	done := make(chan struct{})
	go func() {
		f.readers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(most):
	}
}

// say adds a text of ours to the rank's stderr.
func (f *rankFiles) say(text string) {
	f.m.tail.add(stdio.Stderr, []byte(text))
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
