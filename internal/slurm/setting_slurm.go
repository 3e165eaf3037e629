package slurm

// rulesThatAct are keys that are read for what they say.
func rulesThatAct() []rule {
	return []rule{
		{fate: acts, keys: `ClusterName GresTypes Licenses MaxArraySize MaxJobCount MaxBatchRequeue MinJobAge TopologyPlugin
			PriorityType PriorityWeightAge PriorityWeightJobSize PriorityWeightPartition PriorityMaxAge PriorityFavorSmall
			SchedulerType SchedulerParameters SelectType SelectTypeParameters DefMemPerCPU DefMemPerNode DisableRootJobs
			PlugStackConfig NodeName PartitionName NodeSet DownNodes Prolog Epilog PrologEpilogTimeout PrologTimeout EpilogTimeout PrologFlags
			HealthCheckProgram HealthCheckInterval HealthCheckNodeState`},
		{fate: differs, keys: "FrontendName", why: "there are no front ends", remedy: "write a NodeName line for each machine that runs jobs"},
	}
}

// rulesOfScheduling are about which jobs run where and when.
func rulesOfScheduling() []rule {
	return []rule{
		{
			fate: decides, keys: `DefCpuPerGPU DefMemPerGPU MaxMemPerCPU MaxMemPerNode MaxTasksPerNode OverTimeLimit CompleteWait VSizeFactor`,
			why: notYet, same: "0 unlimited infinite",
		},
		{
			fate: decides, keys: "PriorityWeightAssoc PriorityWeightFairshare PriorityWeightQOS PriorityWeightTRES PriorityFlags PrioritySiteFactorPlugin",
			why: notYet, same: "0 site_factor/none", remedy: "have priority by age, size and partition: PriorityWeightAge, PriorityWeightJobSize, PriorityWeightPartition",
		},
		{
			fate: decides, keys: "PreemptType PreemptMode PreemptParameters PreemptExemptTime",
			why: notYet + ", and none is preempted", same: "preempt/none off -1", remedy: "give what is urgent a partition with a higher PriorityTier: its jobs come first where nodes become free",
		},
		{fate: decides, keys: "BurstBufferType MCSPlugin TopologyParam DependencyParameters", why: notYet, same: "burst_buffer/none mcs/none"},
		{
			fate: decides, keys: "AccountingStorageEnforce", why: notYet + ": there are no associations, and no limits of accounts and QOS", same: "0 none",
			remedy: "limit who may use a partition by AllowGroups, and how: MaxNodes, MaxTime",
		},
		{
			fate: decides, keys: "JobSubmitPlugins CliFilterPlugins", why: "it is not run: what it would refuse or change in jobs is taken as it comes",
			same: "none", remedy: "say in partitions what they take: AllowGroups, MaxNodes, MaxTime, DefaultTime, DefMemPerCPU",
		},
		{fate: decides, keys: "EnforcePartLimits", why: "what can never run in its partition is refused when it is submitted, whatever this says", same: "all any yes"},
		{
			fate: decides, keys: "JobRequeue", why: "it is not supported yet: jobs are requeued unless they say --no-requeue", same: "1",
			remedy: "write #SBATCH --no-requeue into scripts that must not run twice",
		},
		{
			fate: nothing, keys: "PriorityCalcPeriod PriorityDecayHalfLife PriorityUsageResetPeriod PriorityParameters PrioritySiteFactorParameters FairShareDampeningFactor",
			why: "usage of the past does not count for priority yet",
		},
		{fate: nothing, keys: "MCSParameters BurstBufferParameters SchedulerTimeSlice", why: "what it belongs to is not there yet"},
		{fate: nothing, keys: "ResvOverRun", why: "there are no reservations yet"},
		{fate: differs, keys: "RequeueExit RequeueExitHold", why: "exit codes requeue nothing", remedy: "requeue in the script: scontrol requeue $SLURM_JOB_ID"},
		{fate: differs, keys: "FirstJobId MaxJobId", why: "jobs are numbered from 1 to 4294967295", same: "1"},
		{fate: nothing, keys: "MaxStepCount MaxNodeCount", why: "there is no such limit"},
		{fate: nothing, keys: "GroupUpdateForce GroupUpdateTime", why: "groups of a user are looked up when a job is submitted"},
		{fate: nothing, keys: "AllowSpecResourcesUsage", why: "no cores are set apart"},
		{fate: nothing, keys: "TrackWCKey", why: "--wckey is kept with the job, and not accounted by"},
		{fate: differs, keys: "PrivateData", why: "every user sees the jobs, nodes and partitions of all", same: "none cloud"},
		{fate: nothing, keys: "FederationParameters", why: "there is one cluster"},
		{fate: differs, keys: "ScronParameters", why: "there is no scrontab", same: "disable", remedy: "submit from cron, or with sbatch --begin"},
	}
}

