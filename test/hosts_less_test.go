package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// less: in a cluster of slurm.conf a host that has less than its line says is drained, for
// Slurm's reason; one that has it, or more, is used as the line says.
func (h *hosts) less(t *testing.T) {
	conf := h.mkdir(t, "home/less")
	text := "ClusterName=x\nGresTypes=gpu\nNodeName=n1 CPUs=1000 RealMemory=99999999 Gres=gpu:8\nNodeName=n2 CPUs=1 RealMemory=100\nPartitionName=main Nodes=ALL Default=YES\n"
	if err := os.WriteFile(filepath.Join(conf, "slurm.conf"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctl := h.all[0]
	state := filepath.Join(ctl.state, "less")
	h.admin(t, "init", "--state-dir", state, "--name", "less", "--slurm-conf", conf)
	daemons := []*background{h.daemon(ctl, "", "controller", "--state-dir", state, "--listen", ctl.address+":7440")}
	waitFor(t, func() bool { return strings.Contains(daemons[0].out.String(), "controller is ready") })
	for _, one := range h.all[1:3] {
		token := h.admin(t, "token", "--state-dir", state, "--node", one.name)
		daemons = append(daemons, h.daemon(one, token+"\n", "agent", "--state-dir", filepath.Join(one.state, "less"), "--join", "-", "--controller", ctl.address+":7440", "--listen", ":7441"))
	}
	here := func(name string, args ...string) *exec.Cmd {
		cmd := h.command(name, args...)
		cmd.Env = append(cmd.Env, "GANGWAY_CLUSTER=unix:"+filepath.Join(state, "controller.sock"))
		return cmd
	}
	want := regexp.MustCompile(`^n1 drained 1000 gres/gpu count reported lower than configured \(0 < 8\), Low socket\*core\*thread count, Low CPUs, Low RealMemory \(reported:\d+ < 100\.00% of configured:99999999\)
n2 idle 1 none\n$`)
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Log("the machine has GPUs: how many there are is not looked at")
		want = regexp.MustCompile(`^n1 drained 1000 .*Low CPUs.*\nn2 idle 1 none\n$`)
	}
	got := ""
	waitFor(t, func() bool {
		got = outcomeOf(t, here("sinfo", "-h", "-N", "-o", "%N %T %c %E")).out
		return !strings.Contains(got, "unk")
	})
	if !want.MatchString(got) {
		t.Errorf("nodes are\n%s", got)
	}
	o := outcomeOf(t, here("srun", "-N1", "hostname"))
	o.want(t, 0, "n2\n", "")
	for _, d := range daemons {
		d.signal(t, syscall.SIGINT)
		waitFor(t, d.ended)
	}
}
