package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// What the cluster is measured with.
const (
	clusterNodes = 4
	trueJobs     = 400    // of "true", from their submission to the end of the last
	heldJobs     = 10_000 // that squeue lists
)

// cluster measures a cluster of four nodes on this machine as an ordinary user has it, and
// Slurm's daemons beside it: real controllers, node daemons, commands and ranks.
func (b *bench) cluster() error {
	return b.inContainers([]string{smallImage}, func(c *containers) (err error) {
		u, err := c.startUp()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, u.stop()) }()
		s, err := b.startLiveSlurm()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stop()) }()
		for _, part := range []func(*slurmPeer) error{u.commands, u.steps, u.trueJobs, u.lists, u.killed, u.away} {
			if err := part(s); err != nil {
				return fmt.Errorf("%w\n%s", err, s.tail())
			}
		}
		return nil
	})
}

// up is a running "gangway up" of the user.
type up struct {
	*containers
	state, names string // directories of the state, and of Slurm's names
	cmd          *exec.Cmd
	log          bytes.Buffer // to be looked at when it has ended
}

func (c *containers) startUp() (*up, error) {
	u := &up{containers: c, state: filepath.Join(c.home, "state"), names: filepath.Join(c.home, "names")}
	if _, err := measure(c.asUser(c.gangway, "slurm", "install", u.names)); err != nil {
		return nil, err
	}
	u.cmd = c.asUser(c.gangway, "up", "--state-dir", u.state, "--nodes", strconv.Itoa(clusterNodes), "--cpus-per-node", "8")
	u.cmd.Stdout, u.cmd.Stderr = &u.log, &u.log
	if err := u.cmd.Start(); err != nil {
		return nil, err
	}
	_, err := u.load("answer")
	for n := 0; err == nil; n++ {
		if _, err = measure(u.slurm("srun", "-N4", "true")); err == nil {
			return u, nil
		} else if n < 20 {
			time.Sleep(100 * time.Millisecond) // the nodes are not here yet
			err = nil
		}
	}
	return nil, errors.Join(err, u.stop())
}

// stop ends the cluster as Ctrl-C does, if it has not ended.
func (u *up) stop() error {
	if u.cmd.ProcessState != nil {
		return nil
	}
	if err := u.cmd.Process.Signal(os.Interrupt); err != nil {
		return err
	}
	if err := u.cmd.Wait(); err != nil {
		return fmt.Errorf("gangway up: %w: %s", err, u.log.String())
	}
	return nil
}

// slurm is one of Slurm's commands, of ours.
func (u *up) slurm(name string, args ...string) *exec.Cmd {
	return u.asUser(append([]string{filepath.Join(u.names, name)}, args...)...)
}

// load asks the controller as the user, see loadVerb.
func (u *up) load(what string, args ...string) (time.Duration, error) {
	socket := filepath.Join(u.state, "controller.sock")
	text, err := u.asUser(append([]string{filepath.Join(u.bin, "bench"), loadVerb, what, socket}, args...)...).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", what, err, text)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(ns), err
}

// compare measures two commands in turn, so often a round, and adds a line.
func (u *up) compare(what, target string, times int, ours, peer func() (sample, error)) error {
	rounds := u.rounds
	defer func() { u.rounds = rounds }()
	u.rounds *= times
	us, them, err := u.pairs(ours, peer)
	if err != nil {
		return err
	}
	u.add(what, millis(medianWall(us)), millis(medianWall(them))+" (Slurm)", fmt.Sprintf("%.2f", ratio(us, them)), target)
	u.add("... processor time of the command", millis(medianCPU(us)), millis(medianCPU(them)), "", "")
	return nil
}

// commands measures what commands take to start.
func (u *up) commands(s *slurmPeer) error {
	for _, name := range []string{"squeue", "sbatch"} {
		err := u.compare(name+" --help", "<= 15 ms", 20,
			func() (sample, error) { return measure(u.slurm(name, "--help")) },
			func() (sample, error) { return measure(s.command(name, "--help")) })
		if err != nil {
			return err
		}
	}
	return nil
}

// steps measures what srun takes, until its first output.
func (u *up) steps(s *slurmPeer) error {
	image := "--container-image=" + u.reg.ref(smallImage)
	for _, step := range []struct {
		what, target string
		args         []string
	}{
		{"srun -N4, first output", "", nil},
		{"srun -N4 in containers (Slurm: without), first output", "<= 150 ms", []string{image}},
	} {
		err := u.compare(step.what, step.target, 10,
			func() (sample, error) {
				return firstOutput(u.slurm("srun", append(append([]string{"-N4"}, step.args...), "sh", "-c", "echo started")...))
			},
			func() (sample, error) { return firstOutput(s.command("srun", "-N4", "sh", "-c", "echo started")) })
		if err != nil {
			return err
		}
	}
	return nil
}