// rulesOfDaemons are about programs that serve, and how they find each other.
func rulesOfDaemons() []rule {
	return []rule{
		{
			fate: nothing, keys: `SlurmctldHost SlurmctldAddr SlurmctldPort SlurmctldPidFile SlurmctldTimeout SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg
			BackupAddr BackupController ControlAddr ControlMachine SlurmUser StateSaveLocation SlurmctldParameters`,
			why: "the controller is gangwayd: it is told on its command line where it listens and keeps its state",
		},
		{
			fate: nothing, keys: "SlurmdPort SlurmdPidFile SlurmdSpoolDir SlurmdUser SlurmdParameters PluginDir TmpFS SrunPortRange",
			why: "the daemon of a node is gangwayd agent: it connects to the controller, and has its own state directory",
		},
		{fate: nothing, keys: `SlurmctldDebug SlurmctldLogFile SlurmctldSyslogDebug SlurmdDebug SlurmdLogFile SlurmdSyslogDebug SlurmSchedLogFile SlurmSchedLogLevel
			DebugFlags LogTimeFormat`, why: "daemons log to their standard error"},
		{
			fate: nothing, keys: "AuthType AuthInfo AuthAltTypes AuthAltParameters CredType HashPlugin TLSType TLSParameters CertmgrType CertmgrParameters CertgenType CertgenParameters",
			why: "users are known by the kernel (SO_PEERCRED), and no key is shared by the cluster",
		},
		{
			fate: nothing, keys: `AccountingStorageBackupHost AccountingStorageExternalHost AccountingStorageHost AccountingStorageParameters AccountingStoragePass
			AccountingStoragePort AccountingStorageTRES AccountingStorageType AccountingStorageUser AccountingStoreFlags MaxDBDMsgs`,
			why: "the controller accounts jobs itself, with all their GRES: there is no database to reach",
		},
		{fate: differs, keys: "JobCompType", why: "what is known of jobs that ended is written nowhere else", same: "jobcomp/none", remedy: "ask for it: sacct --json"},
		{fate: nothing, keys: "JobCompHost JobCompLoc JobCompParams JobCompPass JobCompPort JobCompUser", why: "there is no JobCompType"},
		{fate: nothing, keys: `CommunicationParameters TCPTimeout MessageTimeout EioTimeout TreeWidth RoutePlugin BatchStartTimeout EpilogMsgTime GetEnvTimeout
			DataParserParameters HttpParserType UrlParserType`, why: "it is about messages between Slurm's daemons"},
		{fate: differs, keys: "SlurmdTimeout", why: "a node that is silent for 5 s takes nothing new, and what ran there is lost after 60 s", same: "60"},
		{
			fate: differs, keys: "ReturnToService", why: "a node that was lost takes jobs again when it is back", same: "1 2",
			remedy: "drain nodes that must not: scontrol update NodeName=N State=DRAIN Reason=R",
		},
		{fate: nothing, keys: "InactiveLimit", why: "an allocation ends when its salloc has been gone for 15 s"},
		{fate: nothing, keys: "ReconfigFlags", why: "partitions are as the files say when they are read again"},
		{fate: nothing, keys: "SlurmctldPlugstack", why: "there is no slurmctld that would load it"},
		{fate: differs, keys: "RebootProgram", why: "nodes are not rebooted, and scontrol reboot is refused"},
		{
			fate: differs, keys: "ResumeProgram SuspendProgram", why: "it is not run: nodes are neither started nor put off",
			remedy: "have the nodes there before jobs need them",
		},
		{
			fate: nothing, keys: "ResumeFailProgram ResumeRate ResumeTimeout SuspendExcNodes SuspendExcParts SuspendRate SuspendTime SuspendTimeout",
			why: "nodes are neither started nor put off",
		},
		{fate: differs, keys: "MailProg", why: "no mail is sent; --mail-type is taken with a note"},
		{fate: nothing, keys: "MailDomain", why: "no mail is sent"},
		{fate: nothing, keys: "PowerPlugin PowerParameters ExtSensorsType ExtSensorsFreq CoreSpecPlugin MetricsType", why: "it is about hardware and programs that are not looked at"},
		{fate: differs, keys: "NodeFeaturesPlugins", why: "features of nodes are as NodeName lines say, and no job changes them"},
	}
}

