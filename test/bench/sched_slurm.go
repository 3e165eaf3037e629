package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// schedSlurm gives the same queue to Slurm's controller and to the scheduler, and compares
// what a look at all of it takes.
//
// The controller is the real one, its nodes are not: they are of the kind that is powered
// up when wanted (State=CLOUD), and never come up. Debian's emulator would stand for them
// better, but does not start: it is built for front ends and linked with a library that is not.
func (b *bench) schedSlurm() error {
	if b.slurmJobs == 0 {
		return nil
	}
	for _, program := range []string{"slurmctld", "sbatch", "scontrol", "sdiag", "squeue"} {
		if _, err := exec.LookPath(program); err != nil {
			b.add("the same queue through slurmctld", "-", "not measured: no "+program, "", "")
			return nil
		}
	}
	fill, wait := peerQueue(b.slurmNodes, b.slurmJobs)
	ours, err := planQueue(b.slurmNodes, fill, wait)
	if err != nil {
		return err
	}
	p, err := b.startSlurm()
	if err != nil {
		return err
	}
	theirs, err := p.measure(fill, wait)
	if err = errors.Join(err, p.stop()); err != nil {
		return fmt.Errorf("%w\n%s", err, p.tail())
	}
	what := fmt.Sprintf("%d nodes full, %d jobs pending: ", b.slurmNodes, b.slurmJobs)
	b.add(what+"submit all", seconds(ours.submit), seconds(theirs.submit)+" (sbatch, slurmctld 16 at once)", "", "")
	b.add("... one look at the queue", fmt.Sprintf("%s, %d jobs planned", millis(ours.plan), ours.promised),
		fmt.Sprintf("%s backfill, %d jobs tried", seconds(theirs.backfill), theirs.tried), fmt.Sprintf("%.5f", ours.plan.Seconds()/theirs.backfill.Seconds()), "")
	perJob := func(d time.Duration, n int) time.Duration { return d / time.Duration(max(n, 1)) }
	us, them := perJob(ours.plan, ours.promised), perJob(theirs.backfill, theirs.tried)
	b.add("... of it for each job", fmt.Sprintf("%.1f us", float64(us.Nanoseconds())/1e3), fmt.Sprintf("%.1f us", float64(them.Nanoseconds())/1e3),
		fmt.Sprintf("%.5f", us.Seconds()/them.Seconds()), "<= 0.1")
	b.add("... a job ends: decide anew", millis(ours.repair), millis(theirs.main)+" (main cycle, mean)", "", "")
	b.add("... pending jobs that have an expected start", strconv.Itoa(ours.promised), strconv.Itoa(theirs.promised), "", "all")
	b.add("... memory", "-", mib(theirs.memory)+" (slurmctld)", "", "")
	return nil
}

// slurmPeer is a controller that runs in a directory of its own.
type slurmPeer struct {
	bench *bench
	dir   string
	env   []string
	ctl   *exec.Cmd
	nodes []*exec.Cmd  // slurmd, where there are any
	log   bytes.Buffer // to be looked at when all have ended
}

