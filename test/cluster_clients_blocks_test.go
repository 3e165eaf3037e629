package test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// nextflow: a script a task, whose end is a file beside it, and one squeue for all of them. A
// task that comes near its limit gets a signal, and can say what became of it.
func nextflow(c *client) {
	submit := func(name, limit, signal, program string) string {
		c.script("nextflow.sh", name+"/.command.run", "NAME", name, "TIME", limit, "SIGNAL", signal)
		c.write(name+"/.command.sh", program+"\n")
		return c.find(`Submitted batch job (\d+)`, c.ok("cd "+name+" && sbatch .command.run"))
	}
	good := submit("good", "00:05:00", "B:USR2@30", "echo $SLURM_CPUS_PER_TASK")
	bad := submit("bad", "00:05:00", "B:USR2@30", "exit 3")
	late := submit("late", "00:01:00", "B:USR2@57", "sleep 600")
	killed, killed2 := submit("killed", "00:05:00", "B:USR2@30", "sleep 600"), submit("killed2", "00:05:00", "B:USR2@30", "sleep 600")
	c.script("nextflow_array.sh", "array.sh")
	array := c.find(`Submitted batch job (\d+)`, c.ok("sbatch < array.sh"))
	known := " PD R CA CF CG CD F TO NF S ST PR BF "
	status := func(more string) map[string]string {
		all := map[string]string{}
		for line := range strings.Lines(c.ok("squeue --noheader -o '%i %t' " + more)) {
			words := regexp.MustCompile(`\s+`).Split(strings.TrimSuffix(line, "\n"), -1)
			if len(words) != 2 || !strings.Contains(known, " "+words[1]+" ") {
				c.t.Fatalf("squeue: %q", line)
			}
			all[words[0]] = words[1]
		}
		return all
	}
	all := "-t all -p main -u " + c.user()
	c.until("a running task", func() bool { return status(all)[killed] == "R" && status(all)[killed2] == "R" })
	if light := status("--only-job-state"); light[killed] != "R" || light[killed2] != "R" {
		c.t.Errorf("squeue --only-job-state: %v", light)
	}
	c.appears("killed/.command.begin", "begun")
	c.ok("scancel " + killed + " " + killed2)
	ends := map[string]string{
		good: "CD", bad: "F", late: "F", killed: "CA", killed2: "CA", array + "_0": "CD", array + "_1": "CD", array + "_2": "F",
	}
	c.until("all ends", func() bool {
		got := status(all)
		for id, want := range ends {
			if state := got[id]; state != want && !strings.Contains(" PD R CG ", " "+state+" ") {
				c.t.Fatalf("task %s is %q, want %s", id, state, want)
			} else if state != want {
				return false
			}
		}
		return true
	})
	for name, want := range map[string]string{"good": "0", "bad": "3", "late": "140", "killed": "143"} {
		c.same(name+"'s exit code", c.read(name+"/.exitcode"), want)
	}
	c.same("the task's output", c.read("good/.command.out"), "2\n")
	c.same("the array's output", c.read("child0/.command.out")+c.read("child1/.command.out")+c.read("child2/.command.out"), "0 of 3\n1 of 3\n2 of 3\n")
}

// parsl: blocks of nodes, with a launcher that is one srun, and states by sacct, or by squeue
// where that does not work.
func parsl(c *client) {
	if o := c.shell("sacct -X"); o.code != 0 {
		c.t.Fatalf("there is no accounting, thinks Parsl: %s", o.err)
	}
	submit := func(name, command string) string {
		c.script("parsl.sh", name, "NAME", name, "COMMAND", command)
		return c.find(`(?m)^Submitted batch job (\S*)`, c.ok("sbatch "+c.dir+"/"+name))
	}
	good := submit("parsl.block-0.1707743650.7868135", `echo worker \$SLURM_PROCID of \$SLURM_NTASKS on \$SLURM_JOB_NUM_NODES`)
	bad := submit("parsl.block-1", `exit \$SLURM_PROCID`)
	status := func(query string, ids ...string) map[string]string {
		all := map[string]string{}
		for line := range strings.Lines(c.ok(strings.ReplaceAll(query, "{0}", strings.Join(ids, ",")))) {
			if words := strings.Fields(line); len(words) > 0 {
				all[words[0]] = words[1]
			}
		}
		return all
	}
	const accounts, queue = "sacct -X --noheader --format=jobid,state%20 --job '{0}'", "squeue --noheader --format='%i %t' --job '{0}'"
	c.until("both ends", func() bool {
		all := status(accounts, good, bad)
		return all[good] == "COMPLETED" && all[bad] == "FAILED"
	})
	c.same("the block's output", sorted(c.read("parsl.block-0.1707743650.7868135.stdout")), sorted("Found cores : 64\nFound nodes : 2\nDone\n"+
		"0: worker 0 of 4 on 2\n1: worker 1 of 4 on 2\n2: worker 2 of 4 on 2\n3: worker 3 of 4 on 2"))
	c.like("the other's errors", c.read("parsl.block-1.stderr"), `(?s).*srun: error: n\d: task 3: Exited with exit code 3\n.*`)
	// Both are blocks of two nodes of their own: two of four at a time.
	long, last := submit("parsl.block-2", "sleep 600"), submit("parsl.block-3", "sleep 600")
	c.until("a running block", func() bool { return status(queue, long, last)[long] == "R" })
	c.ok("scancel " + long + " " + last)
	c.until("both to be cancelled", func() bool {
		all := status(accounts, long, last)
		return all[long] == "CANCELLED" && all[last] == "CANCELLED"
	})
	c.same("squeue of what is over", fmt.Sprint(status(queue, long, last)), "map[]") // which Parsl takes for the end
}

