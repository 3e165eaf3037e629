package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
)

// readPhilly reads "timestamp,duration,num_gpus,gpu_time,cluster", the timestamp being
// "2017-10-09 07:01:55" and the duration in seconds.
func (r *reader) readPhilly() error {
	return r.rows(",", parsePhilly, "timestamp", "duration", "num_gpus")
}

// rows reads a header, in which all names have to be, and the lines below it. parse makes a
// job of one, or says why it is left out; "-" is without a word.
func (r *reader) rows(separator string, parse func(columns, []string) (Job, string, error), names ...string) error {
	c, err := r.columns(separator, names...)
	if err != nil {
		return err
	}
	for {
		line, ok, err := r.next()
		if !ok {
			return err
		}
		if line == "" {
			continue
		}
		j, why, err := parse(c, r.csv(line, separator))
		if err == nil && why != "" {
			if why != "-" {
				r.leftOut[why]++
			}
			continue
		}
		if err := r.add(j, err); err != nil {
			return err
		}
	}
}

func parsePhilly(c columns, fields []string) (j Job, leftOut string, err error) {
	if len(fields) < len(c) {
		return j, "", fmt.Errorf("%d fields: want %d", len(fields), len(c))
	}
	at, err := time.Parse(time.DateTime, c.get(fields, "timestamp"))
	if err != nil {
		return j, "", fmt.Errorf("timestamp %q: want YYYY-MM-DD HH:MM:SS", c.get(fields, "timestamp"))
	}
	if j.Run, err = seconds(c, fields, "duration"); err != nil {
		return j, "", err
	}
	j.Submit, j.Account = job.Time(at.UnixMilli()), c.get(fields, "cluster")
	if j.GPUs, err = whole(c, fields, "num_gpus"); err == nil && j.Run == 0 {
		leftOut = "never ran"
	}
	return j, leftOut, err
}

// seconds is a column that holds seconds, maybe with a fraction.
func seconds(c columns, fields []string, name string) (job.Duration, error) {
	text := c.get(fields, name)
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(s) || s < 0 || s > 1e12 {
		return 0, fmt.Errorf("%s %q: want seconds", name, text)
	}
	return job.Duration(math.Round(s * 1000)), nil
}

// whole is a column that holds a whole number that is not negative.
func whole(c columns, fields []string, names ...string) (int, error) {
	text := c.get(fields, names...)
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%s %q: want a whole number", names[0], text)
	}
	return int(n), nil
}

// readOpenB reads the pods of Alibaba's GPU-sharing trace: those with whole GPUs. Their
// creation, start and end are in seconds.
func (r *reader) readOpenB() error {
	return r.rows(",", parseOpenB, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
}

func parseOpenB(c columns, fields []string) (j Job, leftOut string, err error) {
	if len(fields) != len(c) {
		return j, "", fmt.Errorf("%d fields: want %d", len(fields), len(c))
	}
	var milli, memory, share int
	for _, n := range []struct {
		to   *int
		name string
	}{{&milli, "cpu_milli"}, {&memory, "memory_mib"}, {&j.GPUs, "num_gpu"}, {&share, "gpu_milli"}} {
		if *n.to, err = whole(c, fields, n.name); err != nil {
			return j, "", err
		}
	}
	created, err := seconds(c, fields, "creation_time")
	if err != nil {
		return j, "", err
	}
	ended, err := seconds(c, fields, "deletion_time")
	if err != nil {
		return j, "", err
	}
	switch {
	case j.GPUs == 0:
		return j, "no GPU", nil
	case share != 1000:
		return j, "part of a GPU", nil
	case c.get(fields, "scheduled_time") == "":
		return j, "never ran", nil
	}
	started, err := seconds(c, fields, "scheduled_time")
	if err != nil {
		return j, "", err
	}
	if started >= ended {
		return j, "never ran", nil
	}
	j.Submit, j.Run = job.Time(created), ended-started
	j.Nodes, j.CPUs, j.Memory, j.Name = 1, max((milli+999)/1000, 1), int64(memory), c.get(fields, "name")
	if spec := c.get(fields, "gpu_spec"); spec != "" {
		j.AnyFeature = strings.Split(spec, "|")
	}
	return j, "", nil
}