// rulesOfSteps are about what runs on nodes.
func rulesOfSteps() []rule {
	const hooks = "have containers prepared by hooks of the site (docs/hooks.md), which run as the user"
	return []rule{
		{fate: differs, keys: "TaskProlog TaskEpilog SrunProlog SrunEpilog ResvProlog ResvEpilog", why: "it is not run", remedy: hooks},
		{fate: differs, keys: "PrologSlurmctld EpilogSlurmctld", why: "it is not run", remedy: "follow what happens to a job: gangway show --events JOB"},
		{fate: nothing, keys: "PrEpPlugins PrEpParameters", why: "Prolog and Epilog are run by agents, and by no plugin"},
		{fate: differs, keys: "UnkillableStepProgram", why: "it is not run; a node that cannot end a step says so, and is not given on"},
		{fate: nothing, keys: "UnkillableStepTimeout", why: "a node is given on when it has no process of the job any more, or is lost"},
		{fate: differs, keys: "KillWait", why: "processes have 30 s between SIGTERM and SIGKILL", same: "30"},
		{fate: differs, keys: "KillOnBadExit", why: "a rank that fails does not end the others unless srun says -K", same: "0", remedy: "write srun --kill-on-bad-exit"},
		{fate: differs, keys: "WaitTime", why: "ranks wait for each other without end unless srun says --wait", same: "0", remedy: "write srun --wait=SECONDS"},
		{fate: differs, keys: "JobFileAppend", why: "output files are begun anew unless --open-mode=append", same: "0", remedy: "write #SBATCH --open-mode=append"},
		{fate: differs, keys: "MpiDefault", why: "srun starts programs without PMI", same: "none", remedy: "start MPI programs by mpirun in the container, and torch's by torchrun"},
		{fate: nothing, keys: "MpiParams", why: "srun starts programs without PMI"},
		{fate: differs, keys: "PropagateResourceLimits", why: "soft limits are those of the shell that submits, unless --propagate says otherwise", same: "all", remedy: "write --propagate=NONE"},
		{fate: differs, keys: "PropagateResourceLimitsExcept", why: "all soft limits are those of the shell that submits, unless --propagate says otherwise", same: "none", remedy: "write --propagate with those that are to be"},
		{fate: differs, keys: "PropagatePrioProcess", why: "ranks have the nice value of the node's daemon", same: "0", remedy: "begin the command with nice"},
		{fate: differs, keys: "UsePAM", why: "steps have no PAM session", same: "0 no false down", remedy: "set limits by --propagate, or in the unit of the agent"},
		{fate: differs, keys: "CpuFreqDef CpuFreqGovernors GpuFreqDef", why: "frequencies are not changed"},
		{
			fate: differs, keys: "JobContainerType", why: "processes without a container have the node's /tmp; each container has its own", same: "job_container/none",
			remedy: "run jobs in containers: --container-image",
		},
		{fate: nothing, keys: "NamespaceType", why: "what a step sees of its node is said by its container"},
		{fate: nothing, keys: "ProctrackType", why: "all processes of a step are found, whichever way they went"},
		{fate: nothing, keys: "TaskPlugin", why: "tasks are bound by --cpu-bind, and limited by what cgroups the node has: gangway doctor"},
		{fate: differs, keys: "TaskPluginParam", why: "tasks are bound as --cpu-bind says, and by nothing else", same: "none"},
		{fate: nothing, keys: "JobAcctGatherType JobAcctGatherFrequency JobAcctGatherParams AcctGatherNodeFreq", why: "use of CPU and memory is asked of the kernel when a step ends"},
		{
			fate: differs, keys: "AcctGatherEnergyType AcctGatherFilesystemType AcctGatherInterconnectType AcctGatherProfileType", why: "energy, file systems and networks are not accounted",
			same: "acct_gather_energy/none acct_gather_filesystem/none acct_gather_interconnect/none acct_gather_profile/none",
		},
		{
			fate: differs, keys: "LaunchParameters", why: "salloc starts its shell where it is typed, and limits of the node's daemon are as its unit says",
			same: "enable_nss_slurm mem_sort test_exec batch_step_set_cpu_freq disable_send_gids mpir_use_nodeaddr lustre_no_flush",
		},
		{fate: nothing, keys: "InteractiveStepOptions", why: "salloc starts its shell where it is typed"},
		{fate: nothing, keys: "LaunchType SwitchType SwitchParameters", why: "steps are launched in one way on all networks"},
		{fate: nothing, keys: "BcastExclude BcastParameters", why: "there is no sbcast: images are fetched once a node"},
		{fate: nothing, keys: "X11Parameters", why: "X11 is not forwarded"},
	}
}

// rulesOfOldAndNew are keys that Debian's manual page has not: of older releases, most of
// which newer ones refuse.
func rulesOfOldAndNew() []rule {
	return []rule{
		{fate: nothing, why: "newer releases of Slurm have not got it either", keys: `AccountingStorageLoc AccountingStoreJobComment AcctGatherInfinibandType CacheGroups CheckpointType
			CryptoType DefaultStorageHost DefaultStorageLoc DefaultStoragePass DefaultStoragePort DefaultStorageType DefaultStorageUser FastSchedule JobCheckpointDir
			JobCredentialPrivateKey JobCredentialPublicCertificate KeepAliveTime LayoutsConfig MemLimitEnforce MsgAggregationParams SallocDefaultCommand SbcastParameters
			SchedulerAuth SchedulerPort SchedulerRootFilter SrunIOTimeout UseSpecResources`},
	}
}
