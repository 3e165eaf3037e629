package listing

import (
	"strconv"
	"strings"

	"github.com/gangway-hpc/gangway/internal/job"
	"github.com/gangway-hpc/gangway/internal/slurm"
)

// stateError is that a word is no state of a job.
func stateError(word string) error {
	return &slurm.Refusal{Code: 1, Lines: []string{
		"error: Invalid job state specified: " + word,
		"error: Valid job states include: " + strings.Join(stateNames(), ",") + "\n",
	}}
}

// stateNames are the states that Slurm 22.05 knows.
func stateNames() []string {
	return []string{
		"PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
		"DEADLINE", "OUT_OF_MEMORY", "COMPLETING", "CONFIGURING", "RESIZING", "RESV_DEL_HOLD", "REQUEUED", "REQUEUE_FED",
		"REQUEUE_HOLD", "REVOKED", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
	}
}

// ParseState reads a state's long or short name, in any case.
func ParseState(word string) (name string, ok bool) {
	short := [...]string{
		"PD", "R", "S", "CD", "CA", "F", "TO", "NF", "PR", "BF", "DL", "OOM", "CG", "CF", "RS", "RD", "RQ", "RF", "RH", "RV", "SI", "SE", "SO", "ST",
	}
	for i, name := range stateNames() {
		if strings.EqualFold(word, name) || strings.EqualFold(word, short[i]) {
			return name, true
		}
	}
	return "", false
}

// JobIDs is a job, or tasks of an array.
type JobIDs struct {
	Job   job.ID
	Tasks []uint32 // nil: all
}

// ParseJobIDs reads a list such as 5,3_2,7_[1-4].
func ParseJobIDs(text string) ([]JobIDs, error) {
	var all []JobIDs
	for _, word := range slurm.SplitIDs(text) {
		head, tail, isTask := strings.Cut(word, "_")
		id, err := strconv.ParseUint(head, 10, 32)
		if err != nil || id == 0 {
			if n, _, _ := strings.Cut(head, "."); n != head && n != "" && strings.Trim(n, "0123456789") == "" {
				return nil, plainly("slurm_load_jobs error: %s", slurm.ErrorText("INVALID_JOB_ID"))
			}
			return nil, refuse("Invalid job id: %s", word)
		}
		one := JobIDs{Job: job.ID(id)}
		if isTask {
			inner := strings.TrimSuffix(strings.TrimPrefix(tail, "["), "]")
			names, err := slurm.Expand("[" + inner + "]")
			if err != nil || inner == "" {
				return nil, plainly("slurm_load_jobs error: %s", slurm.ErrorText("INVALID_JOB_ID"))
			}
			for _, name := range names {
				n, err := strconv.ParseUint(name, 10, 32)
				if err != nil {
					return nil, plainly("slurm_load_jobs error: %s", slurm.ErrorText("INVALID_JOB_ID"))
				}
				one.Tasks = append(one.Tasks, uint32(n))
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// words splits at commas.
func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
