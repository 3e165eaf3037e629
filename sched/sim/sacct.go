package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// readSacct reads what "sacct --parsable2" prints with its header. Steps are left out.
// Times have no zone there and are taken for UTC.
func (r *reader) readSacct() error {
	return r.rows("|", parseSacct, "JobID|JobIDRaw", "Submit", "ElapsedRaw|Elapsed|End", "AllocTRES|ReqTRES|AllocCPUS|NCPUS|ReqCPUS")
}

func parseSacct(c columns, fields []string) (j Job, leftOut string, err error) {
	if id := c.get(fields, "jobid", "jobidraw"); strings.Contains(id, ".") {
		return j, "-", nil // a step
	}
	if len(fields) < len(c) {
		return j, "", fmt.Errorf("%d fields: want %d", len(fields), len(c))
	}
	if j.Submit, err = sacctTime(c.get(fields, "submit")); err != nil {
		return j, "", err
	}
	if j.Run, err = sacctElapsed(c, fields); err != nil {
		return j, "", err
	}
	switch state, _, _ := strings.Cut(c.get(fields, "state"), " "); {
	case state == "RUNNING" || state == "SUSPENDED" || state == "COMPLETING":
		return j, "not ended yet", nil
	case state == "PENDING" || j.Run == 0:
		return j, "never ran", nil
	}
	j.Name, j.User, j.Account = c.get(fields, "jobname"), c.get(fields, "user"), c.get(fields, "account")
	j.Partition = c.get(fields, "partition")
	if limit := c.get(fields, "timelimit"); limit != "" && limit != "Partition_Limit" {
		d, err := slurm.ParseTime(limit)
		if err != nil {
			return j, "", err
		}
		if d != job.Forever {
			j.Limit = d
		}
	}
	tres, err := slurm.ParseTRES(c.get(fields, "alloctres", "reqtres"))
	if err != nil {
		return j, "", err
	}
	if tres.GPUs() > maxCount || tres.CPUs > maxCount || tres.Nodes > maxCount {
		return j, "", errors.New("more resources than there are")
	}
	j.GPUs, j.CPUs, j.Nodes, j.Memory = int(tres.GPUs()), int(tres.CPUs), int(tres.Nodes), tres.Memory
	if text := c.get(fields, "alloccpus", "ncpus", "reqcpus"); j.CPUs == 0 && text != "" {
		if j.CPUs, err = whole(c, fields, "alloccpus", "ncpus", "reqcpus"); err != nil {
			return j, "", err
		}
	}
	if text := c.get(fields, "allocnodes", "nnodes", "reqnodes"); j.Nodes == 0 && text != "" {
		if j.Nodes, err = whole(c, fields, "allocnodes", "nnodes", "reqnodes"); err != nil {
			return j, "", err
		}
	}
	return j, "", nil
}

func sacctTime(text string) (job.Time, error) {
	at, err := time.Parse("2006-01-02T15:04:05", text)
	if err != nil {
		return 0, fmt.Errorf("time %q: want YYYY-MM-DDTHH:MM:SS", text)
	}
	return job.Time(at.UnixMilli()), nil
}

// sacctElapsed is how long a job ran, from the columns that there are; 0: it did not.
func sacctElapsed(c columns, fields []string) (job.Duration, error) {
	if c.get(fields, "elapsedraw") != "" {
		return seconds(c, fields, "elapsedraw")
	}
	if text := c.get(fields, "elapsed"); text != "" {
		if strings.Trim(text, "0:") == "" {
			return 0, nil // ParseTime takes it for no limit
		}
		return slurm.ParseTime(text)
	}
	start, end := c.get(fields, "start"), c.get(fields, "end")
	if start == "Unknown" || start == "None" || start == "" || end == "Unknown" {
		return 0, nil
	}
	from, err := sacctTime(start)
	if err != nil {
		return 0, err
	}
	to, err := sacctTime(end)
	return to.Sub(from), err
}
