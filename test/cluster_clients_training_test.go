package test

import (
	"encoding/csv"
	"fmt"
	"regexp"
	"strings"
)

// lightning: ranks that srun starts, which know what they are by the environment; the first of
// them requeues the job when it gets USR1 before the time limit, as a task of an array by its number there.
func lightning(c *client) {
	c.script("lightning_task.sh", "task.sh")
	c.script("lightning.sh", "job.sh", "ARRAY", "")
	c.script("lightning.sh", "array.sh", "ARRAY", "--array=0-1")
	id := c.find(`job (\d+)`, c.ok("sbatch job.sh"))
	array := c.find(`job (\d+)`, c.ok("sbatch array.sh"))
	for _, one := range []string{id, array + "_0", array + "_1"} {
		c.until("the second try of "+one, func() bool {
			return c.ok("sacct -X -n -P -o State -j "+one) == "COMPLETED\n"
		})
		raw := strings.TrimSpace(c.ok("sacct -X -n -P -o JobIDRaw -j " + one))
		port := fmt.Sprint(mustNumber(c, raw[max(0, len(raw)-4):]) + 15000)
		var want []string
		root := regexp.MustCompile(`n\d:`).FindString(c.read("ranks-" + one))
		for try := range 2 {
			for rank := range 4 {
				want = append(want, fmt.Sprintf("try %d: rank %d of 4, %d on node %d, n?:%s", try, rank, rank%2, rank/2, port))
			}
		}
		c.same("the ranks", sorted(regexp.MustCompile(`n\d:`).ReplaceAllString(c.read("ranks-"+one), "n?:")), sorted(strings.Join(want, "\n")))
		if root == "" {
			c.t.Errorf("%s has no root node", one)
		}
		c.same("the requeues", c.read("requeued-"+one), "Requeued SLURM job: "+one+"\n")
		if got := strings.Count(c.read("bypassed-"+one), "Bypassing SIGTERM"); got != 4 {
			c.t.Errorf("%d ranks let TERM pass", got)
		}
		c.same("the tries", c.ok("sacct -D -X -n -P -o State -j "+one), "REQUEUED\nCOMPLETED\n")
	}
	// What runs under these names is not taken for a training.
	c.same("an allocation's name", c.ok("salloc -Q -N1 sh -c 'echo $SLURM_JOB_NAME'"), "interactive\n")
	c.same("a step's job's name", c.ok("srun --job-name=bash sh -c 'echo $SLURM_JOB_NAME'"), "bash\n")
}

func mustNumber(c *client, text string) int {
	c.t.Helper()
	n := 0
	if _, err := fmt.Sscan(text, &n); err != nil {
		c.t.Fatalf("%q is no number", text)
	}
	return n
}

// deepspeed: its launcher is one srun, within an allocation and without.
func deepspeed(c *client) {
	c.ok("which sinfo")
	c.write("train.sh", `echo "rank $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NODEID: $NCCL_IB_HCA $PYTHONPATH $UNSET_ELSEWHERE $*"`)
	want := sorted(`rank 0 of 4 on 0: mlx5 /x:/y there --deepspeed_config={"train":{"b":1}}
rank 1 of 4 on 0: mlx5 /x:/y there --deepspeed_config={"train":{"b":1}}
rank 2 of 4 on 1: mlx5 /x:/y there --deepspeed_config={"train":{"b":1}}
rank 3 of 4 on 1: mlx5 /x:/y there --deepspeed_config={"train":{"b":1}}`)
	program := ` --export=ALL,NCCL_IB_HCA=mlx5,PYTHONPATH=/x:/y bash -u ` + c.dir + `/train.sh '--deepspeed_config={"train":{"b":1}}'`
	c.same("srun", sorted(c.ok("srun -n 4 --comment 'a run' --nodelist n1,n2 --nodes 2 --gpus 4"+program, "UNSET_ELSEWHERE=there")), want)
	c.same("srun in an allocation", sorted(c.ok("salloc -Q -N2 --ntasks-per-node=2 --gres=gpu:2 srun -n 4"+program, "UNSET_ELSEWHERE=there")), want)
	c.write("fails.sh", "[ $SLURM_PROCID != 1 ] || exit 7\nsleep 600\n")
	if o := c.shell("srun -n 4 --nodes 2 --kill-on-bad-exit --export=ALL,A=b bash -u " + c.dir + "/fails.sh"); o.code != 7 || !strings.Contains(o.err, "task 1: Exited with exit code 7") {
		c.t.Errorf("a rank that fails: exit %d\n%s", o.code, o.err)
	}
	// Older ones write options that Slurm does not have.
	if o := c.shell("srun -n 4 --include n1 true"); o.code == 0 || !strings.Contains(o.err, "unrecognized option '--include'") {
		c.t.Errorf("srun --include: exit %d\n%s", o.code, o.err)
	}
}