// slurmConf wants a port, a directory, the number of jobs and the last node. A cycle of
// backfill may take two minutes; by default it would end after 30 s.
const slurmConf = `ClusterName=bench
SlurmctldHost=localhost
SlurmctldPort=%d
AuthType=auth/none
CredType=cred/none
SlurmUser=root
StateSaveLocation=%[2]s
SlurmctldPidFile=%[2]s/pid
ProctrackType=proctrack/pgid
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
TopologyPlugin=topology/tree
PrivateData=cloud
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=INFINITE
ResumeTimeout=65000
ResumeRate=0
MessageTimeout=100
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=30,bf_max_time=120,bf_max_job_test=%[3]d,bf_continue,bf_window=10080,default_queue_depth=%[3]d,defer
MaxJobCount=200000
PriorityType=priority/basic
NodeName=n[00000-%05[4]d] CPUs=128 Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=1000000 Gres=gpu:8 State=CLOUD
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

func (b *bench) startSlurm() (*slurmPeer, error) {
	p := &slurmPeer{bench: b, dir: filepath.Join(b.dir, "slurm")}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return nil, err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, err
	}
	var topology strings.Builder
	for _, s := range peerNetwork(b.slurmNodes).Switches {
		fmt.Fprintf(&topology, "SwitchName=%s", s.Name)
		if len(s.Nodes) > 0 {
			fmt.Fprintf(&topology, " Nodes=%s\n", strings.Join(s.Nodes, ","))
		} else {
			fmt.Fprintf(&topology, " Switches=%s\n", strings.Join(s.Switches, ","))
		}
	}
	for name, text := range map[string]string{
		"slurm.conf":    fmt.Sprintf(slurmConf, port, p.dir, b.slurmJobs+peerFillers, b.slurmNodes-1),
		"topology.conf": topology.String(),
		"gres.conf":     "Name=gpu Count=8\n",
	} {
		if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	p.env = append(os.Environ(), "SLURM_CONF="+filepath.Join(p.dir, "slurm.conf"))
	return p, p.startController()
}

func (p *slurmPeer) startController() error {
	p.ctl = p.command("slurmctld", "-D")
	p.ctl.Stdout, p.ctl.Stderr = &p.log, &p.log
	return p.ctl.Start()
}

func (p *slurmPeer) stop() error {
	all := []error{p.stopController()}
	for _, node := range p.nodes {
		all = append(all, interrupt(node))
	}
	return errors.Join(all...)
}

func (p *slurmPeer) stopController() error { return interrupt(p.ctl) }

// interrupt ends a daemon, if it has not ended. How it ends says nothing about what was
// measured.
func interrupt(cmd *exec.Cmd) error {
	if cmd.ProcessState != nil {
		return nil
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	end := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer end.Stop()
	_ = cmd.Wait()
	return nil
}

func (p *slurmPeer) tail() string {
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	return strings.Join(lines[max(len(lines)-5, 0):], "\n")
}

// command is one of Slurm's commands.
func (p *slurmPeer) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.bench.ctx, name, args...)
	cmd.Env, cmd.Dir = p.env, "/"
	return cmd
}

// ask runs one of Slurm's commands, and returns its output.
func (p *slurmPeer) ask(args ...string) (string, error) {
	cmd := p.command(args[0], args[1:]...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", args[0], err, errs.String())
	}
	return string(text), err
}

// until asks again and again, for so long at most.
func (p *slurmPeer) until(what string, wait time.Duration, good func() bool) error {
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if good() {
			return nil
		}
		select {
		case <-p.bench.ctx.Done():
			return p.bench.ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return fmt.Errorf("slurmctld: %s: not within %v", what, wait)
}

// measure fills the cluster, queues the others while nothing is scheduled, and then waits
// for a whole cycle.
func (p *slurmPeer) measure(fill, wait []queued) (looked, error) {
	var l looked
	if err := p.until("an answer", time.Minute, func() bool { _, err := p.ask("scontrol", "ping"); return err == nil }); err != nil {
		return l, err
	}
	if err := p.submit(fill); err != nil {
		return l, err
	}
	err := p.until("all nodes in use", 2*time.Minute, func() bool {
		left, err := p.ask("squeue", "-h", "-t", "PD")
		return err == nil && left == ""
	})
	if err != nil {
		return l, err
	}
	if _, err := p.ask("scontrol", "update", "PartitionName=main", "State=DOWN"); err != nil {
		return l, err
	}
	from := time.Now()
	if err := p.submit(wait); err != nil {
		return l, err
	}
	l.submit = time.Since(from)
	if _, err := p.ask("sdiag", "--reset"); err != nil {
		return l, err
	}
	if _, err := p.ask("scontrol", "update", "PartitionName=main", "State=UP"); err != nil {
		return l, err
	}
	var d map[string]int
	err = p.until("a cycle of backfill over the queue", 10*time.Minute, func() bool {
		text, err := p.ask("sdiag")
		d = sdiag(text)
		return err == nil && d["Backfilling stats/Last depth cycle"] > 1 && d["Main schedule statistics (microseconds)/Last queue length"] >= 0
	})
	if err != nil {
		return l, err
	}
	log.Printf("    sdiag: %v", d)
	l.backfill = time.Duration(d["Backfilling stats/Last cycle"]) * time.Microsecond
	l.tried = d["Backfilling stats/Last depth cycle (try sched)"]
	l.main = time.Duration(d["Main schedule statistics (microseconds)/Mean cycle"]) * time.Microsecond
	starts, err := p.ask("squeue", "-h", "-t", "PD", "-o", "%S")
	if err != nil {
		return l, err
	}
	l.promised = strings.Count(starts, "\n") - strings.Count(starts, "N/A")
	l.memory, err = residentOf(p.ctl.Process.Pid)
	return l, err
}

// submit hands jobs in, 16 at a time.
func (p *slurmPeer) submit(list []queued) error {
	return p.sbatch(len(list), func(i int) []string {
		q := list[i]
		return []string{
			"-N", strconv.Itoa(q.nodes), "--ntasks-per-node=1",
			"--gres=gpu:" + strconv.Itoa(q.gpus), "-t", strconv.Itoa(q.minutes),
		}
	})
}

// sbatch submits n jobs of "true", 16 at a time, with options of each.
func (p *slurmPeer) sbatch(n int, options func(i int) []string) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for w := range errs {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				_, errs[w] = p.ask(append(append([]string{"sbatch", "-Q", "-o", "/dev/null"}, options(i)...), "--wrap=true")...)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sdiag are the numbers of its output, by section and name.
func sdiag(text string) map[string]int {
	d := map[string]int{}
	section := ""
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.HasPrefix(line, "\t") {
			section = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), ":"))
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(value)); ok && err == nil {
			d[section+"/"+key] = n
		}
	}
	return d
}

// residentOf is what of a process is in memory.
func residentOf(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory", pid)
}
