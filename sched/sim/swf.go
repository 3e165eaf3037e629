package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
)

// swfFields are the fields of a line of SWF; further ones are ignored.
const swfFields = 18

// The fields, counted from 0. -1 is "not known" in each of them.
const (
	swfID, swfSubmit, swfRun          = 0, 1, 3
	swfProcs, swfReqProcs, swfReqTime = 4, 7, 8
	swfReqMemory, swfUser, swfGroup   = 9, 11, 12
)

// readSWF reads the Standard Workload Format, version 2: lines of 18 numbers, and a
// header of comments. Times are in seconds, memory in KiB a processor.
func (r *reader) readSWF() error {
	start := job.Time(0)
	for {
		line, ok, err := r.next()
		if !ok {
			return err
		}
		if comment, found := strings.CutPrefix(line, ";"); found {
			r.swfHeader(comment, &start)
			continue
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		j, ran, err := parseSWF(line)
		if err == nil && !ran {
			r.leftOut["never ran"]++
			continue
		}
		j.Submit += start
		if err := r.add(j, err); err != nil {
			return err
		}
	}
}

// swfHeader reads a comment of the header, as "; MaxProcs: 128".
func (r *reader) swfHeader(comment string, start *job.Time) {
	key, value, _ := strings.Cut(comment, ":")
	word, _, _ := strings.Cut(strings.TrimSpace(value), " ")
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return
	}
	switch strings.TrimSpace(key) {
	case "UnixStartTime":
		*start = job.Time(n) * 1000
	case "MaxProcs":
		r.trace.Procs = int(n)
	case "MaxNodes":
		r.trace.Nodes = int(n)
	}
}

func parseSWF(line string) (j Job, ran bool, err error) {
	fields := strings.Fields(line)
	if len(fields) < swfFields {
		return j, false, fmt.Errorf("%d fields: want %d", len(fields), swfFields)
	}
	var n [swfFields]int64
	for i := range n {
		f, err := strconv.ParseFloat(fields[i], 64)
		if err != nil || math.Abs(f) > 1e15 || math.IsNaN(f) {
			return j, false, fmt.Errorf("field %d is %q: want a number", i+1, fields[i])
		}
		n[i] = int64(f) // some logs have fractions of seconds
	}
	procs := n[swfReqProcs]
	if procs <= 0 {
		procs = n[swfProcs]
	}
	if n[swfRun] <= 0 || procs == 0 || procs == -1 {
		return j, false, nil
	}
	j = Job{
		Submit: job.Time(n[swfSubmit]) * 1000, Run: job.Duration(n[swfRun]) * job.Second, CPUs: int(procs),
		Name: "job " + fields[swfID],
	}
	if n[swfSubmit] < 0 { // before the header's time is added
		return j, true, fmt.Errorf("field %d is %q: want a time of submission", swfSubmit+1, fields[swfSubmit])
	}
	if n[swfReqTime] > 0 {
		j.Limit = job.Duration(n[swfReqTime]) * job.Second
	}
	if n[swfReqMemory] > 0 && n[swfReqMemory] < 1<<40 && procs < maxCount {
		j.Memory = (n[swfReqMemory] + 1023) / 1024 * procs
	}
	if n[swfUser] > 0 {
		j.User = "user" + strconv.FormatInt(n[swfUser], 10)
	}
	if n[swfGroup] > 0 {
		j.Account = "group" + strconv.FormatInt(n[swfGroup], 10)
	}
	return j, true, nil
}
