package slurm

// rulesOfNodes are those of NodeName lines.
func rulesOfNodes() []rule {
	return []rule{
		{fate: acts, keys: `NodeName Boards CoresPerSocket CPUs Procs Features Feature Gres MemSpecLimit RealMemory Reason Sockets SocketsPerBoard State
			ThreadsPerCore Topology Weight`},
		{fate: decides, keys: "CoreSpecCount CpuSpecList RestrictedCoresPerGPU TmpDisk", why: notYet, same: "0"},
		{fate: differs, keys: "CpuBind", why: "tasks are bound as --cpu-bind says", same: "none"},
		{fate: acts, keys: "NodeAddr"},
		{fate: nothing, keys: "NodeHostname BcastAddr Port", why: "agents connect to the controller, and say which node they are"},
		{fate: nothing, keys: "TRESWeights Parameters", why: "it is about billing, and ways to detect hardware, of Slurm"},
	}
}

// rulesOfPartitions are those of PartitionName lines.
func rulesOfPartitions() []rule {
	return []rule{
		{fate: acts, keys: `PartitionName AllowGroups AllowUsers AllowAccounts AllowQos DenyUsers DenyAccounts DenyQos Default DefaultTime DefMemPerCPU DefMemPerNode
			DisableRootJobs MaxNodes MaxTime MinNodes Nodes OverSubscribe Shared Priority PriorityJobFactor PriorityTier RootOnly State`},
		{fate: decides, why: notYet, same: "0 no none off all unlimited infinite", keys: `AllocNodes Alternate DefCpuPerGPU DefMemPerGPU ExclusiveTopo ExclusiveUser JobDefaults LLN
			MaxCPUsPerNode MaxCPUsPerSocket MaxMemPerCPU MaxMemPerNode OverTimeLimit PreemptMode ReqResv SelectTypeParameters Topology`},
		{fate: decides, keys: "QOS", why: notYet + ": there are no QOS with limits", remedy: "limit the partition itself: MaxNodes, MaxTime, AllowGroups", same: "n/a"},
		{fate: decides, keys: "MaxCPUsPerUser", why: "neither Slurm nor Gangway knows it", remedy: "in Slurm it is a limit of the partition's QOS: MaxTRESPerUser=cpu=N"},
		{fate: differs, keys: "CpuBind", why: "tasks are bound as --cpu-bind says", same: "none"},
		{fate: differs, keys: "Hidden", why: "partitions are shown to all", same: "no 0 false down", remedy: "limit who may use it: AllowGroups"},
		{fate: nothing, keys: "GraceTime", why: "no job is preempted"},
		{fate: nothing, keys: "PowerDownOnIdle ResumeTimeout SuspendTime SuspendTimeout", why: "nodes are neither started nor put off"},
		{fate: nothing, keys: "TRESBillingWeights", why: "jobs are accounted by what they have, and not billed"},
	}
}

// rulesOfGRES are those of gres.conf.
func rulesOfGRES() []rule {
	return []rule{
		{fate: acts, keys: "NodeName Name Type File Count Cores CPUs Links MultipleFiles"},
		{fate: nothing, keys: "AutoDetect", why: "agents find GPUs by themselves, without NVML; how many there are says Gres= in slurm.conf"},
		{fate: differs, keys: "Flags", why: "GPUs are told to jobs by CUDA_VISIBLE_DEVICES, and shared by none", same: "countonly nvidia_gpu_env"},
	}
}

// rulesOfTopology are those of topology.conf.
func rulesOfTopology() []rule {
	return []rule{
		{fate: acts, keys: "SwitchName Switches Nodes BlockName BlockSizes"},
		{fate: nothing, keys: "LinkSpeed", why: "placement counts switches, not what their links carry; it means nothing to Slurm either"},
	}
}

// rulesOfCgroups are those of cgroup.conf.
func rulesOfCgroups() []rule {
	const (
		found = "which control groups can be had is found out on each node, v2 or v1: gangway doctor"
		older = "kernels limit this memory with the rest"
	)
	return []rule{
		{
			fate: differs, keys: "ConstrainCores", why: "CPUs are counted by the scheduler, and a job's processes are not confined to them", same: "no 0 false down",
			remedy: "bind tasks where it matters: srun --cpu-bind=map_cpu:LIST; give nodes to one job: OverSubscribe=EXCLUSIVE",
		},
		{
			fate: differs, keys: "ConstrainDevices", why: "a container has the GPUs that its job has; what runs without one is told them by CUDA_VISIBLE_DEVICES and may open all",
			remedy: "run jobs in containers: --container-image",
		},
		{fate: differs, keys: "ConstrainRAMSpace", why: "the memory of a step is limited wherever the node's control groups allow it", same: "yes 1 true up"},
		{fate: differs, keys: "ConstrainSwapSpace", why: "a step whose memory is limited may not swap", same: "yes 1 true up"},
		{fate: differs, keys: "AllowedRAMSpace", why: "a step may use the memory that its job asked for: 100 percent", same: "100 100.0", remedy: "ask for more: --mem"},
		{fate: differs, keys: "AllowedSwapSpace", why: "a step whose memory is limited may not swap", same: "0 0.0"},
		{fate: differs, keys: "MaxRAMPercent", why: "jobs that say no --mem have what DefMemPerCPU or DefMemPerNode says, or else all of the node's", same: "100 100.0", remedy: "set RealMemory, or MemSpecLimit, for what jobs may have"},
		{fate: nothing, keys: "MaxSwapPercent", why: "a step whose memory is limited may not swap"},
		{fate: nothing, keys: "MinRAMSpace", why: "the limit is for the ranks alone: what supervises them is outside of it"},
		{fate: nothing, keys: "AllowedKmemSpace ConstrainKmemSpace MaxKmemPercent MinKmemSpace", why: older},
		{fate: nothing, keys: "MemorySwappiness", why: "a step whose memory is limited may not swap"},
		{fate: nothing, keys: "CgroupAutomount CgroupMountpoint CgroupPlugin IgnoreSystemd IgnoreSystemdOnFailure", why: found},
		// Of newer releases than Debian's.
		{fate: nothing, keys: "CgroupSlice EnableControllers EnableExtraControllers SystemdTimeout SignalChildrenProcesses", why: found},
		// Of older ones.
		{fate: nothing, keys: "AllowedDevicesFile CgroupReleaseAgentDir TaskAffinity", why: "newer releases of Slurm have not got it either"},
	}
}
