package main

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// startRounds is how many starts of a container make a round of the others.
const startRounds = 30

// starts measures what it takes to start a container and to end it, as users see it.
func (b *bench) starts() error {
	return b.inContainers([]string{smallImage, bigImage}, func(c *containers) error {
		for _, image := range []string{smallImage, bigImage} {
			if err := c.startsOf(image); err != nil {
				return err
			}
		}
		return c.printPhases()
	})
}

func (c *containers) startsOf(image string) error {
	commands := [][]string{
		c.bwrap(c.tree(image), nil, "true"),
		{c.gangway, "version"},
		c.run(image, nil, "true"),
		c.run(image, []string{"--container-writable"}, "true"),
	}
	r, err := c.here.do(order{Run: commands, Rounds: startRounds * c.rounds})
	if err != nil {
		return err
	}
	what := map[string]string{smallImage: "5 MB", bigImage: c.kind}[image]
	for n, kind := range []string{"", ", writable"} {
		wall, cpu := r.Wall[n+2], r.CPU[n+2]
		c.add("gangway run true, "+what+" image"+kind+", p50", millis(median(wall)), millis(median(r.Wall[0]))+" (bubblewrap)",
			fmt.Sprintf("%.2f", ratioOf(wall, r.Wall[0])), "<= 15 ms, <= 3 x")
		c.add("... p95", millis(quantile(wall, 0.95)), millis(quantile(r.Wall[0], 0.95)), "", "")
		c.add("... processor time", millis(median(cpu)), millis(median(r.CPU[0])), "", "")
	}
	c.add("... of it: gangway version", millis(median(r.Wall[1])), "-", "", "")
	return nil
}

// printPhases shows where the time of a start goes.
func (c *containers) printPhases() error {
	text, err := c.asUser(c.run(bigImage, []string{"-v"}, "true")...).CombinedOutput()
	for line := range strings.Lines(string(text)) {
		log.Print("    ", strings.TrimSuffix(line, "\n"))
	}
	return err
}

// execs measures running a command in a container that runs already, whole and within
// processes that run.
func (b *bench) execs() error {
	err := b.inContainers([]string{smallImage}, func(c *containers) error {
		box, err := c.sleeping(smallImage)
		if err != nil {
			return err
		}
		r, err := c.here.do(order{Run: [][]string{
			{c.gangway, "exec", strconv.Itoa(box.Process.Pid), "--", "true"},
			c.bwrap(c.tree(smallImage), nil, "true"),
			{c.gangway, "version"},
		}, Rounds: startRounds * c.rounds})
		if err = errors.Join(err, end(box)); err != nil {
			return err
		}
		c.add("gangway exec true, p50", millis(median(r.Wall[0])), millis(median(r.Wall[1]))+" (bubblewrap, a new one)",
			fmt.Sprintf("%.2f", ratioOf(r.Wall[0], r.Wall[1])), "")
		c.add("... of it: gangway version", millis(median(r.Wall[2])), "-", "", "")
		return nil
	})
	if err != nil {
		return err
	}
	return b.withinProcess()
}

// sleeping starts a container that does nothing until its standard input ends.
func (c *containers) sleeping(image string) (*exec.Cmd, error) {
	cmd := c.asUser(c.run(image, nil, "sh", "-c", "echo started; read line")...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "started\n" {
		return nil, errors.Join(fmt.Errorf("the container says %q", line), err, in.Close(), cmd.Wait())
	}
	cmd.Cancel = in.Close // used by end
	return cmd, nil
}

func end(cmd *exec.Cmd) error {
	if err := cmd.Cancel(); err != nil {
		return err
	}
	// "read" fails at the end of its input.
	if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 1 {
		return err
	}
	return nil
}

// withinProcess runs the Go benchmarks of a start and a join, which their packages
// have as tests; where root is, these become an ordinary user.
func (b *bench) withinProcess() error {
	cmd := exec.CommandContext(b.ctx, "go", "test", "-run", "^$", "-bench", ".", "-benchtime", strconv.Itoa(100*b.rounds)+"x", "./runtime/...", "./launcher/step/...")
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") || f[3] != "ns/op" {
			continue
		}
		ns, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			return err
		}
		target := ""
		if strings.Contains(f[0], "Start") || strings.Contains(f[0], "Join") || strings.Contains(f[0], "Exec") {
			target = "<= 1.5 ms"
		}
		b.add("within a process: "+f[0]+", mean", millis(time.Duration(ns)), "-", "", target)
	}
	return err
}

