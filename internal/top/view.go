package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// The colours, as SGR parameters.
const (
	bold   = "1"
	dim    = "2"
	invert = "7"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

// paint colours a text, where there is colour.
func (m *model) paint(sgr, text string) string {
	if sgr == "" || !m.color || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

// fit makes a text as long as there is room. What others wrote has no control characters here, and
// nothing that is not one column wide.
func fit(text string, width int) string {
	var b strings.Builder
	n := 0
	for _, r := range text {
		if n == max(0, width) {
			break
		}
		switch {
		case !unicode.IsPrint(r):
			r = ' '
		case r >= 0x1100 && !(r >= 0x2000 && r < 0x2e80) || unicode.IsMark(r):
			r = '?'
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}

// row is columns of their widths; the last one has what is left.
func (m *model) row(widths []int, cells ...string) string {
	var b strings.Builder
	for i, cell := range cells {
		if i == len(cells)-1 {
			b.WriteString(cell)
			break
		}
		cell = fit(cell, widths[i])
		b.WriteString(cell + strings.Repeat(" ", widths[i]-len([]rune(cell))+1))
	}
	return fit(b.String(), m.width)
}

// view is the whole screen: as many lines as it has.
func (m *model) view() string {
	if m.height < 4 || m.width < 20 {
		return fit("too small", m.width)
	}
	lines := []string{m.head()}
	left := m.height - 2 // head and foot
	nodes := m.nodeLines(max(2, left/4))
	queue := m.queueLines(max(3, left/3))
	if left < 10 { // the queue is what counts
		nodes = nil
		queue = m.queueLines(left)
	}
	lines = append(append(lines, nodes...), queue...)
	if left := m.height - 1 - len(lines); left > 2 {
		lines = append(lines, m.jobLines(left)...)
	}
	lines = lines[:min(len(lines), m.height-1)]
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return strings.Join(append(lines, m.foot()), "\n")
}

func (m *model) foot() string {
	if m.err != nil {
		return m.paint(red, fit("the controller does not answer: "+m.err.Error(), m.width))
	}
	return m.paint(dim, fit("up/down: another job   q: quit", m.width))
}

// head is all of the cluster in one line.
func (m *model) head() string {
	down, cpus, of := 0, 0, 0
	var gpus, gpusOf int64
	for i := range m.nodes {
		n := &m.nodes[i]
		if bad(n) {
			down++
			continue
		}
		cpus, of = cpus+n.UsedCPUs, of+n.CPUs
		has, in := gpusOfNode(n)
		gpus, gpusOf = gpus+in, gpusOf+has
	}
	running, waiting := 0, 0
	for _, j := range m.jobs {
		switch {
		case j.State == job.Pending:
			waiting += max(1, tasks(j))
		case !j.State.Done():
			running++
		}
	}
	text := fmt.Sprintf("cluster %s   %d nodes", m.name, len(m.nodes))
	if down > 0 {
		text += fmt.Sprintf(", %d not in use", down)
	}
	text += fmt.Sprintf("   CPUs %d of %d", cpus, of)
	if gpusOf > 0 {
		text += fmt.Sprintf("   GPUs %d of %d", gpus, gpusOf)
	}
	text += fmt.Sprintf("   %d running, %d waiting", running, waiting)
	at := m.now.Format("15:04:05")
	if pad := m.width - len([]rune(text)) - len(at); pad > 0 {
		text += strings.Repeat(" ", pad) + at
	}
	return m.paint(bold, fit(text, m.width))
}

// tasks is how many tasks of an array one line is for.
func tasks(j *api.Job) int {
	n := 0
	for _, r := range j.Waiting {
		n += r.Len()
	}
	return n
}

// bad says that nothing new starts on a node.
func bad(n *api.Node) bool {
	return strings.HasSuffix(n.StateText, "*") || slices.ContainsFunc([]string{"down", "drain", "unknown"}, func(word string) bool {
		return strings.HasPrefix(n.StateText, word)
	})
}

// gpusOfNode is how many a node has, and how many of them jobs have.
func gpusOfNode(n *api.Node) (has, used int64) {
	for _, g := range n.GRES {
		if g.Name == "gpu" {
			has += g.Count
		}
	}
	for _, d := range n.Used {
		if d.Name == "gpu" {
			used += d.Count
		}
	}
	return has, used
}

// bar is how much of something is in use, ten characters wide.
func bar(used, of int64) string {
	const width = 10
	n := 0
	if of > 0 {
		n = int(min(width, (used*width+of-1)/of))
	}
	return strings.Repeat("█", n) + strings.Repeat("░", width-n)
}

// nodeLines are the nodes, in so many lines: those that are not in use first where not all have room.
func (m *model) nodeLines(room int) []string {
	widths := []int{12, 10, 18, 25, 14, 1}
	lines := []string{m.paint(cyan, m.row(widths, "NODE", "STATE", "CPUS", "MEMORY", "GPUS", "JOBS"))}
	all := slices.Clone(m.nodes)
	if len(all) > room-1 {
		slices.SortStableFunc(all, func(a, b api.Node) int {
			if c := boolean(bad(&b)) - boolean(bad(&a)); c != 0 {
				return c
			}
			return b.UsedCPUs - a.UsedCPUs
		})
	}
	for i := range all {
		if len(lines) == room-1 && len(all)-i > 1 {
			return append(lines, m.paint(dim, fit(fmt.Sprintf("and %d more nodes", len(all)-i), m.width)))
		}
		n := &all[i]
		gpus := "-"
		if has, used := gpusOfNode(n); has > 0 {
			gpus = fmt.Sprintf("%d of %d", used, has)
			if n.Declared {
				gpus += " decl."
			}
		}
		var jobs []string
		for _, id := range n.Jobs {
			jobs = append(jobs, id.String())
		}
		colour := ""
		if bad(n) {
			colour = red
		}
		lines = append(lines, m.paint(colour, m.row(widths, n.Name, n.StateText, fmt.Sprintf("%s %d/%d", bar(int64(n.UsedCPUs), int64(n.CPUs)), n.UsedCPUs, n.CPUs),
			fmt.Sprintf("%s %s/%s", bar(n.UsedMemory, n.Memory), size(n.UsedMemory<<20), size(n.Memory<<20)), gpus, strings.Join(jobs, " "))))
	}
	return lines
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%dG", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1fG", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%dM", n>>20)
	}
	return fmt.Sprintf("%dK", n>>10)
}

// queueLines are the jobs, in so many lines, the selected one among them.
func (m *model) queueLines(room int) []string {
	widths := []int{10, 14, 10, 11, 10, 5, 1}
	lines := []string{m.paint(cyan, m.row(widths, "JOB", "NAME", "USER", "STATE", "TIME", "NODES", "WHERE, OR WHY NOT AND WHEN"))}
	queue := m.queue()
	if len(queue) == 0 {
		text := "no jobs"
		if !m.synced {
			text = "asking ..."
		}
		return append(lines, m.paint(dim, text))
	}
	at, most := m.at(queue), room-1
	from := max(0, min(at-most/2, len(queue)-most))
	for i := from; i < min(len(queue), from+most); i++ {
		j := queue[i]
		id := j.ID.String()
		if j.Array != nil {
			id = j.Array.Job.String() + "_*"
			if len(j.Waiting) == 0 {
				id = fmt.Sprintf("%s_%d", j.Array.Job, j.Array.Task)
			}
		}
		line := m.row(widths, id, j.Name, j.User, m.state(j), m.elapsed(j), fmt.Sprint(j.Nodes), m.where(j))
		switch {
		case i == at && m.color:
			line = m.paint(invert, line+strings.Repeat(" ", max(0, m.width-len([]rune(line)))))
		case i == at:
			line = fit("> "+line, m.width)
		default:
			line = m.paint(shade(j), line)
		}
		lines = append(lines, line)
	}
	return lines
}

func shade(j *api.Job) string {
	switch {
	case j.State == job.Completed:
		return dim
	case j.State.Done():
		return red
	case j.State == job.Pending:
		return yellow
	}
	return green
}

func (m *model) state(j *api.Job) string {
	if j.Phase == "preparing" {
		return j.Phase
	}
	return strings.ToLower(j.State.String())
}

// elapsed is how long a job runs, or ran.
func (m *model) elapsed(j *api.Job) string {
	switch {
	case j.Start == 0:
		return "-"
	case j.End != 0:
		return slurm.FormatTime(job.Duration(j.End - j.Start))
	}
	return slurm.FormatTime(job.Duration(max(0, job.Time(m.now.UnixMilli())-j.Start)))
}

// endless is when nothing starts but what waits for jobs without a time limit.
const endless = 300 * 24 * time.Hour

// where is where a job runs, or why it does not, and when it will.
func (m *model) where(j *api.Job) string {
	if j.State != job.Pending {
		return slurm.Fold(j.NodeList)
	}
	text := j.Reason
	if n := tasks(j); n > 1 {
		text = fmt.Sprintf("%d tasks, %s", n, text)
	}
	switch {
	case j.Expected == job.Never:
		return text + ", not as things are"
	case j.Expected > 0:
		at := moment(j.Expected)
		switch left := at.Sub(m.now); {
		case left < 24*time.Hour:
			return text + ", starts " + at.Format("15:04:05")
		case left > endless: // for the plan, what has no limit takes a year
			return text + ", starts when what runs has ended"
		}
		return text + ", starts " + at.Format("2006-01-02 15:04")
	}
	return text
}

// jobLines are the selected job's ranks and the end of its output, in so many lines.
func (m *model) jobLines(room int) []string {
	j := m.chosen()
	if j == nil {
		return nil
	}
	title := fmt.Sprintf("job %s %s, %s", j.ID, j.Name, m.state(j))
	if j.Restarts > 0 {
		title += fmt.Sprintf(", restarts: %d", j.Restarts)
	}
	if j.Why != "" && j.State == job.Pending {
		title += ": " + j.Why
	}
	lines := []string{"", m.paint(cyan, fit(title, m.width))}
	lines = append(lines, m.rankLines(j, max(1, (room-2)/2))...)
	left := room - len(lines)
	switch {
	case left < 1 || m.output.id != j.ID:
	case m.output.note != "":
		lines = append(lines, m.paint(dim, fit(m.output.note, m.width)))
	default:
		for _, line := range m.output.lines[max(0, len(m.output.lines)-left):] {
			lines = append(lines, fit(strings.ReplaceAll(line, "\t", "  "), m.width))
		}
	}
	return lines
}

// rankLines are the ranks of the job's steps that run or are being prepared.
func (m *model) rankLines(j *api.Job, room int) []string {
	var lines []string
	for _, s := range m.stepsOf(j.ID) {
		switch {
		case s.Phase == "preparing" && s.Progress != "":
			lines = append(lines, fit(fmt.Sprintf("step %s: %s", s.Key.Step, s.Progress), m.width))
		case s.Phase == "running" && m.usage[s.Key] != nil:
			of := m.usage[s.Key]
			for _, rank := range sortedRanks(of) {
				r := of.ranks[rank]
				cpu := 0.0
				if len(r.cpu) > 0 {
					cpu = r.cpu[len(r.cpu)-1]
				}
				text := fmt.Sprintf("%s:%-4d %-12s %5.2f CPUs %6s ", s.Key.Step, rank, fit(r.node, 12), cpu, size(r.rss))
				lines = append(lines, fit(text+spark(r.cpu, min(40, max(0, m.width-len([]rune(text))))), m.width))
			}
		}
	}
	if len(lines) > room {
		lines = append(lines[:room-1], m.paint(dim, fmt.Sprintf("and %d more ranks", len(lines)-room+1)))
	}
	return lines
}

func sortedRanks(s *series) []int {
	var all []int
	for rank := range s.ranks {
		all = append(all, rank)
	}
	slices.Sort(all)
	return all
}

// spark is the last values as a line, the largest of them, or one processor, being full.
func spark(values []float64, width int) string {
	const levels = "▁▂▃▄▅▆▇█"
	values = values[max(0, len(values)-width):]
	top := 1.0
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	all := []rune(levels)
	for _, v := range values {
		b.WriteRune(all[min(len(all)-1, int(v/top*float64(len(all)-1)+0.5))])
	}
	return b.String()
}
