package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/image"
)

// bars draws a line with a bar for each layer and one for all, over and over in the
// same place of a terminal. There is no goroutine: it draws when there is news, which
// comes several times a second while bytes do.
type bars struct {
	out    io.Writer
	size   func() (columns, lines int) // of the terminal, as it is now
	now    func() time.Time
	layers map[int]*layerBar
	start  time.Time
	next   time.Time // when to draw again
	drawn  int       // lines, which the cursor is below
}

type layerBar struct {
	image.Progress
	begin time.Time // of the present phase
}

const drawEvery = 150 * time.Millisecond

func (b *bars) progress(p image.Progress) {
	now := b.now()
	if b.start.IsZero() {
		b.start = now
	}
	l := b.layers[p.Layer]
	if l == nil {
		l = &layerBar{}
		b.layers[p.Layer] = l
	}
	if l.Phase != p.Phase {
		l.begin = now
	}
	l.Progress = p
	if finished(p) {
		l.Done = p.Total
	}
	if now.After(b.next) {
		b.next = now.Add(drawEvery)
		b.draw(now)
	}
}

func finished(p image.Progress) bool {
	return p.Phase == image.PhaseDone || p.Phase == image.PhaseCached
}

func (b *bars) end(bool) {
	if len(b.layers) > 0 {
		b.draw(b.now())
	}
}

// draw draws all lines anew in one write, so that nothing flickers.
func (b *bars) draw(now time.Time) {
	columns, height := b.size()
	var s strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&s, "\x1b[%dA", b.drawn)
	}
	text := b.lines(now, columns, height-1)
	for _, line := range text {
		s.WriteString(clip(line, columns-1))
		s.WriteString("\x1b[K\n")
	}
	s.WriteString("\x1b[J")
	b.drawn = len(text)
	// A terminal that went away is no reason to end the pull.
	_, _ = io.WriteString(b.out, s.String())
}

// lines returns the line of each layer and that of all. Where there are more than
// the terminal has, the layers that are finished are left out, and then the last ones.
func (b *bars) lines(now time.Time, columns, height int) []string {
	var order []int
	for n := range b.layers {
		order = append(order, n)
	}
	slices.Sort(order)
	if len(order)+1 > height {
		order = slices.DeleteFunc(order, func(n int) bool { return finished(b.layers[n].Progress) })
		order = order[:min(len(order), max(0, height-1))]
	}
	var text []string
	for _, n := range order {
		text = append(text, b.layers[n].line(now, columns))
	}
	return append(text, b.total(now))
}

// line is as "7d3541ec4a01  fetch    [===>    ]  12.1 MB of 68.4 MB  25.1 MB/s".
func (l *layerBar) line(now time.Time, columns int) string {
	phase := string(l.Phase)
	if l.Other {
		phase += "*" // another process does it
	}
	end := fmt.Sprintf("%9s of %9s", image.FormatBytes(l.Done), image.FormatBytes(l.Total))
	switch {
	case l.Phase == image.PhaseCached || l.Phase == image.PhaseDone:
		end = fmt.Sprintf("%9s", image.FormatBytes(l.Total))
	case l.Phase == image.PhaseFetch && !l.Other:
		end += "  " + rate(l.Done, now.Sub(l.begin))
	}
	width := max(0, min(40, columns-70))
	full := width
	if l.Total > 0 {
		full = int(int64(width) * min(l.Done, l.Total) / l.Total)
	}
	return fmt.Sprintf("%s  %-8s [%s%s]  %s", l.Digest.Short(), phase, strings.Repeat("=", full), strings.Repeat(" ", width-full), end)
}

// total is the line of all layers.
func (b *bars) total(now time.Time) string {
	var done, total, fetched, left int64
	for _, l := range b.layers {
		done, total = done+l.Done, total+l.Total
		left += l.Total - l.Done
		if l.Phase != image.PhaseCached {
			fetched += l.Done
		}
	}
	s := fmt.Sprintf("total         %s of %s", image.FormatBytes(done), image.FormatBytes(total))
	if fetched == 0 {
		return s
	}
	passed := now.Sub(b.start)
	s += "  " + rate(fetched, passed)
	if left > 0 {
		s += fmt.Sprintf("  %s left", time.Duration(float64(passed)/float64(fetched)*float64(left)).Round(time.Second))
	}
	return s
}

func rate(bytes int64, d time.Duration) string {
	if d < time.Millisecond {
		return ""
	}
	return image.FormatBytes(int64(float64(bytes)/d.Seconds())) + "/s"
}

// clip keeps a line, which is ASCII, from being wrapped.
func clip(s string, columns int) string { return s[:max(0, min(len(s), columns))] }
