package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/gangway-hpc/gangway/image"
	"github.com/gangway-hpc/gangway/internal/cli"
)

// show prints how far a pull is: bars on a terminal, lines elsewhere, events with
// --json.
type show interface {
	progress(image.Progress)
	end(ok bool)
}

func newShow(env *cli.Env, name string, quiet, asJSON bool) show {
	switch {
	case asJSON:
		return &events{w: env.Stdout, image: name, last: map[int]time.Time{}, phase: map[int]image.Phase{}}
	case quiet:
		return silent{}
	case env.Terminal(env.Stderr):
		size := func() (int, int) { return env.TerminalSize(env.Stderr) }
		return &bars{out: env.Stderr, size: size, now: env.Now, layers: map[int]*layerBar{}}
	default:
		return &lines{out: env.Stderr, name: name, now: env.Now, layers: map[int]*layerLine{}}
	}
}

type silent struct{}

func (silent) progress(image.Progress) {}
func (silent) end(bool)                {}

// events prints each change, and progress within a phase a few times a second.
type events struct {
	w     io.Writer
	image string
	last  map[int]time.Time
	phase map[int]image.Phase
}

// event is one line of --json.
type event struct {
	Event  string      `json:"event"`
	Image  string      `json:"image"`
	Layer  int         `json:"layer"`
	Digest string      `json:"digest"`
	Phase  image.Phase `json:"phase"`
	Done   int64       `json:"done"`
	Total  int64       `json:"total"`
	Other  bool        `json:"other_process,omitempty"`
}

const eventEvery = 500 * time.Millisecond

func (e *events) progress(p image.Progress) {
	now := time.Now()
	if e.phase[p.Layer] == p.Phase && now.Sub(e.last[p.Layer]) < eventEvery {
		return
	}
	e.phase[p.Layer], e.last[p.Layer] = p.Phase, now
	// The first error of stdout is kept and reported at the end.
	_ = printLine(e.w, event{"layer", e.image, p.Layer, string(p.Digest), p.Phase, p.Done, p.Total, p.Other})
	if f, ok := e.w.(interface{ Flush() error }); ok {
		_ = f.Flush()
	}
}

func (*events) end(bool) {}

// printLine prints v as JSON on one line.
func printLine(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// lines prints a line for each layer that is finished, and how far all are now and
// then.
type lines struct {
	out    io.Writer
	name   string
	now    func() time.Time
	start  time.Time
	next   time.Time
	layers map[int]*layerLine
}

type layerLine struct {
	image.Progress
	begin time.Time
}

const linesEvery = 10 * time.Second

func (l *lines) progress(p image.Progress) {
	now := l.now()
	if l.start.IsZero() {
		l.start, l.next = now, now.Add(linesEvery)
	}
	old := l.layers[p.Layer]
	if old == nil {
		old = &layerLine{begin: now}
		l.layers[p.Layer] = old
	}
	if p.Phase == image.PhaseFetch && old.Phase != image.PhaseFetch {
		old.begin = now
	}
	changed := old.Phase != p.Phase || old.Other != p.Other
	old.Progress = p
	switch {
	case changed && p.Phase == image.PhaseCached:
		l.line(p, "cached")
	case changed && p.Phase == image.PhaseDone:
		l.line(p, fmt.Sprintf("done in %.1f s", now.Sub(old.begin).Seconds()))
	case changed && p.Other:
		l.line(p, "another process fetches it")
	}
	if now.After(l.next) {
		l.next = now.Add(linesEvery)
		l.summary(now)
	}
}

func (l *lines) line(p image.Progress, what string) {
	fmt.Fprintf(l.out, "%s: layer %d of %d (%s, %s): %s\n",
		l.name, p.Layer+1, p.Layers, p.Digest.Short(), image.FormatBytes(p.Total), what)
}

func (l *lines) summary(now time.Time) {
	var done, total, fetched int64 // what is cached says nothing of how fast it goes
	for _, p := range l.layers {
		total += p.Total
		switch p.Phase {
		case image.PhaseCached:
			done += p.Total
		case image.PhaseDone:
			done, fetched = done+p.Total, fetched+p.Total
		default:
			done, fetched = done+p.Done, fetched+p.Done
		}
	}
	rate := float64(fetched) / now.Sub(l.start).Seconds()
	left := ""
	if rate > 0 {
		left = fmt.Sprintf(", %.0f s left", float64(total-done)/rate)
	}
	fmt.Fprintf(l.out, "%s: %s of %s, %s/s%s\n", l.name,
		image.FormatBytes(done), image.FormatBytes(total), image.FormatBytes(int64(rate)), left)
}

func (*lines) end(bool) {}

// bytesOf tells how many bytes of an image there are, of how many.
type bytesOf struct {
	tell   func(done, total int64)
	layers map[int]image.Progress
}

func (b *bytesOf) progress(p image.Progress) {
	b.layers[p.Layer] = p
	var done, total int64
	for _, l := range b.layers {
		total += l.Total
		if finished(l) {
			l.Done = l.Total
		}
		done += l.Done
	}
	b.tell(done, total)
}

func (*bytesOf) end(bool) {}
