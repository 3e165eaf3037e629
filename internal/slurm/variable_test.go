package slurm_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gangway-hpc/gangway/internal/slurm"
)

// variables are all that Slurm's manuals have under "input environment variables", with a value
// each; without one it is about Slurm's inside, or read elsewhere (SLURM_EXIT_ERROR,
// SLURM_EXIT_IMMEDIATE, SLURM_UMASK, SLURM_TEST_EXEC by cmd/gangway).
func variables() map[slurm.Command]string {
	common := `ACCOUNT=a ACCTG_FREQ= CONSTRAINT=a CORE_SPEC=! CPUS_PER_GPU=2 DELAY_BOOT=! DISTRIBUTION=cyclic EXCLUSIVE=1 GPU_BIND=none GPU_FREQ=!
		GPUS=1 GPUS_PER_NODE=1 GRES=gpu:1 GRES_FLAGS=! HINT=nomultithread JOB_NAME=a MEM_BIND=! MEM_PER_CPU=1 MEM_PER_GPU=1 MEM_PER_NODE=1 NETWORK=!
		NO_KILL=! PARTITION=p POWER=! PROFILE=! QOS=q REQ_SWITCH=1 RESERVATION=! SIGNAL=USR1 SPREAD_JOB=! THREAD_SPEC=!
		THREADS_PER_CORE=1 TIMELIMIT=5 USE_MIN_NODES=! WCKEY=a`
	own := map[slurm.Command]string{
		slurm.Sbatch: `ARRAY_INX=1 BATCH=! CLUSTERS=! CONTAINER=! DEBUG=1 ERROR=e EXPORT=A GET_USER_ENV=1 IGNORE_PBS= INPUT=i NO_REQUEUE=1 OVERCOMMIT=!
			OPEN_MODE=append OUTPUT=o REQUEUE= WAIT=1 WAIT_ALL_NODES= SLURM_CLUSTERS=! SLURM_HINT=nomultithread`,
		slurm.Salloc: `BELL=1 NO_BELL=1 BURST_BUFFER=! CLUSTERS=! CONTAINER=! DEBUG=1 IMMEDIATE=9 KILL_CMD=! OVERCOMMIT=! WAIT_ALL_NODES=
			SLURM_CLUSTERS=! SLURM_HINT=nomultithread`,
		slurm.Srun: `BCAST=! BCAST_EXCLUDE=! BURST_BUFFER=! CLUSTERS=! COMPRESS=! CPU_BIND=cores CPU_FREQ_REQ=! SRUN_CPUS_PER_TASK=2 DEBUG=1 DEPENDENCY=1
			DISABLE_STATUS=1 EPILOG=1 EXACT=1 EXPORT_ENV=A SRUN_EXPORT_ENV=A IMMEDIATE=9 JOB_ID=7 JOBID=7 JOB_NUM_NODES=2 NNODES=2 KILL_BAD_EXIT=1 LABELIO=1
			MPI_TYPE=! NPROCS=2 NTASKS=2 NTASKS_PER_CORE=1 NTASKS_PER_NODE=2 NTASKS_PER_SOCKET= OVERCOMMIT=1 OPEN_MODE=append OVERLAP=1 PROLOG=p
			REMOTE_CWD=/ WORKING_DIR=/ RESV_PORTS=! SEND_LIBS=! STDERRMODE=e STDINMODE=i STDOUTMODE=o TASK_EPILOG=e TASK_PROLOG=p
			THREADS= UNBUFFEREDIO=1 WAIT=5 SLURMD_DEBUG=! SRUN_CONTAINER=!`,
	}
	for c := range own {
		own[c] += " " + common
	}
	return own
}

// TestVariables: each variable changes what is asked for, or is refused by its name and its
// option's; and the command line wins over it.
func TestVariables(t *testing.T) {
	prefixes := map[slurm.Command]string{slurm.Sbatch: "SBATCH_", slurm.Srun: "SLURM_", slurm.Salloc: "SALLOC_"}
	for c, words := range variables() {
		args := map[slurm.Command][]string{slurm.Sbatch: {"script"}, slurm.Srun: {"true"}}[c]
		text := func(environ map[string]string) (string, error) {
			o, err := parse(c, args, "#!/bin/sh\n", environ)
			if err != nil {
				return "", err
			}
			b, err := json.Marshal(o)
			return string(b), err
		}
		bare, err := text(nil)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(words) {
			name, value, _ := strings.Cut(word, "=")
			if !strings.HasPrefix(name, "SLURM") && !strings.HasPrefix(name, "SRUN_") {
				name = prefixes[c] + name
			}
			refused := value == "!"
			if refused {
				value = map[string]string{"SLURM_MPI_TYPE": "pmix", "NO_KILL": "1"}[name]
				if value == "" {
					value = "1"
				}
				if strings.HasSuffix(name, "MEM_BIND") {
					value = "rank"
				}
				if strings.HasSuffix(name, "GRES_FLAGS") {
					value = "enforce-binding"
				}
			}
			with, err := text(map[string]string{name: value})
			switch {
			case refused:
				if got, code := refusal(c, err); code == 0 || !strings.Contains(got, "support") || !strings.Contains(got, name+"="+value) {
					t.Errorf("%s with %s=%s: %q", c, name, value, got)
				}
			case err != nil || value != "" && with == bare:
				t.Errorf("%s with %s=%s: no difference, %v", c, name, value, err)
			}
		}
	}
	o, err := parse(slurm.Sbatch, []string{"x"}, "#!/bin/sh\n", map[string]string{"SBATCH_REQ_SWITCH": "2", "SBATCH_WAIT4SWITCH": "7"})
	if err != nil || o.Job.Topology.Switches != 2 || o.Job.Topology.Wait != 7*60*1000 {
		t.Errorf("SBATCH_WAIT4SWITCH: %+v, %v", o, err)
	}
}