// firstOutput runs a command whose wall time is that until it prints something.
func firstOutput(cmd *exec.Cmd) (sample, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return sample{}, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return sample{}, err
	}
	_, first := io.ReadFull(out, make([]byte, 1))
	wall := time.Since(began)
	_, rest := io.Copy(io.Discard, out)
	if err := errors.Join(first, rest, cmd.Wait()); err != nil {
		return sample{}, fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, errs.String())
	}
	return sample{wall: wall, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}, nil
}

// trueJobs measures how many jobs a second are submitted, and run.
func (u *up) trueJobs(s *slurmPeer) error {
	var rates [2][]float64 // ours, theirs
	for range u.rounds {
		took, err := u.load("ended", strconv.Itoa(trueJobs))
		if err != nil {
			return err
		}
		rates[0] = append(rates[0], trueJobs/took.Seconds())
		began := time.Now()
		if err := s.submitTrue(trueJobs); err != nil {
			return err
		}
		rates[1] = append(rates[1], trueJobs/time.Since(began).Seconds())
	}
	ours, theirs := median(rates[0]), median(rates[1])
	u.add(fmt.Sprintf("%d jobs of true, submit to end", trueJobs), fmt.Sprintf("%.0f/s", ours), fmt.Sprintf("%.0f/s (Slurm)", theirs), fmt.Sprintf("%.2f", ours/theirs), ">= 100/s")
	return nil
}

// lists measures submissions of jobs that wait, and squeue of them.
func (u *up) lists(s *slurmPeer) error {
	took, err := u.load("held", strconv.Itoa(heldJobs))
	if err != nil {
		return err
	}
	began := time.Now()
	const few = 500
	if err := s.submitHeld(few); err != nil {
		return err
	}
	ours, theirs := heldJobs/took.Seconds(), few/time.Since(began).Seconds()
	u.add("durable submits, one connection", fmt.Sprintf("%.0f/s", ours), fmt.Sprintf("%.0f/s (sbatch, 16 at once, not durable)", theirs), fmt.Sprintf("%.1f", ours/theirs), ">= 5,000/s")
	if _, err := s.ask("sbatch", "-Q", "-H", "-o", "/dev/null", fmt.Sprintf("--array=1-%d", heldJobs-few), "--wrap=true"); err != nil {
		return err
	}
	return u.compare(fmt.Sprintf("squeue of %d jobs", heldJobs), "<= 100 ms", 5,
		func() (sample, error) { return measure(u.slurm("squeue", "-h")) },
		func() (sample, error) { return measure(s.command("squeue", "-h", "-r")) })
}

// killed measures how long it takes until a controller that is killed answers again.
func (u *up) killed(s *slurmPeer) error {
	if _, err := u.load("held", strconv.Itoa(max(u.clusterJobs-heldJobs, 1))); err != nil {
		return err
	}
	var times []time.Duration
	for range u.rounds {
		pid, err := u.controller()
		if err != nil {
			return err
		}
		resident, err := residentOf(pid)
		if err != nil {
			return err
		}
		if len(times) == 0 {
			u.add(fmt.Sprintf("memory of the controller, %d jobs", u.clusterJobs), mib(resident), "-", "", "<= 250 MB")
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
		took, err := u.load("answer")
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	theirs, err := s.restart()
	if err != nil {
		return err
	}
	u.add(fmt.Sprintf("kill -9 of the controller to its next answer, %d jobs", u.clusterJobs), millis(median(times)),
		fmt.Sprintf("%s (slurmctld, %d jobs)", millis(theirs), heldJobs), "", "<= 1,000 ms")
	return nil
}

// controller is the process of the controller.
func (u *up) controller() (int, error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range all {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 3 || filepath.Base(args[0]) != "gangwayd" || args[1] != "controller" || !strings.Contains(string(line), u.state) {
			continue
		}
		return strconv.Atoi(e.Name())
	}
	return 0, errors.New("no controller runs")
}

// away measures how long a command takes to say that no controller answers.
func (u *up) away(s *slurmPeer) error {
	if err := errors.Join(u.stop(), s.stopController()); err != nil {
		return err
	}
	ours, err := refused(u.slurm("squeue"))
	if err != nil {
		return err
	}
	theirs, err := refused(s.command("squeue"))
	if err != nil {
		return err
	}
	u.add("squeue without a controller, until it says so", millis(ours), millis(theirs)+" (Slurm)", fmt.Sprintf("%.3f", ours.Seconds()/theirs.Seconds()), "<= 1,000 ms")
	return nil
}

// refused is how long a command takes to fail.
func refused(cmd *exec.Cmd) (time.Duration, error) {
	began := time.Now()
	text, err := cmd.CombinedOutput()
	took := time.Since(began)
	if _, failed := errors.AsType[*exec.ExitError](err); !failed {
		return 0, fmt.Errorf("%s did not fail: %w: %s", cmd, err, text)
	}
	return took, nil
}