// psij: scripts with quoted values, and squeue -O in three columns, of all of the user's jobs.
func psij(c *client) {
	submit := func(name, export, command string) string {
		file := strings.ReplaceAll(name, " ", "-") + ".job"
		c.script("psij.sh", file, "NAME", name, "EXPORT", export, "COMMAND", command, "PATH", filepath.Dir(c.bin))
		words := strings.Fields(c.ok("sbatch "+c.dir+"/"+file, "OUTER=there"))
		return words[len(words)-1]
	}
	good := submit("a good one", "ALL", `bash -c 'echo "$PSIJ_VALUE"'`)
	clean := submit("clean", "NONE", "cat $PSIJ_NODEFILE")
	bad := submit("bad", "ALL", "false")
	long := submit("long", "ALL", "sleep 600")
	known := " BF CA CD CF CG DL F NF OOM PD PR R RD RF RH RQ SO TO RS RV SI SE ST S "
	reasons := map[string]string{}
	status := func() map[string]string {
		all := map[string]string{}
		lines := strings.Split(c.ok("squeue -O JobArrayID,StateCompact,Reason -t all --me"), "\n")
		for _, line := range lines[1:] {
			words := strings.Fields(line)
			if line == "" {
				continue
			}
			if len(words) != 3 || !strings.Contains(known, " "+words[1]+" ") {
				c.t.Fatalf("squeue: %q", line)
			}
			all[words[0]], reasons[words[0]] = words[1], words[2]
		}
		return all
	}
	c.until("three ends", func() bool {
		all := status()
		return all[good] == "CD" && all[clean] == "CD" && all[bad] == "F" && all[long] == "R"
	})
	c.same("the reason of a failure", reasons[bad], "NonZeroExitCode")
	if list := c.ok("squeue --me -o %i -h -r -t all"); !regexp.MustCompile(`(?m)^` + long + `$`).MatchString(list) {
		c.t.Errorf("squeue has no %s: %s", long, list)
	}
	c.ok("scancel -Q " + long)
	c.until("the cancellation", func() bool { return status()[long] == "CA" })
	c.ok("scancel -Q " + long) // it has ended by then
	c.ok("scancel -Q 4000000") // and that one is not known any more
	c.same("the output", c.read(good+".out"), "2 nodes, outer there\n"+strings.Repeat("a value\n", 4)+"_PSIJ_SCRIPT_DONE\n")
	c.like("the output without the outer environment", c.read(clean+".out"), `2 nodes, outer none\n(?:(?:n\d\n){8}){2}_PSIJ_SCRIPT_DONE\n`)
	c.same("exit codes", c.read(good+".ec")+c.read(clean+".ec")+c.read(bad+".ec"), "0\n0\n1\n")
}

// batchspawner: a server for one person that is a job, of which squeue tells state and host; it
// is to be known whether there is no answer or no job.
func batchspawner(c *client) {
	c.script("batchspawner.sh", "server.sh")
	id, _, _ := strings.Cut(c.ok("sbatch --parsable < server.sh", "JUPYTERHUB_API_TOKEN=secret", "OUTER=there"), ";")
	id = strings.TrimSpace(id)
	c.find(`^(\d+)$`, id)
	query := "squeue -h -j " + id + " -o '%T %B'"
	var status string
	c.until("the server", func() bool {
		status = strings.TrimSuffix(c.ok(query), "\n")
		if !regexp.MustCompile(`^(?:PENDING|CONFIGURING|RUNNING|COMPLETING)`).MatchString(status) {
			c.t.Fatalf("squeue: %q", status)
		}
		return strings.HasPrefix(status, "RUNNING")
	})
	c.like("the host", c.find(`\s+((?:[\w_-]+\.?)+)$`, status), `n\d`)
	c.same("the server's environment", c.appears("server-"+id, "\n"), "token secret, outer none\n")
	unknown := regexp.MustCompile(`slurm_load_jobs error: (?:Socket timed out on send/recv|Unable to contact slurm controller)`)
	if o := c.shell(query, "GANGWAY_CLUSTER=unix:"+c.dir+"/nobody"); o.code == 0 || !unknown.MatchString(o.err) {
		c.t.Errorf("without a controller: exit %d, %q", o.code, o.err)
	}
	if o := c.shell("squeue -h -j 4000000 -o '%T %B'"); o.code == 0 || unknown.MatchString(o.err) {
		c.t.Errorf("an unknown job: exit %d, %q", o.code, o.err)
	}
	c.ok("scancel " + id)
	c.until("the end of the server", func() bool { return c.ok(query) == "" })
	c.like("the log", c.read("jupyterhub_slurmspawner_"+id+".log"), `(?s).*/srun\n.*the server ends\n.*`)
}
