package server

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/wire"
)

// nodeProgress is how far the prepare of a step is on a node.
type nodeProgress struct {
	phase        string
	bytes, total int64 // of an image that is pulled; 0: nothing is
	first        int64 // of bytes, when they were first heard of
	since, at    job.Time
}

// tellEvery is how often those who watch a step are told how far it is, and how long a
// prepare may take of which nobody hears anything: most are over by then, and to tell what
// each of many nodes does would take longer than to do it.
const tellEvery = 500 * job.Millisecond

// progress notes how far a prepare is.
func (c *core) progress(node string, p *wire.Progress) {
	key := p.Key.Of()
	st := c.step(key)
	if st == nil {
		return
	}
	if st.progress == nil {
		st.progress = map[string]*nodeProgress{}
	}
	st.heardOf(node, p, c.now)
	c.tellProgress(c.runs[key.Job], st)
}

// tellProgress tells those who watch a step how far it is, if there is something new, and
// they were not told just now. It is called again at every tick.
func (c *core) tellProgress(r *run, st *step) {
	if st.untold && !st.Gang.Starting && c.now >= st.told.Add(tellEvery) {
		st.untold, st.told = false, c.now
		c.watch.step(r, st)
	}
}

// heardOf notes the progress of a node.
func (st *step) heardOf(node string, p *wire.Progress, now job.Time) {
	st.untold = true
	n := st.progress[node]
	if n == nil || n.phase != p.Phase {
		st.progress[node] = &nodeProgress{phase: p.Phase, bytes: p.Bytes, total: p.Total, first: p.Bytes, since: now, at: now}
		return
	}
	n.bytes, n.total, n.at = p.Bytes, p.Total, now
}

// progressText is the progress of a prepare on all nodes in one line: how many do what,
// and the bytes of those that pull, which are as many for each although nodes of one
// machine pull once.
func (st *step) progressText() string {
	if len(st.progress) == 0 {
		return ""
	}
	by := map[string]*phaseProgress{}
	for name, n := range st.progress {
		if g := st.Gang.node(name); g == nil || g.Phase != unheard {
			continue
		}
		if by[n.phase] == nil {
			by[n.phase] = &phaseProgress{}
		}
		by[n.phase].add(n)
	}
	parts := []string{fmt.Sprintf("%d of %d nodes are ready", st.Gang.count(prepared), len(st.Gang.Nodes))}
	for _, phase := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%d: %s%s", by[phase].nodes, phase, by[phase].text()))
	}
	return strings.Join(parts, "; ")
}

// phaseProgress is what nodes are in together that do the same.
type phaseProgress struct {
	nodes        int
	bytes, total int64
	rate         float64 // bytes a second
}

func (p *phaseProgress) add(n *nodeProgress) {
	p.nodes++
	p.bytes, p.total = p.bytes+n.bytes, p.total+n.total
	if span := n.at - n.since; span > 0 {
		p.rate += float64(n.bytes-n.first) * float64(job.Second) / float64(span)
	}
}

// text is what is said of bytes; empty where there are none.
func (p *phaseProgress) text() string {
	if p.total == 0 {
		return ""
	}
	text := fmt.Sprintf(" %s of %s", megabytes(p.bytes), megabytes(p.total))
	if p.rate >= 1 {
		text += fmt.Sprintf(", %s/s, %.0f s left", megabytes(int64(p.rate)), float64(max(0, p.total-p.bytes))/p.rate)
	}
	return text
}

// megabytes is a number of bytes for people, in the unit of all of a line.
func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
