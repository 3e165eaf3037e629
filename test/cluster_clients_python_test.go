package test

import (
	"encoding/csv"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// submitit: an array whose state sacct tells; one of its tasks is preempted, writes a
// checkpoint and is requeued by its own task; one fails; one job is cancelled.
func submitit(c *client) {
	c.ok("which srun")
	c.script("submitit_task.sh", "task.sh")
	submit := func(file, array, log, work string) string {
		c.script("submitit.sh", file, "ARRAY", array, "LOG", log, "WORK", work)
		return c.find(`job (\d+)`, c.ok("sbatch "+c.dir+"/"+file))
	}
	array := submit("array.sh", "--array=0-3%2", "%A_%a", "short")
	long := submit("long.sh", "--array=0-0%1", "%A_%a", "long")
	fails := submit("fails.sh", "--no-requeue", "%j", "fail")
	cancelled := submit("cancelled.sh", "--no-requeue", "%j", "long")
	over := func(states map[string]string, ids ...string) bool {
		for _, id := range ids {
			switch strings.ToUpper(states[id]) {
			case "", "READY", "PENDING", "RUNNING", "UNKNOWN", "REQUEUED", "COMPLETING":
				return false
			}
		}
		return true
	}
	tasks := []string{array + "_0", array + "_1", array + "_2", array + "_3"}
	states := c.submititStates(array, long)
	for _, id := range append(tasks, long+"_0") {
		if states[id] == "" {
			c.t.Errorf("sacct knows nothing of %s: %v", id, states)
		}
	}
	// A preemption is tried as the client's users do.
	c.appears("runs_"+long+"_0", "(?s)0 runs.*1 runs|1 runs.*0 runs")
	c.appears("runs_"+cancelled, "(?s)0 runs.*1 runs|1 runs.*0 runs")
	c.ok("scancel " + long + "_0 --signal SIGTERM")
	c.appears(long+"_0_1_log.out", "Bypassing signal SIGTERM")
	c.ok("scancel " + cancelled)
	c.until("all ends", func() bool {
		states = c.submititStates(array, long, fails, cancelled)
		return over(states, append(tasks, long+"_0", fails, cancelled)...)
	})
	for _, id := range append(tasks, long+"_0") {
		c.same("the state of "+id, states[id], "COMPLETED")
		c.same("the results of "+id, sorted(c.read("result_"+id)), "result of 0 after none\nresult of 1 after none")
	}
	c.same("the state of the one that fails", states[fails], "FAILED")
	c.like("the state of the one that was cancelled", states[cancelled], `CANCELLED by \d+`)
	c.like("the log of a rank", c.read(array+"_2_1_log.out"), `JobEnvironment\(job_id=`+array+`_2, hostname=n\d, local_rank=1\(2\), node=0\(1\), global_rank=1\(2\)\)\n`)
	c.like("the errors of a rank", c.read(fails+"_0_log.err"), `a task fails\n(?s:.*)`)
	submititPreempted(c)
}

// submititPreempted: USR2, which comes before a time limit and at a preemption, ends in another
// try of the same job, which finds the checkpoint; its files go on.
func submititPreempted(c *client) {
	c.script("submitit.sh", "preempted.sh", "ARRAY", "--array=0-1%2", "LOG", "%A_%a", "WORK", "long")
	id := c.find(`job (\d+)`, c.ok("sbatch "+c.dir+"/preempted.sh")) + "_1"
	other := strings.TrimSuffix(id, "1") + "0"
	c.appears("runs_"+id, "(?s)0 runs.*1 runs|1 runs.*0 runs")
	c.ok("scancel " + id + " --signal USR2")
	c.appears("runs_"+id, "(?s)(.*runs){4}")
	c.write("stop_"+other, "")
	c.until("both ends", func() bool {
		states := c.submititStates(strings.TrimSuffix(id, "_1"))
		return states[id] == "COMPLETED" && states[other] == "COMPLETED"
	})
	c.same("the results", sorted(c.read("result_"+id)), "result of 0 after checkpoint of try 0\nresult of 1 after checkpoint of try 0")
	c.like("the log of the first rank", c.read(id+"_0_log.out"), `(?s)JobEnvironment.*Requeued job `+id+`\n.*JobEnvironment.*`)
	c.like("the log of the second", c.read(id+"_1_log.out"), `(?s)JobEnvironment.*not requeuing: procid=1\n.*JobEnvironment.*`)
}

// submititStates are the states of jobs and array tasks as submitit's watcher reads them.
func (c *client) submititStates(ids ...string) map[string]string {
	c.t.Helper()
	lines := strings.Split(strings.TrimSpace(c.ok("sacct -o JobID,State,NodeList --parsable2 -j "+strings.Join(ids, " -j "))), "\n")
	names := strings.Split(lines[0], "|")
	several := regexp.MustCompile(`(\d+)_\[((?:\d+(?:-\d+)?,?)+)(?:%\d+)?\]`)
	states := map[string]string{}
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, text := range strings.Split(line, "|") {
			row[names[i]] = strings.TrimSpace(text)
		}
		id := row["JobID"]
		if strings.Contains(id, ".") {
			continue
		}
		m := several.FindStringSubmatch(id)
		if m == nil {
			states[id] = row["State"]
			continue
		}
		for part := range strings.SplitSeq(strings.TrimSuffix(m[2], ","), ",") {
			first, last, ranged := strings.Cut(part, "-")
			if !ranged {
				last = first
			}
			from, err := strconv.Atoi(first)
			to, err2 := strconv.Atoi(last)
			if err != nil || err2 != nil {
				c.t.Fatalf("sacct: %q", line)
			}
			for n := from; n <= to; n++ {
				states[fmt.Sprintf("%s_%d", m[1], n)] = row["State"]
			}
		}
	}
	return states
}

