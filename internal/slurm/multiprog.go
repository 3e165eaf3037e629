package slurm

import (
	"fmt"
	"strconv"
	"strings"
)

// MultiProg is a configuration file of srun --multi-prog: which tasks run what.
type MultiProg struct {
	records []multiRecord
	most    int // the highest task that is named; -1: none
}

// multiRecord is a line: tasks, and what they run.
type multiRecord struct {
	ranges [][2]int // nil: all that are left
	words  [][]piece
}

// piece is a part of a word: literal text, or text in which %t and %o stand for numbers.
type piece struct {
	text    string
	literal bool
}

// maxMultiProg bounds a configuration file: it goes to all nodes.
const maxMultiProg = 1 << 20

// ParseMultiProg reads a configuration file, by the rules of Slurm 22.05: lines of tasks (0,2-3, or
// * in the last one for those that are left) and a command; words are divided by blanks, a
// backslash takes the next character as it is, and continues a line; in single quotes all is as it
// is; double quotes mean nothing. %t is the task, %o its place among those of its line. The error
// is a [Refusal]; tasks is how many there are, 0: as many as are named.
func ParseMultiProg(text []byte, name string, tasks int) (*MultiProg, error) {
	if len(text) > maxMultiProg {
		return nil, refuse(1, "Configuration file %s is %d bytes long; the most is %d", name, len(text), maxMultiProg)
	}
	if strings.ContainsRune(string(text), 0) {
		return nil, refuse(1, "Configuration file %s has a byte 0 in it", name)
	}
	m := &MultiProg{most: -1}
	seen := map[int]bool{}
	lines := strings.Split(string(text), "\n")
	for n := 0; n < len(lines); n++ {
		at, line := n+1, lines[n]
		for continued(line) && n+1 < len(lines) {
			n++
			line += "\n" + lines[n]
		}
		if line = strings.TrimLeft(line, " \t\r"); strings.TrimSpace(line) == "" || line[0] == '#' {
			continue
		}
		if why := m.record(line, tasks, seen); why != "" {
			return nil, &Refusal{Code: 1, Lines: []string{"error: " + why, fmt.Sprintf("error: Line %d of configuration file %s invalid", at, name)}}
		}
	}
	if tasks == 0 {
		tasks = m.most + 1
	}
	for task := range max(1, tasks) {
		if _, _, ok := m.find(task); !ok {
			return nil, refuse(1, "Configuration file %s invalid, no record for task id %d", name, task)
		}
	}
	return m, nil
}

// continued says whether a line ends with a backslash that stands for itself alone.
func continued(line string) bool {
	line = strings.TrimSuffix(line, "\r")
	return (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1
}

// Tasks is one more than the highest task that is named; 1 if only * is.
func (m *MultiProg) Tasks() int { return max(1, m.most+1) }

// record reads a line; why says in Slurm's words what is wrong with it.
func (m *MultiProg) record(line string, tasks int, seen map[int]bool) (why string) {
	if n := len(m.records); n > 0 && m.records[n-1].ranges == nil {
		return "Task range specification with asterisk must be last"
	}
	spec, rest := line, ""
	if at := strings.IndexAny(line, " \t\r\n"); at >= 0 {
		spec, rest = line[:at], line[at:]
	}
	r := multiRecord{}
	if spec != "*" {
		ranges, why := taskRanges(spec)
		if why != "" {
			return why
		}
		r.ranges = ranges
		for _, pair := range ranges {
			if tasks > 0 && pair[1] >= tasks {
				return fmt.Sprintf("Invalid task id, %d >= ntasks", pair[1])
			}
			for task := pair[0]; task <= pair[1]; task++ {
				if seen[task] {
					return fmt.Sprintf("Duplicate record for task %d", task)
				}
				seen[task] = true
			}
			m.most = max(m.most, pair[1])
		}
	}
	closed := false
	r.words, closed = multiWords(rest)
	switch {
	case !closed:
		return "A single quote is not closed"
	case len(r.words) == 0:
		return fmt.Sprintf("No program for tasks %s", spec)
	}
	m.records = append(m.records, r)
	return ""
}

// maxMultiTask bounds numbers of tasks.
const maxMultiTask = 1 << 20

// taskRanges reads 0,2-3.
func taskRanges(spec string) (all [][2]int, why string) {
	for word := range strings.SplitSeq(spec, ",") {
		if word == "" {
			continue // which Slurm passes over, too
		}
		low, high, ranged := strings.Cut(word, "-")
		if !ranged {
			high = low
		}
		first, err := strconv.ParseUint(low, 10, 32)
		last, err2 := strconv.ParseUint(high, 10, 32)
		switch {
		case err != nil || err2 != nil || last >= maxMultiTask:
			return nil, fmt.Sprintf("Invalid task range specification (%s)", spec)
		case last < first:
			return nil, fmt.Sprintf("Invalid task range, %d-%d", first, last)
		}
		all = append(all, [2]int{int(first), int(last)})
	}
	if all == nil {
		return nil, fmt.Sprintf("Invalid task range specification (%s)", spec)
	}
	return all, ""
}

// multiWords divides a command into words; closed says that no quote is left open.
func multiWords(text string) (words [][]piece, closed bool) {
	var word []piece
	begun, literal := false, false
	add := func(c byte, as bool) {
		begun = true
		if n := len(word); n == 0 || word[n-1].literal != as {
			word = append(word, piece{literal: as})
		}
		word[len(word)-1].text += string([]byte{c})
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case literal && c == '\'':
			literal = false
		case literal:
			add(c, true)
		case c == '\'':
			literal, begun = true, true
		case c == '\\' && i+1 < len(text):
			if i++; text[i] == '\r' && i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
			if text[i] != '\n' {
				add(text[i], true)
			}
		case strings.IndexByte(" \t\r\n", c) >= 0:
			if begun {
				words = append(words, word)
			}
			word, begun = nil, false
		default:
			add(c, false)
		}
	}
	if begun {
		words = append(words, word)
	}
	return words, !literal
}

// find is a task's record, and its place among the tasks of that.
func (m *MultiProg) find(task int) (r *multiRecord, offset int, ok bool) {
	for i := range m.records {
		r, offset = &m.records[i], 0
		if r.ranges == nil {
			return r, task, true
		}
		for _, pair := range r.ranges {
			if task >= pair[0] && task <= pair[1] {
				return r, offset + task - pair[0], true
			}
			offset += pair[1] - pair[0] + 1
		}
	}
	return nil, 0, false
}

// Args is what a task runs, without arguments of srun's own, which come behind; nil: the task
// is of no line.
func (m *MultiProg) Args(task int) []string {
	r, offset, ok := m.find(task)
	if !ok {
		return nil
	}
	var args []string
	for _, word := range r.words {
		var text strings.Builder
		for _, p := range word {
			if p.literal {
				text.WriteString(p.text)
			} else {
				text.WriteString(expandTask(p.text, task, offset))
			}
		}
		args = append(args, text.String())
	}
	return args
}

// expandTask puts numbers in for %t and %o. Of others nothing is left, as with Slurm.
func expandTask(text string, task, offset int) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '%' || i+1 == len(text) {
			b.WriteByte(text[i])
			continue
		}
		switch i++; text[i] {
		case 't':
			b.WriteString(strconv.Itoa(task))
		case 'o':
			b.WriteString(strconv.Itoa(offset))
		}
	}
	return b.String()
}
