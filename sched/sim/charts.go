package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

const (
	chartWidth = 960.0
	chartLeft  = 56.0
	chartRight = chartWidth - 24
	chartSteps = 480 // points of a line
	ganttNodes = 64
	ganttBars  = 5000
	ganttRow   = 13.0 // height of a node, where there are many
)

// bins cuts a run into equal parts and averages in each what pick says, over time.
func (r *Result) bins(n int, until job.Time, pick func(step) float64) []float64 {
	sums := make([]float64, n)
	width := max(float64(until.Sub(r.begin))/float64(n), 1)
	for i, st := range r.steps {
		end := until
		if i+1 < len(r.steps) {
			end = r.steps[i+1].at
		}
		v, from, to := pick(st), float64(st.at.Sub(r.begin))/width, float64(end.Sub(r.begin))/width
		for b := max(int(from), 0); b < n && float64(b) < to; b++ {
			sums[b] += v * (min(to, float64(b+1)) - max(from, float64(b)))
		}
	}
	return sums
}

// overTime draws a figure of all results over time, the first as an area.
func (r *Report) overTime(label string, height float64, percent bool, pick func(*Result, step) float64) string {
	s := newSVG(chartWidth, height, label)
	f := &frame{s: s, left: chartLeft, top: 8, right: chartRight, bottom: height - 22, y1: 1}
	var until job.Time
	begin := r.Results[0].begin
	for _, x := range r.Results {
		until = max(until, x.lastEnd)
	}
	f.x1 = max(seconds64(until.Sub(begin)), 1)
	lines := make([][]float64, len(r.Results))
	for i, x := range r.Results {
		lines[i] = x.bins(chartSteps, until, func(st step) float64 { return pick(x, st) })
		if !percent {
			f.y1 = max(f.y1, slices.Max(lines[i]))
		}
	}
	f.gridX(timeTicks(0, f.x1))
	if percent {
		f.gridY([]float64{0, 0.25, 0.5, 0.75, 1}, func(v float64) string { return strconv.Itoa(int(v*100)) + " %" })
	} else {
		step := max(niceStep(f.y1/4), 1)
		f.y1 = math.Ceil(f.y1/step) * step
		var values []float64
		for v := 0.0; v <= f.y1+step/2; v += step {
			values = append(values, v)
		}
		f.gridY(values, func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) })
	}
	for i := len(lines) - 1; i >= 0; i-- { // ours on top
		points := make([][2]float64, 0, chartSteps)
		for b, v := range lines[i] {
			points = append(points, [2]float64{f.x((float64(b) + 0.5) / chartSteps * f.x1), f.y(v)})
		}
		if i == 0 {
			s.path(points, "area c0", f.bottom, true)
		}
		s.path(points, "line c"+strconv.Itoa(i%4), 0, false)
	}
	s.line(f.left, f.bottom, f.right, f.bottom, "axis")
	return s.end()
}

// waits draws which part of the jobs waited no longer than a time.
func (r *Report) waits() string {
	const height = 280.0
	s := newSVG(chartWidth, height, "distribution of waits")
	f := &frame{s: s, left: chartLeft, top: 8, right: chartRight, bottom: height - 22, x0: 1, x1: 60, y1: 1, logX: true}
	for _, x := range r.Results {
		f.x1 = max(f.x1, x.Wait.Max*1.1)
	}
	f.gridY([]float64{0, 0.25, 0.5, 0.75, 0.9, 1}, func(v float64) string { return strconv.Itoa(int(v*100)) + " %" })
	ticks := []float64{1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400}
	ticks = slices.DeleteFunc(ticks, func(v float64) bool { return v > f.x1 })
	f.gridX(ticks, func(v float64) string {
		if v == f.x0 {
			return "≤ 1 s"
		}
		return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(span(v), " 0 h"), " 0 min"), " 0 s")
	})
	for i := len(r.Results) - 1; i >= 0; i-- {
		w := r.Results[i].waits
		if len(w) == 0 {
			continue
		}
		// Jobs that did not wait are where the line begins.
		points := [][2]float64{{f.left, f.y(0)}}
		for k := range chartSteps + 1 {
			v := math.Exp(math.Log(f.x1) * float64(k) / chartSteps)
			n, _ := slices.BinarySearchFunc(w, v, func(a, b float64) int { return cmp.Compare(a, math.Nextafter(b, math.Inf(1))) })
			points = append(points, [2]float64{f.x(v), f.y(float64(n) / float64(len(w)))})
		}
		s.path(points, "line c"+strconv.Itoa(i%4), 0, false)
	}
	s.line(f.left, f.bottom, f.right, f.bottom, "axis")
	return s.end()
}

// sizes are the classes of jobs in the Gantt chart.
func sizeClass(size int) int {
	for i, most := range []int{1, 3, 7, 8, 31, 127} {
		if size <= most {
			return i
		}
	}
	return 6
}