// snakemake: jobs under the name of one run, by lines for a shell, whose states one sacct tells.
func snakemake(c *client) {
	const run = "4f2c9d3a-7b1e-4c55-9a8e-2f60d1b7c901"
	partition := ""
	for word := range strings.FieldsSeq(c.ok("sinfo -o %P")) {
		if strings.Contains(word, "*") {
			partition = strings.ReplaceAll(word, "*", "")
		}
	}
	c.same("the default partition", partition, "main")
	c.like("the account", strings.TrimSpace(strings.ReplaceAll(c.ok(`sacct -nu "$USER" -o Account%256 | head -n1`), "(null)", "")), "(?:team)?") // which only NeMo-Run's jobs have
	c.like("MinJobAge", c.find(`MinJobAge\s*=\s*(\d+)\s*sec`, c.ok("scontrol show config")), `\d+`)
	c.like("the partition", c.ok("scontrol show partition"), `(?s)PartitionName=main\n.* MaxTime=UNLIMITED .*TRES=cpu=256,mem=256G,node=4,billing=256,gres/gpu=32\n.*`)
	submit := func(rule, program string) string {
		c.ok("mkdir -p logs/rule_" + rule + "/x")
		out := c.ok("sbatch --parsable --job-name " + run + " --output '" + c.dir + "/logs/rule_" + rule + "/x/%j.log' --export=ALL --comment rule_" + rule +
			"_wildcards_x -p " + partition + " -t 5 --mem 100 --ntasks=1 --cpus-per-task=2 -D " + c.dir + ` --wrap="srun -n1 --cpu-bind=q ` + program + `"`)
		id, _, _ := strings.Cut(strings.TrimSpace(out), ";")
		return id
	}
	good := submit("good", `sh -c 'echo \"\$SLURM_CPUS_PER_TASK CPUs\"'`)
	bad := submit("bad", "sh -c 'exit 3'")
	long, other := submit("long", "sleep 600"), submit("other", "sleep 600")
	since := time.Now().Add(-48 * time.Hour).Format("2006-01-02T15:00")
	stati := func() map[string]string {
		r := csv.NewReader(strings.NewReader(c.ok("sacct -X --parsable2 --clusters all --noheader --format=JobIdRaw,State --starttime " + since + " --endtime now --name " + run)))
		r.Comma = '|'
		rows, err := r.ReadAll()
		if err != nil {
			c.t.Fatal(err)
		}
		all := map[string]string{}
		for _, row := range rows {
			all[row[0]] = strings.Fields(row[1])[0]
		}
		return all
	}
	c.until("two to end", func() bool {
		all := stati()
		return all[good] == "COMPLETED" && all[bad] == "FAILED" && all[long] == "RUNNING"
	})
	c.same("the log", c.read("logs/rule_good/x/"+good+".log"), "2 CPUs\n")
	c.like("the nodes", strings.TrimSpace(c.ok("sacct -j "+good+" -n -X -o nodelist%-256")), `n\d`)
	c.ok("scancel " + long + " " + other + " --clusters=all")
	c.until("two to be cancelled", func() bool { all := stati(); return all[long] == "CANCELLED" && all[other] == "CANCELLED" })
	queued := map[string]string{}
	for line := range strings.Lines(c.ok("squeue --format='%i|%T' --states=all --noheader --name " + run)) {
		id, state, _ := strings.Cut(strings.TrimSpace(line), "|")
		queued[id] = state
	}
	c.same("squeue", fmt.Sprint(queued), fmt.Sprint(map[string]string{good: "COMPLETED", bad: "FAILED", long: "CANCELLED", other: "CANCELLED"}))
	c.like("what was used", c.find(`(?m)^(`+good+`\|.*)$`, c.ok("sacct --name="+run+" --parsable2 --noheader --format=JobID,JobName,Comment,Elapsed,TotalCPU,NNodes,NCPUS,MaxRSS,ReqMem")),
		good+`\|`+run+`\|rule_good_wildcards_x\|00:00:\d\d\|\d\d:\d\d\.\d{3}\|1\|2\|\|100M`)
	// Jobs of one rule together, as an array.
	array, _, _ := strings.Cut(strings.TrimSpace(c.ok("printf '#!/bin/bash\ntrue $SLURM_ARRAY_TASK_ID\n' | sbatch --parsable --job-name "+run+"-array --array=1-3 --output '"+c.dir+"/logs/%A_%a.log' /dev/stdin")), ";")
	c.until("the array", func() bool {
		return strings.Count(c.ok("squeue --format='%i|%T' --states=all --noheader --name "+run+"-array"), array+"_") == 3 &&
			strings.Count(c.ok("sacct -X -n -P -o State --name "+run+"-array"), "COMPLETED") == 3
	})
}

