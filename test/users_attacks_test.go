package test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// strangers: what bob does to alice's job, by the commands, by the sockets, by the files and
// by the processes of the machine. All of it is refused, and the job goes on.
func (c *usersCluster) strangers(t *testing.T) {
	id := c.submit(t, c.alice, "echo secret of alice; srun --overlap -n1 sh -c 'echo inner secret; exec sleep 1000' & export MARK=alice-env; echo $$ > pid; exec sleep 1000", "-w", "n1", "-o", "private-out", "-J", "alices")
	c.runs(t, id)
	pid := strings.TrimSpace(c.file(t, c.alice, "pid"))
	c.until(t, "the step", func() bool {
		return strings.Contains(c.as(t, c.alice, "logs", id+".0").out, "inner secret")
	})
	nodes := filepath.Join("/var/spool/gangway/lab")
	run := filepath.Join(nodes, "n1", "users", strconv.Itoa(c.alice.uid))
	get := func(socket, path string, more ...string) []string {
		return append([]string{"curl", "-s", "-S", "-i", "--max-time", "10", "--unix-socket", filepath.Join(nodes, socket), "http://x" + path}, more...)
	}
	const closed = `(?i)permission denied|not permitted|only an administrator|access denied|it is alice's|is not yours|denied`
	for _, one := range []struct {
		name string
		args []string
		want string // in what it says
	}{
		{"cancel", []string{"scancel", id}, closed},
		{"cancel a step", []string{"scancel", id + ".0"}, closed},
		{"signal", []string{"scancel", "-s", "USR1", id}, closed},
		{"signal the script", []string{"scancel", "-b", "-s", "KILL", id}, closed},
		{"hold", []string{"scontrol", "hold", id}, closed},
		{"requeue", []string{"scontrol", "requeue", id}, closed},
		{"suspend by update", []string{"scontrol", "update", "JobId=" + id, "TimeLimit=1"}, closed},
		{"comment", []string{"scontrol", "update", "JobId=" + id, "Comment=bob"}, closed},
		{"read the script", []string{"scontrol", "write", "batch_script", id, "-"}, closed},
		{"read the events", []string{"show", "--events", "job", id}, closed},
		{"read the output", []string{"logs", id + ".0"}, closed},
		{"read the script's output", []string{"logs", id}, closed},
		{"what its ranks use", []string{"sstat", "-j", id + ".0"}, closed},
		{"exec", []string{"exec", id + ".0", "--", "id"}, closed},
		{"a step in it", []string{"srun", "--jobid=" + id, "--overlap", "id"}, closed},
		{"drain a node", []string{"scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=bob"}, closed},
		{"a partition", []string{"scontrol", "update", "PartitionName=main", "State=DOWN"}, closed},
		{"nice below 0", []string{"sbatch", "--nice=-10", "--wrap", "true"}, closed},
		{"precache as administrator", []string{"image", "precache", "--nodes", "n1", "busybox"}, closed},
		{"the script by the API", get("controller.sock", "/v1/jobs/"+id+"/script"), "403"},
		{"the events by the API", get("controller.sock", "/v1/jobs/"+id+"/events"), "403"},
		{"the hold of an allocation", get("controller.sock", "/v1/jobs/"+id+"/hold"), "403"},
		{"cancel by the API", get("controller.sock", "/v1/jobs/"+id, "-X", "DELETE"), "403"},
		{"cancel by the API with alice's uid in a header", get("controller.sock", "/v1/jobs/"+id, "-X", "DELETE", "-H", fmt.Sprintf("Gangway-Uid: %d", c.alice.uid), "-H", fmt.Sprintf("Gangway-Gid: %d", c.alice.gid)), "403"},
		{"end by the API", get("controller.sock", "/v1/jobs/"+id+"/end", "-X", "POST", "-d", "{}"), "403"},
		{"signal by the API with root's uid in a header", get("controller.sock", "/v1/jobs/"+id+"/signal", "-X", "POST", "-d", `{"Signal":"KILL"}`, "-H", "Gangway-Uid: 0", "-H", "Gangway-Gid: 0"), "403"},
		{"a submission with alice's uid", get("controller.sock", "/v1/jobs", "-X", "POST", "-d", `{"Spec":{"UID":`+strconv.Itoa(c.alice.uid)+`,"User":"alice","MinNodes":1,"Hold":true},"Allocation":true}`), `"ID":`},
		{"output by the agent", get("n1/agent.sock", "/v1/steps/"+id+".1.batch.1/io", "-H", "Connection: Upgrade", "-H", "Upgrade: gangway-stdio"), "403"},
		{"output by the agent with alice's uid in a header", get("n1/agent.sock", "/v1/steps/"+id+".1.0.1/io", "-H", "Connection: Upgrade", "-H", "Upgrade: gangway-stdio", "-H", fmt.Sprintf("Gangway-Uid: %d", c.alice.uid)), "403"},
		{"the list of steps", get("n1/agent.sock", "/v1/steps"), `\[\]`},
		{"the daemons' socket", []string{"curl", "-sS", "--max-time", "5", "--unix-socket", filepath.Join(c.state, "wire.sock"), "http://x/"}, "(?i)permission denied|could not connect|couldn't connect"},
		{"the run directory", []string{"/bin/ls", filepath.Join(run, "steps", id+".1.batch.1")}, closed},
		{"the list of run directories", []string{"/bin/ls", filepath.Join(run, "steps")}, closed},
		{"the specification of a step", []string{"/bin/cat", filepath.Join(run, "steps", id+".1.batch.1", "spec.json")}, closed},
		{"the step's socket", []string{"curl", "-sS", "--max-time", "5", "--unix-socket", filepath.Join(run, "steps", id+".1.batch.1", "step.sock"), "http://x/"}, "(?i)permission denied|could not connect|couldn't connect"},
		{"the output file", []string{"/bin/cat", filepath.Join(c.alice.home, "private-out")}, closed},
		{"the state directory", []string{"/bin/ls", c.state}, closed},
		{"the database", []string{"/bin/cat", filepath.Join(c.state, "gangway.db")}, closed},
		{"a directory beside hers", []string{"/bin/mkdir", filepath.Join(nodes, "n1", "users", "1")}, closed},
		{"a cluster that is announced", []string{"/bin/sh", "-c", "echo > /var/spool/gangway/clusters/lab.json"}, closed},
		{"the environment", []string{"/bin/cat", "/proc/" + pid + "/environ"}, closed},
		{"the memory", []string{"/bin/cat", "/proc/" + pid + "/mem"}, closed},
		{"the working directory", []string{"/bin/ls", "/proc/" + pid + "/cwd/"}, closed},
		{"the open files", []string{"/bin/ls", "/proc/" + pid + "/fd"}, closed},
		{"kill(2)", []string{"/bin/sh", "-c", "kill -9 " + pid}, closed},
	} {
		t.Run(one.name, func(t *testing.T) { c.attack(t, id, one.args, one.want) })
	}
	c.submissionIsBobs(t)
	c.viewOfStranger(t, id)
	if text := c.does(t, c.alice, "logs", id+".0"); !strings.Contains(text, "inner secret") {
		t.Errorf("alice's own output is %q", text)
	}
	c.does(t, c.alice, "scancel", id)
	if got := c.ends(t, id); !strings.HasPrefix(got, "CANCELLED") {
		t.Errorf("alice's job, cancelled by her: %s", got)
	}
}

