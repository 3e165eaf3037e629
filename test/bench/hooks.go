package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gangway-hpc/gangway/hooks/ldcache"
	"github.com/gangway-hpc/gangway/hooks/nvidia"
	"github.com/gangway-hpc/gangway/hooks/nvidia/fakedriver"
	"github.com/gangway-hpc/gangway/runtime/cgroup"
)

// hooks measures what GPUs and limits add to a start. The driver is none, but its files
// are as many as a real one's, for 8 GPUs.
func (b *bench) hooks() error {
	dir := filepath.Join(b.dir, "driver")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	tree := fakedriver.New(benchTB{}, fakedriver.Options{Dir: dir, GPUs: 8, Extras: true, Compat: true, Null: true})
	for _, measure := range []func(*fakedriver.Tree) error{b.driverSpec, b.loaderCache, b.controlGroup, b.hookedRuns} {
		if err := measure(tree); err != nil {
			return err
		}
	}
	return nil
}

// benchTB lets a program use what is made for tests.
type benchTB struct{ testing.TB }

// Helper implements testing.TB.
func (benchTB) Helper() {}

// Fatal implements testing.TB.
func (benchTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// repeat takes the times of something.
func repeat(n int, do func() error) ([]time.Duration, error) {
	var all []time.Duration
	for range n {
		start := time.Now()
		if err := do(); err != nil {
			return nil, err
		}
		all = append(all, time.Since(start))
	}
	return all, nil
}

func (b *bench) driverSpec(tree *fakedriver.Tree) error {
	o := nvidia.Options{Root: tree.Root}
	fresh, err := repeat(20*b.rounds, func() error {
		d, err := nvidia.Discover(b.ctx, o)
		if err == nil {
			_ = d.Spec(nvidia.Default, "")
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add("spec of 8 GPUs, uncached, p50", millis(median(fresh)), "-", "", "<= 30 ms")
	dir := filepath.Join(b.dir, "driver-cache")
	cached, err := repeat(200*b.rounds, func() error {
		d, params, err := nvidia.Cached(b.ctx, dir, o)
		if err == nil {
			_ = d.Spec(nvidia.Default, params)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add("... cached, p50", millis(median(cached)), "-", "", "<= 1 ms")
	b.add("... p99", millis(quantile(cached, 0.99)), "-", "", "")
	return nil
}

// loaderCache measures the merge with an image that has 1,000 libraries. The peer is
// ldconfig, which what does it within the container would run.
func (b *bench) loaderCache(tree *fakedriver.Tree) error {
	image := filepath.Join(b.dir, "thousand")
	lib := filepath.Join(image, "usr/lib")
	if err := errors.Join(os.MkdirAll(lib, 0o755), os.Mkdir(filepath.Join(image, "etc"), 0o755)); err != nil {
		return err
	}
	c := &ldcache.Cache{Generator: "bench"}
	for i := range 1000 {
		name := fmt.Sprintf("libbench-%c%d.so.%d", 'a'+i%26, i, i%7)
		if err := os.WriteFile(filepath.Join(lib, name), fakedriver.ELF(fakedriver.Library{Soname: name}), 0o755); err != nil {
			return err
		}
		c.Entries = append(c.Entries, ldcache.Entry{Name: name, Path: "/usr/lib/" + name, Flags: ldcache.HostFlags()})
	}
	d, err := nvidia.Discover(b.ctx, nvidia.Options{Root: tree.Root})
	if err != nil {
		return err
	}
	bytes, add := c.Bytes(), d.Entries(nvidia.Default)
	ours, err := repeat(100*b.rounds, func() error {
		_, report := ldcache.Merge(bytes, add)
		return report.Ignored
	})
	if err != nil {
		return err
	}
	peer, ratio := "-", ""
	if os.Geteuid() == 0 {
		theirs, err := repeat(5*b.rounds, func() error {
			_, err := b.command("ldconfig", "-r", image)
			return err
		})
		if err != nil {
			return err
		}
		peer, ratio = millis(median(theirs))+" (ldconfig)", fmt.Sprintf("%.3f", float64(median(ours))/float64(median(theirs)))
	}
	b.add("ld.so.cache of 1,000 entries and the driver's, p50", millis(median(ours)), peer, ratio, "<= 2 ms")
	return nil
}

// controlGroup measures what a container's group costs. The kernel makes the first entry
// after some rest wait for all processors, and those right after it not: both are measured,
// for a machine that starts containers one after the other, and one that rests.
func (b *bench) controlGroup(*fakedriver.Tree) error {
	for _, c := range []struct {
		name   string
		times  int
		rest   time.Duration
		target string
	}{
		{"control group: made, limited, entered, left, removed, p50", 100, 0, "<= 2 ms"},
		{"... after a rest of 100 ms, p50", 12, 100 * time.Millisecond, ""},
	} {
		var times []time.Duration
		for range c.times * b.rounds {
			time.Sleep(c.rest)
			one, err := repeat(1, b.oneGroup)
			if errors.Is(err, errNoGroup) {
				b.add("control group", "-", "-", "", "none to be had here")
				return nil
			}
			if err != nil {
				return err
			}
			times = append(times, one...)
		}
		b.add(c.name, millis(median(times)), "-", "", c.target)
		b.add("... p99", millis(quantile(times, 0.99)), "-", "", "")
	}
	return nil
}

func (b *bench) oneGroup() error {
	g, err := cgroup.Open(b.ctx, cgroup.Options{Instance: "bench", Name: "run-1", UID: os.Geteuid()})
	if err != nil {
		return err
	}
	if g.Rung() == cgroup.None {
		return errNoGroup
	}
	return errors.Join(g.Limit(cgroup.Limits{CPUs: 1, Memory: 1 << 30, Pids: 100}), g.Sup().Place(os.Getpid()), g.Remove(b.ctx))
}

var errNoGroup = errors.New("no control group")

// hookedRuns measures whole starts, on a machine that has the driver at its real places.
func (b *bench) hookedRuns(tree *fakedriver.Tree) error {
	if os.Geteuid() != 0 || !tree.Real {
		b.add("gangway run with hook", "-", "-", "", "needs root, who makes device nodes")
		return nil
	}
	// A real driver's parameters are in all of the kernel's proc file systems, and can be
	// mounted over; ours are in one.
	if err := os.Remove(filepath.Join(tree.Proc, "driver/nvidia/params")); err != nil {
		return err
	}
	return b.inContainers([]string{smallImage}, func(c *containers) error {
		agents := map[string]*agent{}
		end := func(err error) error {
			for _, a := range agents {
				err = errors.Join(err, a.close())
			}
			return err
		}
		for name, m := range map[string]struct {
			uid    int
			groups bool
		}{"user": {c.uid, true}, "root": {0, true}, "root without": {0, false}} {
			a, err := startAgent(c.onMachine(tree, m.uid, m.groups))
			if err != nil {
				return end(err)
			}
			agents[name] = a
		}
		return end(c.compareRuns(agents))
	})
}

// compareRuns starts containers in turn, each kind compared with one of those before.
func (c *containers) compareRuns(agents map[string]*agent) error {
	limits := []string{"--mem=1G", "--pids-limit=100", "--cpus=1"}
	hook := []string{"--gpus=1"}
	both := append(append([]string{}, hook...), limits...)
	kinds := []struct {
		name    string
		by      string
		flags   []string
		against int
	}{
		{"gangway run", "user", nil, 0},
		{"... --gpus=1", "user", hook, 0},
		{"... --gpus=1 and limits", "user", both, 0},
		{"root's gangway run, no control groups", "root without", nil, 3},
		{"... with a control group", "root", nil, 3},
		{"... --gpus=1 and limits", "root", both, 3},
	}
	times := make([][]time.Duration, len(kinds))
	for round := range 12*c.rounds + 1 {
		for i, k := range kinds {
			r, err := agents[k.by].do(order{Run: [][]string{c.run(smallImage, k.flags, "true")}})
			if err != nil {
				if round == 0 && i > 0 {
					c.add(k.name, "-", "-", "", strings.ReplaceAll(err.Error(), "\n", " "))
					continue
				}
				return err
			}
			if round > 0 {
				times[i] = append(times[i], r.Wall[0][0])
			}
		}
	}
	for i, k := range kinds {
		without := times[k.against]
		if len(times[i]) == 0 || len(without) == 0 {
			continue
		}
		if i == k.against {
			c.add(k.name+", p50", millis(median(without)), "-", "", "")
			continue
		}
		c.add(k.name+", p50", millis(median(times[i])), millis(median(without))+" (without)", fmt.Sprintf("%.2f", ratioOf(times[i], without)), "<= 1.5 x")
	}
	return nil
}

// onMachine is an agent of a user on a machine with a driver, and control groups or not.
func (c *containers) onMachine(tree *fakedriver.Tree, uid int, groups bool) *exec.Cmd {
	cmd := c.asUser("unshare", "--mount", "--propagation", "private", "--", "sh", "-e", "-c", `cd "$0"
		mkdir -p whole-proc dev/pts dev/shm sys/fs/cgroup
		mount -t proc proc whole-proc
		mount --bind proc/driver /proc/driver
		for f in null zero full random urandom tty fuse ptmx; do : > dev/$f; mount --bind /dev/$f dev/$f; done
		mount --rbind /dev/pts dev/pts
		mount --rbind /dev/shm dev/shm
		mount --rbind dev /dev
		if [ $3 = true ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
		mount --rbind sys /sys
		mount -t overlay -o lowerdir=usr:/usr overlay /usr
		exec setpriv --reuid $1 --regid $1 --clear-groups -- "$2" `+agentVerb, tree.Root, strconv.Itoa(uid), filepath.Join(c.bin, "bench"), strconv.FormatBool(groups))
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if uid == 0 {
		cmd.Env = append(cmd.Env, "GANGWAY_STORE="+filepath.Join(c.dir, "root-store"), "GANGWAY_RUNTIME_DIR="+filepath.Join(c.dir, "root-run"))
	}
	return cmd
}