// gantt draws what ran where. Of a long run it shows the time about the longest queue, and
// of a large cluster the first nodes; note says so.
func (r *Result) gantt() (picture, note string) {
	from, to := r.begin, r.lastEnd
	nodes := r.nodes
	if len(nodes) > ganttNodes {
		note = fmt.Sprintf("The first %d of %d nodes. ", ganttNodes, len(nodes))
		nodes = nodes[:ganttNodes]
	}
	bars := r.barsOn(len(nodes))
	if len(bars) > ganttBars {
		bars, from, to = r.busiest(bars)
		note += fmt.Sprintf("Shown are %s of %s, about the moment when most jobs waited.", span(seconds64(to.Sub(from))), span(r.Makespan))
	}
	left := chartLeft + 30
	row := rowHeight(len(nodes))
	height := 30 + row*float64(len(nodes))
	s := newSVG(chartWidth, height, "jobs by node")
	f := &frame{
		s: s, left: left, top: 4, right: chartRight, bottom: height - 22,
		x0: seconds64(from.Sub(r.begin)), x1: max(seconds64(to.Sub(r.begin)), seconds64(from.Sub(r.begin))+1),
	}
	f.gridX(timeTicks(f.x0, f.x1))
	for i, n := range nodes {
		y := f.top + row*float64(i)
		s.text(left-6, y+row/2+3, "end", "tick", n.name)
		if i > 0 && nodes[i-1].leaf != n.leaf {
			s.line(left-60, y-0.5, f.right, y-0.5, "axis")
		}
	}
	r.drawBars(f, nodes, bars)
	return s.end(), note
}

// rowHeight is that of a node in the Gantt chart: a few get more room.
func rowHeight(nodes int) float64 {
	return min(max(ganttRow, 240/float64(max(nodes, 1))), 120)
}

// barsOn are the runs on one of the first nodes.
func (r *Result) barsOn(nodes int) []bar {
	var bars []bar
	for _, b := range r.bars {
		if b.end > b.start && slices.ContainsFunc(b.nodes, func(n int32) bool { return int(n) < nodes }) {
			bars = append(bars, b)
		}
	}
	slices.SortStableFunc(bars, func(a, b bar) int { return cmp.Compare(a.start, b.start) })
	return bars
}

// busiest are the runs about the moment when most jobs waited, in the longest time of which
// they are few enough to draw.
func (r *Result) busiest(bars []bar) (some []bar, from, to job.Time) {
	most := step{at: r.begin, wait: -1}
	for _, st := range r.steps {
		if st.wait > most.wait {
			most = st
		}
	}
	for width := r.lastEnd.Sub(r.begin); ; width /= 2 {
		from = max(r.begin, most.at.Add(-width/2))
		to = min(r.lastEnd, from.Add(width))
		some = some[:0]
		for _, b := range bars {
			if b.start < to && b.end > from {
				some = append(some, b)
			}
		}
		if len(some) <= ganttBars || width < 2*job.Second {
			return some[:min(len(some), ganttBars)], from, max(to, from+1)
		}
	}
}

// drawBars draws each run as high as its part of the node, in lanes that are free.
func (r *Result) drawBars(f *frame, nodes []node, bars []bar) {
	lanes := make([][]job.Time, len(nodes)) // until when each is taken
	for i, n := range nodes {
		lanes[i] = make([]job.Time, max(min(n.size, 64), 1))
	}
	unit := "CPUs"
	if r.onGPUs {
		unit = "GPUs"
	}
	row := rowHeight(len(nodes))
	for _, b := range bars {
		title := fmt.Sprintf("job %d: %d %s on %d nodes, %s", b.id, b.size, unit, len(b.nodes), span(seconds64(b.end.Sub(b.start))))
		for k, i := range b.nodes {
			if int(i) >= len(nodes) || b.shares[k] == 0 {
				continue
			}
			lane := lanes[i]
			want := max(1, int(math.Round(float64(b.shares[k])/float64(nodes[i].size)*float64(len(lane)))))
			at := freeLanes(lane, min(want, len(lane)), b.start)
			for l := at; l < at+min(want, len(lane)); l++ {
				lane[l] = b.end
			}
			x0 := max(f.x(seconds64(b.start.Sub(r.begin))), f.left)
			x1 := min(f.x(seconds64(b.end.Sub(r.begin))), f.right)
			laneHeight := (row - 1.5) / float64(len(lane))
			f.s.rect(x0, f.top+row*float64(i)+laneHeight*float64(at), max(x1-x0, 0.4), laneHeight*float64(min(want, len(lane))),
				"s"+strconv.Itoa(sizeClass(b.size)), title)
		}
	}
}

// freeLanes is the first of so many lanes side by side that are free; where there are none
// such, those that are free soonest.
func freeLanes(lanes []job.Time, want int, at job.Time) int {
	best, soonest := 0, job.Never
	for l := 0; l+want <= len(lanes); l++ {
		latest := slices.Max(lanes[l : l+want])
		if latest <= at {
			return l
		}
		if latest < soonest {
			best, soonest = l, latest
		}
	}
	return best
}