// resident measures the memory of a supervisor whose container sleeps.
func (b *bench) resident() error {
	return b.inContainers([]string{bigImage}, func(c *containers) error {
		box, err := c.sleeping(bigImage)
		if err != nil {
			return err
		}
		if err := errors.Join(c.addResident("supervisor, its container sleeps", box.Process.Pid), end(box)); err != nil {
			return err
		}
		a, err := c.backings(bigImage)[0].start()
		if err != nil {
			return err
		}
		_, err = a.do(order{Run: [][]string{c.importing(), {"find", "/usr", "-size", "+0"}}})
		if err == nil {
			err = c.addResident("supervisor, after import and find", a.cmd.Process.Pid)
		}
		return errors.Join(err, a.close())
	})
}

// addResident reports what of a process is in memory, and what of that is its cache
// of blocks: the largest writable mapping that is not the Go heap's.
func (c *containers) addResident(what string, pid int) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
			sizes[f[0]], _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	cache, err := cacheResident(pid)
	if err != nil {
		return err
	}
	all := sizes["VmRSS:"] << 10
	c.add(what+": resident without the block cache", mib(all-cache), "-", "", "<= 20 MiB")
	c.add("... block cache", mib(cache), "-", "", "")
	c.add("... anonymous, with the cache; of files", mib(sizes["RssAnon:"]<<10)+", "+mib(sizes["RssFile:"]<<10), "-", "", "")
	return nil
}

func cacheResident(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var largest, rss, size int64
	candidate := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) >= 5 && strings.Contains(words[0], "-"):
			// An address of the Go heap begins with c0.
			candidate = len(words) == 5 && strings.HasPrefix(words[1], "rw") && !strings.HasPrefix(words[0], "c0")
		case candidate && words[0] == "Size:":
			size, _ = strconv.ParseInt(words[1], 10, 64)
		case candidate && words[0] == "Rss:" && size > largest && size >= 16<<10:
			rss, _ = strconv.ParseInt(words[1], 10, 64)
			largest = size
		}
	}
	return rss << 10, nil
}

// togetherStarts is how many containers start at the same time.
const togetherStarts = 16

// together measures the simultaneous starts of an image that the store has not.
func (b *bench) together() error {
	return b.inContainers([]string{smallImage}, func(c *containers) error {
		d, diff, err := c.tarLayer("together", func(w *tar.Writer) error {
			const size = 64 << 20
			if err := w.WriteHeader(&tar.Header{Name: "more", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
				return err
			}
			_, err := io.CopyN(w, rand.NewChaCha8([32]byte{6}), size)
			return err
		})
		if err != nil {
			return err
		}
		five, err := c.reg.manifest("five", "1")
		if err != nil {
			return err
		}
		first, err := c.diffID(five.Layers[0])
		if err != nil {
			return err
		}
		if err := c.reg.mount("five", "together", five.Layers[0].Digest); err != nil {
			return err
		}
		if err := c.reg.pushImage("together", "1", []descriptor{five.Layers[0], d}, []string{first, diff}); err != nil {
			return err
		}
		return c.startTogether("together:1", five.Layers[0].Size+d.Size)
	})
}

func (c *containers) startTogether(image string, size int64) error {
	for _, n := range []int{1, togetherStarts} {
		p, err := c.reg.proxy()
		if err != nil {
			return err
		}
		store, err := c.fresh(filepath.Join("user", "empty"))
		if err != nil {
			return err
		}
		var commands [][]string
		for range n {
			commands = append(commands, []string{
				c.gangway, "run", "-q", "--store", store, "--container-image=" + p.ref(image), "--", "true",
			})
		}
		r, err := c.here.do(order{Together: commands})
		if err = errors.Join(err, p.close(), os.RemoveAll(store)); err != nil {
			return err
		}
		slowest := slices.MaxFunc(r.Wall, func(a, b []time.Duration) int { return int(a[0] - b[0]) })[0]
		target := ""
		if n > 1 {
			target = "1 download"
		}
		c.add(fmt.Sprintf("%d starts at once of an image not in the store, bytes fetched / layers", n), strconv.FormatInt(p.bytes.Load(), 10),
			strconv.FormatInt(size, 10), fmt.Sprintf("%.4f", float64(p.bytes.Load())/float64(size)), target)
		c.add("... requests; time until all have ended", fmt.Sprintf("%d; %s", p.requests.Load(), seconds(slowest)), "-", "", "")
	}
	return nil
}

func quantile[T ~int64 | ~float64](list []T, q float64) T {
	list = slices.Sorted(slices.Values(list))
	return list[int(q*float64(len(list)-1)+0.5)]
}

// ratioOf is the median of the ratios of pairs.
func ratioOf(a, b []time.Duration) float64 {
	r := make([]float64, min(len(a), len(b)))
	for n := range r {
		r[n] = float64(a[n]) / float64(b[n])
	}
	return median(r)
}