// torchx: states by sacct with its default columns, and a retry that the job asks for itself.
func torchx(c *client) {
	submit := func(name, command string) string {
		c.script("torchx.sh", name, "COMMAND", "'"+command+"'")
		return strings.TrimSpace(c.ok("sbatch --parsable --mail-type=END --mail-user=a@example.org --chdir=" + c.dir + " " + name))
	}
	retried := submit("retried.sh", `echo "$TORCHX_JOB_ID $LOGLEVEL on $SLURM_NODEID of $SLURM_NNODES with $CUDA_VISIBLE_DEVICES"; exit $((! ${SLURM_RESTART_COUNT:-0}))`)
	bad := submit("bad.sh", "exit 4")
	cancelled := submit("cancelled.sh", "sleep 600")
	describe := func(id string) (state, name string) {
		r := csv.NewReader(strings.NewReader(c.ok("sacct --parsable2 -j " + id)))
		r.Comma = '|'
		rows, err := r.ReadAll()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, row := range rows[1:] {
			fields := map[string]string{}
			for i, text := range row {
				fields[rows[0][i]] = text
			}
			if job, _, _ := strings.Cut(fields["JobID"], "+"); job == id {
				state, name = fields["State"], fields["JobName"]
			}
		}
		return state, name
	}
	is := func(id, want string) func() bool {
		return func() bool { state, name := describe(id); return state == want && name == "trainer-0" }
	}
	c.until("the second try", is(retried, "COMPLETED"))
	c.until("the failure", is(bad, "FAILED"))
	c.until("the long one", is(cancelled, "RUNNING"))
	c.ok("scancel " + cancelled)
	c.until("the cancellation", func() bool { state, _ := describe(cancelled); return strings.HasPrefix(state, "CANCELLED") })
	line := `slurm://x/` + retried + ` WARNING on %d of 2 with \d,\d`
	c.like("the output of the last try", sorted(c.read("slurm-"+retried+"-trainer-0.out")), fmt.Sprintf(line+`\n`+line, 0, 1))
	c.like("the script's output", c.read("slurm-"+retried+".out"), `(?s).*job exited with code 0\n.*`)
	c.same("the tries of the one that fails", c.ok("sacct -D -X -n -P -o State,ExitCode -j "+bad), "REQUEUED|0:0\nFAILED|4:0\n")
	c.same("partitions", c.ok("sinfo --format %P,%m --noconvert"), "PARTITION,MEMORY\nmain*,65536\n")
	c.like("the version", c.ok("sinfo --version"), `slurm \d+\.\d+\.\d+.*\n`)
}

// nemo: scripts as TorchX has them, with steps beside each other, chains of jobs, and times.
func nemo(c *client) {
	c.script("nemo.sh", "job.sh")
	id := strings.TrimSpace(c.ok("sbatch --requeue --parsable " + c.dir + "/job.sh"))
	next := strings.TrimSpace(c.ok("sbatch --requeue --parsable --dependency=afterok:" + id + " --wrap='echo after' -A=team -p=main -o next.out"))
	c.like("squeue --start", c.ok("squeue --start --noheader -j "+next+" -o '%i|%S|%T'"), next+`\|(?:N/A|20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d)\|PENDING\n`)
	for _, one := range []string{id, next} {
		c.until("the end of "+one, func() bool {
			state := strings.TrimSpace(c.ok("squeue -j " + one + " -h -o %T"))
			return state == "" && strings.Contains(c.ok("sacct --parsable2 -j "+one), "|COMPLETED|0:0")
		})
	}
	c.like("the first try", c.read("log-team.train_"+id+"_0.out"), `(?:[0-3] of 4 at try 0\n){1,4}`) // the first that fails ends the others
	c.same("the second try", sorted(c.read("log-team.train_"+id+"_1.out")), "0 of 4 at try 1\n1 of 4 at try 1\n2 of 4 at try 1\n3 of 4 at try 1")
	c.like("the script's output", c.read("sbatch_team.train_"+id+".out"), `(?s).*job exited with code 1\n.*job exited with code 0\n.*`)
	c.same("what waited", c.read("next.out"), "after\n")
	c.same("hostnames", c.ok("scontrol show hostnames=$NODES", "NODES=n[1-2]"), "n1\nn2\n")
}

// ray: a head and workers that are steps in the background, which end with the job, or the same
// command on all nodes.
func ray(c *client) {
	c.script("ray.sh", "ray.sh")
	c.script("ray_symmetric.sh", "symmetric.sh")
	old := c.find(`job (\d+)`, c.ok("sbatch ray.sh"))
	symmetric := c.find(`job (\d+)`, c.ok("sbatch symmetric.sh"))
	c.until("both ends", func() bool {
		return c.ok("sacct -X -n -P -o State -j "+old+","+symmetric) == "COMPLETED\nCOMPLETED\n"
	})
	c.like("the old way", c.read("ray-"+old+".out"), `(?s)IP Head: [\d.:a-f]+:6379\n.*head with 4 CPUs on [\d.:a-f]+:6379\n.*the driver sees 3 nodes\n.*`)
	c.like("the new way", c.read("symmetric-"+symmetric+".out"), `entrypoint on n\d with GPU \d\n`)
	c.like("the old way's steps", c.ok("sacct -n -P -o JobID,State -j "+old), `(?s)`+old+`\|COMPLETED\n`+old+`\.batch\|COMPLETED\n`+old+`\.0\|COMPLETED\n(?:`+old+`\.\d\|CANCELLED[^|]*\n){3}`)
}

