package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gangway-hpc/gangway/internal/slurm"
	"github.com/gangway-hpc/gangway/launcher/stdio"
)

// outputs puts the output of all ranks on this process's: whole lines, so that those of
// several ranks do not mix, unless there is one rank, or it is wanted as it comes.
type outputs struct {
	out, err io.Writer
	label    bool
	width    int // of labels
	raw      bool
	only     [2]int // the rank whose output, or errors, are shown; -1: all

	partial map[lineOf]*bytes.Buffer

	mu      sync.Mutex
	last    time.Time
	writing bool // it may wait for its reader
	lost    map[int]uint64
	why     stdio.Reason
}

// lineOf names a stream of a rank.
type lineOf struct {
	rank   int
	stream stdio.Type
}

// longestLine is how much of a line is kept until its end comes.
const longestLine = 64 << 10

func newOutputs(tasks int, o *slurm.Options) *outputs {
	u := &outputs{
		out: stdout(), err: stderr(), label: o.Program.Label, width: len(strconv.Itoa(max(tasks-1, 0))),
		partial: map[lineOf]*bytes.Buffer{}, only: [2]int{o.OnlyOutput, o.OnlyError}, last: time.Now(),
	}
	u.raw = !u.label && (tasks == 1 || o.Program.Unbuffered || o.Program.Terminal)
	return u
}

// idle is how long nothing has come, and whether what came last waits for its reader.
func (u *outputs) idle() (d time.Duration, writing bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Since(u.last), u.writing
}

// is notes that something is being written, or was.
func (u *outputs) is(writing bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last, u.writing = time.Now(), writing
}

// lose notes that output of a rank is lost.
func (u *outputs) lose(rank int, count uint64, why stdio.Reason) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lost == nil {
		u.lost = map[int]uint64{}
	}
	u.lost[rank] += count
	u.why = max(u.why, why)
}

// losses says for people what is lost, a line a task; and no more than a few.
func (u *outputs) losses() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	why := "it was not read for too long"
	switch u.why {
	case stdio.NotKept:
		why = "its node could not write it down, and it was not read at once"
	case stdio.NotThere:
		why = "when its node was reached again it did not have it any more"
	}
	var lines []string
	for i, rank := range slices.Sorted(maps.Keys(u.lost)) {
		if i == mostLosses {
			lines = append(lines, fmt.Sprintf("error: and output of %d other tasks", len(u.lost)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("error: %d bytes of the output of task %d are lost: %s", u.lost[rank], rank, why))
	}
	return lines
}

// mostLosses bounds the lines about what is lost.
const mostLosses = 10

// to is where a stream goes; nil: nowhere.
func (u *outputs) to(rank int, stream stdio.Type) io.Writer {
	w, only := u.out, u.only[0]
	if stream == stdio.Stderr {
		w, only = u.err, u.only[1]
	}
	if only >= 0 && rank != only {
		return nil
	}
	return w
}

// write takes what a rank said.
func (u *outputs) write(rank int, stream stdio.Type, data []byte) error {
	u.is(true)
	defer u.is(false)
	w := u.to(rank, stream)
	if w == nil {
		return nil
	}
	if u.raw {
		_, err := w.Write(data)
		return err
	}
	key := lineOf{rank, stream}
	b := u.partial[key]
	if b == nil {
		b = &bytes.Buffer{}
		u.partial[key] = b
	}
	b.Write(data)
	end := bytes.LastIndexByte(b.Bytes(), '\n') + 1
	if end == 0 && b.Len() > longestLine {
		end = b.Len()
	}
	if end == 0 {
		return nil
	}
	return u.emit(w, rank, b.Next(end))
}

// emit writes lines.
func (u *outputs) emit(w io.Writer, rank int, text []byte) error {
	if !u.label {
		_, err := w.Write(text)
		return err
	}
	var b bytes.Buffer
	label := strconv.Itoa(rank)
	label = strings.Repeat(" ", max(u.width-len(label), 0)) + label + ": "
	for line := range bytes.Lines(text) {
		b.WriteString(label)
		b.Write(line)
	}
	if last := text[len(text)-1]; last != '\n' {
		b.WriteByte('\n')
	}
	_, err := w.Write(b.Bytes())
	return err
}

// finish writes what a rank said last, without the end of its line.
func (u *outputs) finish(rank int) error {
	for _, stream := range []stdio.Type{stdio.Stdout, stdio.Stderr} {
		key := lineOf{rank, stream}
		if b := u.partial[key]; b != nil && b.Len() > 0 {
			if err := u.emit(u.to(rank, stream), rank, b.Bytes()); err != nil {
				return err
			}
		}
		delete(u.partial, key)
	}
	return nil
}

// flush does that for all ranks.
func (u *outputs) flush() error {
	for key := range u.partial {
		if err := u.finish(key.rank); err != nil {
			return err
		}
	}
	return nil
}
