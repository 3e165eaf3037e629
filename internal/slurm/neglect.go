package slurm

import (
	"slices"
	"strings"
)

// What Slurm schedules by and we do not, yet: each is said, because jobs get on otherwise
// than they did. Everything else that is ignored is about how Slurm works, not about what
// it decides.
const (
	neglectedSettings = "AccountingStorageEnforce BurstBufferType EnforcePartLimits GpuFreqDef JobSubmitPlugins MaxTasksPerNode " +
		"OverTimeLimit PreemptExemptTime PreemptMode PreemptParameters PreemptType PriorityFlags PrioritySiteFactorPlugin " +
		"PriorityWeightAssoc PriorityWeightFairshare PriorityWeightQOS PriorityWeightTRES TopologyParam VSizeFactor"
	neglectedParameters = "assoc_limit_stop bf_busy_nodes bf_max_job_assoc bf_max_job_part bf_max_job_start bf_max_job_user " +
		"bf_max_job_user_part bf_min_age_reserve bf_min_prio_reserve enable_job_state_cache enable_user_top extra_constraints " +
		"kill_invalid_depend pack_serial_at_end partition_job_depth preempt_reorder_count preempt_strict_order " +
		"preempt_youngest_first reduce_completing_frag sched_max_job_start"
	neglectedSelect    = "CR_LLN CR_ONE_TASK_PER_CORE CR_PACK_NODES CR_SOCKET CR_SOCKET_MEMORY"
	neglectedPartition = "AllocNodes Alternate DefCpuPerGPU DefMemPerGPU DisableRootJobs ExclusiveTopo ExclusiveUser JobDefaults " +
		"LLN MaxCPUsPerNode MaxCPUsPerSocket MaxCPUsPerUser MaxMemPerCPU MaxMemPerNode OverTimeLimit PreemptMode QOS ReqResv " +
		"RootOnly SelectTypeParameters Topology"
	neglectedNode = "CoreSpecCount CpuSpecList RestrictedCoresPerGPU TmpDisk"
)

// neglect notes a setting that has no meaning here, and warns if it is in a list of those
// that have one for Slurm. Values that switch a setting off are no matter.
func (r *reader) neglect(l line, p pair, list string) {
	r.ignore(l, p)
	if !isOneOf(p.key, list) {
		return
	}
	off := []string{"", "0", "no", "none", "off", "all", "preempt/none", "unlimited", "0-0"}
	if strings.EqualFold(p.key, "EnforcePartLimits") {
		off = []string{"all", "any", "yes"} // as it is here: what can never run is refused
	}
	if !slices.Contains(off, strings.ToLower(p.value)) {
		r.warn(l, "%s=%s is not supported yet: jobs are scheduled without it", p.key, quoted(p.value))
	}
}
