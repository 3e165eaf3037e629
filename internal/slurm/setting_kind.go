package slurm

// kinds are the keys whose values Slurm's parser looks at itself. What is read here has
// its limits where it is read.
func kinds(s section) map[kind]string {
	switch s {
	case slurmConf:
		return map[kind]string{
			number16: `AccountingStoragePort AcctGatherNodeFreq BatchStartTimeout CompleteWait EioTimeout ExtSensorsFreq FairShareDampeningFactor FastSchedule
				GetEnvTimeout GroupUpdateForce GroupUpdateTime HealthCheckInterval InactiveLimit JobFileAppend JobRequeue KillOnBadExit KillWait MaxTasksPerNode
				MessageTimeout OverTimeLimit PrologEpilogTimeout PropagatePrioProcess ResumeRate ResumeTimeout ResvOverRun ReturnToService SchedulerTimeSlice
				SlurmSchedLogLevel SlurmctldTimeout SlurmdTimeout SuspendRate SuspendTimeout TCPTimeout UnkillableStepTimeout VSizeFactor WaitTime`,
			number32: `EpilogMsgTime FirstJobId JobCompPort KeepAliveTime MaxDBDMsgs MaxJobId MaxNodeCount MaxStepCount PriorityWeightAssoc
				PriorityWeightFairshare PriorityWeightQOS SlurmdPort`,
			number64: "DefCpuPerGPU DefMemPerGPU MaxMemPerCPU MaxMemPerNode",
			yesNo:    "AccountingStoreJobComment AllowSpecResourcesUsage TrackWCKey UsePAM",
		}
	case nodeLine:
		return map[kind]string{number16: "CoreSpecCount", number32: "TmpDisk"}
	case partitionLine:
		return map[kind]string{
			number16: "ResumeTimeout SuspendTimeout OverTimeLimit", number32: "GraceTime MaxCPUsPerNode MaxCPUsPerSocket",
			number64: "DefCpuPerGPU DefMemPerGPU MaxMemPerCPU MaxMemPerNode", yesNo: "ExclusiveUser Hidden LLN ReqResv",
		}
	case cgroupConf:
		return map[kind]string{
			yesNo: `CgroupAutomount IgnoreSystemd IgnoreSystemdOnFailure ConstrainCores ConstrainDevices ConstrainKmemSpace ConstrainRAMSpace
				ConstrainSwapSpace EnableControllers`,
			number64: "MemorySwappiness MinKmemSpace MinRAMSpace",
			percent:  "AllowedKmemSpace AllowedRAMSpace AllowedSwapSpace MaxKmemPercent MaxRAMPercent MaxSwapPercent",
		}
	}
	return nil
}

// choice is a key whose values are words of a set.
type choice struct {
	key, prefix, words string
	several            bool // a list of them
}