// accelerate: a launcher a node, started by an srun into the job's own allocation.
func accelerate(c *client) {
	c.script("accelerate.sh", "job.sh")
	id := c.find(`job (\d+)`, c.ok("sbatch job.sh"))
	c.until("the end", func() bool { return c.ok("sacct -X -n -P -o State -j "+id) == "COMPLETED\n" })
	line := `launch --num_processes 8 --num_machines 2 --rdzv_backend c10d --main_process_ip n\d --main_process_port 29500 --machine_rank %d train.py`
	c.like("the launchers", sorted(c.read("main_log.txt")), fmt.Sprintf(line+`\n`+line, 0, 1))
	c.same("the output", sorted(c.read("O-multinode."+id)), sorted(c.read("main_log.txt")))
	c.same("the errors", c.read("E-multinode."+id), "")
}

// monitors: what dashboards, exporters and reports ask, and how they take it apart.
func monitors(c *client) {
	id := strings.TrimSpace(c.ok("sbatch --parsable -N2 --gres=gpu:2 -t 10 -J watched --wrap='sleep 600'"))
	c.until("the job", func() bool { return strings.TrimSpace(c.ok("squeue -h -j "+id+" -o %T")) == "RUNNING" })
	// Open OnDemand: fields and records behind characters that are in no text.
	fields := []string{"Account", "JobID", "ArrayJobID", "UserName", "Name", "State", "StateCompact", "NumNodes", "TimeLimit", "TimeUsed", "NodeList", "Partition", "tres-alloc", "tres-per-node"}
	got := strings.Split(strings.TrimSuffix(c.ok("squeue --all --states=all --noconvert -h -O '"+strings.Join(fields, ":\x1F,")+":\x1F' -j "+id), "\n"), "\x1F")
	if len(got) != len(fields)+1 || got[1] != id || got[4] != "watched" || got[5] != "RUNNING" || got[7] != "2" || got[13] != "gres/gpu:2" && got[13] != "gres:gpu:2" {
		c.t.Errorf("squeue -O: %q", got)
	}
	for line := range strings.Lines(c.ok("sinfo -ho '\x1E%c\x1F%n\x1F%f'")) {
		if parts := strings.Split(strings.TrimPrefix(strings.TrimSpace(line), "\x1E"), "\x1F"); len(parts) != 3 || parts[0] != "64" {
			c.t.Errorf("sinfo: %q", line)
		}
	}
	counts := strings.Split(strings.ReplaceAll(strings.TrimSpace(c.ok("sinfo -aho %F/%C")), ",", "/"), "/")
	if len(counts) != 8 || counts[3] != "4" || counts[7] != "256" {
		c.t.Errorf("sinfo: %q", counts)
	}
	used := 0
	for line := range strings.Lines(c.ok("sinfo -ahNO nodehost:100,gres:512,gresused:512,statelong")) {
		words := strings.Fields(line)
		if len(words) != 4 || words[1] != "gpu:h100:8" {
			c.t.Fatalf("sinfo: %q", line)
		}
		used += mustNumber(c, c.find(`gpu:h100:(\d+)\(`, words[2]))
	}
	if used < 4 {
		c.t.Errorf("%d GPUs are in use", used)
	}
	// Exporters.
	c.like("squeue", c.find(`(?m)^(`+id+`\|.*)$`, c.ok("squeue -a -r -h -o '%A|%a|%T|%C'")), id+`\|[^|]*\|RUNNING\|2`)
	c.like("squeue's JSON", c.find(`(?m)^(.*"id": `+id+`,.*)$`, c.ok(`squeue --states=all -h -r -o '{"a": "%a", "id": %A, "end_time": "%e", "state": "%T", "cpu": %C, "mem": "%m"}'`)),
		`\{"a": "[^"]*", "id": `+id+`, "end_time": "20[^"]*", "state": "RUNNING", "cpu": 2, "mem": "[^"]+"\}`)
	for line := range strings.Lines(c.ok("sinfo -h -N -O NodeList,AllocMem,Memory,CPUsState,StateLong")) {
		if words := strings.Fields(line); len(words) != 5 || strings.Count(words[3], "/") != 3 {
			c.t.Errorf("sinfo: %q", line)
		}
	}
	c.ok("scancel " + id)
	c.until("the end", func() bool { return strings.HasPrefix(c.ok("sacct -X -n -P -o State -j "+id), "CANCELLED") })
	// reportseff: each field ends with the delimiter, and so does the line.
	row := strings.Split(strings.TrimSuffix(c.find(`(?m)^(`+id+`\^\|\^.*)$`, c.ok("sacct --parsable -n '--delimiter=^|^' --format=JobID,State,Elapsed,NNodes --jobs="+id)), "^|^"), "^|^")
	if len(row) != 4 || row[3] != "2" {
		c.t.Errorf("sacct: %q", row)
	}
	if !strings.Contains(c.ok("sacct --helpformat"), "ReqMem") {
		c.t.Error("sacct --helpformat knows no ReqMem")
	}
}