// attack is one command of bob's: what it says matches, has nothing of alice's in it, and
// her job runs on.
func (c *usersCluster) attack(t *testing.T, id string, args []string, want string) {
	t.Helper()
	var cmd *exec.Cmd
	if args[0] == "curl" {
		cmd = c.command(c.bob, "/usr/bin/curl", args[1:]...)
	} else {
		cmd = c.command(c.bob, args[0], args[1:]...)
	}
	o := outcomeOf(t, cmd)
	said := o.out + o.err
	if !regexp.MustCompile(want).MatchString(said) {
		t.Errorf("exit %d, and not %s:\n%s", o.code, want, said)
	}
	for _, secret := range []string{"secret of alice", "inner secret", "alice-env", "of-alice"} {
		if strings.Contains(said, secret) {
			t.Errorf("it says %q", secret)
		}
	}
	if o := c.as(t, c.root, "squeue", "-h", "-j", id, "-o", "%T %l"); o.out != "RUNNING UNLIMITED\n" {
		t.Errorf("alice's job is %q %s", o.out, o.err)
	}
}

// submissionIsBobs: whatever uid a submission names, it is of who made it.
func (c *usersCluster) submissionIsBobs(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(c.does(t, c.root, "squeue", "-h", "-t", "PD", "-o", "%i %u")) {
		id, user, _ := strings.Cut(strings.TrimSpace(line), " ")
		if user != "bob" {
			t.Errorf("job %s is %s's", id, user)
		}
		c.does(t, c.bob, "scancel", id)
	}
}

// viewOfStranger: bob sees that alice's job is there, and the last lines of a rank of hers that
// failed nowhere.
func (c *usersCluster) viewOfStranger(t *testing.T, id string) {
	t.Helper()
	if o := c.as(t, c.bob, "squeue", "-h", "-j", id, "-o", "%j %u"); o.out != "alices alice\n" {
		t.Errorf("bob's squeue: %q %s", o.out, o.err)
	}
	failed := c.submit(t, c.alice, "srun sh -c 'echo a secret line >&2; exit 3'", "-w", "n2", "-o", "/dev/null")
	c.ends(t, failed)
	watch := func(a *account) string {
		o := outcomeOf(t, c.command(a, "/usr/bin/curl", "-sS", "--max-time", "2", "--unix-socket", "/var/spool/gangway/lab/controller.sock", "http://x/v1/watch?ids="+failed))
		return o.out
	}
	views := func(a *account) (all string) {
		for _, path := range []string{"/v1/jobs/" + failed, "/v1/jobs?ids=" + failed, "/v1/jobs/" + failed + "/steps", "/v1/jobs/" + failed + "/steps/0", "/v1/steps/" + failed + ".0", "/v1/history?ids=" + failed} {
			o := outcomeOf(t, c.command(a, "/usr/bin/curl", "-sS", "--unix-socket", "/var/spool/gangway/lab/controller.sock", "http://x"+path))
			if !json.Valid([]byte(o.out)) {
				t.Errorf("%s of %s: %s%s", path, a.name, o.out, o.err)
			}
			all += o.out
		}
		return all + watch(a)
	}
	const line = "YSBzZWNyZXQgbGluZQ" // in base64, as bytes are in JSON
	if !strings.Contains(views(c.alice), line) {
		t.Error("alice does not see the last lines of her own rank")
	}
	if text := views(c.bob); strings.Contains(text, line) || strings.Contains(text, "a secret line") {
		t.Errorf("bob sees the last lines of alice's rank:\n%s", text)
	}
	_ = os.Remove(filepath.Join(c.alice.home, "pid"))
}
