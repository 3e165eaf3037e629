package listing

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/api"
	"github.com/gangway-hpc/gangway/internal/job"
)

// JobID is a job's name as people see it: 123, 123_4, or 123_[4-7%2] for the tasks of an
// array that wait.
func (v *View) JobID(j *api.Job) string {
	switch {
	case j.Waiting != nil:
		return arrayID(j).String() + "_[" + v.tasks(j) + "]"
	case j.Array != nil:
		return j.Array.Job.String() + "_" + strconv.FormatUint(uint64(j.Array.Task), 10)
	}
	return j.ID.String()
}

// arrayID is the array's number, or that of a job that is in none.
func arrayID(j *api.Job) job.ID {
	if j.Array != nil {
		return j.Array.Job
	}
	return j.ID
}

// tasks is the list of an array's waiting tasks, with its throttle.
func (v *View) tasks(j *api.Job) string {
	text := taskList(j.Waiting)
	if v.BitstrLen > 0 && len(text) >= v.BitstrLen {
		text = text[:max(0, v.BitstrLen-4)] + "..."
	}
	if j.Throttle > 0 {
		text += "%" + strconv.Itoa(j.Throttle)
	}
	return text
}

// Merge makes one of the jobs that are waiting tasks of the same array, as Slurm has it;
// they may come in several, by why they wait. The first one's reason is kept.
func Merge(jobs []api.Job) []api.Job {
	first := slices.IndexFunc(jobs, func(j api.Job) bool { return j.Waiting != nil })
	if first < 0 {
		return jobs
	}
	kept := jobs[:first]
	at := map[job.ID]int{}
	for _, j := range jobs[first:] {
		if j.Waiting == nil {
			kept = append(kept, j)
			continue
		}
		array := arrayID(&j)
		n, ok := at[array]
		if !ok {
			at[array] = len(kept)
			j.ID = array
			kept = append(kept, j)
			continue
		}
		waiting := slices.Concat(kept[n].Waiting, j.Waiting)
		slices.SortFunc(waiting, func(a, b job.Range) int { return cmp.Compare(a.First, b.First) })
		kept[n].Waiting = waiting
	}
	return kept
}

// TaskList writes tasks of an array in the way in which they are named: 0-3,7.
func TaskList(tasks []uint32) string {
	ranges := make([]job.Range, len(tasks))
	for i, task := range tasks {
		ranges[i] = job.Range{First: task, Last: task, Step: 1}
	}
	return taskList(ranges)
}

// taskList writes numbers as Slurm does: with a step if all are so far apart, and are
// many, else as ranges.
func taskList(ranges []job.Range) string {
	if first, last, step, ok := uniform(ranges); ok {
		return number(first) + "-" + number(last) + ":" + number(step)
	}
	var words []string
	begin, end, open := uint32(0), uint32(0), false
	flush := func() {
		switch {
		case !open:
		case begin == end:
			words = append(words, number(begin))
		default:
			words = append(words, number(begin)+"-"+number(end))
		}
	}
	add := func(first, last uint32) {
		if open && first == end+1 {
			end = last
			return
		}
		flush()
		begin, end, open = first, last, true
	}
	for _, r := range ranges {
		if r.Step == 1 {
			add(r.First, r.Last)
			continue
		}
		for i := range r.Len() {
			n := r.First + uint32(i)*r.Step
			add(n, n)
		}
	}
	flush()
	return strings.Join(words, ",")
}

// uniform says whether the numbers of all ranges are equally far apart, by more than 1.
func uniform(ranges []job.Range) (first, last, step uint32, ok bool) {
	n := 0
	for _, r := range ranges {
		for i := range r.Len() {
			at := r.First + uint32(i)*r.Step
			switch {
			case n == 0:
				first = at
			case n == 1:
				step = at - last
			case at-last != step:
				return 0, 0, 0, false
			}
			last = at
			n++
		}
		if step == 1 {
			return 0, 0, 0, false
		}
	}
	return first, last, step, n > 2 && last-first > 10
}

func number(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