// choices are those of a section. Words are those of Slurm 22.05 to 25.11.
func choices(s section) []choice {
	switch s {
	case slurmConf:
		return []choice{
			{key: "SelectTypeParameters", several: true, words: "CR_CPU CR_CPU_Memory CR_Core CR_Core_Memory CR_Socket CR_Socket_Memory CR_Memory CR_ONE_TASK_PER_CORE " +
				"CR_CORE_DEFAULT_DIST_BLOCK CR_LLN CR_Pack_Nodes OTHER_CONS_RES OTHER_CONS_TRES NHC_NO NHC_NO_STEPS NHC_ABSOLUTELY_NO ENFORCE_BINDING_GRES " +
				"LL_SHARED_GRES MULTIPLE_SHARING_GRES_PJ ONE_TASK_PER_SHARING_GRES"},
			{key: "PrologFlags", several: true, words: "Alloc Contain DeferBatch ForceRequeueOnFail NoHold RunInJob Serial X11"},
			{key: "PreemptType", prefix: "preempt/", words: "none partition_prio qos"},
			{key: "PreemptMode", several: true, words: "OFF CANCEL GANG PRIORITY REQUEUE SUSPEND WITHIN"},
			{key: "PriorityFlags", several: true, words: "ACCRUE_ALWAYS CALCULATE_RUNNING DEPTH_OBLIVIOUS FAIR_TREE NO_FAIR_TREE INCR_ONLY MAX_TRES MAX_TRES_GRES " +
				"NO_NORMAL_ALL NO_NORMAL_ASSOC NO_NORMAL_PART NO_NORMAL_QOS NO_NORMAL_TRES SMALL_RELATIVE_TO_TIME"},
			{key: "PrivateData", several: true, words: "accounts cloud events jobs nodes partitions reservations usage users none all"},
			{key: "AccountingStorageEnforce", several: true, words: "associations limits nojobs nosteps qos safe wckeys all none 0 1 2"},
			{key: "AccountingStorageType", prefix: "accounting_storage/", words: "none slurmdbd filetxt mysql pgsql"},
			{key: "ProctrackType", prefix: "proctrack/", words: "cgroup cray_aries linuxproc pgid"},
			{key: "TaskPlugin", prefix: "task/", several: true, words: "affinity cgroup cray_aries none"},
			{key: "EnforcePartLimits", words: "ALL ANY NO YES"},
			{key: "HealthCheckNodeState", several: true, words: "ALLOC ANY CYCLE IDLE MIXED NONDRAINED_IDLE START_ONLY"},
			{key: "PropagateResourceLimits", several: true, words: "ALL NONE AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK"},
			{key: "PropagateResourceLimitsExcept", several: true, words: "ALL NONE AS CORE CPU DATA FSIZE MEMLOCK NOFILE NPROC RSS STACK"},
			{key: "JobAcctGatherType", prefix: "jobacct_gather/", words: "cgroup linux none"},
			{key: "JobContainerType", prefix: "job_container/", words: "cncu none tmpfs"},
		}
	case gresConf:
		return []choice{{key: "Flags", several: true, words: "CountOnly one_sharing all_sharing nvidia_gpu_env amd_gpu_env intel_gpu_env opencl_env no_gpu_env explicit"}}
	case cgroupConf:
		return []choice{{key: "CgroupPlugin", words: "cgroup/v1 cgroup/v2 autodetect disabled"}}
	}
	return nil
}

// Parameters of the scheduler: those that Slurm decides by and we do not, yet, those that
// are about how it works, and those that are read.
const (
	neglectedParameters = "allow_zero_lic assoc_limit_stop bf_busy_nodes bf_job_part_count_reserve bf_max_job_assoc " +
		"bf_max_job_part bf_max_job_start bf_max_job_user bf_max_job_user_part bf_min_age_reserve bf_min_prio_reserve " +
		"bf_one_resv_per_job bf_running_job_reserve bf_topopt_enable default_gbytes enable_job_state_cache enable_user_top " +
		"extra_constraints kill_invalid_depend pack_serial_at_end partition_job_depth preempt_reorder_count " +
		"preempt_strict_order preempt_youngest_first reduce_completing_frag sched_max_job_start spec_cores_first " +
		"time_min_as_soft_limit"
	otherParameters = "batch_sched_delay bb_array_stage_cnt bf_allow_magnetic_slot bf_continue bf_hetjob_immediate bf_hetjob_prio bf_licenses " +
		"bf_max_job_array_resv bf_max_time bf_node_space_size bf_topopt_iterations bf_window_linear bf_yield_interval bf_yield_sleep bf_yield_rpc_cnt " +
		"build_queue_timeout correspond_after_task_cnt defer defer_batch delay_boot disable_job_shrink disable_hetjob_steps disable_remote_singleton " +
		"enable_hetjob_steps Ignore_NUMA ignore_constraint_validation ignore_prefer_validation max_array_tasks max_depend_depth max_rpc_cnt " +
		"max_sched_time max_script_size max_submit_line_size no_backup_scheduling no_env_cache nohold_on_prolog_fail requeue_on_resume_failure " +
		"requeue_setup_env_fail salloc_wait_nodes sbatch_wait_nodes sched_min_interval step_retry_count step_retry_time whole_hetjob whole_pack"
	usedParameters = "max_switch_wait max_batch_requeue bf_window bf_resolution bf_interval bf_max_job_test default_queue_depth sched_interval"

	neglectedSelect = "CR_LLN CR_ONE_TASK_PER_CORE CR_PACK_NODES CR_SOCKET CR_SOCKET_MEMORY"
)
