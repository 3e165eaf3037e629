package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUsers is a cluster of root's daemons with two users: each job has its user's rights
// and no others, and neither user can get at the other's.
func TestUsers(t *testing.T) {
	t.Parallel()
	c := newUsersCluster(t)
	t.Run("rights", c.rights)
	t.Run("steps", c.stepsOf)
	t.Run("unknown", c.unknown)
	t.Run("strangers", c.strangers)
}

// rights: a job has exactly the ids of its user, no capability, a home and an environment of
// his, and nothing of the daemon's.
func (c *usersCluster) rights(t *testing.T) {
	for _, a := range []*account{c.alice, c.bob} {
		id := c.submit(t, a, "id -u; id -g; id -G; grep -E '^(Cap(Prm|Eff|Amb)|Uid|Gid):' /proc/self/status; echo $HOME $USER $LOGNAME $SECRET $SECRET_OF_ROOT; pwd; umask; touch made",
			"-w", "n1", "-o", "rights")
		if got := c.ends(t, id); got != "COMPLETED|0:0" {
			t.Fatalf("%s's job: %s\n%s", a.name, got, c.does(t, a, "show", "job", id))
		}
		zero := "0000000000000000"
		want := fmt.Sprintf("%d\n%d\n%d %d\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nGid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\nCapPrm:\t%[5]s\nCapEff:\t%[5]s\nCapAmb:\t%[5]s\n%[6]s %[7]s %[7]s of-%[7]s\n%[6]s\n0022\n",
			a.uid, a.gid, a.gid, labGroup, zero, a.home, a.name)
		if got := c.file(t, a, "rights"); got != want {
			t.Errorf("%s's job says\n%s, not\n%s", a.name, got, want)
		}
		for _, name := range []string{"rights", "made"} {
			if uid, gid := idsOf(t, filepath.Join(a.home, name)); uid != a.uid || gid != a.gid {
				t.Errorf("%s of %s's job is of user %d and group %d", name, a.name, uid, gid)
			}
		}
	}
	id := c.submit(t, c.root, "id -u", "-w", "n1", "-o", filepath.Join(c.dir, "root.out"))
	if got := c.ends(t, id); got != "COMPLETED|0:0" {
		t.Errorf("root's job: %s", got)
	}
	if b, err := os.ReadFile(filepath.Join(c.dir, "root.out")); err != nil || string(b) != "0\n" {
		t.Errorf("root's job says %q, %v", b, err)
	}
}

// stepsOf: steps on several nodes, and from within a job, are the user's, whose output comes
// to him.
func (c *usersCluster) stepsOf(t *testing.T) {
	if o := c.as(t, c.alice, "srun", "-N2", "-x", "n3", "sh", "-c", "id -un; id -Gn"); o.code != 0 || sorted(o.out) != "alice\nalice\nalice lab\nalice lab" && sorted(o.out) != "alice\nalice\nalice lab\nalice lab\n" {
		t.Errorf("srun: exit %d\n%s%s", o.code, o.out, o.err)
	}
	id := c.submit(t, c.bob, "srun -l id -u; squeue -h -j $SLURM_JOB_ID -o '%u %T'; scontrol show job $SLURM_JOB_ID | grep -o 'UserId=[^ ]*'", "-N2", "-x", "n3", "-o", "inner")
	if got := c.ends(t, id); got != "COMPLETED|0:0" {
		t.Errorf("bob's job: %s\n%s", got, c.does(t, c.bob, "show", "job", id))
	}
	want := fmt.Sprintf("0: %d\n1: %[1]d\nUserId=bob(%[1]d)\nbob RUNNING", c.bob.uid)
	if got := strings.TrimSpace(sorted(c.file(t, c.bob, "inner"))); got != want {
		t.Errorf("it says\n%s, not\n%s", got, want)
	}
}

// unknown: where a node does not know a user, or takes him for another, that is said, and
// the job is tried elsewhere.
func (c *usersCluster) unknown(t *testing.T) {
	for _, one := range []struct {
		a    *account
		want string
	}{
		{c.bob, fmt.Sprintf("node n3 has no user %d, who is bob where the job was submitted", c.bob.uid)},
		{c.alice, fmt.Sprintf("user %d is mallory on node n3, and alice where the job was submitted", c.alice.uid)},
	} {
		id := c.submit(t, one.a, "true", "-w", "n3", "-o", "/dev/null")
		if got := c.ends(t, id); !strings.HasPrefix(got, "FAILED|") && !strings.HasPrefix(got, "NODE_FAIL|") {
			t.Errorf("%s's job on n3: %s", one.a.name, got)
		}
		if text := c.does(t, one.a, "show", "job", id); !strings.Contains(text, one.want) {
			t.Errorf("%s is told\n%s, not %s", one.a.name, text, one.want)
		}
	}
	id := c.submit(t, c.bob, "echo $SLURMD_NODENAME", "-N1", "-x", "n2", "--requeue", "-o", "elsewhere", "--exclusive")
	if got := c.ends(t, id); got != "COMPLETED|0:0" || c.file(t, c.bob, "elsewhere") != "n1\n" {
		t.Errorf("bob's job on n1 or n3: %s", got)
	}
}

func idsOf(t *testing.T, name string) (uid, gid int) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Uid), int(st.Gid)
}
