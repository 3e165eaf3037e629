package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// liveSlurmConf wants a port, a directory, and the lines of the nodes: as it comes, for
// several slurmd of one machine.
const liveSlurmConf = `ClusterName=bench
SlurmctldHost=localhost
SlurmctldPort=%d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%[2]s
SlurmctldPidFile=%[2]s/pid
SlurmdPidFile=%[2]s/%%n.pid
SlurmdSpoolDir=%[2]s/%%n
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
MaxJobCount=200000
MaxArraySize=20001
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=1000
%[3]sPartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// startLiveSlurm starts Slurm's daemons, each node one, in a directory of their own.
func (b *bench) startLiveSlurm() (*slurmPeer, error) {
	for _, program := range []string{"slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "sinfo"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("the peer is Debian's slurmctld, slurmd and slurm-client: %w", err)
		}
	}
	p := &slurmPeer{bench: b, dir: filepath.Join(b.dir, "live-slurm")}
	ports, err := freePorts(clusterNodes + 1)
	if err != nil {
		return nil, err
	}
	var lines strings.Builder
	for n := range clusterNodes {
		fmt.Fprintf(&lines, "NodeName=n%d Port=%d NodeHostname=localhost CPUs=8\n", n+1, ports[n])
		if err := os.MkdirAll(filepath.Join(p.dir, fmt.Sprint("n", n+1)), 0o755); err != nil {
			return nil, err
		}
	}
	conf := filepath.Join(p.dir, "slurm.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, liveSlurmConf, ports[clusterNodes], p.dir, lines.String()), 0o644); err != nil {
		return nil, err
	}
	p.env = append(os.Environ(), "SLURM_CONF="+conf, "USER=root")
	if err := p.startController(); err != nil {
		return nil, err
	}
	for n := range clusterNodes {
		node := p.command("slurmd", "-D", "-N", fmt.Sprint("n", n+1))
		if err := node.Start(); err != nil {
			return p, err
		}
		p.nodes = append(p.nodes, node)
	}
	return p, p.until("idle nodes", time.Minute, func() bool {
		text, err := p.ask("sinfo", "-h", "-o", "%T %D")
		return err == nil && strings.TrimSpace(text) == fmt.Sprint("idle ", clusterNodes)
	})
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "localhost:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all of them after the last, so that none comes twice
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// submitTrue submits jobs of "true", and waits until the last has ended.
func (p *slurmPeer) submitTrue(n int) error {
	if err := p.sbatch(n, func(int) []string { return nil }); err != nil {
		return err
	}
	for {
		text, err := p.ask("squeue", "-h")
		if err != nil || text == "" {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// submitHeld submits jobs that wait.
func (p *slurmPeer) submitHeld(n int) error {
	return p.sbatch(n, func(int) []string { return []string{"-H"} })
}

// restart is how long a controller that is killed and started again takes to answer.
func (p *slurmPeer) restart() (time.Duration, error) {
	if err := p.ctl.Process.Kill(); err != nil {
		return 0, err
	}
	_ = p.ctl.Wait()
	began := time.Now()
	if err := p.startController(); err != nil {
		return 0, err
	}
	for {
		if _, err := p.ask("squeue", "-h", "-t", "R"); err == nil {
			return time.Since(began), nil
		} else if time.Since(began) > time.Minute {
			return 0, err
		}
	}
}