// dask: workers that are jobs, of which only their number is kept, and a runner whose parts
// are ranks.
func dask(c *client) {
	c.ok("mkdir logs")
	c.script("dask.sh", "job.sh")
	c.script("dask_runner.sh", "runner.sh")
	number := func(out string) string { return c.find(`(\d+)`, out) }
	first, second := number(c.ok("sbatch "+c.dir+"/job.sh")), number(c.ok("sbatch "+c.dir+"/job.sh"))
	runner := number(c.ok("sbatch runner.sh"))
	c.appears("registered-"+first, " of 2\n")
	c.appears("registered-"+second, " of 2\n")
	c.ok("scancel " + first)
	c.ok("scancel " + second)
	for _, id := range []string{first, second} {
		c.appears("logs/dask-worker-"+id+".out", "worker "+id+" has left\n")
		c.same("the worker's file", c.read("registered-"+id), "")
	}
	c.ok("scancel " + first) // once more, when it is over
	c.like("what the runner's program sees", c.appears("runner-"+runner+".out", "workers of"), `2 workers of \{"address": "tcp://n\d:8786"\}\n`)
}

// toil: one program a job, by sbatch's own options, and all states by one sacct, or by scontrol.
func toil(c *client) {
	for line := range strings.SplitSeq(strings.TrimSpace(c.ok("sinfo -a -o '%P %G %l %p %c %m'")), "\n") {
		if words := strings.Split(line, " "); len(words) != 6 {
			c.t.Errorf("sinfo: %q", line)
		}
	}
	submit := func(n int, limit, program string, more ...string) string {
		line := fmt.Sprintf("sbatch %s -J toil_job_%d_x --signal=B:INT@57 --export=ALL,TOIL_VALUE=a/b --mem=100 --cpus-per-task=1 --time=0:%s -o %s/out.%%j -e %s/err.%%j '--wrap=exec %s'",
			strings.Join(more, " "), n, limit, c.dir, c.dir, program)
		words := strings.Fields(c.ok(line))
		return words[len(words)-1]
	}
	good := submit(1, "3600", `bash -c "echo $TOIL_VALUE, outer $OUTER"`)
	bad := submit(2, "3600", "false")
	killed := submit(3, "3600", `bash -c "kill -SEGV \$\$"`)
	late := submit(4, "60", `bash -c "trap \"echo interrupted; exit 5\" INT; while :; do sleep 0.1; done"`, "--gres=gpu:1", "--partition=main")
	long := submit(5, "3600", "sleep 600")
	c.until("the running job's time", func() bool {
		for line := range strings.Lines(c.ok("squeue -h --format '%i %t %M'")) {
			if words := strings.Fields(line); len(words) == 3 && words[0] == long && words[1] == "R" && regexp.MustCompile(`^\d+:\d\d$`).MatchString(words[2]) {
				return true
			}
		}
		return false
	})
	c.ok("scancel " + long)
	ids := []string{good, bad, killed, late, long}
	var got map[string]string
	c.until("all ends", func() bool {
		got = c.toilStates(ids)
		for _, id := range ids {
			if state, _, _ := strings.Cut(got[id], " "); !strings.Contains(" CANCELLED COMPLETED FAILED TIMEOUT ", " "+state+" ") {
				return false
			}
		}
		return true
	})
	want := map[string]string{good: "COMPLETED 0", bad: "FAILED 1", killed: "FAILED 139", late: "FAILED 5", long: "CANCELLED 0"}
	if got[long] == "CANCELLED 143" { // as the signal came before or after the program was there
		want[long] = got[long]
	}
	c.same("sacct's states", fmt.Sprint(got), fmt.Sprint(want))
	c.same("the output", c.read("out."+good), "a/b, outer\n")
	c.same("the output before the limit", c.read("out."+late), "interrupted\n")
	// Without accounts it asks for one record after the other.
	for _, id := range []string{good, bad, late} {
		fields := map[string]string{}
		key := ""
		for item := range strings.FieldsSeq(c.ok("scontrol show job " + id)) {
			if name, value, found := strings.Cut(item, "="); found {
				key, fields[name] = name, value
			} else {
				fields[key] += " " + item
			}
		}
		code, _, _ := strings.Cut(fields["ExitCode"], ":")
		c.same("scontrol's record", fields["JobId"]+" "+fields["JobState"]+" "+code, id+" "+got[id])
	}
}

// toilStates are states and exit codes as Toil reads them: 128 and the signal where there is one.
func (c *client) toilStates(ids []string) map[string]string {
	c.t.Helper()
	known := " BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REVOKED SPECIAL_EXIT TIMEOUT CONFIGURING COMPLETING PENDING RUNNING " +
		"RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED "
	all := map[string]string{}
	for line := range strings.Lines(c.ok("sacct -n -j " + strings.Join(ids, ",") + " --format JobIDRaw,State,ExitCode -P -S 1970-01-01")) {
		values := strings.Split(strings.TrimSpace(line), "|")
		if len(values) != 3 {
			c.t.Fatalf("sacct: %q", line)
		}
		state, _, _ := strings.Cut(values[1], " ")
		if !strings.Contains(known, " "+state+" ") {
			c.t.Fatalf("sacct: state %q", values[1])
		}
		if strings.Contains(values[0], ".") {
			continue
		}
		var code, signal int
		if _, err := fmt.Sscanf(values[2], "%d:%d", &code, &signal); err != nil {
			c.t.Fatalf("sacct: %q: %v", line, err)
		}
		if signal > 0 {
			code = 128 + signal
		}
		all[values[0]] = fmt.Sprint(state, " ", code)
	}
	return all
}
